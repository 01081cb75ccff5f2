"""Text of cgroup files as numbers: CPU time, shares, quota, throttling, memory, NUMA."""

import mmap
import re
from collections.abc import Iterable
from typing import NamedTuple

from koordlet.host.procfiles import TICKS_PER_SECOND, shown

MIN_SHARES, MAX_SHARES = 2, 262_144
MIN_WEIGHT, MAX_WEIGHT = 1, 10_000
SHARES_PER_CPU = 1024
QUOTA_PERIOD_US = 100_000  # the kernel's default; the kubelet leaves it so
MIN_QUOTA_US = 1000

_SHARES_SPAN = MAX_SHARES - MIN_SHARES
_WEIGHT_SPAN = MAX_WEIGHT - MIN_WEIGHT


def shares_to_weight(shares: int) -> int:
    """Return the cpu.weight for cpu.shares. The inverse does not give the same shares.

    Raises:
        ValueError: not within 2 to 262144.
    """
    if not MIN_SHARES <= shares <= MAX_SHARES:
        raise ValueError(f"wanted {MIN_SHARES} to {MAX_SHARES} shares, found {shares}")
    return MIN_WEIGHT + (shares - MIN_SHARES) * _WEIGHT_SPAN // _SHARES_SPAN


def weight_to_shares(weight: int) -> int:
    """Return the cpu.shares for a cpu.weight.

    Raises:
        ValueError: not within 1 to 10000.
    """
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        raise ValueError(f"wanted a weight of {MIN_WEIGHT} to {MAX_WEIGHT}, found {weight}")
    return (weight - MIN_WEIGHT) * _SHARES_SPAN // _WEIGHT_SPAN + MIN_SHARES


def milli_to_shares(milli_cpu: int) -> int:
    """Return the cpu.shares of a CPU request in thousandths of a core."""
    return min(max(milli_cpu * SHARES_PER_CPU // 1000, MIN_SHARES), MAX_SHARES)


def milli_to_quota(milli_cpu: int) -> int:
    """Return the quota, in microseconds per 100 ms, of a CPU limit; -1 (no limit) for none."""
    if milli_cpu <= 0:
        return -1
    return max(milli_cpu * QUOTA_PERIOD_US // 1000, MIN_QUOTA_US)


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


_PAIR = re.compile(rb" N(\d+)=(\d+)")
_V1_LINES = (b"hierarchical_anon=", b"hierarchical_unevictable=")
_V2_LINES = (b"inactive_anon ", b"active_anon ", b"unevictable ")


def parse_v1_numa_stat(data: bytes) -> dict[int, int]:
    """Return bytes by NUMA node from memory.numa_stat, which counts pages.

    This is the usage without page cache that MemoryStat.usage has, of the group and all below it.
    """
    return _sum_of_lines(data, _V1_LINES, mmap.PAGESIZE)


def parse_v2_numa_stat(data: bytes) -> dict[int, int]:
    """Return bytes by NUMA node from memory.numa_stat, as the v1 parser does."""
    return _sum_of_lines(data, _V2_LINES, 1)


def _sum_of_lines(data: bytes, starts: tuple[bytes, ...], unit: int) -> dict[int, int]:
    usage: dict[int, int] = {}
    for start in starts:
        for node, count in _PAIR.findall(_line(data, start)):
            usage[int(node)] = usage.get(int(node), 0) + int(count) * unit
    if not usage:
        raise ValueError(f"wanted counts like N0=1, found {shown(data)}")
    return usage


def _line(data: bytes, start: bytes) -> bytes:
    """Return the line that starts so; complete, because a cut number would be a wrong one."""
    begin = 0 if data.startswith(start) else data.find(b"\n" + start) + 1
    end = data.find(b"\n", begin)
    if end < 0 or not data.startswith(start, begin):
        raise ValueError(f"wanted a line {shown(start)}, found none in {shown(data)}")
    return data[begin:end]
