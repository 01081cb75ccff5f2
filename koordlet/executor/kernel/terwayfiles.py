"""Writes the files of terway-qos, each whole or not at all, and removes them."""

import errno
import os
from contextlib import suppress

from koord.util.atomicfile import replace_in, temporary_of
from koordlet.executor.claims.claim import Key
from koordlet.host.host import Host
from koordlet.host.kerneltext import ABSENT
from koordlet.host.terwayfiles import directory_of, open_directory

_MODE = 0o644  # as Koordinator: its reader may be another user


class TerwayFiles:
    """A Medium; see koordlet.executor.kernel.media."""

    def __init__(self, host: Host) -> None:
        self._paths = host.paths

    def identity(self, key: Key) -> int:
        """That of the directory, as the file comes and goes. Raises OSError."""
        return os.stat(directory_of(self._paths), follow_symlinks=False).st_ino

    def write(self, key: Key, identity: int, content: str) -> None:
        """As Medium.write."""
        name = key.target.place
        directory = open_directory(self._paths)
        try:
            if os.fstat(directory).st_ino != identity:
                raise FileNotFoundError(errno.ENOENT, "the directory was made anew")
            if content == ABSENT:
                for each in (temporary_of(name), name):  # a crash may have left the first
                    with suppress(FileNotFoundError):
                        os.unlink(each, dir_fd=directory)
            else:
                replace_in(directory, name, content.encode(), _MODE)
        finally:
            os.close(directory)


def medium(host: Host) -> TerwayFiles:
    """As koordlet.executor.kernel.media wants it."""
    return TerwayFiles(host)
