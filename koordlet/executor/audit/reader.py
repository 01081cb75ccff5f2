"""Reads the audit log, newest event first, over all its files."""

import os
import threading
from collections.abc import Generator, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from koordlet.executor.audit.event import LONGEST_LINE, decode
from koordlet.executor.audit.files import CURRENT, older

CHUNK = 64 << 10  # bytes that are read at once
PAGE_BYTES = 4 << 20  # after which a page is full, whatever it may hold


class AuditReader:
    """Goes back through the log, page by page. Blocks: not for the event loop; any thread.

    Events that are written meanwhile are not its own: it starts where the log ends at first, and
    a rotation makes it neither repeat nor miss one.
    """

    def __init__(self, directory: Path) -> None:
        self._lock = threading.Lock()
        self._lines = _lines(directory)
        self._next: bytes | None = None  # read ahead
        self._begun = False

    @property
    def ended(self) -> bool:
        """Whether there is nothing more."""
        return self._begun and self._next is None

    def page(self, size: int) -> list[dict[str, Any]]:
        """Return the events of the next lines; what is no event is left out, but counts."""
        return [event for line in self._page(size) if (event := decode(line)) is not None]

    def events(self, most: int) -> Iterator[dict[str, Any]]:
        """All further events of that many lines at most."""
        for line in islice(self._lines, most):
            if (event := decode(line)) is not None:
                yield event

    def close(self) -> None:
        """Close what is open. There is nothing more then."""
        with self._lock:
            self._lines.close()
            self._begun, self._next = True, None

    def _page(self, size: int) -> list[bytes]:
        with self._lock:
            if not self._begun:
                self._begun, self._next = True, next(self._lines, None)
            found: list[bytes] = []
            room = PAGE_BYTES
            while self._next is not None and len(found) < size and room > 0:
                found.append(self._next)
                room -= len(self._next)
                self._next = next(self._lines, None)
            return found


def _lines(directory: Path) -> Generator[bytes]:
    """Lines of all files, last first. A file or directory that cannot be read has none."""
    name = CURRENT
    while name:
        fd = _opened(directory / name)
        try:
            with suppress(OSError):
                yield from lines_backwards(fd, os.fstat(fd).st_size)
            name = _older(directory, name, fd)  # while it is open: no other file has its inode
        finally:
            if fd >= 0:
                os.close(fd)


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return -1


def _older(directory: Path, name: str, fd: int) -> str:
    identity = None
    with suppress(OSError):
        found = os.fstat(fd)
        identity = found.st_dev, found.st_ino
    try:
        return older(directory, name, identity)
    except OSError:
        return ""


def lines_backwards(fd: int, size: int, chunk: int = CHUNK) -> Iterator[bytes]:
    """Yield the lines of the first size bytes of a file, last first, blank ones left out.

    What is after the last newline counts as a line. One longer than LONGEST_LINE is yielded as its
    last bytes, so nothing larger is ever in memory.

    Raises:
        OSError: the file cannot be read.
    """
    tail = b""  # of the line that begins further ahead
    while size > 0:
        start = max(size - chunk, 0)
        piece = os.pread(fd, size - start, start)
        size = start
        first, *rest = (piece + tail).split(b"\n")
        yield from filter(None, reversed(rest))
        tail = first[-LONGEST_LINE:]
    if tail:
        yield tail
