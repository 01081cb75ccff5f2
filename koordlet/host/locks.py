"""Finds the process that holds a lock on a file."""

import os
import re
from pathlib import Path

from koordlet.host.files import parse_file

_FLOCK = re.compile(rb"\d+: FLOCK +\S+ +\S+ +(\d+) ([0-9a-f]+):([0-9a-f]+):(\d+) ")
_UIDS = re.compile(rb"^Uid:\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)$", re.MULTILINE)


def flock_holder(proc: Path, descriptor: int) -> int | None:
    """Return the pid of the process that has locked an open file with flock.

    None: it is not in the list, as a process is that this one's /proc does not show. The pid may be
    that of a process that has ended, when a child of it still holds the lock.

    Raises:
        KernelFileError: there is no such list.

    Source: kernel docs, filesystems/proc (locks).
    """
    found = os.fstat(descriptor)
    wanted = os.major(found.st_dev), os.minor(found.st_dev), found.st_ino
    return parse_file(proc / "locks", _holders).get(wanted)


def process_uids(proc: Path, pid: int) -> frozenset[int] | None:
    """Return the user ids of a process: real, effective, saved, of files. None: it has ended.

    Raises:
        KernelFileError: its status is not what a kernel writes.
    """
    status = proc / str(pid) / "status"
    return parse_file(status, _uids) if status.exists() else None


def _holders(data: bytes) -> dict[tuple[int, int, int], int]:
    """Holders by device and inode. Those that wait for a lock have an arrow, and do not match."""
    matches = filter(None, map(_FLOCK.match, data.splitlines()))
    return {
        (int(major, 16), int(minor, 16), int(inode)): int(pid)
        for pid, major, minor, inode in (match.groups() for match in matches)
    }


def _uids(data: bytes) -> frozenset[int]:
    found = _UIDS.search(data)
    if found is None:
        raise ValueError("no line with its user ids")
    return frozenset(map(int, found.groups()))
