"""The value of evictions by LowNodeLoad: closed loops in memory, on simulated time.

Workloads come, change what they use and go; LowNodeLoad looks every 10 s at NodeMetrics that are up
to 60 s old and lack the newest pods; what it evicts comes back, where the load is least by the same
figures. Each loop is played without a descheduler and with both planners, on the same workloads: of
a seed, so that figures differ only where decisions do.
"""

import asyncio
import os
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, redirect_stderr
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.table import Row
from koord.cluster import kinds
from koord_descheduler.plugin.testing import FakeCluster, PluginHarness, make_report
from koord_descheduler_plugins.low_node_load.plugin import LowNodeLoad

LOOPS = 100
NODES = 8
CORES = 16_000  # milli-cores of a node
MIB = 128  # that a pod requests and uses
INTERVAL = 10  # seconds between rounds
REPORTED = 60  # seconds between NodeMetrics of a node
LENGTH = 1800  # seconds of a loop
LOW, HIGH = 30, 65  # percent
HOT = CORES * HIGH // 100
REQUESTS = (500, 1000, 2000, 4000, 8000)  # milli-cores
SHARES = (4, 4, 3, 2, 1)  # of the workloads that request so much
STAY = 600  # seconds; mean time for which a workload is there
STEADY = 600  # seconds; mean time for which its use is the same
AT_ONCE = 44  # workloads that are there at a time
PLANNERS = ("exact", "koordinator")
EVICTED, AGAIN = "evictions", "pods evicted again"
NOT_HOT, NOT_REPORTED = "evictions, node not hot", "evictions, node not hot as reported"
MADE_HOT, HOT_ROUNDS = "nodes made hot by evicted pods", "hot node-rounds"


def run(*, smoke: bool) -> Iterator[Row]:
    """Yield the sums over all loops for each planner."""
    seeds = range(3 if smoke else LOOPS)
    with Path(os.devnull).open("w") as nowhere, redirect_stderr(nowhere):
        alone, exact, koordinator = (
            sum((asyncio.run(Loop(seed).play(planner)) for seed in seeds), Counter[str]())
            for planner in ("", *PLANNERS)
        )
    for what in (EVICTED, NOT_HOT, NOT_REPORTED, AGAIN, MADE_HOT):
        budget = 0.0 if what is NOT_REPORTED else None
        yield Row(f"{what}, exact", exact[what], "", budget, koordinator[what], "koordinator")
        yield Row(f"{what}, koordinator", koordinator[what], "")
    for planner, found in zip(PLANNERS, (exact, koordinator), strict=True):
        yield Row(f"{HOT_ROUNDS}, {planner}", found[HOT_ROUNDS], "", None, alone[HOT_ROUNDS],
                  "without a descheduler")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload of one pod. Times are seconds since the loop began."""

    name: str
    begins: float
    ends: float
    request: int  # milli-cores
    changes: tuple[float, ...]  # when its use changes, the first time when it begins
    uses: tuple[int, ...]  # milli-cores from each change on

    def use(self, now: float) -> int:
        """Milli-cores that it uses now, wherever it is."""
        return self.uses[bisect_right(self.changes, now) - 1]


def workloads(seed: int) -> list[Workload]:
    """All workloads of a loop: those that are there at its begin, and those that come."""
    draw = random.Random(seed)
    begins = [0.0] * AT_ONCE
    at = draw.expovariate(AT_ONCE / STAY)
    while at < LENGTH:
        begins.append(at)
        at += draw.expovariate(AT_ONCE / STAY)
    return [_workload(draw, f"w{number}", at) for number, at in enumerate(begins)]


def _workload(draw: random.Random, name: str, begins: float) -> Workload:
    """Three of four workloads use much less than they request, the others more or less that."""
    [request] = draw.choices(REQUESTS, SHARES)
    ends = begins + draw.expovariate(1 / STAY)
    changes, at = [], begins
    while at < ends:
        changes.append(at)
        at += draw.expovariate(1 / STEADY)
    spans = [(0.05, 0.6) if draw.random() < 0.75 else (0.6, 1.6) for _ in changes]
    uses = [round(request * draw.uniform(*span)) for span in spans]
    return Workload(name, begins, ends, request, tuple(changes), tuple(uses))


@dataclass(slots=True)
class Pod:
    """A pod on a node: a workload's first one, or the one that came after an eviction."""

    workload: Workload
    node: str
    evictions: int  # of the workload before it

    @property
    def name(self) -> str:
        return f"{self.workload.name}-{self.evictions}"


@dataclass(slots=True)
class Loop:
    """A cluster that is scheduled and descheduled."""

    seed: int
    cluster: FakeCluster = field(default_factory=FakeCluster)
    nodes: tuple[str, ...] = tuple(f"n{number}" for number in range(NODES))
    pods: dict[str, Pod] = field(default_factory=dict)  # by name
    waiting: list[Pod] = field(default_factory=list)
    reported: dict[str, dict[str, int]] = field(default_factory=dict)  # milli-cores by node and pod
    counts: Counter[str] = field(default_factory=Counter)
    now: int = 0

    async def play(self, planner: str = "") -> Counter[str]:
        """Return what happened; planner "": nothing is evicted."""
        for name in self.nodes:
            self.cluster.node(name, cpu=CORES // 1000, memory="64Gi")
        coming = sorted(workloads(self.seed), key=lambda one: -one.begins)
        args = {
            "lowThresholds": {"cpu": LOW},
            "highThresholds": {"cpu": HIGH},
            "planner": planner or PLANNERS[0],
        }
        async with AsyncExitStack() as stack:
            harness = PluginHarness(LowNodeLoad, self.cluster, args=args)
            if planner:
                await stack.enter_async_context(harness)
            while self.now < LENGTH:
                while coming and coming[-1].begins <= self.now:
                    self.waiting.append(Pod(coming.pop(), "", 0))
                self._end()
                self._schedule()
                self._report()
                if planner:
                    await self._deschedule(harness)
                self.counts[HOT_ROUNDS] += sum(self._used(name) > HOT for name in self.nodes)
                await self.cluster.clock.advance(INTERVAL)
                self.now += INTERVAL
        return self.counts

    def _used(self, node: str) -> int:
        return sum(one.workload.use(self.now) for one in self._on(node))

    def _on(self, node: str) -> list[Pod]:
        return [one for one in self.pods.values() if one.node == node]

    def _end(self) -> None:
        for name, one in list(self.pods.items()):
            if one.workload.ends <= self.now:
                del self.pods[name]
                self.cluster.delete("Pod", f"default/{name}")

    def _schedule(self) -> None:
        """Place what waits, and still lasts, where it fits by requests and the load is least."""
        still = [one for one in self.waiting if one.workload.ends > self.now]
        self.waiting = []
        for one in still:
            loads = {name: self._load(name) for name in self.nodes if self._fits(one, name)}
            if not loads:
                self.waiting.append(one)
                continue
            one.node = min(loads, key=lambda name: (loads[name], name))
            used = self._used(one.node)
            if one.evictions and used <= HOT < used + one.workload.use(self.now):
                self.counts[MADE_HOT] += 1
            self.pods[one.name] = one
            cpu = f"{one.workload.request}m"
            self.cluster.pod(one.name, one.node, cpu=cpu, memory=f"{MIB}Mi", priority=9000)

    def _fits(self, pod: Pod, node: str) -> bool:
        requested = sum(one.workload.request for one in self._on(node))
        return requested + pod.workload.request <= CORES

    def _load(self, node: str) -> int:
        """Return the load that a scheduler sees: usage of reported pods, requests of the others."""
        known = self.reported.get(node, {})
        return sum(known.get(one.name, one.workload.request) for one in self._on(node))

    def _report(self) -> None:
        """A sixth of the nodes reports in each round; all do in the first one."""
        for number, name in enumerate(self.nodes):
            if self.now and (self.now // INTERVAL - number) % (REPORTED // INTERVAL):
                continue
            uses = {one.name: one.workload.use(self.now) for one in self._on(name)}
            self.reported[name] = uses
            report = make_report(
                name,
                at=self.cluster.clock.wall(),
                usage={"cpu": f"{sum(uses.values())}m", "memory": f"{MIB * len(uses)}Mi"},
                system={"cpu": 0, "memory": 0},
                pods={
                    f"default/{pod}": {"cpu": f"{use}m", "memory": f"{MIB}Mi"}
                    for pod, use in uses.items()
                },
            )
            self.cluster.state.put(kinds.NODE_METRIC, report)

    async def _deschedule(self, harness: PluginHarness) -> None:
        """A round; what is evicted comes again with the next step."""
        before = len(harness.evicted)
        result = await harness.cycle()
        assert not result.errors, result.errors
        for evicted in harness.evicted[before:]:
            one = self.pods[evicted.pod.name]
            self.counts[EVICTED] += 1
            self.counts[AGAIN] += one.evictions > 0
            self.counts[NOT_HOT] += self._used(one.node) <= HOT
            known = self.reported[one.node]
            reported = sum(known.get(other.name, 0) for other in self._on(one.node))
            self.counts[NOT_REPORTED] += reported <= HOT
            del self.pods[one.name]
            self.waiting.append(Pod(one.workload, "", one.evictions + 1))
