"""Whether a path of the node can be mounted into a container: nobody but root decides what it is.

The runtime follows links as root. In a directory that all may write, as /tmp, one of another user
could lead to any file of the node.
"""

import os
import stat
from pathlib import Path

from koord.util.errors import UnsafeFile
from koordlet.host.proc.pids import is_trusted

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def check_mount_source(root: Path, path: str) -> None:
    """See that only root, or this process's user, can replace what is at an absolute path.

    root: the node's root directory. A directory itself may be open to all.

    Raises:
        UnsafeFile: a part is a link, or another user can replace it; or a file can be written.
        OSError: there is none.
    """
    parts = path.strip("/").split("/")
    if {"", ".", ".."} & set(parts):
        raise UnsafeFile(Path(path), "a path with empty parts or dots", "write it without")
    at = root
    for depth, part in enumerate(parts, start=1):
        at /= part
        found = os.lstat(at)
        if not (stat.S_ISDIR(found.st_mode) or (stat.S_ISREG(found.st_mode) and depth > 1)):
            raise UnsafeFile(at, "no plain file or directory", "remove it")
        if not is_trusted(found.st_uid):
            raise UnsafeFile(at, f"user {found.st_uid} as its owner", "remove it")
        is_open = found.st_mode & _OTHERS_WRITE and not found.st_mode & stat.S_ISVTX
        if is_open and (depth < len(parts) or stat.S_ISREG(found.st_mode)):
            raise UnsafeFile(at, "that others may write it", "chmod go-w")
