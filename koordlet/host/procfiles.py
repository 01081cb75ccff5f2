"""Text of files below /proc as numbers: CPU ticks, memory, processes, pressure (PSI)."""

import os
import re
from dataclasses import dataclass
from typing import NamedTuple

TICKS_PER_SECOND: int = os.sysconf("SC_CLK_TCK")
"""Clock ticks of /proc/stat and /proc/<pid>/stat in one second; 100 on all common machines."""

_KIB = 1024
_BOOT_ID = re.compile(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def parse_int(data: bytes) -> int:
    """Return a file's only number, which may be negative.

    Raises:
        ValueError: anything else than digits with an optional minus.
    """
    text = data.strip()
    if not text.removeprefix(b"-").isdigit():
        raise ValueError(f"wanted one integer, found {shown(text)}")
    return int(text)


def parse_text(data: bytes) -> str:
    """Return a file's only line.

    Raises:
        ValueError: empty, more than one line, or not text.
    """
    text = data.decode().strip()
    if not text or not text.isprintable():
        raise ValueError(f"wanted one line of text, found {shown(data)}")
    return text


def parse_cpu_ticks(data: bytes) -> int:
    """Return the ticks that all CPUs together were busy since boot, from /proc/stat.

    Busy is user + nice + system + irq + softirq. Time stolen by the hypervisor is not ours, and
    guest time is part of user already.

    Source: kernel docs, filesystems/proc; Koordinator counts the same fields.
    """
    start = 0 if data.startswith(b"cpu ") else data.find(b"\ncpu ") + 1
    end = data.find(b"\n", start)
    fields = data[start : end if end >= 0 else None].split()
    if not fields or fields[0] != b"cpu":
        raise ValueError("wanted a line 'cpu', found none")
    return _busy_ticks(fields)


def parse_per_cpu_ticks(data: bytes) -> dict[int, int]:
    """Return the busy ticks since boot by CPU number, from /proc/stat.

    CPUs that are offline are absent.
    """
    ticks = {}
    for line in data.partition(b"\nintr ")[0].splitlines():
        fields = line.split()
        if fields and fields[0].startswith(b"cpu") and fields[0][3:].isdigit():
            ticks[int(fields[0][3:])] = _busy_ticks(fields)
    if not ticks:
        raise ValueError("wanted lines 'cpu0', 'cpu1', ..., found none")
    return ticks


def _busy_ticks(fields: list[bytes]) -> int:
    if len(fields) < 8 or not b"".join(fields[1:8]).isdigit():
        raise ValueError(f"wanted a name and seven counters, found {shown(b' '.join(fields))}")
    _, user, nice, system, _, _, irq, softirq, *_ = fields
    return int(user) + int(nice) + int(system) + int(irq) + int(softirq)


@dataclass(frozen=True, slots=True)
class MemInfo:
    """Memory of the machine from /proc/meminfo. All properties are bytes.

    kib holds what the file says, by its names; nearly all of it in KiB.
    """

    kib: dict[str, int]

    @property
    def total(self) -> int:
        return self.kib["MemTotal"] * _KIB

    @property
    def usage(self) -> int:
        """Memory not available to a new process without swapping: page cache not counted."""
        return max(self.kib["MemTotal"] - self.kib["MemAvailable"], 0) * _KIB

    @property
    def usage_with_page_cache(self) -> int:
        return max(self.kib["MemTotal"] - self.kib["MemFree"], 0) * _KIB


def parse_meminfo(data: bytes) -> MemInfo:
    """Return the values of /proc/meminfo. Values that are not numbers are left out.

    Raises:
        ValueError: MemTotal, MemFree or MemAvailable is missing.
    """
    return MemInfo(_require(_kib_by_name(data), "MemTotal", "MemFree", "MemAvailable"))


@dataclass(frozen=True, slots=True)
class NumaMemInfo:
    """Memory of one NUMA node, in bytes."""

    total: int
    usage: int  # estimate without page cache: the kernel has no MemAvailable per node


def parse_numa_meminfo(data: bytes) -> NumaMemInfo:
    """Return the memory of one NUMA node from its meminfo (lines `Node 0 MemTotal: 1 kB`).

    Available is what is free, file cache, or slab that can be reclaimed (Koordinator's formula).

    Raises:
        ValueError: MemTotal or MemFree is missing.
    """
    kib = _require(_kib_by_name(data), "MemTotal", "MemFree")
    reclaimable = ("Active(file)", "Inactive(file)", "SReclaimable")
    available = kib["MemFree"] + sum(kib.get(name, 0) for name in reclaimable)
    return NumaMemInfo(kib["MemTotal"] * _KIB, max(kib["MemTotal"] - available, 0) * _KIB)


def _kib_by_name(data: bytes) -> dict[str, int]:
    values = {}
    for line in data.decode("ascii", "replace").splitlines():
        label, _, rest = line.partition(":")
        name = label.rpartition(" ")[2]  # drops "Node 0 " in the file of a NUMA node
        value = rest.split(None, 1)[:1]
        if value and value[0].isdecimal():
            values[name] = int(value[0])
    return values


def _require(kib: dict[str, int], *names: str) -> dict[str, int]:
    missing = [name for name in names if name not in kib]
    if missing:
        raise ValueError(f"wanted {', '.join(names)}, found no {' and no '.join(missing)}")
    return kib


class ProcessStat(NamedTuple):
    """The first fields of /proc/<pid>/stat."""

    pid: int
    comm: str  # program name, at most 15 bytes; may hold anything, blanks and parentheses too
    state: str  # one letter, for example R or S
    ppid: int  # parent process
    pgrp: int  # process group


def parse_pid_stat(data: bytes) -> ProcessStat:
    """Return the identity of a process, from /proc/<pid>/stat.

    The name ends at the last parenthesis, because a process can put parentheses into its name.
    """
    head, closed, tail = data.rpartition(b")")
    pid, opened, comm = head.partition(b"(")
    fields = tail.split(None, 3)[:3]
    if not closed or not opened or len(fields) < 3 or len(fields[0]) != 1:
        raise ValueError(f"wanted 'pid (name) state ppid pgrp', found {shown(data)}")
    if not pid.strip().isdigit() or not fields[1].isdigit() or not fields[2].isdigit():
        raise ValueError(f"wanted unsigned pid, ppid and pgrp, found {shown(data)}")
    return ProcessStat(
        int(pid), comm.decode(errors="replace"), chr(fields[0][0]), int(fields[1]), int(fields[2])
    )


_START_TIME = 19  # place of the field behind the name


def parse_start_time(data: bytes) -> int:
    """Return when a process began, in ticks since boot, from /proc/<pid>/stat.

    With its pid that is unique among all processes of this boot.
    """
    fields = data.rpartition(b")")[2].split(None, _START_TIME + 1)
    if len(fields) <= _START_TIME or not fields[_START_TIME].isdigit():
        raise ValueError(f"wanted a start time as field 22, found {shown(data)}")
    return int(fields[_START_TIME])


def parse_cmdline(data: bytes) -> list[str]:
    """Return the arguments of a process from /proc/<pid>/cmdline; empty for a kernel thread."""
    return [arg.decode(errors="replace") for arg in data.rstrip(b"\0").split(b"\0") if data]


def parse_pid_depth(data: bytes) -> int:
    """Return in how many nested pid namespaces a process is, from /proc/<pid>/status.

    1: in the one whose /proc this is. Kernels without nested namespaces do not say; that is 1 too.
    """
    start = data.find(b"\nNSpid:")
    if start < 0:
        return 1
    return max(len(data[start + 1 :].partition(b"\n")[0].split()) - 1, 1)


def parse_pid_users(data: bytes) -> frozenset[int]:
    """Return the real, effective, saved and file system user ids, from /proc/<pid>/status."""
    fields = data[data.find(b"\nUid:") + 1 :].partition(b"\n")[0].split()
    if len(fields) != 5 or fields[0] != b"Uid:" or not b"".join(fields[1:]).isdigit():
        raise ValueError(f"wanted a line Uid with four user ids, found {shown(b' '.join(fields))}")
    return frozenset(map(int, fields[1:]))


def parse_boot_id(data: bytes) -> str:
    """Return the random id of this boot, from /proc/sys/kernel/random/boot_id."""
    text = data.strip()
    if not _BOOT_ID.fullmatch(text):
        raise ValueError(f"wanted a boot id (a UUID), found {shown(text)}")
    return text.decode()


def shown(data: bytes, limit: int = 60) -> str:
    """Return foreign bytes fit for an error message: quoted, escaped, cut."""
    return repr(data[:limit])[1:] + ("..." if len(data) > limit else "")


_LINE = re.compile(rb"(some|full) avg10=([\d.]+) avg60=([\d.]+) avg300=([\d.]+) total=(\d+)")


class Stall(NamedTuple):
    """Share of time that tasks waited, and the time itself."""

    avg10: float  # percent of the last 10 s, 0 to 100
    avg60: float
    avg300: float
    total_us: int  # since boot or since the cgroup was made


class Pressure(NamedTuple):
    """A pressure file."""

    some: Stall  # at least one task waited
    full: Stall  # all tasks waited; zero where the kernel does not report it
    full_supported: bool  # kernels before 5.13 have no "full" line for cpu


_NONE = Stall(0.0, 0.0, 0.0, 0)


def parse_pressure(data: bytes) -> Pressure:
    """Return the stalls of a pressure file. Blank lines and text after the total are ignored.

    Raises:
        ValueError: the "some" line is missing, or a line is malformed.

    Source: kernel docs, accounting/psi.
    """
    if not data.endswith(b"\n"):
        raise ValueError(f"wanted lines that end in a newline, found {shown(data)}")
    stalls = dict(_stall(line) for line in data.splitlines() if line.strip())
    if b"some" not in stalls:
        raise ValueError(f'wanted a line "some", found {shown(data)}')
    return Pressure(stalls[b"some"], stalls.get(b"full", _NONE), b"full" in stalls)


def _stall(line: bytes) -> tuple[bytes, Stall]:
    found = _LINE.match(line)
    if not found:
        raise ValueError(f'wanted "some avg10=0.00 ... total=0", found {shown(line)}')
    kind, avg10, avg60, avg300, total = found.groups()
    return kind, Stall(float(avg10), float(avg60), float(avg300), int(total))
