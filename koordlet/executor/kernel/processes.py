"""Opens the directory of the very process that a target means."""

import errno
import os

from koordlet.executor.claims.target import Target
from koordlet.host.proc.procfiles import parse_start_time

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_MOST = 4096  # bytes of a process's stat that are looked at


def open_process(proc: str | os.PathLike[str], target: Target) -> int:
    """Return a descriptor of /proc/<pid>; what is opened below it is about no other process.

    Raises:
        OSError: the process has ended, also if there is another one of its number.
    """
    directory = os.open(f"{os.fspath(proc)}/{target.place}", _DIRECTORY)
    try:
        check_process(directory, target)
    except OSError:
        os.close(directory)
        raise
    return directory


def check_process(directory: int, target: Target) -> None:
    """See that an open directory is that of the process. Raises OSError, as open_process."""
    if _start(directory) != target.start_time:
        raise ProcessLookupError(errno.ESRCH, "another process of the same number")


def _start(directory: int) -> int:
    """When the process of this directory began. Raises OSError."""
    fd = os.open("stat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        return parse_start_time(os.read(fd, _MOST))
    except ValueError as err:
        raise ProcessLookupError(errno.ESRCH, str(err)) from err
    finally:
        os.close(fd)
