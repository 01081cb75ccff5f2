"""A record is read as far as it can be read."""

import contextlib
import gzip

import pytest

from koordlet.replay.record_format import VERSION, InvalidRecord, LineKind, Recording, write_line

HEADER = write_line(LineKind.HEADER, VERSION, {"node": "n1"}, [])
TICKS = [write_line(LineKind.TICK, n, n, n, {}) for n in range(20)]
END = write_line(LineKind.END)


@pytest.fixture
def record(tmp_path):
    def write(*lines, cut=None):
        path = tmp_path / "record.gz"
        path.write_bytes(gzip.compress(b"".join(lines), mtime=0)[:cut])
        return path

    return write


def test_a_whole_record(record):
    """Header, lines, and that it is complete."""
    file = Recording.open(record(HEADER, *TICKS, END))

    assert file.facts == {"node": "n1"}
    assert [kind for kind, _ in file.lines()] == [LineKind.TICK] * 20
    assert (file.complete, file.problem) == (True, "")


def test_truncated_at_every_byte(record):
    """What is there is used, and that something is missing is said; never an exception."""
    whole = record(HEADER, *TICKS, END).stat().st_size
    counts = []
    for cut in range(whole):
        path = record(HEADER, *TICKS, END, cut=cut)
        with contextlib.suppress(InvalidRecord):
            file = Recording.open(path)
            counts.append(len(list(file.lines())))
            assert file.complete or file.problem
    assert (counts[0], counts[-1]) == (0, 20)
    assert counts == sorted(counts)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"[" * 100_000, "nesting too deep"),
        (b'["tick",' + b"[" * 200 + b"]" * 200 + b"]", "nesting too deep"),
        (b'["tick",' + b"[]," * 1_000_001 + b"1]", "more than 1000000 values"),
        (b'["tick",NaN]', "the number NaN"),
        (b'["tick"', "Expecting"),
        (b'["\xff"]', "can't decode"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_line_that_is_none_costs_only_itself(record, text, found):
    """With its number; the record is not whole then."""
    file = Recording.open(record(HEADER, TICKS[0], text + b"\n", TICKS[1], b"x\n", TICKS[2], END))

    assert [content for kind, content in file.lines() if kind is LineKind.TICK] == [
        [n, n, n, {}] for n in range(3)
    ]
    assert "line 3: wanted JSON, found" in file.problem
    assert found in file.problem
    assert file.problem.endswith("; and 1 more lines")
    assert not file.complete


@pytest.mark.parametrize(
    "lines",
    [
        [b"nonsense\n"],
        [b"[" * 100_000 + b"\n"],
        [b'["koordlet-record",1,' + b"[" * 900 + b"]" * 900 + b",[]]\n"],
        [TICKS[0]],
        [write_line(LineKind.HEADER)],
        [write_line(LineKind.HEADER, VERSION + 1, {}, [])],
        [write_line(LineKind.HEADER, VERSION, [1], [])],
    ],
)
def test_other_files_are_refused(record, lines):
    """With what was wanted."""
    with pytest.raises(InvalidRecord, match=f"wanted a record of version {VERSION}"):
        Recording.open(record(*lines))


def test_a_file_that_is_not_compressed(tmp_path):
    """Nor a record."""
    (tmp_path / "plain").write_bytes(HEADER)
    with pytest.raises(InvalidRecord, match="incorrect header check"):
        Recording.open(tmp_path / "plain")
    with pytest.raises(InvalidRecord, match="No such file"):
        Recording.open(tmp_path / "none")
