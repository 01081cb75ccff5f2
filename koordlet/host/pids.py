"""Processes: who they are and how they are grouped."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from koordlet.host.errors import KernelFileError
from koordlet.host.files import parse_file, read_file
from koordlet.host.procfiles import ProcessStat, parse_pid_stat


def process_stat(proc: Path, pid: int) -> ProcessStat:
    """Return name, state, parent and group of a process.

    Raises:
        KernelFileError: it has ended (Vanished) or is hidden from us.
    """
    return parse_file(proc / str(pid) / "stat", parse_pid_stat)


def processes_named(proc: Path, name: str) -> Iterator[Path]:
    """Yield the directories of all processes of this program name, as the kernel keeps it.

    That is the file's name, of a script the script's, cut to 15 bytes. Asks every process.
    """
    try:
        pids = filter(str.isdigit, os.listdir(proc))
    except OSError:
        return
    for pid in pids:
        try:
            if read_file(proc / pid / "comm") == f"{name}\n".encode():
                yield proc / pid
        except KernelFileError:
            continue


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
