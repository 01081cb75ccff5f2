"""A file that grows line by line, and is sometimes replaced by a shorter one."""

import errno
import os
from collections.abc import Callable
from io import FileIO

from koord.util.atomicfile import FileWriteError
from koord.util.owneddir import OwnedPath

MODE = 0o600

StepHook = Callable[[str], None]
"""Called with the name of each step, so that a test can end the process there."""


def no_step(name: str) -> None:
    """Ignore the step."""


class AppendLog:
    """Appends whole lines or nothing. Belongs to one thread; blocks."""

    def __init__(self, path: OwnedPath, step: StepHook = no_step) -> None:
        self.path = path
        self.size = 0  # bytes
        self._step = step
        self._file: FileIO | None = None
        self._torn = False  # the file may end in the middle of a line

    def open(self) -> None:
        """Go on with the file that is there, or make it. Raises FileWriteError."""
        self.close()
        try:
            descriptor = self.path.open(os.O_RDWR | os.O_APPEND | os.O_CREAT, MODE)
            file = FileIO(descriptor, "ab+")
            self.size = os.fstat(file.fileno()).st_size
            last = os.pread(file.fileno(), 1, self.size - 1) if self.size else b"\n"
        except OSError as err:
            raise FileWriteError(self.path.path, err) from err
        self._file, self._torn = file, last != b"\n"

    def append(self, data: bytes, *, sync: bool = False) -> None:
        """Add lines; sync: they are on disk on return.

        Raises:
            FileWriteError: nothing was added.
        """
        if self._file is None:
            self.open()
        before = self.size
        try:
            self._write(b"\n" + data if self._torn else data)
            self._step("journal appended")
            if sync:
                os.fsync(self._fd)
                self._step("journal synced")
        except OSError as err:
            self._cut(before)
            raise FileWriteError(self.path.path, err) from err

    def replace(self, data: bytes) -> None:
        """Make these lines the whole file, in one step. Raises FileWriteError; nothing changed."""
        self._step("journal before replacing")
        self.path.write(data, MODE)
        self._step("journal replaced")
        self.open()

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def _fd(self) -> int:
        return self._file.fileno() if self._file is not None else -1

    def _write(self, data: bytes) -> None:
        written = os.write(self._fd, data)
        if written < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.size += written
        self._torn = False

    def _cut(self, size: int) -> None:
        """Remove what was written of lines that are not whole, or not on disk."""
        try:
            os.ftruncate(self._fd, size)
            self.size = size
        except OSError:
            self._torn = True
