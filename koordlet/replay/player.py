"""Play a record to QoS plugins in simulated time, and compare with what was done."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from prometheus_client import CollectorRegistry

from koord.api.eviction import EvictionOutcome, EvictionResponse
from koord.api.machine import NODE_CPU_INFO, NodeCpuInfo
from koord.api.node import Node
from koord.api.nodeslo import NodeSLO, merge_nodeslo
from koord.api.pod import Pod
from koord.util.clock import Clock, Stamp
from koord.util.errors import InvalidObject
from koord.util.simulatedclock import SimulatedClock
from koord.util.stop import Stop
from koordlet.collectors.node_info import NODE_NUMA_INFO
from koordlet.executor.claimmanager import ClaimManager
from koordlet.executor.claims.claim import (
    RELEASE,
    ApplyResult,
    Change,
    ClaimState,
    DesiredValue,
    Key,
)
from koordlet.executor.evictions.decisions import Decisions, EvictionMetrics
from koordlet.executor.evictions.evictor import Evictor
from koordlet.executor.evictions.limits import EvictionBudget
from koordlet.executor.kernel.view import (
    InlineWorker,
    OnWatchedValues,
    WatchedResources,
    WatchedValue,
    watch_with,
)
from koordlet.host import kernelfile
from koordlet.host.cgroups.layout import Driver, Layout
from koordlet.host.resource import File, Level, Resource
from koordlet.host.resources import BY_NAME
from koordlet.host.topology import NumaNode
from koordlet.metriccache.cache import MetricCache, retentions
from koordlet.metriccache.kinds import DEFAULT_INTERVALS
from koordlet.plugin.base import ExtensionPlugin
from koordlet.plugin.interfaces import UnavailableClient
from koordlet.plugin.publishing import Publisher, with_published
from koordlet.replay.record_format import LineKind, SampleReader, decode, in_order
from koordlet.replay.recorder import change_json
from koordlet.rules.node_topology import NodeTopology
from koordlet.statesinformer.informer import StatesInformer
from koordlet.statesinformer.podmeta import PodMeta

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


_HOLDS = (ClaimState.IN_FORCE, ClaimState.WOULD)


@dataclass(slots=True)
class ReplayResult:
    """Changes while it was recorded, and those of the replay; times are boot seconds."""

    began: float = 0.0
    seconds: float = 0.0
    done: list[tuple[float, Mapping[str, Any]]] = field(default_factory=list)
    would: list[tuple[float, Mapping[str, Any]]] = field(default_factory=list)
    decided: list[Mapping[str, Any]] = field(default_factory=list)
    would_decide: list[Mapping[str, Any]] = field(default_factory=list)
    lost: int = 0  # lines that the record lacks
    problems: list[str] = field(default_factory=list)


class Player:
    """A node made of a record's header, with some plugins on it."""

    def __init__(
        self,
        facts: Mapping[str, Any],
        in_force: Sequence[Mapping[str, Any]],
        *,
        clock: SimulatedClock,
        plugins: Mapping[str, ExtensionPlugin],
        slo: NodeSLO | None = None,
        evict_budget_per_hour: int = 20,
    ) -> None:
        """plugins by name, prepared and enabled; slo counts instead of the recorded one.

        Raises:
            InvalidObject: the header lacks something.
        """
        self.played = ReplayResult(began=clock.boottime())
        self._clock = clock
        self._plugins = plugins
        self._slo = slo
        self._states = StatesInformer(clock)
        self._cache = MetricCache(
            None,
            "replay",
            clock,
            intervals=DEFAULT_INTERVALS,
            retentions=retentions(),
            kinds=with_published(p for each in plugins.values() for p in each.publishes),
        )
        self._samples = SampleReader()
        self._kernel = SimulatedKernel(layout_of(facts), clock)
        for value in in_force:
            self._kernel.learn_original(
                value["resource"], value["level"], value["target"], value["original"]
            )
            if value["value"] != value["original"] and value["state"] in _HOLDS:
                self.played.done.append((self.played.began, _held_before(value)))
        self._manager = ClaimManager(
            self._kernel, InlineWorker(), clock, dry_run=_never_dry_run, listeners=[self._changed]
        )
        self._decisions = Decisions(clock)
        self._evicted: set[str] = set()
        self._evictor = Evictor(
            self,
            clock=clock,
            dry_run=_never_dry_run,
            budget=EvictionBudget(
                lambda: evict_budget_per_hour, clock, directory=None, boot_id="replay"
            ),
            decisions=self._decisions,
            metrics=EvictionMetrics("replay", clock, CollectorRegistry()),
        )

    async def play(self, lines: Iterable[tuple[LineKind, list[Any]]]) -> ReplayResult:
        """Play all lines after the header; return the outcome."""
        over = Stop(self._clock)
        background = [
            asyncio.create_task(part.run(over))
            for part in (self._states, self._manager, self._evictor)
        ]
        running: dict[str, asyncio.Task[None]] = {}
        for name, plugin in self._plugins.items():
            self._set_up(name, plugin)
        for kind, content in in_order(lines):
            try:
                await self._line(kind, content)
            except (InvalidObject, ValueError, TypeError, KeyError, IndexError) as err:
                self._problem(f"{kind} at {self._clock.boottime():.0f} s: {err}")
            if not running and self._states.has_synced():
                running = {
                    name: asyncio.create_task(plugin.run(over))
                    for name, plugin in self._plugins.items()
                }
                await self._clock.settle()
        await self._clock.settle()
        over.set()
        await asyncio.wait([*running.values(), *background], timeout=1.0)
        for name, task in running.items():
            if task.done() and task.exception() is not None:
                self._problem(f"plugin {name}: {task.exception()!r}")
            task.cancel()
        self.played.seconds = self._clock.boottime() - self.played.began
        self.played.would_decide = list(reversed(self._decisions.explain()))
        return self.played

    async def evict(self, pod: Pod, grace_seconds: int | None) -> EvictionResponse:
        """Evict the pod: it is gone from now on."""
        self._evicted.add(pod.uid)
        self._states.set_pods(self._without_evicted(self._states.pods()))
        return EvictionResponse(EvictionOutcome.EVICTED)

    def announce(self, pod: Pod, *, warning: bool, reason: str, message: str) -> None:
        """Do nothing: there is no cluster to report to."""

    async def _line(self, kind: LineKind, content: list[Any]) -> None:
        match kind:
            case LineKind.KEYS:
                self._samples.learn(*content)
            case LineKind.TICK:
                await self._tick(*content)
            case LineKind.STATE:
                self._state(*content)
                await self._clock.settle()
            case LineKind.READ:
                at, resource, group, value = content
                await self._until(at)
                self._kernel.learn(resource, group, value, at)
            case LineKind.GROUPS:
                self._kernel.learn_groups(*content)
            case LineKind.CHANGE:
                at, change = content
                self.played.done.append((at, change))
                self._kernel.learn_original(
                    change["resource"], change.get("level", ""), change["place"], change["old"]
                )
            case LineKind.DECISION:
                self.played.decided.append(*content)
            case LineKind.LOST:
                self.played.lost += int(content[0])
            case LineKind.HEADER | LineKind.END:
                pass

    async def _tick(
        self, wall: float, boot: float, monotonic: float, values: Mapping[str, list[float | None]]
    ) -> None:
        await self._until(monotonic)
        samples = self._samples.samples(values)
        if self._evicted:
            samples = [s for s in samples if not self._evicted.intersection(s.key)]
        self._cache.append(Stamp(wall, boot), samples)

    async def _until(self, monotonic: float) -> None:
        """Let time pass to that moment of the record."""
        ahead = monotonic - self._clock.monotonic()
        if ahead > 0 and self._clock.rests(ahead):
            self._clock.tick(ahead)  # a tenth of the price, and most lines are of one moment
        elif ahead > 0:
            await self._clock.advance(ahead)

    def _state(self, name: str, value: Any) -> None:
        states = self._states
        match name:
            case "node":
                if value is not None:
                    states.set_node(decode(Node, value, name))
            case "pods":
                pods: tuple[PodMeta, ...] = decode(tuple[PodMeta, ...], value, name)
                states.set_pods(self._without_evicted(pods))
            case "node_slo":
                states.set_node_slo(self._slo or _node_slo(value))
            case "node_topology":
                if value is not None:
                    states.set_node_topology(decode(NodeTopology, value, name))
            case "node_cpu_info":
                if value is not None:
                    self._cache.put(NODE_CPU_INFO, decode(NodeCpuInfo, value, name))
            case "node_numa_info":
                if value is not None:
                    wanted = tuple[NumaNode, ...]
                    self._cache.put(NODE_NUMA_INFO, decode(wanted, value, name))

    def _without_evicted(self, pods: Sequence[PodMeta]) -> tuple[PodMeta, ...]:
        return tuple(pod for pod in pods if pod.uid not in self._evicted)

    def _set_up(self, name: str, plugin: ExtensionPlugin) -> None:
        self._manager.declare(name, plugin.may_claim)
        context = replace(
            plugin.context,
            kernel=self._kernel,
            claims=self._manager,
            evictor=self._evictor,
            publisher=Publisher(name, plugin.publishes, self._cache, self._clock),
        )
        plugin.bind(context)
        plugin.setup(UnavailableClient(), self._cache, self._states)

    def _changed(self, change: Change) -> None:
        self.played.would.append((self._clock.boottime(), change_json(change)))

    def _problem(self, problem: str) -> None:
        if len(self.played.problems) < 20:
            self.played.problems.append(problem)


def _held_before(value: Mapping[str, Any]) -> dict[str, Any]:
    """A value that was in force when the record began, as a change in one; see change_json."""
    return {
        "what": "held",
        "resource": value["resource"],
        "unit": value["unit"],
        "level": value["level"],
        "place": value["target"],
        "pod": value["pod"],
        "plugins": [claim["plugin"] for claim in value["claims"]],
        "old": value["original"],
        "new": value["value"],
        "reason": "; ".join(claim["reason"] for claim in value["claims"]),
        "inputs": {k: v for claim in value["claims"] for k, v in claim["inputs"].items()},
    }


async def _never_dry_run(_: str) -> bool:
    """No plugin is in dry-run: there is no kernel and no cluster behind it."""
    return False


def _node_slo(spec: Any) -> NodeSLO | None:
    if spec is None:
        return None
    slo, _ = merge_nodeslo({"spec": spec})
    return slo


_SETS = frozenset({"set", "would_set", "retaken"})
_HELD = _SETS | {"held"}  # held: since before the record began
_ENDS = frozenset({"restored", "would_restore", "yielded"})


@dataclass(frozen=True, slots=True)
class ValueHistory:
    """The history of one value: how often it was changed, and for how long it was held.

    Numbers are in the value's unit; None: it was never set, or is no number.
    """

    changes: int = 0
    seconds: float = 0.0
    lowest: float | None = None
    mean: float | None = None  # over the time it was held
    highest: float | None = None


@dataclass(frozen=True, slots=True)
class ComparedValue:
    """One kernel value of one place."""

    place: str
    resource: str
    unit: str
    plugins: tuple[str, ...]
    done: ValueHistory
    would: ValueHistory


def compare(played: ReplayResult) -> list[ComparedValue]:
    """One row per value that was changed, or would have been; in order of place and resource."""
    end = played.began + played.seconds
    done, would = _by_value(played.done), _by_value(played.would)
    rows = []
    for place, resource in sorted(done.keys() | would.keys()):
        ours, theirs = would.get((place, resource), []), done.get((place, resource), [])
        changes = [change for _, change in theirs + ours]
        plugins = dict.fromkeys(plugin for change in changes for plugin in change["plugins"])
        unit = str(changes[0].get("unit", ""))
        rows.append(
            ComparedValue(
                place, resource, unit, tuple(plugins), _held(theirs, end), _held(ours, end)
            )
        )
    return rows


def as_json(played: ReplayResult) -> dict[str, Any]:
    """Everything, for programs. Times are seconds since the record began."""
    return {
        "seconds": played.seconds,
        "linesLost": played.lost,
        "problems": played.problems,
        "values": [asdict(row) for row in compare(played)],
        "changes": {"done": _since(played, played.done), "would": _since(played, played.would)},
        "evictions": {"done": played.decided, "would": played.would_decide},
    }


_Changes = list[tuple[float, Mapping[str, Any]]]


def _by_value(
    changes: _Changes,
) -> dict[tuple[str, str], _Changes]:
    found: dict[tuple[str, str], _Changes] = {}
    for at, change in changes:
        found.setdefault((change["place"], change["resource"]), []).append((at, change))
    return found


def _held(changes: _Changes, end: float) -> ValueHistory:
    """Sum up the changes of one value; what is still set at the end was held until then."""
    if not changes:
        return ValueHistory()
    seconds, weighted = 0.0, 0.0
    numbers: list[float] = []
    for (at, change), (until, _) in zip(changes, [*changes[1:], (end, {})], strict=True):
        if change["what"] not in _HELD:
            continue
        seconds += until - at
        if isinstance(change["new"], int | float):
            numbers.append(change["new"])
            weighted += change["new"] * (until - at)
    made = sum(change["what"] in _SETS | _ENDS for _, change in changes)
    if not numbers:
        return ValueHistory(made, seconds)
    mean = weighted / seconds if seconds else numbers[-1]
    return ValueHistory(made, seconds, min(numbers), mean, max(numbers))


def _since(played: ReplayResult, changes: _Changes) -> list[dict[str, Any]]:
    return [{"at": round(at - played.began, 3), **change} for at, change in changes]
