"""Records what happens in the daemon, for `koordletctl record`, while a client listens."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import koordlet
from koord.api.machine import NODE_CPU_INFO
from koord.util.clock import Clock, Stamp
from koord.util.errors import KoordError
from koordlet.collectors.node_info import NODE_NUMA_INFO
from koordlet.executor.claims.claim import Change
from koordlet.executor.kernel.view import (
    Kernel,
    OnWatchedValues,
    WatchedResources,
    WatchedValue,
    WatchedValues,
)
from koordlet.host.cgroups.layout import Layout
from koordlet.host.resource import Resource
from koordlet.metriccache.cache import MetricCache
from koordlet.metriccache.kinds import Sample
from koordlet.replay.record_format import VERSION, LineKind, SampleWriter, encode, write_line
from koordlet.statesinformer.informer import StatesInformer

MAX_LINES = 2000  # that wait for a slow reader
INTERVAL = 1.0  # seconds between two looks at states and decisions

T = TypeVar("T")
Append = Callable[[Stamp, Iterable[Sample]], None]


class RecorderBusy(KoordError):
    """Another client records already."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordSources:
    """The sources of a record, in addition to samples, kernel reads and changes.

    facts: node, gates, flags and the like, as JSON. in_force: as ClaimManager.in_force.
    decisions: as Decisions.explain, latest first.
    """

    states: StatesInformer
    cache: MetricCache
    facts: Callable[[], Mapping[str, object]]
    in_force: Callable[[], Sequence[Mapping[str, object]]]
    decisions: Callable[[], Sequence[Mapping[str, object]]]


class Recorder:
    """One record at a time. Costs nothing while no client listens."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._session: _Session | None = None

    async def record(self, sources: RecordSources, seconds: float) -> AsyncGenerator[bytes]:
        """Yield the lines of a record of that many seconds from now on.

        Raises:
            Busy: another client records already.
        """
        if self._session is not None:
            raise RecorderBusy(
                "wanted to record, found that another client does already; wait for its end"
            )
        self._session = session = _Session(asyncio.get_running_loop())
        try:
            yield self._header(sources)
            end = self._clock.monotonic() + seconds
            look = _StateChanges(sources)
            while self._clock.monotonic() < end:
                for line in (*look.changes(), *session.take()):
                    yield line
                await self._clock.sleep(INTERVAL)
            for line in (*look.changes(), *session.take()):
                yield line
            yield write_line(LineKind.END)
        finally:
            self._session = None

    def recording_append(self, append: Append) -> Append:
        """Return append for the sampling thread that also adds the samples to the record."""

        def tee(at: Stamp, samples: Iterable[Sample]) -> None:
            session = self._session
            if session is None:
                return append(at, samples)
            samples = list(samples)
            append(at, samples)
            return session.tick(at, self._clock.monotonic(), samples) if samples else None

        return tee

    def changed(self, change: Change) -> None:
        """Take a change of a kernel value."""
        if self._session is not None:
            self._session.put(
                write_line(LineKind.CHANGE, self._clock.boottime(), change_json(change))
            )

    def kernel(self, kernel: Kernel) -> Kernel:
        """The same kernel, what plugins see of which goes into the record."""
        return _RecordingKernel(kernel, self._read, self._listed)

    def _read(self, resource: Resource[Any], group: str, reading: WatchedValue | None) -> None:
        if self._session is not None:
            value = None if reading is None else encode(reading.value)
            at = self._clock.monotonic() if reading is None else reading.at
            self._session.put(write_line(LineKind.READ, at, resource.name, group, value))

    def _listed(self, group: str, depth: int, found: list[str]) -> None:
        if self._session is not None:
            self._session.put(write_line(LineKind.GROUPS, group, depth, found))

    def _header(self, sources: RecordSources) -> bytes:
        facts = {
            "koordlet": koordlet.__version__,
            "wall": self._clock.wall(),
            "boot": self._clock.boottime(),
            "monotonic": self._clock.monotonic(),
            **sources.facts(),
        }
        return write_line(LineKind.HEADER, VERSION, facts, list(sources.in_force()))


class _Session:
    """Lines that wait for one reader; lines that exceed the queue of a slow reader are lost."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lines: deque[bytes] = deque()
        self._lost = 0
        self._writer = SampleWriter()

    def tick(self, at: Stamp, monotonic: float, samples: Sequence[Sample]) -> None:
        """Encode here, on the sampling thread, and hand over."""
        for line in self._writer.lines(at, monotonic, samples):
            self._loop.call_soon_threadsafe(self.put, line)

    def put(self, line: bytes) -> None:
        if len(self._lines) >= MAX_LINES:
            self._lost += 1
            self._writer = SampleWriter()  # names all series again: their names may be lost
        else:
            self._lines.append(line)

    def take(self) -> list[bytes]:
        """Return the lines added since the last call."""
        lines, self._lines = list(self._lines), deque()
        if self._lost:
            lines.append(write_line(LineKind.LOST, self._lost))
            self._lost = 0
        return lines


class _StateChanges:
    """Finds what has changed between two looks at states and decisions."""

    def __init__(self, sources: RecordSources) -> None:
        self._sources = sources
        self._seen: dict[str, object] = {}
        self._recorded = {_identity(decision) for decision in sources.decisions()}

    def changes(self) -> list[bytes]:
        states, cache = self._sources.states, self._sources.cache
        slo = states.node_slo()
        found = {
            "node": states.node(),
            "pods": states.pods(),
            "node_slo": None if slo is None else slo.spec,
            "node_topology": states.node_topology(),
            NODE_CPU_INFO: cache.get(NODE_CPU_INFO),
            NODE_NUMA_INFO: cache.get(NODE_NUMA_INFO),
        }
        changed = {
            name: value
            for name, value in found.items()
            if name not in self._seen or self._seen[name] != value
        }
        self._seen = found
        lines = [write_line(LineKind.STATE, name, encode(value)) for name, value in changed.items()]
        for decision in reversed(self._sources.decisions()):
            if _identity(decision) not in self._recorded:
                self._recorded.add(_identity(decision))
                lines.append(write_line(LineKind.DECISION, decision))
        return lines


class _RecordingKernel:
    """A kernel that records what was read."""

    def __init__(
        self,
        kernel: Kernel,
        read: Callable[[Resource[Any], str, WatchedValue | None], None],
        listed: Callable[[str, int, list[str]], None],
    ) -> None:
        self._kernel = kernel
        self._read = read
        self._listed = listed

    @property
    def layout(self) -> Layout:
        return self._kernel.layout

    async def read(self, resource: Resource[T], group: str = "") -> T | None:
        [reading] = await self.read_many([(resource, group)])
        return None if reading is None else reading.value

    async def read_many(
        self, reads: Sequence[tuple[Resource[Any], str]]
    ) -> list[WatchedValue | None]:
        readings = await self._kernel.read_many(reads)
        self._note_reads(reads, readings)
        return readings

    async def watch(
        self, reads: WatchedResources, interval: float, notice: OnWatchedValues, seconds: float
    ) -> bool:
        seen: list[WatchedValues] = []

        def see(readings: WatchedValues) -> bool:
            seen.append(readings)
            return notice(readings)

        try:
            return await self._kernel.watch(reads, interval, see, seconds)
        finally:
            for readings in seen:
                self._note_reads(reads, readings)

    async def groups_below(self, group: str, depth: int) -> list[str]:
        found = await self._kernel.groups_below(group, depth)
        self._listed(group, depth, found)
        return found

    async def supports(self, resource: Resource[Any], group: str = "") -> bool:
        return await self._kernel.supports(resource, group)

    def _note_reads(self, reads: WatchedResources, readings: WatchedValues) -> None:
        for (resource, group), reading in zip(reads, readings, strict=True):
            self._read(resource, group, reading)


def change_json(change: Change) -> dict[str, Any]:
    """A change in the form of a record."""
    return {
        "what": change.what,
        "resource": change.key.resource.name,
        "unit": change.key.resource.unit,
        "level": change.key.target.level.value,
        "place": str(change.key.target),
        "pod": change.key.target.pod,
        "plugins": list(change.owners),
        "old": encode(change.old),
        "new": encode(change.new),
        "reason": change.reason,
        "inputs": dict(change.inputs),
    }


def _identity(decision: Mapping[str, object]) -> tuple[object, ...]:
    """The identity of a decision; the same one taken again is not recorded again."""
    return tuple(decision.get(name) for name in ("first", "plugin", "uid", "outcome", "action"))
