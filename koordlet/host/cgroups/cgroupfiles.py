"""The text of cgroup files as numbers.

Every parser takes the whole file as bytes and raises ValueError when that is not what the kernel
writes; the host layer adds the path. The kernel ends each of these files with a newline, so a
number without one was cut short and is refused: a counter that seems to go back, and then leaps,
would be taken for work.

Source: kernel docs, admin-guide/cgroup-v1 and admin-guide/cgroup-v2.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from koordlet.host.cgroups.cpuvalues import weight_to_shares
from koordlet.host.proc.procfiles import TICKS_PER_SECOND, shown

NO_LIMIT = -1
V1_NO_LIMIT = 0x7FFFFFFFFFFFF000  # bytes; the largest multiple of a 4 KiB page in 63 bits
_NS_PER_US = 1000
_NS_PER_S = 1_000_000_000


def parse_number(data: bytes) -> int:
    """Return the only number of a file; a minus is allowed."""
    if not data.endswith(b"\n") or not data[:-1].removeprefix(b"-").isdigit():
        raise ValueError(f"wanted one integer and a newline, found {shown(data)}")
    return int(data)


def parse_number_or_max(data: bytes) -> int:
    """Return the only number of a file; -1 (no limit) for "max"."""
    return NO_LIMIT if data == b"max\n" else parse_number(data)


def parse_v1_memory_limit(data: bytes) -> int:
    """Return bytes from memory.limit_in_bytes, -1 for no limit."""
    limit = parse_number(data)
    return NO_LIMIT if limit >= V1_NO_LIMIT else limit


def parse_cpu_max_quota(data: bytes) -> int:
    """Return the quota in microseconds per period from cpu.max, -1 for no limit."""
    quota, _ = _cpu_max(data)
    return NO_LIMIT if quota == b"max" else parse_number(quota + b"\n")


def parse_cpu_max_period(data: bytes) -> int:
    """Return the period in microseconds from cpu.max."""
    _, period = _cpu_max(data)
    return parse_number(period + b"\n")


def _cpu_max(data: bytes) -> list[bytes]:
    fields = data.split()
    if len(fields) != 2 or not data.endswith(b"\n"):
        raise ValueError(f"wanted quota, period and a newline, found {shown(data)}")
    return fields


def parse_cpu_weight(data: bytes) -> int:
    """Return cpu.weight as the CPU shares of cgroup v1."""
    return weight_to_shares(parse_number(data))


_V2_CPU_USAGE = re.compile(rb"usage_usec (\d+)\n")


def parse_v2_cpu_usage(data: bytes) -> int:
    """Return the CPU time that was used, in nanoseconds, from cpu.stat."""
    found = _V2_CPU_USAGE.match(data)
    usage = int(found[1]) if found else _numbers(data, ("usage_usec",))[0]
    return usage * _NS_PER_US


class CpuTime(NamedTuple):
    """CPU time used since the group was made, in nanoseconds."""

    user: int
    system: int


def parse_v1_cpu_time(data: bytes) -> CpuTime:
    """Return user and system time from cpuacct.stat, which counts clock ticks."""
    ns_per_tick = _NS_PER_S // TICKS_PER_SECOND
    user, system = _numbers(data, ("user", "system"))
    return CpuTime(user * ns_per_tick, system * ns_per_tick)


def parse_v2_cpu_time(data: bytes) -> CpuTime:
    """Return user and system time from cpu.stat."""
    user, system = _numbers(data, ("user_usec", "system_usec"))
    return CpuTime(user * _NS_PER_US, system * _NS_PER_US)


class CpuThrottle(NamedTuple):
    """Counts of periods that the CPU quota ended early, since the group was made."""

    nr_periods: int  # periods in which the group wanted to run
    nr_throttled: int  # those in which it used up its quota
    throttled_ns: int  # time its tasks waited for the next period, summed over CPUs


_V1_THROTTLE = re.compile(rb"nr_periods (\d+)\nnr_throttled (\d+)\nthrottled_time (\d+)\n")
_V2_THROTTLE = re.compile(rb"\nnr_periods (\d+)\nnr_throttled (\d+)\nthrottled_usec (\d+)\n")


def parse_v1_cpu_throttle(data: bytes) -> CpuThrottle:
    """Return the throttling counters from cpu.stat."""
    if found := _V1_THROTTLE.match(data):
        return CpuThrottle._make(map(int, found.groups()))
    return CpuThrottle(*_numbers(data, ("nr_periods", "nr_throttled", "throttled_time")))


def parse_v2_cpu_throttle(data: bytes) -> CpuThrottle:
    """Return the throttling counters from cpu.stat.

    Raises:
        ValueError: also when the cpu controller is off in this group, which then has no counters.
    """
    if found := _V2_THROTTLE.search(data):
        periods, throttled, us = found.groups()
        return CpuThrottle(int(periods), int(throttled), int(us) * _NS_PER_US)
    periods, throttled, us = _numbers(data, ("nr_periods", "nr_throttled", "throttled_usec"))
    return CpuThrottle(periods, throttled, us * _NS_PER_US)


class MemoryStat(NamedTuple):
    """The uses of the memory of a group and of all groups below it, in bytes."""

    cache: int
    rss: int
    inactive_anon: int
    active_anon: int
    inactive_file: int
    active_file: int
    unevictable: int

    @property
    def usage(self) -> int:
        """Memory that only swapping or killing would free; page cache not counted.

        Kernel memory, socket buffers and huge pages are not counted either: neither
        memory.current nor the kubelet's working set.
        """
        return self.inactive_anon + self.active_anon + self.unevictable

    @property
    def usage_with_page_cache(self) -> int:
        return self.usage + self.inactive_file + self.active_file


# 450 of these files are parsed per second on a full node. One match costs half of what a search
# for each name does, and needs the lines in the order in which the kernel has always had them.
_V1_MEMORY_NAMES = (
    "total_cache",
    "total_rss",
    "total_inactive_anon",
    "total_active_anon",
    "total_inactive_file",
    "total_active_file",
    "total_unevictable",
)
_V1_MEMORY = re.compile(
    rb"\ntotal_cache (\d+)\ntotal_rss (\d+)\n.*\n"
    rb"total_inactive_anon (\d+)\ntotal_active_anon (\d+)\n"
    rb"total_inactive_file (\d+)\ntotal_active_file (\d+)\ntotal_unevictable (\d+)\n",
    re.DOTALL,
)
_V2_MEMORY_NAMES = (
    "file",
    "anon",
    "inactive_anon",
    "active_anon",
    "inactive_file",
    "active_file",
    "unevictable",
)
_V2_MEMORY = re.compile(
    rb"anon (\d+)\nfile (\d+)\n.*?\n"
    rb"inactive_anon (\d+)\nactive_anon (\d+)\n"
    rb"inactive_file (\d+)\nactive_file (\d+)\nunevictable (\d+)\n",
    re.DOTALL,
)


def parse_v1_memory_stat(data: bytes) -> MemoryStat:
    """Return the hierarchical (total_...) values of memory.stat."""
    if found := _V1_MEMORY.search(data):
        return MemoryStat._make(map(int, found.groups()))
    return MemoryStat(*_numbers(data, _V1_MEMORY_NAMES))


def parse_v2_memory_stat(data: bytes) -> MemoryStat:
    """Return the values of memory.stat, which are hierarchical on v2."""
    if found := _V2_MEMORY.match(data):
        anon, file, *lists = map(int, found.groups())
        return MemoryStat(file, anon, *lists)
    return MemoryStat(*_numbers(data, _V2_MEMORY_NAMES))


def parse_ids(data: bytes) -> tuple[int, ...]:
    """Return the process or thread ids of a group; a group may have none."""
    if data and not data.endswith(b"\n"):
        raise ValueError(f"wanted ids and a newline, found {shown(data[-60:])} at the end")
    ids = data.split()
    if not all(map(bytes.isdigit, ids)):
        raise ValueError(f"wanted ids, found {shown(data)}")
    return tuple(map(int, ids))


def parse_lines(data: bytes) -> tuple[str, ...]:
    """Return the lines of a file, for example the device rules of blkio.throttle.*."""
    return tuple(data.decode().splitlines())


def _numbers(data: bytes, names: Iterable[str]) -> list[int]:
    """Return unsigned numbers from lines "name value", wherever they are; the last of a name wins.

    Raises:
        ValueError: one of the names is missing, or has no number.
    """
    pairs = {}
    for line in data.splitlines(keepends=True):
        words = line.split()
        if len(words) >= 2 and line.endswith(b"\n"):
            pairs[words[0].decode(errors="replace")] = words[1]
    return [_number(pairs, name, data) for name in names]


def _number(pairs: dict[str, bytes], name: str, data: bytes) -> int:
    if not pairs.get(name, b"").isdigit():
        raise ValueError(f"wanted a line {name!r} with a number, found none in {shown(data)}")
    return int(pairs[name])
