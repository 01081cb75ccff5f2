"""The audit log is read backwards, whatever is in its files and happens to them meanwhile."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.util.errors import OptionError
from koordlet.executor.audit.files import (
    MAX_LINE_LENGTH,
    PAGE_BYTES,
    AuditEvent,
    AuditQuery,
    AuditReader,
    encode_event,
    lines_backwards,
    parse_query,
)


def backwards(data, chunk=1 << 16):
    fd = os.memfd_create("audit")
    try:
        os.write(fd, data)
        return list(lines_backwards(fd, len(data), chunk))
    finally:
        os.close(fd)


@given(st.lists(st.binary(max_size=12) | st.just(b"")), st.integers(1, 20), st.booleans())
def test_lines_come_last_first_whatever_the_chunks_cut(lines, chunk, ends):
    """The same as splitting the whole file and turning it round; blank lines are dropped."""
    data = b"\n".join(lines) + (b"\n" if ends else b"")
    wanted = [line for line in data.split(b"\n") if line][::-1]
    assert backwards(data, chunk) == wanted


def test_an_endless_line_does_not_fill_the_memory():
    """It is cut; those around it are whole."""
    found = backwards(b"first\n" + b"x" * 20 * MAX_LINE_LENGTH + b"\nlast\n")
    assert [found[0], found[-1]] == [b"last", b"first"]
    assert max(map(len, found)) <= 2 * MAX_LINE_LENGTH


@pytest.fixture
def write(tmp_path):
    """Writes a file of events; a number is an event, bytes are a line as they are."""

    def write(name, *entries):
        lines = [
            entry + b"\n"
            if isinstance(entry, bytes)
            else encode_event(AuditEvent(reason="r", message=f"e{entry}"), 1.0)
            for entry in entries
        ]
        with (tmp_path / name).open("ab") as file:
            file.writelines(lines)

    return write


def numbers(events):
    return [int(event["message"][1:]) for event in events]


OLD, OLDER = "audit-2026-01-02-03-04-05-1.log", "audit-2026-01-02-03-04-05-0.log"


def test_files_follow_one_another(tmp_path, write):
    """The current one, then the rotated ones, newest first; other files do not count."""
    write("audit.log", 5, 6)
    write(OLD, 3, 4)
    write(OLDER, 1, 2)
    write("audit-notes.log", 9)
    write("audit-2026-01-02-03-04-05-9.log", 9)
    reader = AuditReader(tmp_path)
    assert numbers(reader.page(3)) == [6, 5, 4]
    assert not reader.ended
    assert numbers(reader.page(3)) == [3, 2, 1]
    assert reader.ended
    assert reader.page(3) == []


def test_broken_lines_are_left_out_but_count(tmp_path, write):
    """So that a file of nonsense does not hold up the response."""
    write("audit.log", 1, b"nonsense", b'{"createdAt":"2026', 2)
    reader = AuditReader(tmp_path)
    assert numbers(reader.page(3)) == [2]
    assert numbers(reader.page(3)) == [1]


def test_a_rotation_in_between_neither_repeats_nor_skips(tmp_path, write):
    """Twice rotated, with new events that are not this reader's."""
    write("audit.log", 3, 4, 5)
    write(OLDER, 1, 2)
    reader = AuditReader(tmp_path)
    assert numbers(reader.page(1)) == [5]
    os.rename(tmp_path / "audit.log", tmp_path / OLD)
    write("audit.log", 6)
    os.rename(tmp_path / "audit.log", tmp_path / "audit-2026-01-02-03-04-06-0.log")
    write("audit.log", 7)
    assert numbers(reader.page(10)) == [4, 3, 2, 1]


def test_files_that_are_removed_meanwhile_end_it(tmp_path, write):
    """What is open is read to its end."""
    write("audit.log", 3, 4)
    write(OLDER, 1)
    reader = AuditReader(tmp_path)
    assert numbers(reader.page(1)) == [4]
    for name in ("audit.log", OLDER):
        (tmp_path / name).unlink()
    assert numbers(reader.page(10)) == [3]
    assert reader.ended


def test_events_written_meanwhile_are_not_its_own(tmp_path, write):
    """A page begins where the log ended."""
    write("audit.log", 1, 2)
    reader = AuditReader(tmp_path)
    assert numbers(reader.page(1)) == [2]
    write("audit.log", 3)
    assert numbers(reader.page(10)) == [1]


def test_without_a_current_file_the_rotated_ones_are_read(tmp_path, write):
    """It is missing for a moment at each rotation."""
    write(OLD, 1)
    assert numbers(AuditReader(tmp_path).page(10)) == [1]


def test_a_missing_directory_has_no_events(tmp_path):
    """It is made with the first event."""
    reader = AuditReader(tmp_path / "none")
    assert reader.page(10) == []
    assert reader.ended


def test_a_closed_reader_holds_no_file(tmp_path, write):
    """And has ended."""
    write("audit.log", 1, 2)
    before = len(os.listdir("/proc/self/fd"))
    reader = AuditReader(tmp_path)
    reader.page(1)
    reader.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert reader.ended
    assert reader.page(1) == []


def test_a_page_is_bounded_in_bytes_too(tmp_path, write):
    """Whatever is in the file."""
    line = b'{"createdAt":"' + b"x" * 60_000 + b'"}'
    write("audit.log", *[line] * 200)
    reader = AuditReader(tmp_path)
    assert len(reader.page(2000)) <= PAGE_BYTES // 60_000 + 1
    assert not reader.ended


def test_a_query_finds_the_latest_of_a_pod_or_reason(tmp_path):
    """Latest last, as people read logs."""
    events = [
        AuditEvent(reason="CPUBurst", message="e1", namespace="shop", name="web"),
        AuditEvent(reason="evicted", message="e2", namespace="jobs", name="crunch"),
        AuditEvent(reason="CPUBurst", message="e3", namespace="jobs", name="web"),
        AuditEvent(reason="evicted", message="e4", namespace="shop", name="web"),
    ]
    (tmp_path / "audit.log").write_bytes(b"".join(encode_event(event, 1.0) for event in events))

    def find(**query):
        return numbers(parse_query(query).find(tmp_path))

    assert find() == [1, 2, 3, 4]
    assert find(lines="2") == [3, 4]
    assert find(pod="web") == [1, 3, 4]
    assert find(pod="shop/web", reason="evicted") == [4]
    assert find(reason="evicted", lines="1") == [4]


@pytest.mark.parametrize("lines", ["0", "-1", "2049", "x", "9" * 20])
def test_a_query_that_cannot_be_answered_is_explained(lines):
    """In one sentence."""
    with pytest.raises(OptionError, match="use 1 to 2048"):
        parse_query({"lines": lines})
    with pytest.raises(OptionError):
        AuditQuery(most=0)
