"""Files that other programs read: whole or not at all, also after a crash."""

import contextlib
import errno
import os
from pathlib import Path

from koord.util.errors import KoordError, UnsafeFile

_HINTS = {
    errno.ENOSPC: "free some space on that file system",
    errno.EDQUOT: "raise the quota or free some space",
    errno.EROFS: "mount it writable, or choose another path",
    errno.EACCES: "give this user the right to write to the directory, or choose another path",
    errno.EPERM: "give this user the right to write to the directory, or choose another path",
    errno.ENOENT: "create the directory, or choose another path",
    errno.ENOTDIR: "choose a path in a directory",
    errno.EISDIR: "choose the path of a file, not of a directory",
}


class FileWriteError(KoordError):
    """A file could not be written; the one that was there before is untouched."""

    def __init__(self, path: Path, error: OSError) -> None:
        if isinstance(error, UnsafeFile):
            super().__init__(str(error))
        else:
            hint = _HINTS.get(error.errno or 0, "check the directory")
            super().__init__(f"{path}: cannot be written: {error.strerror or error}; {hint}")
        self.path = path
        self.errno = error.errno


def write_atomic(path: Path, data: bytes, mode: int = 0o640) -> None:
    """Replace the file in one step and make it durable. Blocks: not for the event loop.

    Raises:
        FileWriteError: it did not work; no temporary file is left behind.
    """
    try:
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            replace_in(directory, path.name, data, mode)
        finally:
            os.close(directory)
    except OSError as err:
        raise FileWriteError(path, err) from err


def replace_in(directory: int, name: str, data: bytes, mode: int) -> None:
    """As write_atomic, in a directory that is open. Raises OSError."""
    # One writer per path is assumed (the run directory is locked), so a fixed name does, and what a
    # crash leaves behind is replaced by the next attempt instead of piling up.
    temporary = temporary_of(name)
    try:
        _write_durably(directory, temporary, data, mode)
        os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        raise
    os.fsync(directory)


def temporary_of(name: str) -> str:
    """The name under which a file is written; only after a crash there is such a file."""
    return f".{name}.tmp"


def _write_durably(directory: int, name: str, data: bytes, mode: int) -> None:
    # A file planted under the temporary name must be neither followed nor reused.
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    fd = os.open(name, flags, mode, dir_fd=directory)
    try:
        os.fchmod(fd, mode)  # whatever the umask and an older file say
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.fsync(fd)
    finally:
        os.close(fd)
