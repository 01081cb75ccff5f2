"""Pressure stall information: how long tasks waited for cpu, memory or io."""

import re
from typing import NamedTuple

from koordlet.host.proc.procfiles import shown

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
