"""Atomic writes: the new file or the old one, and a reason when it did not work."""

import errno
import os
import stat

import pytest

from koord.util.ownedfiles import FileWriteError, write_atomic


def test_replaces_a_file_with_the_asked_mode(tmp_path):
    """Neither the umask nor the old file's mode matter."""
    path = tmp_path / "nodemetric.json"
    path.write_bytes(b"old")
    path.chmod(0o777)
    old_mask = os.umask(0o077)
    try:
        write_atomic(path, b"new" * 100_000)
    finally:
        os.umask(old_mask)
    assert path.read_bytes() == b"new" * 100_000
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["nodemetric.json"]


def test_a_reader_keeps_the_old_file(tmp_path):
    """Who has the file open reads the old contents to the end."""
    path = tmp_path / "f"
    write_atomic(path, b"old")
    with path.open("rb") as reader:
        write_atomic(path, b"new")
        assert reader.read() == b"old"


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    """The message names path, reason and remedy; nothing is left behind."""
    path = tmp_path / "f"
    write_atomic(path, b"old")

    def full(fd: int, data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(FileWriteError, match="No space left on device; free some space") as caught:
        write_atomic(path, b"new")
    monkeypatch.undo()
    assert caught.value.errno == errno.ENOSPC
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]


def test_short_writes_are_completed(tmp_path, monkeypatch):
    """The kernel may take less than it was given."""
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, bytes(data[:7])))
    write_atomic(tmp_path / "f", b"0123456789" * 10)
    monkeypatch.undo()
    assert (tmp_path / "f").read_bytes() == b"0123456789" * 10


@pytest.mark.parametrize(
    ("name", "hint"),
    [("none/f", "create the directory"), ("file/f", "choose a path in a directory")],
)
def test_an_impossible_path_is_explained(tmp_path, name, hint):
    (tmp_path / "file").touch()
    with pytest.raises(FileWriteError, match=hint):
        write_atomic(tmp_path / name, b"x")


def test_a_directory_is_not_replaced(tmp_path):
    (tmp_path / "d").mkdir()
    with pytest.raises(FileWriteError, match="directory"):
        write_atomic(tmp_path / "d", b"x")
    assert os.listdir(tmp_path) == ["d"]


def test_a_planted_link_is_not_followed(tmp_path):
    """A link under the temporary name cannot redirect the write."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / ".f.tmp").symlink_to(victim)
    write_atomic(tmp_path / "f", b"x")
    assert victim.read_bytes() == b"precious"
    assert not (tmp_path / "f").is_symlink()


def test_what_a_crash_left_behind_is_overwritten(tmp_path):
    (tmp_path / ".f.tmp").write_bytes(b"half of something longer")
    write_atomic(tmp_path / "f", b"x")
    assert os.listdir(tmp_path) == ["f"]
    assert (tmp_path / "f").read_bytes() == b"x"
