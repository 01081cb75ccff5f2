"""CPU time of processes and of the machine, from /proc."""

import os
import time
from collections.abc import Iterable
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> list[int]:
    """A process and its descendants."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and (fields := _stat(int(path.name))):
            children.setdefault(int(fields[1]), []).append(int(path.name))
    found, left = [], [pid]
    while left:
        found.append(left.pop())
        left += children.get(found[-1], [])
    return found


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the CPU time of these processes; one that is gone counts 0."""
    ticks = [sum(map(int, fields[11:13])) for pid in pids if (fields := _stat(pid))]
    return sum(ticks) / _TICK


def machine_cpu_seconds() -> float:
    """Return the CPU time of the machine without idle time and waiting for I/O."""
    with open("/proc/stat") as file:
        fields = [int(field) for field in file.readline().split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / _TICK


def peak_mib(pids: Iterable[int]) -> int:
    """The sum of the peaks of resident memory."""
    peaks = 0
    for pid in pids:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        _, _, rest = status.partition("VmHWM:")
        peaks += int(rest.split()[0]) if rest else 0
    return round(peaks / 1024)


def load() -> float:
    """The load average of one minute."""
    return os.getloadavg()[0]


def speed_ms() -> float:
    """Milliseconds of a fixed piece of work, at its best: whether the machine itself is slower."""
    best = float("inf")
    for _ in range(5):
        begun = time.perf_counter()
        sum(number * number % 7 for number in range(200_000))
        best = min(best, time.perf_counter() - begun)
    return round(best * 1000, 1)


def _stat(pid: int) -> list[str]:
    """The fields after the name; none: it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
