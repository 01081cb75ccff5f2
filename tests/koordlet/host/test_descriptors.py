"""Kernel files that stay open between reads."""

import os
import resource

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordlet.host.errors import Hung, KernelFileError, TooLarge, Unsupported, Vanished
from koordlet.host.files import IDLE_TICKS, Descriptors, raise_nofile


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def files(tmp_path):
    """Twelve small files."""
    for number in range(12):
        (tmp_path / f"file{number}").write_text(f"{number}\n")
    return [str(tmp_path / f"file{number}") for number in range(12)]


def test_a_held_file_shows_its_present_text(tmp_path):
    """The second read opens nothing and sees what was written meanwhile."""
    path = tmp_path / "cpu.stat"
    path.write_text("1\n")
    held = Descriptors()

    assert held.read(str(path)) == b"1\n"
    path.write_text("22\n")
    assert held.read(str(path)) == b"22\n"
    assert held.stats() == (1, 1, 2, 0)
    held.close()


@pytest.mark.parametrize("size", [0, 1, 3583, 3584, 4096, 16 * 1024, 16 * 1024 + 1, 100_000])
def test_files_of_any_size_are_read_whole(tmp_path, size):
    """Large files take several reads; the result is one text."""
    path = tmp_path / "cgroup.procs"
    path.write_bytes(os.urandom(size))
    held = Descriptors()

    assert held.read(str(path)) == path.read_bytes()
    assert held.read(str(path)) == path.read_bytes()
    assert held.read_once(str(path)) == path.read_bytes()
    held.close()


def test_a_sparse_gigabyte_is_refused(tmp_path):
    """A file of that size is no kernel file; it costs neither memory nor a descriptor."""
    path = tmp_path / "memory.stat"
    path.write_bytes(b"")
    os.truncate(path, 2**30)
    held = Descriptors()
    before = open_descriptors()

    for read in (held.read, held.read_once):
        with pytest.raises(TooLarge, match="at most 4194304 bytes, found more"):
            read(str(path))

    assert open_descriptors() == before


def test_a_held_file_that_grows_too_large_is_closed(tmp_path):
    """The limit holds for later reads too."""
    path = tmp_path / "memory.stat"
    path.write_bytes(b"1\n")
    held = Descriptors()
    held.read(str(path))
    os.truncate(path, 2**30)

    with pytest.raises(TooLarge):
        held.read(str(path))
    assert held.stats().held == 0


def test_a_missing_file_shows_whether_its_group_is_there(tmp_path):
    """With its directory it is a kernel without that file; without, the group has ended."""
    held = Descriptors()

    with pytest.raises(Unsupported, match="no such file"):
        held.read(str(tmp_path / "cpu.pressure"))
    with pytest.raises(Vanished, match="it has ended"):
        held.read(str(tmp_path / "gone" / "cpu.pressure"))


def test_a_directory_is_an_error_with_a_hint(tmp_path):
    """Wrong root flags lead to directories where files should be."""
    held = Descriptors()
    before = open_descriptors()

    for read in (held.read, held.read_once):
        with pytest.raises(KernelFileError, match="check the root directory flags"):
            read(str(tmp_path))

    assert (open_descriptors(), held.stats().held) == (before, 0)


def test_the_budget_holds_and_least_recently_read_files_give_way(files):
    """A file that was not needed in the last tick is closed for a new one."""
    held = Descriptors(budget=2)
    held.read(files[0])
    held.begin_tick()
    held.read(files[1])
    held.begin_tick()
    held.read(files[2])  # closes file 0, the only one that this and the last tick did not read

    assert held.stats().held == 2
    opens = held.stats().opens
    held.read(files[1])
    held.read(files[2])
    assert held.stats().opens == opens
    held.close()


def test_reading_more_files_than_the_budget_in_turns_does_not_thrash(files):
    """As many as the budget stay open; only the others are opened in each tick."""
    held = Descriptors(budget=8)
    for _ in range(3):
        held.begin_tick()
        assert [held.read(path) for path in files] == [b"%d\n" % n for n in range(12)]
    before = held.stats().opens

    held.begin_tick()
    for path in files:
        held.read(path)

    assert held.stats().opens - before == 4
    assert held.stats().held == 8
    held.close()


def test_without_budget_nothing_is_held(files):
    """Useful on trees that are not kernel file systems, where a removed file stays readable."""
    held = Descriptors(budget=0)

    assert held.read(files[3]) == b"3\n"
    assert held.stats().held == 0
    os.unlink(files[3])
    with pytest.raises(Unsupported):
        held.read(files[3])


def test_idle_files_are_closed(files):
    """What is not read any more does not stay open for ever."""
    held = Descriptors()
    held.read(files[0])
    for _ in range(2 * IDLE_TICKS):
        held.begin_tick()
        held.read(files[1])

    assert held.stats().held == 1
    held.close()


def test_forget_closes_by_prefix(files):
    """All files of a group go at once."""
    held = Descriptors()
    for path in files:
        held.read(path)

    held.forget(files[1])  # and file10, file11

    assert held.stats().held == 9
    held.close()


def test_a_file_that_hangs_is_left_alone(files):
    """Its descriptor is not closed: another thread is still in there; no other enters again."""
    held = Descriptors()
    held.read(files[0])
    held.abandon(files[0])

    for read in (held.read, held.read_once):
        with pytest.raises(Hung, match="has not returned"):
            read(files[0])
    assert held.read(files[1]) == b"1\n"
    assert held.stats()[3] == 1


def test_an_open_that_hung_leaves_no_descriptor(tmp_path, monkeypatch):
    """When the open of a file that was given up returns at last, the file is closed at once."""
    path = tmp_path / "cpu.stat"
    path.write_text("1\n")
    held = Descriptors()
    really_open = os.open

    def slow_open(name, flags):
        held.abandon(name)
        return really_open(name, flags)

    monkeypatch.setattr(os, "open", slow_open)
    before = open_descriptors()

    with pytest.raises(Hung):
        held.read(str(path))
    assert (open_descriptors(), held.stats().held) == (before, 0)


def test_the_limit_of_open_files_is_raised_as_far_as_allowed():
    """The soft limit follows what is wanted, up to the hard limit, and is never lowered."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        assert raise_nofile(100) == 256
        assert raise_nofile(300) == 300
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (300, hard)
        if hard != resource.RLIM_INFINITY:
            assert raise_nofile(hard + 1) == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@settings(max_examples=40)
@given(
    st.integers(0, 6),
    st.lists(st.one_of(st.none(), st.integers(0, 11)), max_size=60),
)
def test_any_order_of_reads_is_right_and_within_budget(tmp_path_factory, budget, steps):
    """Whatever is read in whichever tick, texts are right and the budget is kept."""
    directory = tmp_path_factory.mktemp("files")
    for number in range(12):
        (directory / str(number)).write_text(f"{number}\n")
    before = open_descriptors()
    held = Descriptors(budget)

    for step in steps:
        if step is None:
            held.begin_tick()
        else:
            assert held.read(str(directory / str(step))) == b"%d\n" % step
        assert held.stats().held <= budget

    held.close()
    assert open_descriptors() == before
