"""The directory of a container that HAMi's monitor reads: made anew before each of its starts.

What is in it is the container's, which may have left anything there.
"""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from koord.util.logs import get_logger
from koord.util.owneddir import OwnedDirectory

_OPEN_TO_ALL = 0o777
_MOST, _DEEPEST = 4096, 8  # files, and directories in each other, that are removed of an old one
_STEP = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

log = get_logger("koordlet.runtimehooks")


def renew_directory(path: Path) -> None:
    """Make an empty directory that all may write, in place of what has the name. Blocks.

    What was there is moved aside first, so nothing in it keeps the container from its start. Then
    it is removed, if it is not too much.

    Raises:
        UnsafeFile: another user could change the directory that it is in.
        OSError: it cannot be made.
    """
    above = OwnedDirectory.open(path.parent)
    try:
        old = f"removed-{secrets.token_hex(8)}"
        with contextlib.suppress(FileNotFoundError):
            (above / path.name).rename(old)
        os.mkdir(path.name, dir_fd=above.descriptor)
        descriptor = os.open(path.name, _STEP, dir_fd=above.descriptor)
        try:
            os.fchmod(descriptor, _OPEN_TO_ALL)
        finally:
            os.close(descriptor)
        _remove_old(above, old)
    finally:
        above.close()


def _remove_old(above: OwnedDirectory, name: str) -> None:
    try:
        _remove(above.descriptor, name, iter(range(_MOST)), _DEEPEST)
    except FileNotFoundError:
        pass  # there was none
    except OSError as err:
        log.warning("hami.directory_left", path=str(above / name), error=str(err))


def _remove(above: int, name: str, room: Iterator[int], depth: int) -> None:
    """Remove a name and all below it, without following links. Raises OSError."""
    if next(room, None) is None or not depth:
        raise OSError(f"wanted at most {_MOST} files in {_DEEPEST} directories, found more")
    try:
        os.unlink(name, dir_fd=above)
    except IsADirectoryError:
        descriptor = os.open(name, _STEP, dir_fd=above)
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    _remove(descriptor, entry.name, room, depth - 1)
        finally:
            os.close(descriptor)
        os.rmdir(name, dir_fd=above)
