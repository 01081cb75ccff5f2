"""Koordinator's koordlet among the processes of a node.

It is a binary that is called koordlet by its first argument, too. This daemon is a script: it bears
the same name, and its first argument is the interpreter.

Source: Koordinator's DaemonSet, command /koordlet, with hostPID.
"""

from pathlib import Path, PurePosixPath

from koordlet.host.errors import KernelFileError
from koordlet.host.files import parse_file
from koordlet.host.proc.pids import system_processes
from koordlet.host.proc.procfiles import parse_cmdline

_NAME = "koordlet"


def other_agent_process(proc: Path) -> int | None:
    """Return the process id of Koordinator's koordlet; None: there is none, or none to be seen.

    Only processes of root or of our own user count, as every user can call a process koordlet, and
    none in pid namespaces below the node's: on a host of several kind nodes they are other nodes'
    agents. Without the host's pids only our own processes are to be seen.
    """
    for process in system_processes(proc, _NAME):
        try:
            arguments = parse_file(process.directory / "cmdline", parse_cmdline)
        except KernelFileError:
            continue  # it has ended meanwhile
        if is_other_agent(arguments):
            return process.pid
    return None


def is_other_agent(arguments: list[str]) -> bool:
    """Whether a process called koordlet is Koordinator's. One that has ended has no arguments."""
    return bool(arguments) and PurePosixPath(arguments[0]).name == _NAME
