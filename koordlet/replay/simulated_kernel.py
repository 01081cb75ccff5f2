"""The kernel of a recorded node: what was read there, and what is claimed in the replay."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from koord.util.clock import Clock
from koord.util.errors import InvalidObject
from koordlet.executor.claims.claim import RELEASE, ApplyResult, ClaimState, DesiredValue, Key
from koordlet.executor.kernel.view import (
    OnWatchedValues,
    WatchedResources,
    WatchedValue,
    watch_with,
)
from koordlet.host import kernelfile
from koordlet.host.cgroups.layout import Driver, Layout
from koordlet.host.resource import File, Level, Resource
from koordlet.host.resources import BY_NAME
from koordlet.replay.record_format import decode

T = TypeVar("T")

_CPUSETS = ("cpuset_cpus", "cpuset_cpus_wanted")


class _SimulatedFile(NamedTuple):
    """A kernel value by the names that a record has for it."""

    resource: str
    group: str


class SimulatedKernel:
    """The kernel that plugins read and claim in a replay. Nothing outside of it is touched.

    A value that the replay claims is what it claims. One that was claimed while it was recorded is
    what was there before, as the replay may not claim it. Everything else is as it was read.
    """

    def __init__(self, layout: Layout, clock: Clock) -> None:
        self.layout = layout
        self._clock = clock
        self._read: dict[_SimulatedFile, WatchedValue] = {}
        self._originals: dict[_SimulatedFile, Any] = {}
        self._claimed: dict[_SimulatedFile, Any] = {}
        self._groups: dict[tuple[str, int], list[str]] = {}

    def learn(self, resource: str, group: str, value: Any, at: float) -> None:
        """Take what was read. None: it could not be."""
        place = _SimulatedFile(resource, group)
        if value is None:
            self._read.pop(place, None)
        elif _is_known(resource):
            self._read[place] = WatchedValue(_typed(resource, value), at)

    def learn_original(self, resource: str, level: str, target: str, value: Any) -> None:
        """Take the value from before the recorded daemon changed it; target is its text."""
        if _is_known(resource) and value is not None:
            place = _SimulatedFile(resource, _group(level, target))
            self._originals.setdefault(place, _typed(resource, value))

    def learn_groups(self, group: str, depth: int, found: list[str]) -> None:
        """Take which cgroups there were below one."""
        self._groups[group, depth] = found

    async def read(self, resource: Resource[T], group: str = "") -> T | None:
        """Return the simulated value of a file; None: the record has none."""
        reading = self._reading(_SimulatedFile(resource.name, group))
        return None if reading is None else reading.value

    async def read_many(
        self, reads: Sequence[tuple[Resource[Any], str]]
    ) -> list[WatchedValue | None]:
        """Return the simulated values of several files; None as with read."""
        return [self._reading(_SimulatedFile(resource.name, group)) for resource, group in reads]

    async def watch(
        self, reads: WatchedResources, interval: float, notice: OnWatchedValues, seconds: float
    ) -> bool:
        """Read every interval until notice returns True, or so many seconds have passed.

        Returns whether notice returned True.
        """
        return await watch_with(self, self._clock, reads, interval, notice, seconds)

    async def groups_below(self, group: str, depth: int) -> list[str]:
        """Return the cgroups below one, as they were last listed in the record."""
        return list(self._groups.get((group, depth), ()))

    async def supports(self, resource: Resource[Any], group: str = "") -> bool:
        """Return True: a file that was never read counts as present."""
        return True

    def apply(self, desired_values: Sequence[DesiredValue]) -> list[ApplyResult]:
        """Apply desired values: every value that its file could take is accepted."""
        return [self._apply(desired) for desired in desired_values]

    def sweep(self) -> list[Key]:
        """Return no drifted keys: no other agent writes here."""
        return []

    def _apply(self, desired: DesiredValue) -> ApplyResult:
        place = _SimulatedFile(desired.key.resource.name, desired.key.target.place)
        before = self._reading(place)
        old = None if before is None else before.value
        if desired.value is RELEASE:
            known = place in self._claimed
            self._claimed.pop(place, None)
            return ApplyResult(ClaimState.GONE, self._originals.get(place), wrote=known)
        if defect := _defect(desired):
            return ApplyResult(ClaimState.FAILED, old, self._originals.get(place), defect)
        if desired.original is not None:
            self._originals[place] = desired.original
        elif old is not None:
            self._originals.setdefault(place, old)
        self._claimed[place] = desired.value
        original = self._originals.get(place)
        return ApplyResult(ClaimState.IN_FORCE, desired.value, original, wrote=old != desired.value)

    def _reading(self, place: _SimulatedFile) -> WatchedValue | None:
        for known in (self._claimed, self._originals):
            if place in known:
                return WatchedValue(known[place], self._clock.monotonic())
        return self._read.get(place)


def layout_of(facts: Mapping[str, Any]) -> Layout:
    """The names of pods' cgroups from the facts of a record.

    Raises:
        InvalidObject: they are missing or unusable.
    """
    try:
        return Layout(Driver(facts["driver"]), str(facts["root"]))
    except (KeyError, ValueError) as err:
        raise InvalidObject("record", wanted="driver and root of cgroups", found=repr(err)) from err


def _group(level: str, target: str) -> str:
    """The group argument of a value, from the level and the text of its target."""
    match level:
        case Level.NODE:
            return ""
        case Level.QOS | Level.POD | Level.CONTAINER:
            return target
    return target.rpartition(" ")[2]


def _defect(desired: DesiredValue) -> str:
    """Return why no cgroup version accepts a value; "": one does."""
    row, defects = desired.key.resource, list[str]()
    for file in row.files.values():
        try:
            defects.append(_reject_reason(file, desired.value))
        except ValueError as err:
            defects.append(str(err))
    if not defects or "" in defects:
        return ""
    return f"{row.name}: wanted {row.name} ({row.unit}), found {defects[0]}; it would not be set"


def _reject_reason(file: File[Any], value: Any) -> str:
    """Return why a file does not accept a value; "": it does. Raises ValueError."""
    if file.text is None:
        return "that it is read only"
    text = file.text.of(value)
    allowed = file.validate is None or file.validate(text)
    return "" if allowed else f"{text!r}, which is out of its range"


def _is_known(resource: str) -> bool:
    """Whether a name is one of the table, or of a file that a plugin may have declared."""
    return resource in BY_NAME or not kernelfile.declaration_defect(resource)


def _typed(resource: str, value: Any) -> Any:
    """A value as reading it from the kernel gives it."""
    if isinstance(value, list):
        wanted = frozenset[int] if resource in _CPUSETS else tuple[int, ...]
        return decode(wanted, value, resource)
    return value
