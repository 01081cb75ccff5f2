"""Memory of a cgroup by NUMA node."""

import mmap
import re

from koordlet.host.proc.procfiles import shown

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
