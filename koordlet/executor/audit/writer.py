"""Appends lines to the audit log and rotates its files."""

import os
from collections.abc import Sequence
from pathlib import Path

from koord.util.atomicfile import FileWriteError
from koord.util.clock import Clock
from koord.util.owneddir import OwnedDirectory, OwnedPath
from koordlet.executor.audit.files import CURRENT, Budget, rotated, rotated_name

_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT


class AuditWriter:
    """Writes to a directory of its own. Blocks: not for the event loop.

    Directory and file are opened for each call: so they may be removed by hand, and a restart goes
    on with them. A group may write to what is above the directory: /var/log is so on some hosts.
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
        try:
            directory = OwnedDirectory.open(self.directory, shared_parents=True)
            try:
                size = _append(directory / CURRENT, b"".join(lines))
                if size >= self._budget.file_bytes:
                    self._rotate(directory)
            finally:
                directory.close()
        except OSError as err:
            raise FileWriteError(self.directory / CURRENT, err) from err

    def _rotate(self, directory: OwnedDirectory) -> None:
        (directory / CURRENT).rename(rotated_name(self.directory, self._clock.wall()))
        for name in rotated(self.directory)[self._budget.rotated :]:
            (directory / name).unlink()


def _append(file: OwnedPath, data: bytes) -> int:
    """Append in one piece and return the size of the file."""
    fd = file.open(_FLAGS)
    try:
        size = os.fstat(fd).st_size
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
