"""Parts of the L3 caches and of the memory bandwidth, from percent to what resctrl takes. Pure.

Source: Koordinator, calculateCatL3MaskValue and calculateMbaPercent.
"""

from collections.abc import Mapping
from typing import NamedTuple

AMD = "AuthenticAMD"
_AMD_UNLIMITED = 2048
_AMD_FULL = 160  # eighths of GB/s that 100 % stand for: 25 GB/s, of which 80 % can be had
_STEP = 10  # percent, on Intel


class Machine(NamedTuple):
    """What resctrl offers on this host."""

    vendor: str
    mask: int  # all ways of an L3 cache; 0: they cannot be divided
    fewest_ways: int
    caches: tuple[int, ...]  # ids of L3 caches
    bandwidths: tuple[int, ...]  # ids of the domains of bandwidth; none: it cannot be divided

    @property
    def divides_cache(self) -> bool:
        """Whether L3 caches can be divided."""
        return self.mask > 0 and bool(self.caches)


class Lines(NamedTuple):
    """The lines of a group's schemata; "": the line stays as the kernel makes it."""

    l3: str
    mb: str


def l3_mask(mask: int, fewest_ways: int, start: int, end: int) -> int:
    """Return the ways from start to end percent of those of a mask.

    Raises:
        ValueError: the kernel would not take it.
    """
    if mask <= 0 or mask & (mask + 1):
        raise ValueError(f"wanted a cache whose ways are one run from the first, found {mask:x}")
    if not 0 <= start < end <= 100:
        raise ValueError(f"wanted 0 <= start < end <= 100 percent, found {start} and {end}")
    ways = mask.bit_length()
    first, last = (-(-ways * percent // 100) for percent in (start, end))
    if last - first < fewest_ways:
        raise ValueError(
            f"wanted {fewest_ways} ways at least, found {last - first} from {start} to {end} "
            f"percent of {ways}"
        )
    return (1 << last) - (1 << first)


def bandwidth(percent: int, vendor: str) -> int:
    """Return the number for a part of the memory bandwidth.

    That is percent in tens on Intel, eighths of GB/s on AMD.

    Raises:
        ValueError: it is not 1 to 100 percent.
    """
    if not 1 <= percent <= 100:
        raise ValueError(f"wanted 1 to 100 percent, found {percent}")
    if vendor == AMD:
        return _AMD_UNLIMITED if percent == 100 else _AMD_FULL * percent // 100
    return -(-percent // _STEP) * _STEP


def l3_text(masks: Mapping[int, int]) -> str:
    """Return the value of RESCTRL_L3 for masks by cache id."""
    return ";".join(f"{cache}={mask:x}" for cache, mask in sorted(masks.items()))


def bandwidth_text(numbers: Mapping[int, int]) -> str:
    """Return the value of RESCTRL_MB for numbers by id."""
    return ";".join(f"{cache}={number}" for cache, number in sorted(numbers.items()))


def ids_of(text: str) -> dict[int, str]:
    """Return what a value of RESCTRL_L3 or RESCTRL_MB says, by id."""
    pairs = (entry.partition("=") for entry in text.split(";") if entry)
    return {int(cache): number for cache, _, number in pairs}
