"""Whether a socket of the node is root's: whose it is decides what the agent learns there."""

import os
import stat
from pathlib import Path

from koord.util.errors import UnsafeFile
from koordlet.host.proc.pids import is_trusted


def check_socket(path: Path) -> None:
    """See that only root, or this process's user, can have made the socket.

    Raises:
        FileNotFoundError: there is none.
        UnsafeFile: it is another user's, or no socket.
        OSError: it cannot be looked at.
    """
    found = os.lstat(path)
    if not stat.S_ISSOCK(found.st_mode):
        raise UnsafeFile(path, "no socket", "remove it")
    if not is_trusted(found.st_uid):
        raise UnsafeFile(path, f"user {found.st_uid} as its owner", "remove it")
