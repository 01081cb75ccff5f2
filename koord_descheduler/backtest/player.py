"""Play a configuration on a record: its profiles at the recorded times, on a simulated cluster."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from msgspec.structs import replace as replaced
from prometheus_client import CollectorRegistry

from koord.api.labelselector import LabelSelector
from koord.cluster import kinds
from koord.cluster.facts import (
    ClusterNode,
    ClusterPod,
    ReportedAggregate,
    ReportedPodUsage,
    ReportedUsage,
)
from koord.cluster.kinds import UsageReport
from koord.cluster.predicates import fits
from koord.cluster.state import ClusterState
from koord.util.errors import InvalidObject, KoordError
from koord.util.simulatedclock import SimulatedClock
from koord_descheduler.backtest.records import (
    Change,
    Eviction,
    Header,
    RecordReader,
    Tick,
    TickDecoder,
    read_header,
    summary_of,
)
from koord_descheduler.config import Configuration, HotThresholds, Point
from koord_descheduler.framework.evictor import EvictionLimiter
from koord_descheduler.framework.handle import Migration, Services
from koord_descheduler.framework.interfaces import EvictOptions, EvictPlugin
from koord_descheduler.framework.profile import (
    Descheduler,
    PluginRegistry,
    ProfilePlugins,
    build_profile,
    profile_settings,
)
from koord_descheduler.ledger.entries import WorkloadRef
from koord_descheduler.ledger.ledger import Ledger, LedgerMetrics, workload_of
from koord_descheduler.planning import offline_services

REPLACED_WITHIN = 600.0  # seconds; a pod without replacement by then has none: the workload shrank
LEAVES_WITHIN = 1800.0  # seconds; what leaves later after an eviction does so for another reason
NOTHING = ReportedUsage(0.0, 0.0)


@dataclass(slots=True)
class MovedPod:
    """A pod that is not where the record has it."""

    pod: ClusterPod  # as it is here; node "": it fits nowhere
    workload: WorkloadRef
    metric: ReportedPodUsage  # the last one in the record
    recorded: str = ""  # key of the pod in the record that it stands for; "": none at the moment
    home: str = ""  # the node of that one
    alone_since: float = 0.0  # Unix seconds; since when it stands for none


class SimulatedCluster:
    """Follows a record, and what is evicted here. Times are Unix seconds."""

    def __init__(self, recorded: Mapping[str, Eviction], window: float) -> None:
        """recorded has the evictions of the record by uid of the pod.

        One that is done here at most window seconds from then is the same.
        """
        self.state = ClusterState()
        self.followed: set[str] = set()  # uids of pods whose eviction is the record's
        self._recorded = recorded
        self._window = window
        self._uids: dict[str, str] = {}  # of the pods in the record, by key
        self._elsewhere: dict[str, MovedPod] = {}  # by key of the pod as it is here
        self._standing_for: dict[str, MovedPod] = {}  # by key of the pod in the record
        self._leaving: dict[
            str, str
        ] = {}  # nodes of pods that shut down in the record only, by key
        self._load: dict[
            str, ReportedUsage
        ] = {}  # of nodes, with what has come and gone since the report
        self._moves = 0

    @property
    def elsewhere(self) -> int:
        """Pods that are not where the record has them."""
        return len(self._elsewhere)

    def unplaced(self) -> list[str]:
        """Pods that fit nowhere, by namespace/name."""
        return [key for key, one in self._elsewhere.items() if not one.pod.node]

    def take(self, tick: Tick) -> list[UsageReport]:
        """Take over a moment of the record; return its reports as they are here."""
        for change in tick.changes:
            if change.kind is kinds.POD:
                self._take_pod(change, tick.at)
            elif change.item is None:
                self.state.remove(change.kind, change.key)
                if change.kind is kinds.NODE:
                    self._load.pop(change.key, None)
            else:
                self.state.put(change.kind, change.item)
        self._settle(tick.at)
        return [self._take_report(report) for report in tick.reports]

    def evict(self, key: str, now: float) -> str:
        """Evict a pod here; return the node where it comes up, "" where that is not known now.

        That is so if the eviction is the record's, too, or the pod fits nowhere.
        """
        pod = self.state.pod(key)
        if pod is None:
            return ""
        known = self._elsewhere.get(key)
        recorded = self._recorded.get(pod.uid)
        if known is None and recorded is not None and abs(recorded.at - now) <= self._window:
            self.followed.add(pod.uid)
            return ""
        if known is None:
            known = self._elsewhere[key] = self._standing_for[key] = self._here(pod)
            known.recorded, known.home = key, pod.node
        self._moves += 1
        origin = pod.uid.partition("~")[0]
        fresh = replaced(pod, uid=f"{origin}~{self._moves}", created=now, started=now)
        self._place(known, fresh, pod.node)
        return known.pod.node

    def _take_pod(self, change: Change, now: float) -> None:
        pod: ClusterPod | None = change.item
        old = self._uids.get(change.key)
        if old is not None and (pod is None or pod.uid != old):
            self._leaves(change.key, old, now)
        if pod is None:
            return
        is_new = self._uids.get(change.key) is None
        self._uids[change.key] = pod.uid
        if pod.deleting and self._is_only_recorded(pod.uid, now):
            self._stays(change.key, now)
            self._leaving[change.key] = pod.node
            return
        one = self._standing_for.get(change.key)
        if one is None and is_new:
            one = self._adopted(pod)
        if one is None:
            self.state.put(kinds.POD, pod)
            return
        one.home = pod.node
        if one.pod.key == change.key and one.pod.uid.partition("~")[0] == pod.uid:
            mine = one.pod
            one.pod = replaced(
                pod, uid=mine.uid, node=mine.node, created=mine.created, started=mine.started
            )
            if one.pod.node:
                self.state.put(kinds.POD, one.pod)

    def _leaves(self, key: str, uid: str, now: float) -> None:
        """A pod of the record is gone."""
        del self._uids[key]
        if self._leaving.pop(key, None) is not None:
            return
        if self._is_only_recorded(uid, now):
            self._stays(key, now)
        elif (one := self._standing_for.pop(key, None)) is not None:
            self._forget(one)
        else:
            self.state.remove(kinds.POD, key)

    def _is_only_recorded(self, uid: str, now: float) -> bool:
        """Whether a pod leaves because the record evicts it, which did not happen here."""
        eviction = self._recorded.get(uid)
        if eviction is None or uid in self.followed:
            return False
        return now - eviction.at <= LEAVES_WITHIN

    def _stays(self, key: str, now: float) -> None:
        """A pod of the record leaves there only: here it waits for its replacement."""
        if key in self._leaving:
            return
        one = self._standing_for.pop(key, None)
        if one is None:
            pod = self.state.pod(key)
            if pod is None:
                return
            one = self._elsewhere[key] = self._here(pod)
        one.recorded, one.home, one.alone_since = "", "", now

    def _here(self, pod: ClusterPod) -> MovedPod:
        return MovedPod(pod, workload_of(pod, self.state.workloads), self._metric_of(pod))

    def _adopted(self, pod: ClusterPod) -> MovedPod | None:
        """The pod here that a new one in the record is the replacement of; None: of none."""
        alone = [one for one in self._elsewhere.values() if not one.recorded]
        if not alone:
            return None
        workload = workload_of(pod, self.state.workloads)
        for one in alone:
            if one.workload == workload:
                one.recorded = pod.key
                self._standing_for[pod.key] = one
                return one
        return None

    def _settle(self, now: float) -> None:
        """Forget pods without replacement, and place those that fitted nowhere."""
        for one in list(self._elsewhere.values()):
            if not one.recorded and now > one.alone_since + REPLACED_WITHIN:
                self._forget(one)
            elif not one.pod.node:
                self._place(one, one.pod, "")

    def _forget(self, one: MovedPod) -> None:
        self._elsewhere.pop(one.pod.key, None)
        self._standing_for.pop(one.recorded, None)
        if one.pod.node:
            self.state.remove(kinds.POD, one.pod.key)
            self._shift(one.pod.node, one.metric.usage, -1)

    def _place(self, one: MovedPod, pod: ClusterPod, leaves: str) -> None:
        """Move a pod to the node that fits and has the lowest load then; not to the one it leaves.

        A load is the larger one of the shares of cpu and memory.
        """
        self.state.remove(kinds.POD, pod.key)
        if leaves:
            self._shift(leaves, one.metric.usage, -1)
        target = self._target(pod, one.metric.usage, leaves)
        one.pod = replaced(pod, node=target)
        if target:
            self.state.put(kinds.POD, one.pod)
            self._shift(target, one.metric.usage, 1)

    def _target(self, pod: ClusterPod, usage: ReportedUsage, leaves: str) -> str:
        view = self.state.view()
        loads = []
        for row in np.flatnonzero(fits(replaced(pod, node=""), view).mask).tolist():
            node = view.node(row)
            load = self._load.get(node.name)
            if node.name == leaves or load is None or not node.ready:
                continue
            room = dict(node.allocatable)
            cpu = (load.cores + usage.cores) * 1000 / max(room.get("cpu", 0), 1)
            memory = (load.memory_bytes + usage.memory_bytes) / max(room.get("memory", 0), 1)
            loads.append((max(cpu, memory), node.name))
        return min(loads)[1] if loads else ""

    def _metric_of(self, pod: ClusterPod) -> ReportedPodUsage:
        """The usage of a pod by the last report of its node."""
        report = self.state.reports.get(pod.node)
        for metric in report.pods if report is not None else ():
            if (metric.namespace, metric.name) == (pod.namespace, pod.name):
                return metric
        return ReportedPodUsage(name=pod.name, namespace=pod.namespace, usage=NOTHING)

    def _shift(self, node: str, usage: ReportedUsage, sign: int) -> None:
        load = self._load.get(node)
        if load is not None:
            self._load[node] = _plus(load, usage, sign)

    def _take_report(self, report: UsageReport) -> UsageReport:
        """The report as it is here; it becomes the state's."""
        found = self._moved(report) if self._elsewhere else report
        self.state.put(kinds.NODE_METRIC, found)
        if found.usage is not None:
            self._load[found.node] = found.usage
        return found

    def _moved(self, report: UsageReport) -> UsageReport:
        """Return the report without the pods that left, and with those that arrived or stayed."""
        pods: list[ReportedPodUsage] = []
        cores = memory = 0.0
        is_changed = False
        for metric in report.pods:
            key = f"{metric.namespace}/{metric.name}"
            one = self._standing_for.get(key)
            if one is not None and one.home == report.node:
                one.metric = replaced(metric, name=one.pod.name, namespace=one.pod.namespace)
            elif self._leaving.get(key) != report.node:
                pods.append(metric)
                continue
            is_changed = True
            cores -= metric.usage.cores
            memory -= metric.usage.memory_bytes
        for one in self._elsewhere.values():
            if one.pod.node == report.node:
                is_changed = True
                pods.append(one.metric)
                cores += one.metric.usage.cores
                memory += one.metric.usage.memory_bytes
        if not is_changed:
            return report
        by = ReportedUsage(cores, memory)
        return replace(
            report,
            usage=_shifted(report.usage, by),
            aggregated=tuple(_window(one, by) for one in report.aggregated),
            pods=tuple(pods),
        )


def _window(window: ReportedAggregate, by: ReportedUsage) -> ReportedAggregate:
    """The same shift for each figure: that of a mean."""
    return ReportedAggregate(
        window.duration,
        *(
            _shifted(one, by)
            for one in (window.avg, window.p50, window.p90, window.p95, window.p99)
        ),
    )


def _shifted(usage: ReportedUsage | None, by: ReportedUsage) -> ReportedUsage | None:
    return None if usage is None else _plus(usage, by, 1)


def _plus(usage: ReportedUsage, by: ReportedUsage, sign: int) -> ReportedUsage:
    """Never below nothing."""
    return ReportedUsage(
        max(usage.cores + sign * by.cores, 0.0),
        max(usage.memory_bytes + sign * by.memory_bytes, 0.0),
    )


MAX_REPORT_AGE = 180.0  # seconds for which a report counts; as LowNodeLoad has it


@dataclass(frozen=True, slots=True)
class HotRule:
    """Thresholds of some nodes, in percent of allocatable by name of the resource."""

    thresholds: Mapping[str, float]
    node_selector: LabelSelector | None = None  # None: all nodes

    def is_for(self, node: ClusterNode) -> bool:
        """Whether the node is one of those."""
        return self.node_selector is None or self.node_selector.matches(node.labels)


def hot_rules(configuration: Configuration) -> tuple[HotRule, ...]:
    """The high thresholds of all pools; those that are distances from a mean are left out."""
    return tuple(
        HotRule(thresholds, selector)
        for profile in configuration.profiles
        for args in profile.args.values()
        if isinstance(args, HotThresholds)
        for thresholds, selector in args.hot_thresholds()
    )


class HotTime:
    """Adds up the time in which nodes were hot. Times are Unix seconds."""

    def __init__(self, rules: Sequence[HotRule]) -> None:
        """The first rule that is for a node counts."""
        self.seconds = 0.0
        self._rules = rules
        self._hot_since: dict[str, float] = {}  # nodes that are hot, by the last report

    def note(self, node: ClusterNode, report: UsageReport, now: float) -> None:
        """Take over a new report."""
        since = self._hot_since.pop(node.name, None)
        if since is not None:
            self.seconds += min(now - since, MAX_REPORT_AGE)
        if self._is_hot(node, report):
            self._hot_since[node.name] = now

    def end(self, now: float) -> None:
        """Count what is hot until now."""
        self.seconds += sum(min(now - at, MAX_REPORT_AGE) for at in self._hot_since.values())
        self._hot_since.clear()

    def _is_hot(self, node: ClusterNode, report: UsageReport) -> bool:
        rule = next((one for one in self._rules if one.is_for(node)), None)
        if rule is None or report.usage is None:
            return False
        used = {"cpu": report.usage.cores * 1000, "memory": report.usage.memory_bytes}
        return any(
            used[name] * 100 > rule.thresholds.get(name, float("inf")) * room
            for name, room in node.allocatable
            if name in used
        )


EVICTOR = "ReplayEvictor"
MIGRATED_WITHIN = 600.0  # seconds; then a pod that is still there stays
OBSERVED_EVERY = 10.0  # seconds; as the ledger at work
CYCLE_TIMEOUT = 60.0  # real seconds for one cycle
MAX_ERRORS = 20


class CycleStuck(KoordError):
    """A cycle does not end, for example because a plugin waits for time to pass."""


@dataclass(frozen=True, slots=True)
class RecordSummary:
    """A summary of a record, from a first look at it. Times are Unix seconds."""

    header: Header
    began: float  # the first moment, when the cluster was listed
    ended: float
    evictions: tuple[Eviction, ...]
    damage: str = ""  # why it ends before the end of its file; "": it does not


@dataclass(frozen=True, slots=True)
class PlayedEviction:
    """An eviction of the configuration that is played."""

    at: float  # Unix seconds
    pod: str  # namespace/name
    node: str
    plugin: str
    reason: str
    target: str  # "": not known, or as recorded
    is_recorded: bool  # the record has it as well


@dataclass(slots=True)
class Replay:
    """The result of replaying a record under a configuration."""

    survey: RecordSummary
    evictions: list[PlayedEviction] = field(default_factory=list)
    cycles: int = 0
    nodes: int = 0  # at the end
    hot_recorded: float = 0.0  # node-seconds above a high threshold, as recorded
    hot_played: float = 0.0  # the same as it would have been
    unplaced: tuple[str, ...] = ()  # pods that fitted nowhere in the end
    errors: list[str] = field(default_factory=list)  # of plugins, the first ones
    damage: str = ""  # as in RecordSummary
    unknown: tuple[str, ...] = ()  # what nodes have, which a record does not say

    @property
    def hours(self) -> float:
        """Length of the record."""
        return max(self.survey.ended - self.survey.began, 0.0) / 3600


def summarize(path: Path) -> RecordSummary:
    """Look through a record.

    Raises:
        InvalidObject: it is none, or has no moment.
        OSError: it cannot be read.
    """
    reader, header = RecordReader(path), None
    times: list[float] = []
    evictions: list[Eviction] = []
    try:
        for data in reader.blocks():
            if header is None:
                header = read_header(data)
                continue
            found = summary_of(data)
            times += found.times
            evictions += found.evictions
    except InvalidObject as err:
        if not times:
            raise
        reader.damage = str(err)
    if header is None or not times:
        found_text = reader.damage or "an empty one"
        raise InvalidObject(str(path), wanted="a record of a cluster", found=found_text)
    evictions.sort(key=lambda one: one.at)
    return RecordSummary(header, times[0], times[-1], tuple(evictions), reader.damage)


async def play(
    path: Path,
    found: RecordSummary,
    configuration: Configuration,
    registry: PluginRegistry,
    rules: Sequence[HotRule],
    progress: Callable[[float], None] = lambda share: None,
) -> Replay:
    """Play a configuration on a record that was looked through.

    progress gets the share of the record that is played, from 0 to 1.

    Raises:
        ProfileError: a plugin cannot be made.
        CycleStuck: as it says.
        OSError: the record cannot be read.
    """
    player = _Player(found, configuration, rules)
    await player.build(registry)
    try:
        await player.run(path, progress)
    finally:
        await player.close()
    return player.replay


class ReplayEvictor(EvictPlugin):
    """Takes the place of a profile's evict plugin: writes evictions down."""

    def __init__(self, evicted: list[tuple[ClusterPod, EvictOptions]]) -> None:
        self._evicted = evicted

    async def evict(self, pod: ClusterPod, options: EvictOptions) -> bool:
        self._evicted.append((pod, options))
        return True


class _Player:
    def __init__(
        self, found: RecordSummary, configuration: Configuration, rules: Sequence[HotRule]
    ) -> None:
        self.replay = Replay(found)
        self._configuration = configuration
        self._interval = configuration.descheduling_interval
        self._clock = SimulatedClock(wall=found.began)
        recorded = {one.uid: one for one in found.evictions}
        self._simulated = SimulatedCluster(recorded, self._interval)
        self._recorded_hot, self._played_hot = HotTime(rules), HotTime(rules)
        state = self._simulated.state
        self._ledger = Ledger(
            state,
            configuration.eviction_ledger,
            LedgerMetrics(CollectorRegistry()),
            lambda event: None,
        )
        self._evicted: list[tuple[ClusterPod, EvictOptions]] = []  # of this cycle
        self._services: Services = replace(
            offline_services(state, found.began), clock=self._clock, gate=self._ledger
        )
        self._begun: dict[str, float] = {}  # evictions that are the record's, by uid of the pod
        self._observed = found.began
        self._cycle_at = _first_cycle(found, self._interval)
        self._profiles: list[ProfilePlugins] = []
        limits = configuration.limits
        self._limiter = EvictionLimiter(
            per_node=limits.per_node, per_namespace=limits.per_namespace, total=limits.total
        )

    async def build(self, registry: PluginRegistry) -> None:
        """Make the profiles. Raises ProfileError; what was made is closed."""
        known = PluginRegistry()
        known.merge(registry)
        known.register(EVICTOR, lambda args, handle: ReplayEvictor(self._evicted))
        try:
            for profile in profile_settings(self._configuration):
                plugins = {**profile.plugins, Point.EVICT: (EVICTOR,)}
                played = replace(profile, dry_run=False, plugins=plugins)
                self._profiles.append(
                    await build_profile(played, known, self._services, self._limiter)
                )
        except BaseException:
            await self.close()
            raise
        self._cycles = Descheduler(
            self._profiles,
            self._simulated.state.nodes,
            self._limiter,
            self._services.metrics,
            self._clock,
            decisions=self._services.decisions,
            interval=0,
            node_selector=self._configuration.node_selector,
        )

    async def close(self) -> None:
        """End the plugins."""
        while self._profiles:
            await self._profiles.pop().close()

    async def run(self, path: Path, progress: Callable[[float], None]) -> None:
        """Play the record to its end."""
        found, reader, decoder = self.replay.survey, RecordReader(path), TickDecoder()
        length = max(found.ended - found.began, 1.0)
        try:
            for number, data in enumerate(reader.blocks()):
                for tick in decoder.ticks(data) if number else ():
                    await self._until(tick.at)
                    self._take(tick)
                    progress((tick.at - found.began) / length)
        except InvalidObject as err:
            reader.damage = str(err)
        await self._until(self._clock.wall(), inclusive=True)
        self._recorded_hot.end(self._clock.wall())
        self._played_hot.end(self._clock.wall())
        self.replay.hot_recorded = self._recorded_hot.seconds
        self.replay.hot_played = self._played_hot.seconds
        self.replay.nodes = len(self._simulated.state.nodes())
        self.replay.unplaced = tuple(self._simulated.unplaced())
        self.replay.damage = reader.damage
        self.replay.unknown = tuple(self._services.hardware.gaps(self._simulated.state.view()))

    def _take(self, tick: Tick) -> None:
        state = self._simulated.state
        played = self._simulated.take(tick)
        view = state.view()
        for report, other in zip(tick.reports, played, strict=True):
            row = view.row(report.node)
            if row is not None:
                node = view.node(row)
                self._recorded_hot.note(node, report, tick.at)
                self._played_hot.note(node, other, tick.at)
        for uid, one in list(self._services.migrations.by_uid.items()):
            pod = state.pod(one.pod)
            late = tick.at > self._begun.get(uid, 0.0) + MIGRATED_WITHIN
            if pod is None or pod.uid != uid or late:
                self._services.migrations.end(uid)
        self._observe(tick.at)

    async def _until(self, now: float, *, inclusive: bool = False) -> None:
        """Let time pass, with the cycles that are due before; with inclusive also one due now."""
        while self._cycle_at < now or (inclusive and self._cycle_at == now):
            self._pass(self._cycle_at)
            self._observe(self._cycle_at)
            await self._cycle()
            self._cycle_at += self._interval
        self._pass(now)

    def _pass(self, now: float) -> None:
        self._clock.tick(max(now - self._clock.wall(), 0.0))

    def _observe(self, now: float) -> None:
        if now - self._observed >= OBSERVED_EVERY:
            self._observed = now
            self._ledger.observe(now)

    async def _cycle(self) -> None:
        replay, now = self.replay, self._clock.wall()
        self._evicted.clear()
        try:
            async with asyncio.timeout(CYCLE_TIMEOUT):
                result = await self._cycles.run_once()
        except TimeoutError:
            raise CycleStuck(
                f"the cycle at {now:.0f} s: wanted it within {CYCLE_TIMEOUT:g} s, found it at work "
                "still; disable a plugin that waits"
            ) from None
        replay.cycles += 1
        replay.errors += result.errors[: MAX_ERRORS - len(replay.errors)]
        for pod, options in self._evicted:
            target = self._simulated.evict(pod.key, now)
            is_recorded = pod.uid in self._simulated.followed
            if is_recorded:
                migration = Migration(pod=pod.key, uid=pod.uid, node=pod.node)
                self._services.migrations.put(migration)
                self._begun[pod.uid] = now
            replay.evictions.append(
                PlayedEviction(
                    now,
                    pod.key,
                    pod.node,
                    options.plugin_name,
                    options.reason,
                    target,
                    is_recorded,
                )
            )


def _first_cycle(found: RecordSummary, interval: float) -> float:
    """Return the time of the first cycle, in step with the evictions of the record."""
    if not found.evictions:
        return found.began + interval
    first = found.evictions[0].at
    if first < found.began:
        first += interval * (int((found.began - first) / interval) + 1)
    return first - interval * int((first - found.began) / interval)
