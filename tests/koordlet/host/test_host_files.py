"""Reading a file now and then: whatever lies at the path, it gives bytes or a clear error."""

import os
from pathlib import Path

import pytest

from koordlet.host.errors import KernelFileError, TooLarge, Unsupported, Vanished
from koordlet.host.files import MAX_BYTES, names_in, parse_file, read_file, read_head
from koordlet.host.procfiles import parse_int


def test_files_of_proc_are_read_whole():
    """The kernel gives them in pieces and says that their size is 0."""
    assert read_file(Path("/proc/meminfo")).startswith(b"MemTotal:")
    assert len(read_file(Path("/proc/self/smaps"), limit=16 * MAX_BYTES)) > 65536


def test_a_huge_sparse_file_is_refused(tmp_path):
    """Neither memory nor time is spent on it."""
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate(1 << 30)

    with pytest.raises(TooLarge, match="more than"):
        read_file(path)
    assert len(read_head(path, 100)) == 100


def test_the_limit_itself_is_allowed(tmp_path):
    """One byte more is not."""
    path = tmp_path / "file"
    path.write_bytes(b"12345")

    assert read_file(path, limit=5) == b"12345"
    with pytest.raises(TooLarge):
        read_file(path, limit=4)


def test_a_pipe_does_not_hang_the_caller(tmp_path):
    """Opening one without a writer would block for ever."""
    os.mkfifo(tmp_path / "pipe")

    assert read_file(tmp_path / "pipe") == b""


def test_missing_files(tmp_path):
    """A missing file is not supported, a missing directory has gone; one in its place is wrong."""
    with pytest.raises(Unsupported):
        read_file(tmp_path / "none")
    with pytest.raises(Vanished):
        read_file(tmp_path / "gone/none")
    with pytest.raises(KernelFileError, match="directory"):
        read_file(tmp_path)


def test_a_parser_that_refuses_names_the_file(tmp_path):
    """The message says what was wanted and what was found."""
    (tmp_path / "speed").write_text("fast\n")

    with pytest.raises(KernelFileError, match=r"speed: wanted .* found wanted one integer"):
        parse_file(tmp_path / "speed", parse_int)


def test_names_are_sorted_and_never_fail(tmp_path):
    """What cannot be listed has no names."""
    for name in "bca":
        (tmp_path / name).touch()

    assert names_in(tmp_path) == ["a", "b", "c"]
    assert names_in(tmp_path / "none") == names_in(tmp_path / "a") == []
