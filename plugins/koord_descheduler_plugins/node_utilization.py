"""LowNodeUtilization and HighNodeUtilization: pods move by what nodes' pods request.

Source: sigs.k8s.io/descheduler, nodeutilization.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from koord.plugin.args import (
    FieldError,
    FieldPath,
    Int32,
    Key,
    UInt,
    invalid,
    required,
    takes_args,
    warning,
)
from koord_descheduler.plugin import (
    Action,
    BalancePlugin,
    ClusterNode,
    ClusterPod,
    Evictions,
    Handle,
    Mask,
    Move,
    MoveSource,
    Namespaces,
    Percents,
    PluginRegistry,
    Utilization,
    View,
    check_percents,
    least_important,
    nodes_named,
    plan_moves,
    pods_in,
)


class EvictionMode(StrEnum):
    """A restriction of the pods that HighNodeUtilization evicts."""

    ONLY_THRESHOLDING_RESOURCES = "OnlyThresholdingResources"  # those that request one of them


@dataclass(frozen=True, kw_only=True, slots=True)
class Prometheus:
    """A query of usage."""

    query: str = ""  # has no effect


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricsUtilization:
    """The source of usage. Has no effect: LowNodeUtilization goes by requests."""

    metrics_server: bool = False  # has no effect
    source: str = ""  # has no effect
    prometheus: Prometheus | None = None  # has no effect


@dataclass(frozen=True, kw_only=True, slots=True)
class CycleLimits:
    """Limits of one cycle."""

    node: UInt | None = None  # pods of one node; not set: no limit


@dataclass(frozen=True, kw_only=True, slots=True)
class HighNodeUtilizationArgs:
    """Pods leave nodes with few requests, so that those can go."""

    thresholds: Percents | None = None  # percent of allocatable; a node below all is underutilized
    number_of_nodes: Int32 = 0  # act only while more nodes than this are low
    eviction_modes: tuple[EvictionMode, ...] = (
        EvictionMode.ONLY_THRESHOLDING_RESOURCES,
    )  # restrict the pods that may go
    evictable_namespaces: Namespaces | None = None  # only exclude; not set: all

    def validate(self) -> Iterator[FieldError]:
        """Return the faults."""
        yield from _check_thresholds(("thresholds",), self.thresholds)
        yield from _check_utilization(self.number_of_nodes, self.evictable_namespaces)


@dataclass(frozen=True, kw_only=True, slots=True)
class LowNodeUtilizationArgs:
    """Pods move from nodes with many requests to those with few."""

    use_deviation_thresholds: bool = False  # thresholds are distances from the mean of the nodes
    thresholds: Percents | None = None  # percent of allocatable; a node below all is underutilized
    target_thresholds: Percents | None = None  # percent; above one of them a node is overutilized
    number_of_nodes: Int32 = 0  # act only while more nodes than this are low
    metrics_utilization: MetricsUtilization | None = None  # has no effect; usage is requests
    evictable_namespaces: Namespaces | None = None  # only exclude; not set: all
    eviction_limits: CycleLimits | None = None  # limits of one cycle

    def validate(self) -> Iterator[FieldError]:
        """Return the faults, and warnings."""
        yield from _check_thresholds(("thresholds",), self.thresholds)
        yield from _check_thresholds(("targetThresholds",), self.target_thresholds)
        low, high = self.thresholds or {}, self.target_thresholds or {}
        if low and high and low.keys() != high.keys():
            wanted = "thresholds and targetThresholds must be of the same resources"
            yield invalid(("targetThresholds",), sorted(high), wanted)
        if not self.use_deviation_thresholds:
            for name in low.keys() & high.keys():
                if low[name] > high[name]:
                    wanted = "must be less than or equal to targetThresholds"
                    yield invalid(("thresholds", Key(name)), low[name], wanted)
        if self.metrics_utilization is not None:
            yield warning(("metricsUtilization",), "has no effect; usage is the pods' requests")
        yield from _check_utilization(self.number_of_nodes, self.evictable_namespaces)


def _check_thresholds(path: FieldPath, thresholds: Percents | None) -> Iterator[FieldError]:
    if not thresholds:
        yield required(path, "a percentage for at least one resource")
    yield from check_percents(path, thresholds or {})


def _check_utilization(nodes: int, namespaces: Namespaces | None) -> Iterator[FieldError]:
    if nodes < 0:
        yield invalid(("numberOfNodes",), nodes, "wanted 0 or more")
    if namespaces is not None and namespaces.include:
        wanted = "only exclude is supported"
        yield invalid(("evictableNamespaces", "include"), namespaces.include, wanted)


ONLY_THRESHOLDING = EvictionMode.ONLY_THRESHOLDING_RESOURCES
BASIC = ("cpu", "memory", "pods")  # resources that are always looked at


@dataclass(frozen=True, slots=True)
class Classes:
    """Classes of nodes."""

    use: Utilization
    low: Mask
    sources: Mask  # pods should leave them
    destinations: Mask  # they can take pods
    ceilings: NDArray[np.int64]  # at most requested of a destination; (nodes, names)
    idle: str = ""  # why nothing is to be done; "": something is


class NodeUtilization(BalancePlugin, ABC):
    """Moves pods off some nodes, each only if it fits another one with all that moved before."""

    why: str  # a pod of a source should leave: a sentence for people
    fullest_first: bool  # whether pods go to the fullest node that fits them, or to the emptiest

    def __init__(self, namespaces: Namespaces | None, handle: Handle) -> None:
        self._handle = handle
        self._wanted = pods_in(namespaces)

    @abstractmethod
    def classify(self, view: View, among: Mask) -> Classes:
        """Return the classes of the nodes of this cycle. Called in a worker thread."""

    @abstractmethod
    def wants_more(
        self, classes: Classes, row: int, requested: NDArray[np.int64], moved: int
    ) -> bool:
        """Whether a source, of which so much is requested after so many moves, should go on."""

    def counts(self, pod: ClusterPod) -> bool:
        """Whether a pod is one of those that may move."""
        return not pod.finished and self._wanted(pod)

    async def balance(self, nodes: Sequence[ClusterNode]) -> None:
        view = self._handle.view_with_migrations()
        among = nodes_named(view, [node.name for node in nodes])
        classes = await asyncio.to_thread(self.classify, view, among)
        with Evictions(self._handle, self.name) as evictions:
            self._note(evictions, classes, view)
            if classes.idle:
                return
            sources = [
                MoveSource(row, await self._removable(evictions, view.pods(row)))
                for row in self._sources(classes, view)
            ]
            async for move in evictions.steps(self._plan(view, classes, sources)):
                await self._carry_out(evictions, view, move)

    def _sources(self, classes: Classes, view: View) -> list[int]:
        """The fullest first, or the emptiest where nodes should become empty."""
        share = classes.use.percent.max(axis=1) * (1 if self.fullest_first else -1)
        rows = np.flatnonzero(classes.sources).tolist()
        return sorted(rows, key=lambda row: (share[row], view.node(row).name))

    async def _removable(
        self, evictions: Evictions, pods: Sequence[ClusterPod]
    ) -> list[ClusterPod]:
        may_go = await evictions.those_that_may_go(filter(self.counts, pods), self.why)
        return sorted(may_go, key=lambda pod: (*least_important(pod), pod.key))

    def _plan(self, view: View, classes: Classes, sources: Sequence[MoveSource]) -> Iterator[Move]:
        return plan_moves(
            view,
            classes.use,
            sources,
            classes.destinations,
            classes.ceilings,
            wants_more=lambda row, here, moved: self.wants_more(classes, row, here, moved),
            fullest_first=self.fullest_first,
        )

    async def _carry_out(self, evictions: Evictions, view: View, move: Move) -> None:
        if move.target is None:
            evictions.findings.pod(move.pod, Action.STAY, f"{self.why}, but {move.stays}")
        else:
            await evictions.evict(move.pod, self.why, (view.node(move.target).name,))

    def _note(self, evictions: Evictions, classes: Classes, view: View) -> None:
        idle = f"; {classes.idle}" if classes.idle else ""
        high = classes.sources & ~classes.low
        for mask, verdict, reason in (
            (high, "high", "its requests exceed a target threshold"),
            (classes.low, "low", "its requests are within all thresholds"),
        ):
            for row in np.flatnonzero(mask).tolist():
                facts = classes.use.facts(row)
                evictions.findings.node(view.node(row).name, verdict, reason + idle, facts=facts)


@takes_args(LowNodeUtilizationArgs, strict=False)
class LowNodeUtilization(NodeUtilization):
    """Moves pods from nodes above a target threshold to nodes below all thresholds.

    The receiving nodes are filled up to the target thresholds at most.
    """

    why = "its node has too many requests"
    fullest_first = False

    def __init__(self, args: LowNodeUtilizationArgs, handle: Handle) -> None:
        super().__init__(args.evictable_namespaces, handle)
        self._args = args
        self._low, self._high = args.thresholds or {}, args.target_thresholds or {}
        limits = args.eviction_limits
        self._most = None if limits is None else limits.node

    def classify(self, view: View, among: Mask) -> Classes:
        low, high = self._low, self._high
        use = Utilization(view, tuple(dict.fromkeys((*low, *high, *BASIC))))
        if self._args.use_deviation_thresholds:
            mean = use.percent[among].mean(axis=0) if among.any() else np.zeros(len(use.names))
            off = use.row_of(low, 0) == 0  # as in Kubernetes, 0 is no threshold
            floors = np.where(off, 100, np.clip(mean - use.row_of(low, 0), 0, 100))
            targets = np.where(off, 100, np.clip(mean + use.row_of(high, 0), 0, 100))
        else:
            floors, targets = use.row_of(low, 100), use.row_of(high, 100)
        ceilings = use.amounts(targets)
        named = slice(len(low))  # the columns of the thresholds
        within = (use.requested <= use.amounts(floors))[:, named].all(axis=1)
        is_low = among & ~view.traits.unschedulable & within
        sources = among & ~is_low & (use.requested > ceilings)[:, named].any(axis=1)
        idle = few(is_low, among, self._args.number_of_nodes)
        if not idle and not sources.any():
            idle = "no node is high"
        return Classes(use, is_low, sources, is_low, ceilings, idle)

    def wants_more(
        self, classes: Classes, row: int, requested: NDArray[np.int64], moved: int
    ) -> bool:
        if self._most is not None and moved >= self._most:
            return False
        return bool((requested > classes.ceilings[row])[: len(self._low)].any())


@takes_args(HighNodeUtilizationArgs, strict=False)
class HighNodeUtilization(NodeUtilization):
    """Moves pods from nodes below all thresholds to the other nodes, so that they become empty."""

    why = "its node has so few requests that it should become empty"
    fullest_first = True

    def __init__(self, args: HighNodeUtilizationArgs, handle: Handle) -> None:
        super().__init__(args.evictable_namespaces, handle)
        self._args = args

    def classify(self, view: View, among: Mask) -> Classes:
        low = self._args.thresholds or {}
        use = Utilization(view, tuple(dict.fromkeys((*low, *BASIC))))
        within = use.requested <= use.amounts(use.row_of(low, 100))
        is_low = among & within[:, : len(low)].all(axis=1)
        destinations = among & ~is_low & ~view.traits.unschedulable
        idle = few(is_low, among, self._args.number_of_nodes)
        if not idle and not destinations.any():
            idle = "no other node can take pods"
        return Classes(use, is_low, is_low, destinations, use.capacity, idle)

    def counts(self, pod: ClusterPod) -> bool:
        """Whether a pod counts; with OnlyThresholdingResources only if it requests one of them."""
        if ONLY_THRESHOLDING in self._args.eviction_modes:
            thresholds = self._args.thresholds or {}
            return super().counts(pod) and any(name in thresholds for name, _ in pod.spec.requests)
        return super().counts(pod)

    def wants_more(
        self, classes: Classes, row: int, requested: NDArray[np.int64], moved: int
    ) -> bool:
        return True


def few(low: Mask, among: Mask, least: int) -> str:
    """Return why underutilized nodes are not reason enough; "": they are."""
    count = int(low.sum())
    if not count:
        return "no node is low"
    if count <= least:
        return f"only {count} nodes are low, not more than numberOfNodes"
    return "all nodes are low" if count == int(among.sum()) else ""


def register_low(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register("LowNodeUtilization", LowNodeUtilization)


def register_high(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register("HighNodeUtilization", HighNodeUtilization)
