"""The inner machine's own /proc/stat: the CPU time of its processes alone, as lxcfs has it.

`python -m tests.support.real_cluster.own_stat FILE` keeps the file. Without it an agent takes for
the system's usage what runs beside the cluster on this machine, and a node that nobody uses offers
nothing to batch pods.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

PERIOD = 0.05  # seconds; an agent looks ten times a second at most
STAT = Path("/proc/stat")
_USED = Path("/sys/fs/cgroup/cpuacct/cpuacct.usage")  # by all in the machine, in nanoseconds
_TICKS = os.sysconf("SC_CLK_TCK")
_FIELDS = 10  # of a line of /proc/stat


def stat_text(used: float, seconds: float, cpus: int, other: str) -> str:
    """Return the text: lines of the CPUs, which share the work evenly, then other lines.

    used: CPU seconds of all CPUs; seconds: of time since the same moment. Numbers have all the same
    width, so that a text replaces the one before byte by byte.
    """
    busy = round(used * _TICKS)
    idle = max(round(seconds * _TICKS) * cpus - busy, 0)
    each = [_line(f"cpu{cpu}", busy // cpus, idle // cpus) for cpu in range(cpus)]
    return "\n".join([_line("cpu", busy, idle), *each, other])


def _line(name: str, user: int, idle: int) -> str:
    numbers = (user, 0, 0, idle, *(0,) * (_FIELDS - 4))
    return " ".join([name, *(f"{number:015d}" for number in numbers)])


def keep(file: Path) -> None:
    """Keep the file until killed. Its readers hold it open, so it stays the same file."""
    kept = ("ctxt ", "btime ", "processes ", "procs_running ", "procs_blocked ")
    other = "".join(line for line in STAT.open() if line.startswith(kept))
    began, cpus = time.monotonic(), os.cpu_count() or 1
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT, 0o644)
    while True:
        used = int(_USED.read_text()) / 1e9
        text = stat_text(used, time.monotonic() - began, cpus, other)
        os.pwrite(descriptor, text.encode(), 0)
        time.sleep(PERIOD)


def own_stat_patch(file: Path) -> list[dict[str, Any]]:
    """Return the JSON patch of a DaemonSet whose container gets the file as its /proc/stat."""
    volume = {"name": "own-stat", "hostPath": {"path": str(file), "type": "File"}}
    mount = {"name": "own-stat", "mountPath": str(STAT), "readOnly": True}
    pod = "/spec/template/spec"
    return [
        {"op": "add", "path": f"{pod}/volumes/-", "value": volume},
        {"op": "add", "path": f"{pod}/containers/0/volumeMounts/-", "value": mount},
    ]


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
