"""Directories and files that no other user can change; all others are refused and left."""

import os
import stat
import tempfile
from pathlib import Path

import pytest

from koord.util.errors import UnsafeFile
from koord.util.filewatch import FileReadError
from koord.util.ownedfiles import FileWriteError, OwnedDirectory

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")
ANOTHER = 54321  # a user


def refused(path, found, **how):
    with pytest.raises(
        UnsafeFile, match="wanted what only root and this user can change"
    ) as caught:
        OwnedDirectory.open(path, **how)
    assert found in str(caught.value)
    return str(caught.value)


def test_what_is_missing_is_made_for_the_owner_and_group(tmp_path):
    """Whatever the umask lets through."""
    before = os.umask(0)
    try:
        directory = OwnedDirectory.open(tmp_path / "a" / "b")
    finally:
        os.umask(before)

    assert directory.path == tmp_path / "a" / "b"
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a", tmp_path / "a" / "b")}
    assert modes == {0o750}


def test_nothing_is_made_unless_asked(tmp_path):
    with pytest.raises(FileNotFoundError):
        OwnedDirectory.open(tmp_path / "a", create=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("mode", [0o1777, 0o777, 0o770, 0o720, 0o702])
def test_a_directory_that_others_may_write_to_is_refused(tmp_path, mode):
    """Sticky or not: files in it would be theirs."""
    tmp_path.chmod(mode)

    message = refused(tmp_path, f"mode {mode:04o}")

    assert message.startswith(f"{tmp_path}: ")
    assert "chmod go-w" in message


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_so_is_one_below_such_a_directory(tmp_path, mode):
    """It could be renamed, and another one put in its place."""
    (tmp_path / "open" / "a").mkdir(parents=True)
    (tmp_path / "open").chmod(mode)

    assert refused(tmp_path / "open" / "a", f"mode {mode:04o}").startswith(f"{tmp_path}/open: ")
    assert refused(tmp_path / "open" / "new", f"mode {mode:04o}")
    assert not (tmp_path / "open" / "new").exists()


def test_below_a_sticky_directory_our_own_is_safe(tmp_path):
    """As in /tmp, where no other user can rename it."""
    tmp_path.chmod(0o1777)

    OwnedDirectory.open(tmp_path / "ours").close()


def test_a_directory_above_may_be_a_groups_where_that_is_said(tmp_path):
    """As /var/log is on some hosts; all the world's it may not be."""
    tmp_path.chmod(0o775)
    refused(tmp_path / "log", "mode 0775")

    OwnedDirectory.open(tmp_path / "log", shared_parents=True).close()

    tmp_path.chmod(0o777)
    refused(tmp_path / "log", "mode 0777", shared_parents=True)
    tmp_path.chmod(0o755)
    (tmp_path / "log").chmod(0o770)
    refused(tmp_path / "log", "mode 0770", shared_parents=True)


def test_a_link_in_the_last_step_is_refused(tmp_path):
    """Also one that leads to a safe directory."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")

    refused(tmp_path / "link", "a link, which is not followed")

    assert not list((tmp_path / "real").iterdir())


@pytest.mark.parametrize("target", ["real", "../{}/real", "/{}/real", "a/../real/."])
def test_our_own_links_on_the_way_are_followed(tmp_path, target):
    """As /var/run is one."""
    (tmp_path / "real").mkdir()
    (tmp_path / "a").mkdir()
    name = str(tmp_path).strip("/") if target.startswith("/") else tmp_path.name
    (tmp_path / "link").symlink_to(target.format(name))

    (OwnedDirectory.open(tmp_path / "link" / "b") / "f").write(b"x")

    assert (tmp_path / "real" / "b" / "f").read_bytes() == b"x"


def test_what_a_link_leads_to_is_looked_at_as_well(tmp_path):
    """Its own directories above are part of the way."""
    (tmp_path / "open" / "real" / "b").mkdir(parents=True)
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to("open/real")

    refused(tmp_path / "link" / "b", "mode 0777")


def test_links_in_a_circle_end(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")

    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        OwnedDirectory.open(tmp_path / "a" / "c")


@root_only
def test_another_users_directory_or_link_is_refused(tmp_path):
    """Wherever on the way it is."""
    (tmp_path / "theirs" / "a").mkdir(parents=True)
    (tmp_path / "ours").mkdir()
    (tmp_path / "link").symlink_to("ours")
    os.chown(tmp_path / "theirs", ANOTHER, -1)
    os.lchown(tmp_path / "link", ANOTHER, -1)

    for path in ("theirs", "theirs/a", "link/a"):
        refused(tmp_path / path, f"user {ANOTHER} as its owner")


def test_a_file_stands_in_the_way(tmp_path):
    (tmp_path / "file").write_text("x")

    refused(tmp_path / "file", "in place of a directory")
    refused(tmp_path / "file" / "a", "in place of a directory")


@pytest.fixture
def place():
    """A directory for the daemon, with a file of root beside it that must stay as it is."""
    with tempfile.TemporaryDirectory() as path:
        (Path(path) / "victim").write_text("5\n")
        (Path(path) / "victim").chmod(0o600)
        yield OwnedDirectory.open(Path(path) / "run")
        assert (Path(path) / "victim").read_text() == "5\n"


def _link(path):
    path.symlink_to("../victim")


def _hard_link(path):
    path.hardlink_to(path.parent.parent / "victim")


def _open_to_all(path):
    path.write_text("planted")
    path.chmod(0o602)


def _given_away(path):
    path.write_text("planted")
    os.chown(path, ANOTHER, -1)


PLANTED = [
    pytest.param(_link, "a link, which is not followed", id="link"),
    pytest.param(_hard_link, "a file with 2 names", id="hard link"),
    pytest.param(_open_to_all, "mode 0602", id="writable by all"),
    pytest.param(os.mkfifo, "something else than a regular file", id="fifo"),
    pytest.param(os.mkdir, "something else than a regular file", id="directory"),
    pytest.param(_given_away, f"user {ANOTHER} as its owner", id="another user's", marks=root_only),
]


@pytest.mark.parametrize(("plant", "found"), PLANTED)
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDONLY | os.O_CREAT | os.O_TRUNC])
def test_a_planted_file_is_neither_read_nor_written(place, plant, found, flags):
    """Not even truncated, when that is asked for."""
    file = place / "journal"
    plant(file.path)
    before = os.lstat(file.path)
    if stat.S_ISDIR(before.st_mode):
        flags &= ~os.O_CREAT

    with pytest.raises(
        UnsafeFile, match="wanted what only root and this user can change"
    ) as caught:
        os.close(file.open(flags))

    assert str(caught.value).startswith(f"{file}: ")
    assert found in str(caught.value)
    after = os.lstat(file.path)
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (
        before.st_ino,
        before.st_size,
        before.st_mtime_ns,
    )
    with pytest.raises(UnsafeFile):
        file.read(100)


@pytest.mark.parametrize(("plant", "found"), PLANTED)
def test_writing_puts_a_new_file_in_its_place(place, plant, found):
    """The name is ours: what stood there is not opened. Only a directory cannot be replaced."""
    file = place / "nodemetric.json"
    plant(file.path)
    if file.path.is_dir():
        with pytest.raises(FileWriteError, match="directory"):
            file.write(b"new")
        return

    file.write(b"new")

    assert file.read(10) == b"new"
    assert stat.S_IMODE(os.lstat(file.path).st_mode) == 0o640


def test_reading_is_bounded_and_absence_is_no_error(place):
    file = place / "f"
    assert file.read(3) is None
    assert not file.exists()
    file.write(b"1234")

    assert file.read(4) == b"1234"
    with pytest.raises(FileReadError, match="larger than 3 bytes"):
        file.read(3)


def test_a_directory_that_is_swapped_changes_nothing(place):
    """Files are opened in the directory that was checked, whatever has its path by now."""
    (place / "f").write(b"ours")
    elsewhere = place.path.with_name("elsewhere")
    place.path.rename(elsewhere)
    place.path.mkdir()
    (place.path / "f").write_bytes(b"planted")

    assert (place / "f").read(10) == b"ours"
    (place / "g").write(b"new")
    assert place.names() == ["f", "g"]
    assert (elsewhere / "g").exists()
