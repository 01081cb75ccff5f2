"""Usage of L3 caches and memory bandwidth by control groups of resctrl.

Source: kernel docs, filesystems/resctrl.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from koordlet.host.errors import KernelFileError
from koordlet.host.files import names_in, read_file
from koordlet.host.paths import HostPaths
from koordlet.host.resctrl import check_mounted

OCCUPANCY = "llc_occupancy"  # bytes, now
BANDWIDTHS = ("mbm_local_bytes", "mbm_total_bytes")  # bytes since the group was made
_DOMAIN = re.compile(r"mon_L3_([0-9]{1,5})", re.ASCII)
_COUNTER = re.compile(r"[0-9]{1,20}", re.ASCII)
_MAX_COUNTER_BYTES = 100


class CacheUsage(NamedTuple):
    """Usage of one L3 cache by one group, by file. Files the hardware lacks are absent."""

    group: str
    cache: int
    values: dict[str, int]


def read_usage(paths: HostPaths, groups: tuple[str, ...]) -> list[CacheUsage]:
    """Return what groups use; those that are not there, or not monitored, are left out.

    Raises:
        Unsupported: resctrl is not mounted.
    """
    check_mounted(paths.resctrl)
    return [usage for group in groups for usage in _usage_of_group(paths, group)]


def _usage_of_group(paths: HostPaths, group: str) -> Iterator[CacheUsage]:
    data = paths.resctrl / group / "mon_data"
    for name in names_in(data):
        if domain := _DOMAIN.fullmatch(name):
            values = {}
            for file in (OCCUPANCY, *BANDWIDTHS):
                try:
                    found = parse_usage(read_file(data / name / file, _MAX_COUNTER_BYTES))
                except KernelFileError:
                    continue  # the group has ended, or the CPU does not count this
                if found is not None:
                    values[file] = found
            if values:
                yield CacheUsage(group, int(domain[1]), values)


def parse_usage(data: bytes) -> int | None:
    """Return a number of bytes; None: the hardware has none now (Unavailable, Error)."""
    text = data.decode("ascii", "replace").strip()
    return int(text) if _COUNTER.fullmatch(text) else None
