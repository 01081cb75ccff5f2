"""Files and directories that others change under a running daemon: by stat, and by inotify.

inotify is called through ctypes: two functions of the C library are all we need, and only the fact
that something changed. The library for it, asyncinotify, runs ldconfig when it is imported.
"""

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from koord.util.errors import KoordError

if TYPE_CHECKING:
    import asyncio

_Identity = tuple[int, int, int, int]


class FileReadError(KoordError):
    """A file could not be read, or is larger than anyone means it to be."""

    def __init__(self, path: Path, found: str) -> None:
        super().__init__(f"{path}: cannot be read: {found}")
        self.path = path
        self.found = found


class FileWatch:
    """Detects changes of a file, for the price of a stat.

    Links are followed, so the swap by which a ConfigMap volume changes is seen.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: _Identity | None = None

    def changed(self) -> bool:
        """Whether the file differs from the last time this was asked; true the first time.

        A file that is absent has not changed: what it said last still holds.
        """
        identity = _identity(self.path)
        if identity is None or identity == self._seen:
            return False
        self._seen = identity
        return True

    def again(self) -> None:
        """Make changed() return true once more: the file could not be used yet."""
        self._seen = None

    def read(self, max_bytes: int) -> bytes:
        """Return the file.

        Raises:
            FileReadError: it is absent, unreadable, no regular file or larger than max_bytes.
        """
        return read_bounded(self.path, max_bytes)


def read_bounded(path: Path, max_bytes: int, *, follow_links: bool = True) -> bytes:
    """Return a regular file of at most that size; see FileWatch.read."""
    try:
        # Without O_NONBLOCK, opening a pipe would wait for a writer.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(path, flags if follow_links else flags | os.O_NOFOLLOW)
        with open(fd, "rb") as file:
            regular = stat.S_ISREG(os.fstat(fd).st_mode)
            data = file.read(max_bytes + 1) if regular else b""
    except OSError as err:
        raise FileReadError(path, err.strerror or str(err)) from err
    if not regular:
        raise FileReadError(path, "not a regular file")
    if len(data) > max_bytes:
        raise FileReadError(path, f"larger than {max_bytes} bytes")
    return data


def _identity(path: Path) -> _Identity | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


_ADDED, _REMOVED, _IS_DIRECTORY = 0x100, 0x200, 0x40000000
_WRITTEN, _CLOSED, _RENAMED = 0x2, 0x8, 0xC0
_ONLY_DIRECTORIES = 0x01000000
_OVERFLOW, _FORGOTTEN = 0x4000, 0x8000
_EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name that follows
_READ_BYTES = 64 << 10

_HINTS = {
    errno.EMFILE: "raise fs.inotify.max_user_instances",
    errno.ENOSPC: "raise fs.inotify.max_user_watches",
}


class DirectoryWatch:
    """Calls on_change, on the event loop, when a followed directory gets or loses a subdirectory.

    With files: when any of its files changes, appears or goes; after a call there is none before
    the next follow, so a busy directory costs no more than its owner looks at it.

    Several changes may be one call, and a call may be about nothing. problem has the reason
    why the kernel does not notify, or not of all directories; empty: it does. What is missing is
    tried again by the next follow.

    Source: inotify(7).
    """

    def __init__(self, on_change: Callable[[], None], *, files: bool = False) -> None:
        self.problem = ""
        self._files = files
        self._listens = False
        self._on_change = on_change
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = -1
        self._loop: asyncio.AbstractEventLoop | None = None
        self._followed: frozenset[Path] = frozenset()

    def open(self) -> None:
        """Begin to listen, if we do not yet. Call it on the event loop."""
        if self._fd >= 0:
            return
        import asyncio  # here: 19 MiB, which commands that only read files do without

        self._loop = asyncio.get_running_loop()
        fd = self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if fd < 0:
            self._fail(ctypes.get_errno())
            return
        self._fd, self.problem, self._followed = fd, "", frozenset()
        self._listen()

    def follow(self, directories: Iterable[Path]) -> None:
        """Watch these directories, as far as they exist. For any thread, one at a time; with
        files for the event loop's.

        Those that are no longer named stay watched until they are removed.
        """
        wanted = frozenset(directories)
        if self._files and self._fd >= 0:
            self._listen()
        if self._fd < 0 or wanted == self._followed:
            return
        self.problem, self._followed = "", wanted  # first: _drain may take it back meanwhile
        missing = [directory for directory in wanted if not self._add(directory)]
        if missing:
            self._followed = frozenset()

    def close(self) -> None:
        """Listen no longer."""
        if self._fd >= 0:
            self._rest()
            os.close(self._fd)
            self._fd = -1

    def _listen(self) -> None:
        if not self._listens and self._loop is not None:
            self._listens = True
            self._loop.add_reader(self._fd, self._drain)

    def _rest(self) -> None:
        self._listens = False
        if self._loop is not None:
            self._loop.remove_reader(self._fd)

    def _add(self, directory: Path) -> bool:
        mask = _ADDED | _REMOVED | _ONLY_DIRECTORIES
        if self._files:
            mask |= _WRITTEN | _CLOSED | _RENAMED
        path = ctypes.c_char_p(os.fsencode(directory))
        if self._libc.inotify_add_watch(self._fd, path, ctypes.c_uint32(mask)) >= 0:
            return True
        if (error := ctypes.get_errno()) != errno.ENOENT:
            self._fail(error)
        return False

    def _fail(self, error: int) -> None:
        hint = _HINTS.get(error, "the kernel or a sandbox does not offer it")
        self.problem = f"inotify: wanted to watch for changes, found {os.strerror(error)}; {hint}"

    def _drain(self) -> None:
        """Take the kernel's notifications."""
        try:
            events = os.read(self._fd, _READ_BYTES)
        except OSError:  # nothing yet, in spite of the call
            return
        masks = tuple(_masks(events))
        if any(mask & _FORGOTTEN for mask in masks):
            self._followed = frozenset()  # a directory is gone, and may come back
        if self._files:
            self._rest()
        if self._files or any(mask & (_IS_DIRECTORY | _OVERFLOW | _FORGOTTEN) for mask in masks):
            self._on_change()


def _masks(events: bytes) -> Iterable[int]:
    at = 0
    while at < len(events):
        _, mask, _, length = _EVENT.unpack_from(events, at)
        yield mask
        at += _EVENT.size + length
