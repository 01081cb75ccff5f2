"""Processes: their identity and their groups."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from koordlet.host.errors import KernelFileError
from koordlet.host.files import parse_file, read_file
from koordlet.host.proc.procfiles import (
    ProcessStat,
    parse_pid_depth,
    parse_pid_stat,
    parse_pid_users,
)


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
