"""What the tasks of control groups use of caches and memory bandwidth.

Source: kernel docs, filesystems/resctrl (mon_data).
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from koordlet.host.errors import KernelFileError
from koordlet.host.files import names_in, read_file
from koordlet.host.paths import HostPaths
from koordlet.host.resctrl.groups import check_mounted

OCCUPANCY = "llc_occupancy"  # bytes, now
BANDWIDTHS = ("mbm_local_bytes", "mbm_total_bytes")  # bytes since the group was made
_DOMAIN = re.compile(r"mon_L3_([0-9]{1,5})", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,20}", re.ASCII)
_MOST_BYTES = 100


class CacheUsage(NamedTuple):
    """What one group uses of one L3 cache: by file. What the hardware does not say is absent."""

    group: str
    cache: int
    values: dict[str, int]


def read_usage(paths: HostPaths, groups: tuple[str, ...]) -> list[CacheUsage]:
    """Return what groups use; those that are not there, or not monitored, are left out.

    Raises:
        Unsupported: resctrl is not mounted.
    """
    check_mounted(paths.resctrl)
    return [usage for group in groups for usage in _of_group(paths, group)]


def _of_group(paths: HostPaths, group: str) -> Iterator[CacheUsage]:
    data = paths.resctrl / group / "mon_data"
    for name in names_in(data):
        if domain := _DOMAIN.fullmatch(name):
            values = {}
            for file in (OCCUPANCY, *BANDWIDTHS):
                try:
                    found = parse_usage(read_file(data / name / file, _MOST_BYTES))
                except KernelFileError:
                    continue  # the group has ended, or the CPU does not count this
                if found is not None:
                    values[file] = found
            if values:
                yield CacheUsage(group, int(domain[1]), values)


def parse_usage(data: bytes) -> int | None:
    """Return a number of bytes; None: the hardware has none now (Unavailable, Error)."""
    text = data.decode("ascii", "replace").strip()
    return int(text) if _NUMBER.fullmatch(text) else None
