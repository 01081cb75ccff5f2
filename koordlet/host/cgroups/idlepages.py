"""Cold memory of a cgroup: pages that were not touched for a while (kidled kernels only)."""

from collections.abc import Mapping
from typing import NamedTuple

from koordlet.host.proc.procfiles import shown

DEFAULT_BOUNDARY = 5
_LINES = 31
_BUCKETS_LINE, _FIRST_ROW = 5, 14
_SETTINGS = ("page_scans", "slab_scans", "scan_period_in_seconds", "use_hierarchy")
_COLD_FILE_ROWS = ("cfei", "dfei", "cfui", "dfui")  # clean or dirty file pages that are inactive


class IdlePages(NamedTuple):
    """A memory.idle_page_stats file."""

    settings: Mapping[str, int]  # of the scanner; scan_period_in_seconds and so on
    buckets: tuple[int, ...]  # idle scans from which on a page is in that bucket
    rows: Mapping[str, tuple[int, ...]]  # kind of page -> bytes in each bucket

    def cold_after(self, seconds: float) -> int | None:
        """Return the bytes of file pages that were idle for so long, children included.

        None: the scanner is off, leaves out children, or does not count that far.
        """
        period = self.settings["scan_period_in_seconds"]
        if period <= 0 or not self.settings["use_hierarchy"]:
            return None
        long_enough = (n for n, scans in enumerate(self.buckets) if scans * period >= seconds)
        boundary = next(long_enough, None)
        return None if boundary is None else self.cold_bytes(boundary)

    def cold_bytes(self, boundary: int = DEFAULT_BOUNDARY) -> int:
        """Return the bytes of file pages in the buckets from the boundary on."""
        return sum(sum(self.rows[row][boundary:]) for row in _COLD_FILE_ROWS)


def parse_idle_pages(data: bytes) -> IdlePages:
    """Return the contents of memory.idle_page_stats.

    Raises:
        ValueError: not the 31 lines that Anolis kernels write.
    """
    lines = data.decode("ascii").strip("\n").split("\n")
    if len(lines) != _LINES:
        raise ValueError(f"wanted {_LINES} lines, found {len(lines)}: {shown(data)}")
    settings = dict(_setting(line) for line in lines[1:_BUCKETS_LINE])
    _, buckets = _commented(lines[_BUCKETS_LINE])
    rows = {name: tuple(map(int, values)) for name, *values in map(str.split, lines[_FIRST_ROW:])}
    missing = [row for row in _COLD_FILE_ROWS if row not in rows]
    if set(settings) != set(_SETTINGS) or missing:
        raise ValueError(f"wanted {_SETTINGS} and {_COLD_FILE_ROWS}, found {shown(data)}")
    return IdlePages(settings, tuple(map(int, buckets.split(","))), rows)


def _setting(line: str) -> tuple[str, int]:
    key, value = _commented(line)
    return key, int(value)


def _commented(line: str) -> tuple[str, str]:
    """Split "# key: value"."""
    key, colon, value = line.removeprefix("# ").partition(": ")
    if not colon:
        raise ValueError(f"wanted '# key: value', found {line[:60]!r}")
    return key, value
