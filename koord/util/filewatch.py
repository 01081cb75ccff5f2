"""Files that people or ConfigMaps change under a running daemon."""

import os
import stat
from pathlib import Path

from koord.util.errors import KoordError

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
