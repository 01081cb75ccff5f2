"""Watched files: every way of changing one is seen, and reading has bounds."""

import os

import pytest

from koord.util.filewatch import FileReadError, FileWatch


def test_a_change_is_reported_once(tmp_path):
    path = tmp_path / "f"
    path.write_text("a")
    watch = FileWatch(path)
    assert [watch.changed(), watch.changed()] == [True, False]
    path.write_text("longer")
    assert [watch.changed(), watch.changed()] == [True, False]


def test_a_replaced_file_of_the_same_size_and_time_is_seen(tmp_path):
    """An editor's rename changes the inode."""
    path, other = tmp_path / "f", tmp_path / "g"
    path.write_text("a")
    other.write_text("b")
    stat = path.stat()
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    watch = FileWatch(path)
    watch.changed()
    os.replace(other, path)
    assert watch.changed()


def test_a_configmap_swap_is_seen(tmp_path):
    """A ConfigMap volume swaps a link two levels up; the path itself stays the same link."""
    for version in ("v1", "v2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "f").write_text(version)
    (tmp_path / "data").symlink_to("v1")
    (tmp_path / "f").symlink_to("data/f")
    watch = FileWatch(tmp_path / "f")
    assert watch.changed()
    (tmp_path / "new").symlink_to("v2")
    os.replace(tmp_path / "new", tmp_path / "data")
    assert watch.changed()
    assert watch.read(100) == b"v2"


def test_an_absent_file_has_not_changed(tmp_path):
    """Its last contents hold until it is back."""
    path = tmp_path / "f"
    watch = FileWatch(path)
    assert not watch.changed()
    path.write_text("a")
    assert watch.changed()
    path.unlink()
    assert not watch.changed()
    path.write_text("b!")
    assert watch.changed()


def test_again_asks_for_another_look(tmp_path):
    (tmp_path / "f").touch()
    watch = FileWatch(tmp_path / "f")
    watch.changed()
    watch.again()
    assert watch.changed()


def test_reading_is_bounded(tmp_path):
    """A file of exactly the limit is read, one byte more is refused, also when it is sparse."""
    path = tmp_path / "f"
    path.write_bytes(b"x" * 10)
    assert FileWatch(path).read(10) == b"x" * 10
    with path.open("r+b") as file:
        file.truncate(1 << 30)
    with pytest.raises(FileReadError, match="larger than 10 bytes"):
        FileWatch(path).read(10)


@pytest.mark.parametrize(
    ("name", "found"),
    [("none", "No such file"), (".", "directory"), ("pipe", "not a regular file")],
)
def test_what_is_no_file_is_refused_without_waiting(tmp_path, name, found):
    """Opening a pipe would wait for a writer that never comes."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileReadError, match=found):
        FileWatch(tmp_path / name).read(10)
