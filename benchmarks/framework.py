"""The time that koord-scheduler's framework adds to each call of a plugin in the vector form.

The plugins return columns that are there already: all time is the framework's. For comparison, the
time of summing a column of all nodes once, as a measure of the machine.
"""

import asyncio
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.table import Row
from koord.cluster.columns import Mask
from koord.cluster.facts import ClusterNode, ClusterPod, LabelSet, PodSpec
from koord.cluster.state import ClusterState
from koord.cluster.view import View
from koord.controlplane.testing import FakeCluster
from koord.util.clock import SystemClock
from koord_scheduler.config.profiles import EnabledPlugin, Point, Profile
from koord_scheduler.framework.interfaces import (
    BindPlugin,
    QueueSortPlugin,
    VectorFilterPlugin,
    VectorScorePlugin,
)
from koord_scheduler.framework.nodes.filtering import NodeScoring
from koord_scheduler.framework.nodes.search import NodeSearch
from koord_scheduler.framework.profile import PluginRegistry, ProfilePlugins, build_profile
from koord_scheduler.framework.status import CycleInput, CycleState, Scores, Status
from koord_scheduler.framework.types import QueuedPod
from koord_scheduler.plugin.testing.harness import fake_services

NODES, PLUGINS, CYCLES = 5_000, 4, 400
BUDGET = 50.0  # microseconds
COLUMN = "sum of one column"


class Ready(VectorFilterPlugin, VectorScorePlugin, QueueSortPlugin, BindPlugin):
    """Rejects every tenth node, and scores all nodes alike; computes nothing."""

    def __init__(self, args: Any, handle: Any) -> None:
        self.mask = np.arange(NODES) % 10 != 0
        self.scores = np.full(NODES, 50)

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mask:
        return self.mask

    def score_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Scores:
        return self.scores

    def less(self, first: QueuedPod, second: QueuedPod) -> bool:
        return first.timestamp < second.timestamp

    async def bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        return None


def run(*, smoke: bool) -> Iterator[Row]:
    """Yield CPU time for each call of a plugin."""
    return iter(asyncio.run(_measure(CYCLES // 20 if smoke else CYCLES)))


async def _measure(cycles: int) -> list[Row]:
    cluster = ClusterState()
    for at in range(NODES):
        cluster.snapshot.put_node(ClusterNode(name=f"n{at}", labels={}, allocatable=(("cpu", 4),)))
    view = cluster.view()
    profile = await _profile(cluster)
    search, scoring = NodeSearch(profile, profile.services.nominator), NodeScoring(profile)
    pod = ClusterPod(name="web", uid="1", label_set=LabelSet("default", {}), spec=PodSpec())
    feasible = search.search(CycleState(), pod, view).feasible
    reference = _microseconds(view.allocatable[:, 0].copy().sum, cycles)
    with profile.services.limits:
        filtering = _microseconds(lambda: search.search(CycleState(), pod, view), cycles)
        scores = _microseconds(
            lambda: scoring.scores(CycleInput(CycleState(), pod, view), feasible), cycles
        )
    return [
        Row(f"framework: {point}, for each plugin", each / PLUGINS, "µs", BUDGET, reference, COLUMN)
        for point, each in (("Filter", filtering), ("Score", scores))
    ]


async def _profile(cluster: ClusterState) -> ProfilePlugins:
    clock, registry = SystemClock(), PluginRegistry()
    plugins: tuple[str, ...] = tuple(f"P{at}" for at in range(PLUGINS))
    for name in plugins:
        registry.register(name, Ready)
    enabled = tuple(map(EnabledPlugin, plugins))
    settings = Profile(
        scheduler_name="bench",
        plugins={
            Point.QUEUE_SORT: enabled[:1],
            Point.FILTER: enabled,
            Point.SCORE: enabled,
            Point.BIND: enabled[:1],
        },
    )
    services = replace(fake_services(FakeCluster()), cluster=cluster, clock=clock)
    return await build_profile(settings, registry, services)


def _microseconds(work: Callable[[], object], times: int) -> float:
    """Median CPU time of this thread."""
    took = []
    for _ in range(times):
        began = time.thread_time()
        work()
        took.append(time.thread_time() - began)
    return statistics.median(took) * 1e6
