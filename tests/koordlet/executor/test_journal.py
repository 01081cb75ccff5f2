"""The journal: what is on disk when, and what is left of it after any damage."""

import os
import shutil
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from koord.util.ownedfiles import FileWriteError, OwnedDirectory
from koordlet.executor import journal as journals
from koordlet.executor.journal import AppendLog, Journal, JournalError, JournalRecord

BOOT = "da8d657c-8fa2-46c4-9aeb-64c0a40defa8"
PINNED = (
    3
    * b"""\
0b9ebd4e ["koordlet journal",1,"da8d657c-8fa2-46c4-9aeb-64c0a40defa8"]
"""
)


def record(place="kubepods/besteffort", original="-1", intended="50000", **more):
    return JournalRecord(
        "cpu_quota", "qos", place, 0, 4711, ("BECPUSuppress",), original, original, intended, **more
    )


def reopened(directory, boot=BOOT):
    return Journal(OwnedDirectory.open(directory), boot)


def line(text):
    return b"%08x %s\n" % (zlib.crc32(text), text)


def test_the_format_stays():
    """A newer koordlet must read what this one writes: the bytes of version 1."""
    text = b"".join(
        [
            journals.header_line(BOOT),
            journals.set_line(7, record(earlier=("1", "2"))),
            journals.update_line(7, "-1", "50000", "40000"),
            journals.drop_line(6),
        ]
    )

    assert text == PINNED + b"".join(
        [
            line(
                b'["set",7,"cpu_quota","qos","kubepods/besteffort",0,4711,["BECPUSuppress"],'
                b'"-1","-1","50000",["1","2"]]'
            ),
            line(b'["now",7,"-1","50000","40000"]'),
            line(b'["drop",6]'),
        ]
    )


def test_the_next_process_reads_what_was_written(tmp_path):
    """Every kind of change; no other user may read it."""
    journal = reopened(tmp_path)
    one, two, three = journal.begin([record("a"), record("b"), record("c")])
    journal.record(one, "-1", "50000", "40000")
    journal.revise(two, record("b", intended="7", earlier=("5",)))
    journal.drop([three])

    found = reopened(tmp_path)

    assert found.records == journal.records
    assert found.records[one].ours == ("50000", "40000")
    assert found.begin([record("d")]) == [3]  # no number that is in use
    assert os.stat(tmp_path / "journal").st_mode & 0o777 == 0o600
    assert not found.damage


def test_records_go_with_their_boot(tmp_path):
    """So did the kernel's values."""
    reopened(tmp_path).begin([record()])

    assert not reopened(tmp_path, "another-boot").records
    assert not reopened(tmp_path).records


def test_a_record_is_synced_before_it_counts(tmp_path):
    """One sync for a batch; later values need none."""
    steps = []
    journal = Journal(OwnedDirectory.open(tmp_path), BOOT, step=steps.append)
    del steps[:]

    one, _ = journal.begin([record("a"), record("b")])
    journal.record(one, "-1", "50000", "40000")

    assert steps == ["journal appended", "journal synced", "journal appended"]


def test_a_file_cut_at_any_byte_gives_what_stands_before(tmp_path):
    """Told once, and the damaged file is kept for a look."""
    journal = reopened(tmp_path)
    for number in range(3):
        journal.begin([record(f"group{number}")])
    file = tmp_path / "journal"
    data = file.read_bytes()
    ends = [end for end, byte in enumerate(data, 1) if byte == ord("\n")]
    for size in range(len(data)):
        file.write_bytes(data[:size])
        with capture_logs() as logs:
            found = reopened(tmp_path)
        whole = max(sum(end <= size for end in ends) - 3, 0)
        assert len(found.records) == whole
        clean = size == 0 or size in ends
        assert bool(found.damage) is not clean
        assert [log["event"] for log in logs] == ([] if clean else ["journal.damaged"])
        if not clean:
            assert (tmp_path / "journal.damaged").read_bytes() == data[:size]
        found.begin([record("new")])
        again = reopened(tmp_path)
        assert (len(again.records), again.damage) == (whole + 1, "")
        found.close()
        again.close()


def test_a_flipped_bit_costs_one_line(tmp_path):
    """Wherever it is, the header included; no other value comes of it."""
    journal = reopened(tmp_path)
    numbers = journal.begin([record(f"group{number}") for number in range(3)])
    file = tmp_path / "journal"
    data = bytearray(file.read_bytes())
    for at in range(len(data)):
        data[at] ^= 1 << at % 8
        contents = journals.read_journal(bytes(data))
        data[at] ^= 1 << at % 8
        assert contents.boot_id == BOOT
        assert contents.damaged >= 1
        assert len(contents.records) >= 1
        assert all(contents.records[n] == journal.records[n] for n in contents.records)
    assert len(journals.read_journal(bytes(data)).records) == len(numbers)


texts = st.text(max_size=20)


@given(
    st.builds(
        JournalRecord,
        texts,
        texts,
        texts,
        st.integers(),
        st.integers(),
        st.lists(texts, max_size=3).map(tuple),
        texts,
        texts,
        texts,
        st.lists(texts, max_size=3).map(tuple),
        texts,
    )
)
def test_a_record_is_read_as_it_was_written(written):
    """With the definition of a plugin's own kernel file or without."""
    contents = journals.read_journal(PINNED + journals.set_line(1, written))

    assert (contents.records, contents.damaged) == ({1: written}, 0)


def test_a_koordlet_without_definitions_reads_the_rest_of_a_record():
    """The definition is the last field of its line, and only where there is one."""
    plain, more = (journals.set_line(1, record(definition=text)) for text in ("", "{}"))

    assert more.split(b" ", 1)[1] == plain.split(b" ", 1)[1][:-2] + b',"{}"]\n'
    for wrong in (b"7", b"null", b"[]"):
        text = plain.split(b" ", 1)[1][:-2] + b"," + wrong + b"]"
        assert journals.read_journal(PINNED + line(text)).damaged == 1


@given(st.binary(max_size=400))
def test_anything_may_lie_there(data):
    """No text makes the reader fail."""
    assert not journals.read_journal(data).records


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5) | st.sampled_from(["set", "now", "drop"]),
        lambda inner: st.lists(inner, max_size=12),
    )
)
def test_any_line_with_a_good_checksum_may_lie_there(found):
    """Fields of the wrong type are damage, too."""
    text = journals.json.dumps(found).encode()

    journals.read_journal(PINNED + line(text))


def test_a_newer_format_is_left_alone(tmp_path):
    """Kept for the newer koordlet to put things back with; nothing of it is believed."""
    text = line(b'["koordlet journal",2,"%s","more"]' % BOOT.encode())
    (tmp_path / "journal").write_bytes(text + journals.set_line(1, record()))

    found = reopened(tmp_path)

    assert not found.records
    assert "version 2 of the format" in found.damage
    assert (tmp_path / "journal.newer").read_bytes().startswith(text)


def test_lines_that_a_newer_koordlet_adds_are_passed_over(tmp_path):
    """Kinds of lines, and fields at the end of lines."""
    more = journals.set_line(1, record()).split(b" ", 1)[1][:-2] + b',"","more"]'
    (tmp_path / "journal").write_bytes(PINNED + line(b'["seen",1,2.5]') + line(more))

    found = reopened(tmp_path)

    assert found.records == {1: record()}
    assert not found.damage


def _link(path):
    os.symlink(path.with_name("victim"), path)


def _hard_link(path):
    os.link(path.with_name("victim"), path)


def _open_to_all(path):
    shutil.copy(path.with_name("victim"), path)
    path.chmod(0o666)


def _another_users(path):
    if os.geteuid():
        pytest.skip("needs root to give a file away")
    shutil.copy(path.with_name("victim"), path)
    os.chown(path, 54321, -1)


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (os.mkdir, "something else than a regular file"),
        (os.mkfifo, "something else than a regular file"),
        (_link, "a link, which is not followed"),
        (_hard_link, "a file with 2 names"),
        (_open_to_all, "mode 0666, which lets other users write there"),
        (_another_users, "user 54321 as its owner"),
    ],
)
def test_a_journal_that_another_user_could_have_made_is_refused_and_left(tmp_path, make, found):
    """None of its records counts, nothing can be begun, and what it leads to stays as it is."""
    (tmp_path / "victim").write_bytes(PINNED)
    make(tmp_path / "journal")
    before = os.lstat(tmp_path / "journal")

    journal = reopened(tmp_path)

    assert f"{tmp_path}/journal: wanted what only root" in journal.problem
    assert found in journal.problem
    assert not journal.records
    with pytest.raises(JournalError, match="/journal: "):
        journal.begin([record()])
    assert os.lstat(tmp_path / "journal").st_ino == before.st_ino
    assert (tmp_path / "victim").read_bytes() == PINNED


def test_garbage_is_compacted(tmp_path):
    """The file does not grow with the number of changes."""
    journal = reopened(tmp_path)
    [number] = journal.begin([record()])
    for value in range(10_000):
        journal.record(number, "-1", str(value), str(value + 1))
        assert journal.size < 200_000

    assert reopened(tmp_path).records[number].ours == ("9999", "10000")


def test_a_full_journal_refuses_and_says_so(tmp_path, monkeypatch):
    """All of a batch or nothing of it."""
    monkeypatch.setattr(journals, "MAX_RECORDS", 3)
    journal = reopened(tmp_path)
    journal.begin([record("a"), record("b")])

    with pytest.raises(JournalError, match="journal full: 2 values are changed, 3 are the most"):
        journal.begin([record("c"), record("d")])

    assert len(journal.records) == 2
    assert len(reopened(tmp_path).records) == 2
    journal.begin([record("c")])


def test_a_write_that_is_cut_short_leaves_no_half_line(tmp_path, monkeypatch):
    """As on a disk that fills up; what comes later is whole again."""
    journal = reopened(tmp_path)
    journal.begin([record("a")])
    write = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda fd, data: write(fd, data[:20]))
        with pytest.raises(JournalError, match="free some space"):
            journal.begin([record("b")])
        assert "free some space" in journal.problem
        full.setattr(os, "ftruncate", lambda fd, size: write(-1, b""))
        with pytest.raises(JournalError):
            journal.begin([record("c")])
    journal.begin([record("d")])

    assert not journal.problem
    assert [one.place for one in reopened(tmp_path).records.values()] == ["a", "d"]


def test_what_cannot_be_compacted_goes_on_growing(tmp_path, monkeypatch):
    """A full disk is no reason to lose what stands there."""
    journal = reopened(tmp_path)
    [number] = journal.begin([record()])

    def refuse(log, data):
        raise FileWriteError(log.path, OSError(28, "No space left on device"))

    monkeypatch.setattr(AppendLog, "replace", refuse)
    with capture_logs() as logs:
        for value in range(3000):
            journal.record(number, "-1", str(value), str(value + 1))

    assert [log["event"] for log in logs] == ["journal.not_compacted"]
    monkeypatch.undo()
    assert reopened(tmp_path).records[number].ours == ("2999", "3000")


def test_without_a_directory_it_is_kept_in_memory():
    """For tests and what-if."""
    journal = Journal(None, "")

    journal.drop(journal.begin([record()]))

    assert not journal.records
