"""What a pod asks for in its annotation: parts of L3 caches and of memory bandwidth. Pure."""

from dataclasses import dataclass

from koord.api.decoding.annotation import json_annotation, place
from koord.api.decoding.jsonvalues import between
from koord.api.decoding.wire import shape_of, wire
from koord.api.pods.pod import Pod
from koordlet.plugin import InvalidObject
from koordlet_plugins.resctrl.parts import (
    Lines,
    Machine,
    bandwidth,
    bandwidth_text,
    l3_mask,
    l3_text,
)

ANNOTATION = "node.koordinator.sh/resctrl"
MOST_CACHES = 256  # entries by cache
_ID = between(0, 65_535)
_PART = between(0, 100)


@dataclass(frozen=True, slots=True)
class Part:
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
    """Of all caches, and over that of single ones."""

    every: Part = wire("schemata", factory=Part)
    per_cache: tuple[CachePart, ...] = wire("schemataPerCache", ())


@dataclass(frozen=True, slots=True)
class PodParts:
    """What a pod's annotation asks for."""

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
        if len(parts.per_cache) > MOST_CACHES:
            raise InvalidObject(
                f"{where}.{name}.schemataPerCache",
                wanted=f"{MOST_CACHES} entries at most",
                found=len(parts.per_cache),
            )
        _check(parts.every, f"{where}.{name}.schemata")
        for index, part in enumerate(parts.per_cache):
            _check(part, f"{where}.{name}.schemataPerCache[{index}]")
    return found


def _check(part: Part | CachePart, where: str) -> None:
    if part.range and not (len(part.range) == 2 and 0 <= part.range[0] < part.range[1] <= 100):
        raise InvalidObject(
            f"{where}.range", wanted="two percentages, the first below the second", found=part.range
        )


def lines_for(parts: PodParts, machine: Machine, where: str) -> Lines:
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
    return Lines(
        l3_text(masks) if masks.keys() == set(machine.caches) else "",
        bandwidth_text(numbers) if numbers.keys() == set(machine.bandwidths) else "",
    )


def _mask(machine: Machine, part: Part | CachePart) -> int:
    start, end = part.range
    return l3_mask(machine.mask, machine.fewest_ways, start, end)


def _check_ids(parts: Parts, known: tuple[int, ...]) -> None:
    for part in parts.per_cache:
        if part.cache not in known:
            raise ValueError(f"wanted one of the caches {known}, found cacheID {part.cache}")
