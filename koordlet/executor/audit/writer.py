"""Appends lines to the audit log and rotates its files."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from koordlet.executor.audit.files import CURRENT, Budget, rotated, rotated_name
from koordlet.util.atomicfile import FileWriteError
from koordlet.util.clock import Clock

_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class AuditWriter:
    """Writes to a directory of its own. Blocks: not for the event loop.

    The file is opened for each call: so it may be removed by hand, and a restart goes on with it.
    """

    def __init__(self, directory: Path, budget: Budget, clock: Clock) -> None:
        self.directory = directory
        self._budget = budget
        self._clock = clock

    def append(self, lines: Sequence[bytes]) -> None:
        """Append whole lines, all or none; rotate when the file has become large enough.

        Raises:
            FileWriteError: it did not work.
        """
        path = self.directory / CURRENT
        try:
            self.directory.mkdir(mode=0o750, parents=True, exist_ok=True)
            size = _append(path, b"".join(lines))
            if size >= self._budget.file_bytes:
                self._rotate(path)
        except OSError as err:
            raise FileWriteError(path, err) from err

    def _rotate(self, path: Path) -> None:
        os.replace(path, self.directory / rotated_name(self.directory, self._clock.wall()))
        for name in rotated(self.directory)[self._budget.rotated :]:
            (self.directory / name).unlink(missing_ok=True)


def _append(path: Path, data: bytes) -> int:
    """Append in one piece and return the size of the file."""
    fd = os.open(path, _FLAGS, 0o640)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError("not a regular file")
        size = found.st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            data = b"\n" + data  # a crash left half a line
        try:
            _write(fd, data)
        except OSError:
            os.ftruncate(fd, size)
            raise
        return size + len(data)
    finally:
        os.close(fd)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
