"""Processes: identity, groups, namespaces, file locks, and Koordinator's koordlet among them."""

import errno
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from koordlet.host.errors import KernelFileError
from koordlet.host.files import parse_file, read_file
from koordlet.host.procfiles import (
    ProcessStat,
    parse_cmdline,
    parse_pid_depth,
    parse_pid_stat,
    parse_pid_users,
    parse_start_time,
)
from koordlet.host.resource import ObjectTarget


def process_stat(proc: Path, pid: int) -> ProcessStat:
    """Return name, state, parent and group of a process.

    Raises:
        KernelFileError: it has ended (Vanished) or is hidden from us.
    """
    return parse_file(proc / str(pid) / "stat", parse_pid_stat)


class SystemProcess(NamedTuple):
    """A process of the node itself. directory is that of this very process, also after its end."""

    pid: int
    directory: Path


def is_trusted(user: int) -> bool:
    """Whether a user can do to this daemon what he likes anyway: root, or the daemon's own."""
    return user in (0, os.geteuid())


def system_processes(proc: Path, name: str) -> Iterator[SystemProcess]:
    """Yield the processes of this program name that are root's or ours, and of the node itself.

    The name is that of the file, of a script the script's, cut to 15 bytes; every user can give it
    to a process, so all its user ids count, and the owner of its directory. Processes in pid
    namespaces below the node's are those of containers, root's too. Asks every process; each
    directory is held open until the next one is asked for.
    """
    try:
        pids = filter(str.isdigit, os.listdir(proc))
    except OSError:
        return
    for pid in pids:
        if not _is_named(proc / pid, name):
            continue
        try:
            held = os.open(proc / pid, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            directory = Path(f"/proc/self/fd/{held}")
            if _is_named(directory, name) and _is_of_system(directory, held):
                yield SystemProcess(int(pid), directory)
        finally:
            os.close(held)


def _is_named(directory: Path, name: str) -> bool:
    try:
        return read_file(directory / "comm") == f"{name}\n".encode()
    except KernelFileError:
        return False


def _is_of_system(directory: Path, descriptor: int) -> bool:
    """Whether it is root's or ours, and in the pid namespace whose /proc this is."""
    try:
        status = read_file(directory / "status")
        users = parse_pid_users(status) | {os.fstat(descriptor).st_uid}
        return all(map(is_trusted, users)) and parse_pid_depth(status) == 1
    except (KernelFileError, OSError, ValueError):
        return False


def process_groups(proc: Path, pids: Iterable[int]) -> list[int]:
    """Return the process groups that the processes form among themselves, ascending.

    A process whose group leader is not among pids is a group of its own. Ended ones are left out.
    """
    wanted = set(pids)
    groups = set()
    for pid in wanted:
        try:
            group = process_stat(proc, pid).pgrp
        except KernelFileError:
            continue
        groups.add(group if group in wanted else pid)
    return sorted(groups)


_INITIAL_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO, fixed since Linux 3.8
_INITIAL_NETWORK_ONLY = "sys/net/core/netdev_max_backlog"
OWN_PROCESS = "self"
INIT_PROCESS = "1"


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
        return (proc / INIT_PROCESS).is_dir()
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
    if (proc / OWN_PROCESS).exists() and (proc / _INITIAL_NETWORK_ONLY).exists():
        return OWN_PROCESS
    if not sees_host_pids(proc):
        return None
    try:
        shared = network_namespace(proc, OWN_PROCESS) == network_namespace(proc, INIT_PROCESS)
    except KernelFileError:
        shared = False
    return OWN_PROCESS if shared else INIT_PROCESS


_KOORDLET = "koordlet"


def other_agent_process(proc: Path) -> int | None:
    """Return the process id of Koordinator's koordlet; None: there is none, or none to be seen.

    Only processes of root or of our own user count, as every user can call a process koordlet, and
    none in pid namespaces below the node's: on a host of several kind nodes they are other nodes'
    agents. Without the host's pids only our own processes are to be seen.
    """
    for process in system_processes(proc, _KOORDLET):
        try:
            arguments = parse_file(process.directory / "cmdline", parse_cmdline)
        except KernelFileError:
            continue  # it has ended meanwhile
        if is_other_agent(arguments):
            return process.pid
    return None


def is_other_agent(arguments: list[str]) -> bool:
    """Whether a process called koordlet is Koordinator's. One that has ended has no arguments."""
    return bool(arguments) and PurePosixPath(arguments[0]).name == _KOORDLET


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


_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_MAX_STAT_BYTES = 4096  # bytes of a process's stat that are looked at


def open_process(proc: str | os.PathLike[str], target: ObjectTarget) -> int:
    """Return a descriptor of /proc/<pid>; what is opened below it is about no other process.

    Raises:
        OSError: the process has ended, also if there is another one of its number.
    """
    directory = os.open(f"{os.fspath(proc)}/{target.place}", _DIRECTORY_FLAGS)
    try:
        check_process(directory, target)
    except OSError:
        os.close(directory)
        raise
    return directory


def check_process(directory: int, target: ObjectTarget) -> None:
    """See that an open directory is that of the process. Raises OSError, as open_process."""
    if _start_time(directory) != target.start_time:
        raise ProcessLookupError(errno.ESRCH, "another process of the same number")


def _start_time(directory: int) -> int:
    """Return the start time of the process of this directory. Raises OSError."""
    fd = os.open("stat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        return parse_start_time(os.read(fd, _MAX_STAT_BYTES))
    except ValueError as err:
        raise ProcessLookupError(errno.ESRCH, str(err)) from err
    finally:
        os.close(fd)
