"""koord-scheduler's loop on 5,000 nodes: pods that are equal, and pods that all differ.

The plugins are as many, and of such kinds, as Kubernetes' default ones; each computes little, so
that what is measured is mostly the loop and the framework. A binding costs nothing but a turn of
the event loop, and the watch event that confirms it. Beside the time of summing a column of all
nodes once, as a measure of the machine.
"""

import asyncio
import gc
import statistics
import time
from collections.abc import Hashable, Iterator
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from msgspec.structs import replace as changed

from benchmarks.table import Row
from koord.cluster.columns import Mask
from koord.cluster.decoding import NODE, POD
from koord.cluster.facts import ClusterNode, ClusterPod, LabelSet, PodSpec
from koord.cluster.view import View
from koord.component.plugins.discovery import discover
from koord.controlplane.testing.cluster import FakeCluster
from koord.util.clock import SystemClock
from koord.util.stop import Stop
from koord_scheduler.cache.assumed import SchedulerState
from koord_scheduler.config.defaults import DEFAULT_WEIGHTS
from koord_scheduler.config.points import Point
from koord_scheduler.config.profiles import EnabledPlugin, Profile
from koord_scheduler.framework.cyclestate import CycleState
from koord_scheduler.framework.interfaces import (
    BindPlugin,
    FilterPlugin,
    QueueSortPlugin,
    ScorePlugin,
    VectorFilterPlugin,
    VectorScorePlugin,
)
from koord_scheduler.framework.nodeinfo import NodeInfo
from koord_scheduler.framework.profiles.configured import known_plugins
from koord_scheduler.framework.profiles.profile import build_profile
from koord_scheduler.framework.profiles.registry import PluginRegistry
from koord_scheduler.framework.queuedpod import QueuedPod
from koord_scheduler.framework.results import Scores
from koord_scheduler.framework.status import Status
from koord_scheduler.plugin.testing.services import fake_services
from koord_scheduler.scheduling.attempt import Attempt
from koord_scheduler.scheduling.metrics import SchedulingMetrics
from koord_scheduler.scheduling.scheduler import Scheduler

NODES, PODS_PER_NODE, PODS = 5_000, 10, 4_000
FILTERS, SCORES = 12, 7
EQUAL, DIFFERENT = 200.0, 800.0  # microseconds for a cycle
COLUMN = "sum of one column"
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


class Sort(QueueSortPlugin, BindPlugin):
    """The oldest first; binds at once, and has the watch say so."""

    def __init__(self, args: Any, handle: Any, state: SchedulerState) -> None:
        self._state = state

    def less(self, first: QueuedPod, second: QueuedPod) -> bool:
        return first.timestamp < second.timestamp

    async def bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        await asyncio.sleep(0)
        known = self._state.get(POD, pod.key)
        assert known is not None
        self._state.put(POD, changed(known, node=node_name))
        return None


class World:
    """A cluster and its scheduler."""

    def __init__(self, nodes: int, *, shipped: bool) -> None:
        """shipped: with Kubernetes' default plugins and LoadAwareScheduling."""
        self.clock = SystemClock()
        self.state = SchedulerState(self.clock)
        self._nodes = nodes
        self._shipped = shipped
        self._names = 0

    async def build(self) -> None:
        registry = PluginRegistry()
        registry.register("Sort", partial(Sort, state=self.state))
        settings = _shipped(registry) if self._shipped else _synthetic(registry)
        services = replace(fake_services(FakeCluster()), cluster=self.state, clock=self.clock)
        self.profile = await build_profile(settings, registry, services)
        metrics = SchedulingMetrics(services.metrics.exposition)
        draw = Random(1)
        self.scheduler = Scheduler([self.profile], self.state, services, metrics, draw=draw)
        spec = PodSpec(requests=(("cpu", 100), ("memory", _GI)))
        labels = LabelSet("default", {})
        for at in range(self._nodes):
            amounts = (("cpu", 32_000), ("memory", 64 * _GI), ("pods", 250))
            self.state.put(NODE, ClusterNode(name=f"n{at}", labels={}, allocatable=amounts))
            for number in range(PODS_PER_NODE):
                name = f"r{at}-{number}"
                pod = ClusterPod(name=name, uid=name, label_set=labels, spec=spec, node=f"n{at}")
                self.state.put(POD, pod)
        await services.hooks.run()

    def pods(self, count: int, *, equal: bool) -> list[ClusterPod]:
        """Pending pods that request the same, or each something else."""
        spec, labels = PodSpec(requests=(("cpu", 100), ("memory", _GI))), LabelSet("default", {})
        found = []
        for at in range(count):
            self._names += 1
            name = f"w{self._names}"
            if not equal:
                spec = PodSpec(requests=(("cpu", 100 + at), ("memory", _GI)))
            pod = ClusterPod(
                name=name, uid=name, label_set=labels, spec=spec, scheduler_name="bench"
            )
            found.append(pod)
        return found

    async def bind(self, pods: list[ClusterPod]) -> float:
        """Have pods come and be bound; return CPU seconds for each."""
        stop = Stop(self.clock)
        began = time.process_time()
        for pod in pods:
            self.state.put(POD, pod)
        running = asyncio.create_task(self.scheduler.run(stop))
        while any(self.scheduler.queue.pending.values()) or self.scheduler.bindings:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        took = time.process_time() - began
        stop.set()
        await running
        return took / len(pods)

    async def cycles(self, pods: list[ClusterPod]) -> float:
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
                self.state.put(POD, changed(pod, node=attempt.node))
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


def _shipped(registry: PluginRegistry) -> Profile:
    """Kubernetes' default plugins and LoadAwareScheduling; only the binder is the benchmark's."""
    discover(registry)
    known = known_plugins(registry)
    names = [*DEFAULT_WEIGHTS, "LoadAwareScheduling"]
    plugins = {
        point: tuple(
            EnabledPlugin(name, DEFAULT_WEIGHTS.get(name, 1) or 1)
            for name in names
            if name in known and point in known[name].points
        )
        for point in Point
    }
    plugins[Point.BIND] = (EnabledPlugin("Sort"),)
    types = {name: known[name].args for name in names if name in known}
    args = {name: one.read(None, (name,))[0] for name, one in types.items() if one is not None}
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
    rows = []
    for shipped in (False, True):
        world = World(nodes, shipped=shipped)
        await world.build()
        rows += await _measure_world(world, pods, "default plugins" if shipped else "synthetic")
    return rows


async def _measure_world(world: World, pods: int, plugins: str) -> list[Row]:
    column = world.state.view().allocatable[:, 0].copy()
    began = time.thread_time()
    for _ in range(1000):
        column.sum()
    reference = (time.thread_time() - began) * 1e3
    rows = []
    kinds = ((True, "equal", EQUAL), (False, "all differ", DIFFERENT))
    for equal, what, budget in kinds:
        await world.cycles(world.pods(20, equal=equal))
        cycle = await world.cycles(world.pods(min(pods, 400), equal=equal))
        whole = await world.bind(world.pods(pods, equal=equal))
        rows.append(
            Row(
                f"scheduling: cycle, {plugins}, {what}",
                cycle * 1e6,
                "µs",
                budget,
                reference,
                COLUMN,
            )
        )
        rows.append(Row(f"scheduling: and binding, {plugins}, {what}", whole * 1e6, "µs"))
    return rows
