"""inotify on ordinary directories; tests/cgroups has the same on cgroups."""

import asyncio
import errno
import os
import resource
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from koord.util import filewatch
from koord.util.filewatch import DirectoryWatch
from koordlet.plugin.testing.scripted import SimulatedClock


class Listener:
    """A watch, and how often it has called."""

    def __init__(self) -> None:
        self.calls = 0
        self.watch = DirectoryWatch(self._call)

    def _call(self) -> None:
        self.calls += 1

    async def hears(self) -> None:
        """Wait for a call that was not waited for before."""
        await SimulatedClock().until(lambda: self.calls > 0)
        self.calls = 0


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    listener = Listener()
    listener.watch.open()
    yield listener
    listener.watch.close()


async def test_new_and_removed_subdirectories_are_reported(listener, tmp_path: Path) -> None:
    """In each of the directories; from any thread they may be named."""
    directories = [tmp_path / "burstable", tmp_path / "besteffort"]
    for directory in directories:
        directory.mkdir()
    await asyncio.to_thread(listener.watch.follow, directories)
    assert listener.watch.problem == ""

    for directory in directories:
        (directory / "pod1").mkdir()
        await listener.hears()
        (directory / "pod1").rmdir()
        await listener.hears()


async def test_files_are_not_worth_a_call(listener, tmp_path: Path) -> None:
    """Nor is what happens further down."""
    (tmp_path / "pod1").mkdir()
    listener.watch.follow([tmp_path])
    (tmp_path / "file").touch()
    (tmp_path / "pod1/c1").mkdir()
    listener.watch._drain()
    assert listener.calls == 0


async def test_a_directory_that_comes_later_or_again_is_followed(listener, tmp_path) -> None:
    """As the QoS classes of a kubelet that starts after us, or changes its driver."""
    directory = tmp_path / "burstable"
    listener.watch.follow([directory])
    assert listener.watch.problem == ""
    for _ in range(2):
        directory.mkdir()
        listener.watch.follow([directory])
        (directory / "pod1").mkdir()
        await listener.hears()
        (directory / "pod1").rmdir()
        directory.rmdir()
        await listener.hears()


async def test_more_than_the_queue_holds_is_still_a_call(
    listener, tmp_path: Path, monkeypatch
) -> None:
    """The kernel says that it has lost events, not which."""
    listener.watch.follow([tmp_path])
    (tmp_path / "file").touch()
    overflow = filewatch._EVENT.pack(-1, filewatch._OVERFLOW, 0, 0)
    monkeypatch.setattr(os, "read", lambda *_: overflow)
    listener.watch._drain()
    assert listener.calls == 1


async def test_no_instance_left(tmp_path: Path) -> None:
    """The reason is reported; later it works."""
    listener = Listener()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        listener.watch.open()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert "Too many open files; raise fs.inotify" in listener.watch.problem
    listener.watch.follow([tmp_path])

    listener.watch.open()
    listener.watch.follow([tmp_path])
    assert listener.watch.problem == ""
    (tmp_path / "pod1").mkdir()
    await listener.hears()
    listener.watch.close()


async def test_no_watch_left(listener, tmp_path: Path, monkeypatch) -> None:
    """The reason is reported and what did work goes on; later all of it does."""
    real, left = listener.watch._libc, 1

    class Limited:
        def inotify_add_watch(self, *args: object) -> int:
            nonlocal left
            left -= 1
            if left >= 0:
                return real.inotify_add_watch(*args)
            filewatch.ctypes.set_errno(errno.ENOSPC)
            return -1

    directories = [tmp_path / "a", tmp_path / "b"]
    for directory in directories:
        directory.mkdir()
    monkeypatch.setattr(listener.watch, "_libc", Limited())
    listener.watch.follow(directories)
    assert "No space left on device; raise fs.inotify.max_user_watches" in listener.watch.problem

    left = 10
    listener.watch.follow(directories)
    assert listener.watch.problem == ""
    for directory in directories:
        (directory / "pod1").mkdir()
        await listener.hears()


async def test_what_is_no_directory_cannot_be_followed(listener, tmp_path: Path) -> None:
    """The reason is reported."""
    (tmp_path / "file").touch()
    listener.watch.follow([tmp_path / "file"])
    assert "Not a directory" in listener.watch.problem


async def test_with_files_each_change_of_a_file_is_reported_once_per_follow(tmp_path: Path) -> None:
    """Written, made, renamed, removed; in between nothing is heard of the rest."""
    listener = Listener()
    listener.watch = DirectoryWatch(listener._call, files=True)
    listener.watch.open()
    file, other = tmp_path / "file", tmp_path / "other"
    for change in (
        lambda: file.write_text("a"),
        lambda: file.write_text("b"),
        lambda: file.rename(other),
        lambda: file.symlink_to(other),
    ):
        for _ in range(2):
            listener.watch.follow([tmp_path])
            await SimulatedClock().settle()  # what the one before has left
        listener.calls = 0
        change()
        await listener.hears()
        other.write_text("c")
        await SimulatedClock().settle()
        assert listener.calls == 0
    listener.watch.close()
