"""Parts of L3 caches and of memory bandwidth: what a pod asks for, and what resctrl takes. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from koord.api.annotations import json_annotation, place
from koord.api.gojson import between, shape_of, wire
from koord.api.pod import Pod
from koord.plugin import InvalidObject

AMD = "AuthenticAMD"
_AMD_UNLIMITED = 2048
_AMD_FULL = 160  # eighths of GB/s that 100 % stand for: 25 GB/s, of which 80 % can be had
_STEP = 10  # percent, on Intel


class ResctrlMachine(NamedTuple):
    """The capabilities of resctrl on this host."""

    vendor: str
    mask: int  # all ways of an L3 cache; 0: they cannot be divided
    fewest_ways: int
    caches: tuple[int, ...]  # ids of L3 caches
    bandwidths: tuple[int, ...]  # ids of the domains of bandwidth; none: it cannot be divided

    @property
    def divides_cache(self) -> bool:
        """Whether L3 caches can be divided."""
        return self.mask > 0 and bool(self.caches)


class SchemataLines(NamedTuple):
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


ANNOTATION = "node.koordinator.sh/resctrl"
MAX_CACHES = 256  # entries by cache
_ID = between(0, 65_535)
_PART = between(0, 100)


@dataclass(frozen=True, slots=True)
class SchemataPart:
    """A part of the caches (range) or of the bandwidth (percent); neither: nothing is asked for."""

    percent: int = wire("percent", 0, limit=_PART)
    range: tuple[int, ...] = wire("range", ())


@dataclass(frozen=True, slots=True)
class CachePart:
    """The same for one cache."""

    cache: int = wire("cacheID", 0, limit=_ID)
    percent: int = wire("percent", 0, limit=_PART)
    range: tuple[int, ...] = wire("range", ())


@dataclass(frozen=True, slots=True)
class Parts:
    """The part of all caches, and parts of single caches, which override it."""

    every: SchemataPart = wire("schemata", factory=SchemataPart)
    per_cache: tuple[CachePart, ...] = wire("schemataPerCache", ())


@dataclass(frozen=True, slots=True)
class PodParts:
    """The parts that a pod's annotation asks for."""

    llc: Parts = wire("llc", factory=Parts)
    mb: Parts = wire("mb", factory=Parts)


_SHAPE = shape_of(PodParts)


def parts_of(pod: Pod) -> PodParts | None:
    """Return what a pod asks for; None: it has no such annotation.

    Raises:
        InvalidObject: it is malformed, or no machine could do it.
    """
    if ANNOTATION not in pod.annotations:
        return None
    where = place(pod, ANNOTATION)
    found = _SHAPE.load(json_annotation(pod, ANNOTATION, _SHAPE))
    for name, parts in (("llc", found.llc), ("mb", found.mb)):
        if len(parts.per_cache) > MAX_CACHES:
            raise InvalidObject(
                f"{where}.{name}.schemataPerCache",
                wanted=f"{MAX_CACHES} entries at most",
                found=len(parts.per_cache),
            )
        _check(parts.every, f"{where}.{name}.schemata")
        for index, part in enumerate(parts.per_cache):
            _check(part, f"{where}.{name}.schemataPerCache[{index}]")
    return found


def _check(part: SchemataPart | CachePart, where: str) -> None:
    if part.range and not (len(part.range) == 2 and 0 <= part.range[0] < part.range[1] <= 100):
        raise InvalidObject(
            f"{where}.range", wanted="two percentages, the first below the second", found=part.range
        )


def lines_for(parts: PodParts, machine: ResctrlMachine, where: str) -> SchemataLines:
    """Return the lines for a pod on this machine.

    A line is there if each cache has a part, as Koordinator's: one that is asked for of single
    caches only needs all of them.

    Raises:
        InvalidObject: the machine has no such cache, or cannot divide it so.
    """
    numbers: dict[int, int] = {}
    masks: dict[int, int] = {}
    try:
        if machine.bandwidths:
            _check_ids(parts.mb, machine.bandwidths)
            if parts.mb.every.percent:
                number = bandwidth(parts.mb.every.percent, machine.vendor)
                numbers = dict.fromkeys(machine.bandwidths, number)
            for part in parts.mb.per_cache:
                if part.percent:
                    numbers[part.cache] = bandwidth(part.percent, machine.vendor)
        if machine.divides_cache:
            _check_ids(parts.llc, machine.caches)
            if parts.llc.every.range:
                masks = dict.fromkeys(machine.caches, _mask(machine, parts.llc.every))
            for part in parts.llc.per_cache:
                if part.range:
                    masks[part.cache] = _mask(machine, part)
    except ValueError as err:
        raise InvalidObject(where, wanted="parts that this machine has", found=str(err)) from err
    return SchemataLines(
        l3_text(masks) if masks.keys() == set(machine.caches) else "",
        bandwidth_text(numbers) if numbers.keys() == set(machine.bandwidths) else "",
    )


def _mask(machine: ResctrlMachine, part: SchemataPart | CachePart) -> int:
    start, end = part.range
    return l3_mask(machine.mask, machine.fewest_ways, start, end)


def _check_ids(parts: Parts, known: tuple[int, ...]) -> None:
    for part in parts.per_cache:
        if part.cache not in known:
            raise ValueError(f"wanted one of the caches {known}, found cacheID {part.cache}")
