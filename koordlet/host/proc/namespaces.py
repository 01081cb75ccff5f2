"""Finds the namespaces that this process shares with the node, without any privilege."""

import os
from pathlib import Path

from koordlet.host.errors import KernelFileError
from koordlet.host.files import read_file

_INITIAL_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO, fixed since Linux 3.8
_INITIAL_NETWORK_ONLY = "sys/net/core/netdev_max_backlog"
OWN = "self"
INIT = "1"


def sees_host_pids(proc: Path) -> bool:
    """Whether pid 1 below proc is the node's init, so that the pods' processes are there too.

    Beyond the initial pid namespace (a node that is itself a container, as kind makes them) pid 1
    counts as the node's when it is in another cgroup than this process. A proc that does not know
    this process belongs to a namespace above ours: it was mounted into the container on purpose.
    """
    try:
        if os.stat(proc / "self/ns/pid").st_ino == _INITIAL_PID_NAMESPACE:
            return True
    except OSError:
        return (proc / INIT).is_dir()
    try:
        return read_file(proc / "self/cgroup") != read_file(proc / "1/cgroup")
    except KernelFileError:
        return False


def network_namespace(proc: Path, pid: int | str) -> int:
    """Return a number that is equal for two processes iff they share a network namespace.

    It is the inode of the pid's net/dev: each namespace has its own, and unlike ns/net it may be
    looked at without CAP_SYS_PTRACE. Inodes of ns/net are other numbers; do not mix the two.

    Raises:
        KernelFileError: the process has ended, or is hidden from us.
    """
    path = proc / str(pid) / "net/dev"
    try:
        return os.stat(path).st_ino
    except OSError as err:
        raise KernelFileError.from_os_error(str(path), err) from err


def node_network_process(proc: Path) -> str | None:
    """Return the process below proc whose network namespace is the node's: "self", "1" or None.

    "self" means that this process is in it (host network), so rtnetlink and /proc/sys/net show
    about the node too. None: neither can be had (needs hostNetwork or hostPID).
    """
    if (proc / OWN).exists() and (proc / _INITIAL_NETWORK_ONLY).exists():
        return OWN
    if not sees_host_pids(proc):
        return None
    try:
        shared = network_namespace(proc, OWN) == network_namespace(proc, INIT)
    except KernelFileError:
        shared = False
    return OWN if shared else INIT
