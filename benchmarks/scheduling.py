"""koord-scheduler's loop on 5,000 nodes: pods that are equal, and pods that all differ.

The plugins are as many, and of such kinds, as Kubernetes' default ones; each computes little, so
that what is measured is mostly the loop and the framework. A binding costs nothing but a turn of
the event loop, and the watch event that confirms it. For comparison, the time of summing a column
of all nodes once, as a measure of the machine.

With the plugins that ship, also pods with rules about others, among 50,000 and 150,000 running
pods; beside a bare numpy prototype of fit, taints, affinity, load, balance and spread over the
same nodes, in the same run. And equal pods among up to 50,000 nodes while NodeMetrics come, beside
the same with all nodes scored anew.
"""

import asyncio
import gc
import statistics
import time
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice, product
from random import Random
from typing import Any

import numpy as np
from msgspec.structs import replace as changed

from benchmarks.table import Row
from koord.api.labelselector import Requirement
from koord.cluster.columns import Mask
from koord.cluster.decoder import Decoder
from koord.cluster.facts import (
    AffinityTerm,
    ClusterNode,
    ClusterPod,
    LabelSet,
    NodeTerm,
    PodSpec,
    SpreadConstraint,
    Taint,
)
from koord.cluster.kinds import NODE, NODE_METRIC, POD
from koord.cluster.view import View
from koord.component.plugins.discovery import discover
from koord.controlplane.testing import FakeCluster, make_report
from koord.util.clock import SystemClock
from koord.util.stop import Stop
from koord_scheduler.cache import SchedulerCache
from koord_scheduler.config.profiles import DEFAULT_WEIGHTS, EnabledPlugin, Point, Profile
from koord_scheduler.framework.extension.networktopology import (
    CLUSTER_LAYER,
    NODE_LAYER,
    TOPOLOGIES,
    NetworkTopology,
)
from koord_scheduler.framework.handle import PodDecoder
from koord_scheduler.framework.interfaces import (
    BindPlugin,
    Filtering,
    FilterPlugin,
    PodChanges,
    PreBindExtensions,
    PreBindPlugin,
    QueueSortPlugin,
    ScorePlugin,
    Scoring,
    VectorFilterPlugin,
    VectorScorePlugin,
)
from koord_scheduler.framework.profile import (
    PluginRegistry,
    build_profile,
    fields_read,
    known_plugins,
)
from koord_scheduler.framework.status import CycleState, Scores, Status
from koord_scheduler.framework.types import NodeInfo, QueuedPod
from koord_scheduler.plugin.testing.harness import fake_services
from koord_scheduler.scheduling.failures import Attempt
from koord_scheduler.scheduling.metrics import SchedulingMetrics
from koord_scheduler.scheduling.scheduler import Scheduler

NODES, PODS_PER_NODE, PODS = 5_000, 10, 4_000
MANY_PODS_PER_NODE = 30
FILTERS, SCORES = 12, 7
EQUAL, DIFFERENT, RULES = 200.0, 800.0, 1500.0  # microseconds for a cycle
COLUMN, PROTOTYPE = "sum of one column", "numpy prototype"
PER_APP = 50  # pods with the same labels, where kinds have rules about their own
ZONE, HOST, RACK = "topology.kubernetes.io/zone", "kubernetes.io/hostname", "rack"
NETWORK = {
    "metadata": {"name": "default"},
    "spec": {
        "networkTopologySpec": [
            {"topologyLayer": "Rack", "parentTopologyLayer": CLUSTER_LAYER, "labelKey": [RACK]},
            {"topologyLayer": NODE_LAYER, "parentTopologyLayer": "Rack"},
        ]
    },
}
KINDS = {
    "equal": EQUAL,
    "all differ": DIFFERENT,
    "1,000 specs": DIFFERENT,
    "spread": RULES,
    "zone": RULES,
    "affinity": RULES,
    "anti-affinity": RULES,
}
"""Kinds of pods, with the budget of their cycle.

1,000 specs: other requests and labels each; spread: over zones and hosts, softly; zone: node
affinity; affinity and anti-affinity: to pods of the same app, by zone and by host.
"""
ANEW = "all nodes scored anew"
MANY_ROWS = 100  # more than a plugin is asked about one by one
REPORTS = (0, 1, 3)  # NodeMetrics between two cycles
REPORTING_NODES = (5_000, 50_000)
_GI = 1 << 30


class Room(FilterPlugin, VectorFilterPlugin, ScorePlugin, VectorScorePlugin):
    """Free cpu, in all forms."""

    rejection = Status.unschedulable("Insufficient cpu")

    def __init__(self, args: Any, handle: Any) -> None:
        """It has no arguments."""

    def filter_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def score_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        return None if node.free("cpu") >= pod.spec.requests[0][1] else self.rejection

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mask:
        column = nodes.resources["cpu"]
        free = nodes.allocatable[:, column] - nodes.requested[:, column]
        fits: Mask = free >= pod.spec.requests[0][1]
        return fits

    def score(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
        return 100 * node.free("cpu") // node.allocatable("cpu")

    def score_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Scores:
        column = nodes.resources["cpu"]
        whole = nodes.allocatable[:, column]
        scores: Scores = 100 * (whole - nodes.requested[:, column]) // whole
        return scores


class Sort(QueueSortPlugin, BindPlugin, PreBindPlugin, PreBindExtensions):
    """The oldest first; binds at once, and has the watch say so. Patches cost nothing."""

    def __init__(self, args: Any, handle: Any, state: SchedulerCache) -> None:
        self._state = state

    def less(self, first: QueuedPod, second: QueuedPod) -> bool:
        return first.timestamp < second.timestamp

    def pre_bind_pre_flight(
        self, state: CycleState, pod: ClusterPod, node_name: str
    ) -> Status | None:
        return Status.skip()

    async def pre_bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        return None

    async def apply_patch(
        self, state: CycleState, pod: ClusterPod, changes: PodChanges
    ) -> Status | None:
        return None

    async def bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        await asyncio.sleep(0)
        known = self._state.get(POD, pod.key)
        assert known is not None
        annotations = pod.annotations  # those of a patch, too
        self._state.put(POD, changed(known, node=node_name, annotations=annotations))
        return None


class World:
    """A cluster and its scheduler."""

    def __init__(
        self,
        nodes: int,
        *,
        shipped: bool,
        pods_per_node: int = PODS_PER_NODE,
        plugins: Mapping[str, Any] | None = None,
        racks: int = 0,
    ) -> None:
        """shipped: with Kubernetes' default plugins, LoadAwareScheduling and these plugins.

        plugins: names, with their arguments. racks: of the nodes, followed as a network; 0: none.
        """
        self._plugins = plugins
        self._racks = racks
        self._pods_per_node = pods_per_node
        self.clock = SystemClock()
        self.state = SchedulerCache(self.clock)
        self._nodes = nodes
        self._shipped = shipped
        self._names = 0
        self._now = self.clock.wall()  # of the last NodeMetric

    async def build(self) -> None:
        registry = PluginRegistry()
        registry.register("Sort", partial(Sort, state=self.state))
        settings = _shipped(registry, self._plugins) if self._shipped else _synthetic(registry)
        decoder = PodDecoder(Decoder(fields_read([settings], registry)))  # as the daemon has it
        self.services = services = replace(
            fake_services(FakeCluster()),
            cluster=self.state,
            clock=self.clock,
            activate=self._activate,
            pod_decoder=decoder,
        )
        if self._racks:
            informer = services.informers.informer(TOPOLOGIES)
            network = NetworkTopology(self.state, services.changes, informer, self.clock)
            self.services = services = replace(services, network=network)
            services.informers.apply(TOPOLOGIES, NETWORK)
        self.profile = await build_profile(settings, registry, services)
        metrics = SchedulingMetrics(services.metrics.exposition)
        draw = Random(1)
        self.scheduler = Scheduler([self.profile], self.state, services, metrics, draw=draw)
        spec = PodSpec(requests=(("cpu", 100), ("memory", _GI)))
        apps = [LabelSet("default", {"app": f"app-{at}"}) for at in range(1000)]
        for at in range(self._nodes):
            amounts = (("cpu", 32_000), ("memory", 128 * _GI), ("pods", 250))
            labels = {HOST: f"n{at}", ZONE: f"z{at % 3}"}
            if self._racks:
                labels[RACK] = f"r{at % self._racks}"
            taints = (Taint("dedicated", "NoSchedule"),) if at % 50 == 0 else ()
            self.state.put(
                NODE, ClusterNode(name=f"n{at}", labels=labels, taints=taints, allocatable=amounts)
            )
            for number in range(self._pods_per_node):
                name = f"r{at}-{number}"
                app = apps[(at * self._pods_per_node + number) // PER_APP % len(apps)]
                pod = ClusterPod(name=name, uid=name, label_set=app, spec=spec, node=f"n{at}")
                self.state.put(POD, pod)
        await services.hooks.run()

    def _activate(self, uids: Iterable[str]) -> None:
        self.scheduler.activate(uids)

    def rack_of(self, pod: ClusterPod) -> str:
        """The rack of the node that a pod is bound to."""
        known = self.state.pod(pod.key)
        node = None if known is None else self.state.get(NODE, known.node)
        assert node is not None
        return node.labels[RACK]

    def pods(self, count: int, kind: str) -> list[ClusterPod]:
        """Pending pods of one of KINDS."""
        spec, labels = _spec(kind, "new", 0), LabelSet("default", {"app": "new"})
        found = []
        for at in range(count):
            self._names += 1
            name = f"w{self._names}"
            if kind == "1,000 specs":
                labels = LabelSet("default", {"app": name})
            elif KINDS[kind] == RULES and at % PER_APP == 0:
                labels = LabelSet("default", {"app": name})
                spec = _spec(kind, name, 0)
            if kind in ("1,000 specs", "all differ"):
                spec = _spec(kind, name, at)
            pod = ClusterPod(
                name=name, uid=name, label_set=labels, spec=spec, scheduler_name="bench"
            )
            found.append(pod)
        return found

    async def bind(self, pods: list[ClusterPod]) -> float:
        """Create pods and bind them; return CPU seconds for each."""
        stop = Stop(self.clock)
        running = asyncio.create_task(self.scheduler.run(stop))
        await asyncio.sleep(0)  # it runs while pods come, as it does in a cluster
        began = time.process_time()
        for pod in pods:
            self.state.put(POD, pod)
        while any(self.scheduler.queue.pending.values()) or self.scheduler.bindings:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        took = time.process_time() - began
        stop.set()
        await running
        return took / len(pods)

    def report(self, name: str, cores: int) -> None:
        """A NodeMetric comes that is newer than the last one."""
        self._now += 0.001
        old, usage = self.state.reports.get(name), {"cpu": cores, "memory": cores * _GI}
        new = make_report(name, at=self._now, usage=usage)
        self.state.put(NODE_METRIC, new)
        self.services.changes.notify(NODE_METRIC, old, new)

    async def cycles(self, pods: Iterable[ClusterPod]) -> float:
        """Seconds of a scheduling cycle alone, the median."""
        took = []
        with self.profile.services.limits:
            for pod in pods:
                self.state.put(POD, pod)
                queued = self.scheduler.queue.pop_now()
                assert queued is not None
                profile = self.scheduler.profiles["bench"]
                attempt = Attempt(
                    queued=queued, pod=pod, profile=profile, began=self.clock.monotonic()
                )
                began = time.thread_time()
                failure = await self.scheduler.cycle.run(attempt)
                took.append(time.thread_time() - began)
                assert failure is None
                self.scheduler.queue.done(pod.uid)
                self.state.put(POD, changed(attempt.pod, node=attempt.node))
        return statistics.median(took)


def _spec(kind: str, app: str, more: int) -> PodSpec:
    """The spec of pods of a kind; more: milli-cores and bytes beyond those of the others."""
    own = (Requirement("app", "In", (app,)),)
    cpu, memory = 100 + more, (1 << 28) + more
    plain = PodSpec(
        requests=(("cpu", cpu), ("memory", memory)),
        nonzero_cpu=cpu,
        nonzero_memory=memory,
        images=("registry.local/app:1",),
    )
    match kind:
        case "spread":
            soft = tuple(SpreadConstraint(key, 1, own) for key in (ZONE, HOST))
            return changed(plain, soft_spread=soft)
        case "zone":
            term = NodeTerm(labels=(Requirement(ZONE, "In", ("z1",)),))
            return changed(plain, node_terms=(term,))
        case "affinity":
            return changed(plain, affinity=(AffinityTerm(ZONE, own, ("default",)),))
        case "anti-affinity":
            return changed(plain, anti_affinity=(AffinityTerm(HOST, own, ("default",)),))
    return plain


def prototype(view: View) -> float:
    """CPU seconds of a bare numpy cycle over the nodes of a view, the median."""
    nodes, draw = len(view), np.random.default_rng(1)
    there = view.allocatable[:, 1:3].astype(np.float64).T.copy()  # cpu, memory
    taken = view.requested[:, 1:3].astype(np.float64).T.copy()
    pods = draw.integers(0, 30, nodes)
    used = there * draw.random((2, nodes))
    taints, zones = draw.integers(0, 3, nodes), draw.integers(0, 3, nodes)
    counts = draw.integers(0, 3, nodes)
    took = []
    for at in range(200):
        began = time.thread_time()
        adds = np.array([[100.0 + at], [2.0**28]])
        free = there - taken - adds
        mask = (free >= 0).all(axis=0) & (pods < 250)
        mask &= np.array([True, False, True])[taints]
        mask &= np.array([True, True, at % 2 == 0])[zones]
        mask &= (used + adds <= 0.95 * there).all(axis=0)
        scores = np.floor(np.maximum(free, 0) * 100 / there).sum(axis=0) // 2
        shares = np.minimum((taken + adds) / there, 1)
        scores += np.floor((1 - np.abs(shares[0] - shares[1]) / 2) * 100)
        scores += np.floor(np.maximum(there - used - adds, 0) * 100 / there).sum(axis=0) // 2
        by_zone = np.bincount(zones, counts, minlength=3)
        spread = by_zone[zones] + counts
        scores += 100 * (spread.max() - spread) // max(spread.max(), 1)
        rows = np.flatnonzero(mask)
        totals = scores[rows]
        rows[np.flatnonzero(totals == totals.max())[0]]
        took.append(time.thread_time() - began)
    return statistics.median(took)


def _synthetic(registry: PluginRegistry) -> Profile:
    names = [f"P{at}" for at in range(max(FILTERS, SCORES))]
    for name in names:
        registry.register(name, Room)
    enabled = tuple(map(EnabledPlugin, names))
    return Profile(
        scheduler_name="bench",
        plugins={
            Point.QUEUE_SORT: (EnabledPlugin("Sort"),),
            Point.FILTER: enabled[:FILTERS],
            Point.SCORE: enabled[:SCORES],
            Point.BIND: (EnabledPlugin("Sort"),),
        },
    )


def _shipped(registry: PluginRegistry, args_of: Mapping[str, Any] | None) -> Profile:
    """Kubernetes' default plugins, LoadAwareScheduling and more, which have arguments.

    The binder is the benchmark's, and so is what applies patches, unless args_of is None.
    """
    more = args_of or {}
    discover(registry)
    known = known_plugins(registry)
    names = [*DEFAULT_WEIGHTS, "LoadAwareScheduling", *more]
    first = {point: [*more, *DEFAULT_WEIGHTS] for point in (Point.POST_FILTER, Point.PRE_BIND)}
    plugins = {
        point: tuple(
            EnabledPlugin(name, DEFAULT_WEIGHTS.get(name, 1) or 1)
            for name in first.get(point, names)
            if name in known and point in known[name].points
        )
        for point in Point
    }
    plugins[Point.POST_FILTER] = tuple(  # Reservation has to come before DefaultPreemption
        sorted(plugins[Point.POST_FILTER], key=lambda one: one.name not in more)
    )
    plugins[Point.BIND] = (EnabledPlugin("Sort"),)
    if args_of is not None:
        plugins[Point.PRE_BIND] += (EnabledPlugin("Sort"),)
    types = {name: known[name].args for name in names if name in known}
    args = {
        name: one.read(more.get(name), (name,))[0] for name, one in types.items() if one is not None
    }
    return Profile(scheduler_name="bench", plugins=plugins, args=args)


def run(*, smoke: bool) -> Iterator[Row]:
    """Yield CPU time for a pod."""
    gc.collect()
    gc.freeze()
    try:
        yield from asyncio.run(_measure(NODES // 10 if smoke else NODES, 100 if smoke else PODS))
    finally:
        gc.unfreeze()


async def _measure(nodes: int, pods: int) -> list[Row]:
    world = World(nodes, shipped=False)
    await world.build()
    rows = await _measure_world(world, pods, "synthetic", ("equal", "all differ"))
    for per_node in (PODS_PER_NODE, MANY_PODS_PER_NODE):
        world = World(nodes, shipped=True, pods_per_node=per_node)
        await world.build()
        what = "default plugins"
        if per_node == PODS_PER_NODE:
            rows += await _measure_world(world, pods, what, ("equal", "all differ"))
        rows += await _measure_kinds(world, pods, f"{nodes * per_node:,} pods")
    for count in (nodes,) if nodes < NODES else REPORTING_NODES:
        rows += await _measure_reports(count, pods // 50)
    return rows


async def _measure_world(
    world: World, pods: int, plugins: str, kinds: tuple[str, ...]
) -> list[Row]:
    column = world.state.view().allocatable[:, 0].copy()
    began = time.thread_time()
    for _ in range(1000):
        column.sum()
    reference = (time.thread_time() - began) * 1e3
    rows = []
    for kind in kinds:
        await world.cycles(world.pods(20, kind))
        cycle = await world.cycles(world.pods(min(pods, 400), kind)) * 1e6
        whole = await world.bind(world.pods(pods, kind)) * 1e6
        name = f"scheduling: cycle, {plugins}, {kind}"
        rows.append(Row(name, cycle, "µs", KINDS[kind], reference, COLUMN))
        rows.append(Row(f"scheduling: and binding, {plugins}, {kind}", whole, "µs"))
    return rows


async def _measure_kinds(world: World, pods: int, running: str) -> list[Row]:
    """Cycles alone, of all kinds."""
    rows = []
    for kind, budget in KINDS.items():
        await world.cycles(world.pods(20, kind))
        reference = prototype(world.state.view())
        cycle = await world.cycles(world.pods(min(pods, 1000), kind))
        reference = statistics.mean((reference, prototype(world.state.view())))
        name = f"scheduling: cycle, {running}, {kind}"
        rows.append(Row(name, cycle * 1e6, "µs", budget, reference * 1e6, PROTOTYPE))
    return rows


async def _measure_reports(nodes: int, rounds: int) -> list[Row]:
    """Cycles of equal pods while nodes report, and the same with all nodes scored anew."""
    world, draw = World(nodes, shipped=True, pods_per_node=4), Random(2)
    await world.build()
    for at in range(nodes):
        world.report(f"n{at}", draw.randint(1, 15))
    plugin = world.profile.plugins["LoadAwareScheduling"]
    assert isinstance(plugin, Filtering)
    assert isinstance(plugin, Scoring)
    waiting = iter(world.pods(20 + 10 * len(REPORTS) * rounds, "equal"))
    await world.cycles(islice(waiting, 20))

    def come(reports: int, *, anew: bool) -> Iterator[ClusterPod]:
        """Pods, each after so many reports."""
        for pod in islice(waiting, 5):
            for _ in range(reports):
                world.report(f"n{draw.randrange(nodes)}", draw.randint(1, 15))
            for row in range(MANY_ROWS if anew else 0):
                for log in (plugin.filter_changes, plugin.score_changes):
                    assert log is not None
                    log.note(row)
            yield pod

    took: dict[tuple[int, bool], list[float]] = {}
    for _, reports, anew in product(range(rounds), REPORTS, (False, True)):
        seconds = await world.cycles(come(reports, anew=anew))
        took.setdefault((reports, anew), []).append(seconds)
    cycles = {key: statistics.median(each) * 1e6 for key, each in took.items()}
    rows = []
    for reports in REPORTS:
        name = f"scheduling: cycle, {nodes:,} nodes, reports: {reports}"
        rows.append(Row(name, cycles[reports, False], "µs", None, cycles[reports, True], ANEW))
    return rows
