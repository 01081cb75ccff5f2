"""Plugins about resources: whether they are free, and scores by their use, all or single ones."""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Self

import numpy as np

from koord.api.labelselector import LabelSelector, check_selector
from koord.plugin import KoordError
from koord.plugin.args import (
    FieldError,
    FieldPath,
    Key,
    duplicate,
    invalid,
    required,
    takes_args,
    unsupported,
    warning,
)
from koord_scheduler.plugin import (
    MAX_NODE_SCORE,
    POD_COUNT,
    Action,
    ClusterEvent,
    ClusterNode,
    ClusterPod,
    CycleState,
    EnqueueExtensions,
    EventResource,
    FilterPlugin,
    Handle,
    HintedEvent,
    NodeInfo,
    PreFilterPlugin,
    PreScorePlugin,
    QueueingHint,
    ScorePlugin,
    Status,
    View,
)
from koord_scheduler.plugin.vector import (
    Balanced,
    FreeResources,
    LeastAllocated,
    Mask,
    MostAllocated,
    Numbers,
    RequestedToCapacityRatio,
    ResourceRequests,
    ResourceSpec,
    Scorer,
    Scores,
    VectorFilterPlugin,
    VectorScorePlugin,
    Verdicts,
    insufficient_resources,
    insufficient_resources_on,
    is_extended,
    pod_amount,
    resource_counts,
    resource_requests_of,
    use_of_all,
    use_of_node,
    uses_of_node,
    weighted,
)

LEAST_ALLOCATED, MOST_ALLOCATED, REQUESTED_TO_CAPACITY_RATIO = (
    "LeastAllocated",
    "MostAllocated",
    "RequestedToCapacityRatio",
)
_MAX_POINT_SCORE = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class UtilizationShapePoint:
    """A point of the line from use to score."""

    utilization: int  # percent of what is allocatable
    score: int = 0  # 0 to 10


@dataclass(frozen=True, kw_only=True, slots=True)
class RatioParam:
    """The line of RequestedToCapacityRatio."""

    shape: tuple[UtilizationShapePoint, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoringStrategy:
    """How nodes are scored."""

    type: str = ""
    resources: tuple[ResourceSpec, ...] = ()
    requested_to_capacity_ratio: RatioParam | None = None

    def scorer(self) -> Scorer:
        """The formula of this strategy."""
        weights = [one.weight for one in self.resources]
        if self.type == MOST_ALLOCATED:
            return MostAllocated(weights)
        if (
            self.type == REQUESTED_TO_CAPACITY_RATIO
            and self.requested_to_capacity_ratio is not None
        ):
            factor = MAX_NODE_SCORE // _MAX_POINT_SCORE
            shape = self.requested_to_capacity_ratio.shape
            points = [(one.utilization, one.score * factor) for one in shape]
            return RequestedToCapacityRatio(points, weights)
        return LeastAllocated(weights)


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeResourcesFitArgs:
    """Which resources are not looked at, and how nodes are scored."""

    ignored_resources: tuple[str, ...] = ()  # extended ones
    ignored_resource_groups: tuple[str, ...] = ()  # prefixes of extended ones, such as example.com
    scoring_strategy: ScoringStrategy | None = None

    def complete(self) -> Self:
        strategy = self.scoring_strategy or ScoringStrategy(type=LEAST_ALLOCATED)
        strategy = replace(strategy, resources=weighted(strategy.resources))
        return replace(self, scoring_strategy=strategy)

    def validate(self) -> Iterator[FieldError]:
        for at, name in enumerate(self.ignored_resources):
            yield from _check_name(name, ("ignoredResources", at))
        for at, group in enumerate(self.ignored_resource_groups):
            if "/" in group:
                yield invalid(("ignoredResourceGroups", at), group, "wanted a name without /")
            else:
                yield from _check_name(group, ("ignoredResourceGroups", at))
        if self.scoring_strategy is not None:
            yield from _check_strategy(self.scoring_strategy, ("scoringStrategy",))


def _check_name(name: str, path: FieldPath) -> Iterator[FieldError]:
    try:
        check_selector(LabelSelector({name: ""}), "")
    except KoordError:
        yield invalid(path, name, "wanted a name such as example.com/gpu")


def _check_strategy(found: ScoringStrategy, path: FieldPath) -> Iterator[FieldError]:
    if found.type not in (LEAST_ALLOCATED, MOST_ALLOCATED, REQUESTED_TO_CAPACITY_RATIO):
        yield unsupported(
            (*path, "type"),
            found.type,
            (LEAST_ALLOCATED, MOST_ALLOCATED, REQUESTED_TO_CAPACITY_RATIO),
        )
    for at, one in enumerate(found.resources):
        if not 0 < one.weight <= 100:
            yield invalid((*path, "resources", at, "weight"), one.weight, "wanted 1 to 100")
    below = (*path, "requestedToCapacityRatio")
    if found.type == REQUESTED_TO_CAPACITY_RATIO:
        if found.requested_to_capacity_ratio is None:
            yield required(below, f"it is needed when type is {REQUESTED_TO_CAPACITY_RATIO}")
        else:
            yield from _check_shape(found.requested_to_capacity_ratio.shape, (*below, "shape"))
    elif found.requested_to_capacity_ratio is not None:
        yield invalid(
            below, found.type, f"wanted it only when type is {REQUESTED_TO_CAPACITY_RATIO}"
        )


def _check_shape(shape: tuple[UtilizationShapePoint, ...], path: FieldPath) -> Iterator[FieldError]:
    if not shape:
        yield required(path, "at least one point is needed")
    for at, point in enumerate(shape):
        if at and shape[at - 1].utilization >= point.utilization:
            wanted = "wanted points in ascending order"
            yield invalid((*path, at, "utilization"), point.utilization, wanted)
        if not 0 <= point.utilization <= 100:
            yield invalid((*path, at, "utilization"), point.utilization, "wanted 0 to 100")
        if not 0 <= point.score <= _MAX_POINT_SCORE:
            yield invalid((*path, at, "score"), point.score, "wanted 0 to 10")


_FEW_BITS = 12  # so many that a table of all combinations is small


_REQUESTS = "NodeResourcesFit/demand"


@dataclass(frozen=True, slots=True)
class _PodRequests:
    """The requests of the pod, in the state of its cycle."""

    demand: ResourceRequests

    def clone(self) -> Self:
        return self


@takes_args(NodeResourcesFitArgs)
class NodeResourcesFit(
    PreFilterPlugin,
    FilterPlugin,
    VectorFilterPlugin,
    PreScorePlugin,
    ScorePlugin,
    VectorScorePlugin,
    EnqueueExtensions,
):
    """Rejects nodes where requests do not fit; scores nodes by what is requested with the pod."""

    def __init__(self, args: NodeResourcesFitArgs, handle: Handle) -> None:
        self._ignored = frozenset(args.ignored_resources)
        self._ignored_groups = frozenset(args.ignored_resource_groups)
        strategy = args.scoring_strategy or ScoringStrategy()
        self._resources = tuple(one.name for one in strategy.resources)
        self._scorer = strategy.scorer()
        self._table = FreeResources()

    def events_to_register(self) -> Iterable[HintedEvent]:
        pod_actions = Action.DELETE | Action.UPDATE_POD_SCALE_DOWN
        node_actions = Action.ADD | Action.UPDATE_NODE_ALLOCATABLE
        return (
            HintedEvent(ClusterEvent(EventResource.POD, pod_actions), self._pod_helps),
            HintedEvent(ClusterEvent(EventResource.NODE, node_actions), self._node_helps),
        )

    def pre_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> None:
        """Each node is asked for the same."""
        state.write(_REQUESTS, _PodRequests(self._demand(pod)))

    def pre_filter_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def filter_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        demand = self._demand_in(state, pod)
        found = insufficient_resources_on(demand, node.view, node.row)
        return _rejection(found, demand) if found else None

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mask | Verdicts:
        demand = self._demand_in(state, pod)
        codes = insufficient_resources(demand, nodes, self._table)
        if codes is None:
            return np.ones(len(nodes), np.bool_)
        if len(demand) < _FEW_BITS:
            counts = np.bincount(codes, minlength=1)
            counts[0] = 0
            present = np.flatnonzero(counts)
            table = np.zeros(len(counts), np.int32)
            table[present] = np.arange(1, len(present) + 1)
            numbers: Numbers = table[codes]
        else:
            present, places = np.unique(np.append(codes, 0), return_inverse=True)
            present, numbers = present[1:], places[:-1].astype(np.int32)
        return Verdicts(numbers, tuple(_rejection(code, demand) for code in present.tolist()))

    def pre_score(
        self, state: CycleState, pod: ClusterPod, nodes: View, feasible: Mask
    ) -> Status | None:
        """Where no resource of the strategy counts, all nodes would have the score 0."""
        counts = any(resource_counts(pod, name, nonzero=True) for name in self._resources)
        return None if counts else Status.skip()

    def pre_score_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def score_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def score(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
        view, row = node.view, node.row
        uses = uses_of_node(pod, view, row, self._resources, nonzero=True)
        return self._scorer.of_node(uses)

    def score_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Scores:
        uses = [
            use_of_all(pod, nodes, name, nonzero=True, table=self._table)
            for name in self._resources
        ]
        return self._scorer.of_all(uses, len(nodes))

    def _demand_in(self, state: CycleState, pod: ClusterPod) -> ResourceRequests:
        found = state.find(_REQUESTS, _PodRequests)
        return self._demand(pod) if found is None else found.demand

    def _demand(self, pod: ClusterPod) -> ResourceRequests:
        return resource_requests_of(pod.spec, self._is_ignored)

    def _is_ignored(self, name: str) -> bool:
        return is_extended(name) and (
            name in self._ignored or name.split("/", 1)[0] in self._ignored_groups
        )

    def _pod_helps(self, pod: ClusterPod, old: object, new: object) -> QueueingHint:
        """A pod that has left its node, or that requests less now, or the rejected one does."""
        if not isinstance(old, ClusterPod):
            return QueueingHint.SKIP
        if not isinstance(new, ClusterPod):
            helps = bool(old.node or old.nominated_node)
        elif new.uid == pod.uid:
            helps = True
        else:
            before, after = dict(old.spec.requests), dict(new.spec.requests)
            helps = bool(new.node) and any(
                after.get(name, 0) < before.get(name, 0) for name, _ in pod.spec.requests
            )
        return QueueingHint.QUEUE if helps else QueueingHint.SKIP

    def _node_helps(self, pod: ClusterPod, old: object, new: object) -> QueueingHint:
        """A node that is large enough, and is new or has more of something that is needed."""
        if not isinstance(new, ClusterNode):
            return QueueingHint.SKIP
        after, demand = dict(new.allocatable), self._demand(pod)
        helps = all(after.get(name, 0) >= amount for name, amount in demand)
        if helps and isinstance(old, ClusterNode):
            before = dict(old.allocatable)
            helps = any(after.get(name, 0) > before.get(name, 0) for name, _ in demand)
        return QueueingHint.QUEUE if helps else QueueingHint.SKIP


def _rejection(code: int, demand: ResourceRequests) -> Status:
    reasons = [
        "Too many pods" if name == POD_COUNT else f"Insufficient {name}"
        for bit, (name, _) in enumerate(demand)
        if code >> bit & 1
    ]
    if code >> len(demand):
        return Status.unresolvable(*reasons)
    return Status.unschedulable(*reasons)


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeResourcesBalancedAllocationArgs:
    """The resources whose use is compared.

    Source: Kubernetes, kube-scheduler/config/v1 and its validation.
    """

    resources: tuple[ResourceSpec, ...] = ()

    def complete(self) -> Self:
        return replace(self, resources=weighted(self.resources))

    def validate(self) -> Iterator[FieldError]:
        seen: set[str] = set()
        for at, one in enumerate(self.resources):
            if one.name in seen:
                yield duplicate(("resources", at, "name"), one.name)
            seen.add(one.name)
            if one.weight != 1:
                yield invalid(("resources", at, "weight"), one.weight, "wanted 1")


@takes_args(NodeResourcesBalancedAllocationArgs)
class NodeResourcesBalancedAllocation(PreScorePlugin, ScorePlugin, VectorScorePlugin):
    """Scores nodes by how equal the shares of their resources are that would be requested."""

    def __init__(self, args: NodeResourcesBalancedAllocationArgs, handle: Handle) -> None:
        self._resources = tuple(one.name for one in args.resources)
        self._scorer = Balanced()
        self._table = FreeResources()

    def pre_score(
        self, state: CycleState, pod: ClusterPod, nodes: View, feasible: Mask
    ) -> Status | None:
        """A pod that requests nothing balances nothing; all such would go to one node."""
        asked = any(pod_amount(pod, name, nonzero=False) for name in self._resources)
        return None if asked else Status.skip()

    def pre_score_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def score_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def score(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
        view, row = node.view, node.row
        uses = uses_of_node(pod, view, row, self._resources, nonzero=False)
        return self._scorer.of_node(uses)

    def score_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Scores:
        uses = [
            use_of_all(pod, nodes, name, nonzero=False, table=self._table)
            for name in self._resources
        ]
        return self._scorer.of_all(uses, len(nodes))


_UNCOUNTED = ("pods", "storage")  # no pod requests these of a node


class Strategy(StrEnum):
    """Whether nodes are better that have more of a resource free, or less."""

    LEAST = "LeastAllocated"
    MOST = "MostAllocated"


_SCORERS: Mapping[Strategy, Scorer] = {
    Strategy.LEAST: LeastAllocated((1,)),
    Strategy.MOST: MostAllocated((1,)),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ResourceStrategy:
    """How one resource scores nodes, and how much that counts."""

    type: Strategy
    weight: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeResourcesFitPlusArgs:
    """Resources by name; those that are not there do not count."""

    resources: Mapping[str, ResourceStrategy] = field(default_factory=dict)

    def validate(self) -> Iterator[FieldError]:
        if not self.resources:
            yield warning(("resources",), "without any, all nodes score the same")
        for name, one in self.resources.items():
            if not 0 <= one.weight <= 2**31 - 1:
                path = "resources", Key(name), "weight"
                yield invalid(path, one.weight, "wanted 0 to 2147483647")


@takes_args(NodeResourcesFitPlusArgs)
class NodeResourcesFitPlus(PreScorePlugin, ScorePlugin, VectorScorePlugin):
    """The mean of the scores of the resources that a pod requests, by their weights."""

    def __init__(self, args: NodeResourcesFitPlusArgs, handle: Handle) -> None:
        self._resources = tuple(
            (name, _SCORERS[one.type], one.weight)
            for name, one in args.resources.items()
            if one.weight and name not in _UNCOUNTED
        )

    def pre_score(
        self, state: CycleState, pod: ClusterPod, nodes: View, feasible: Mask
    ) -> Status | None:
        """Where the pod requests none of the resources, all nodes score the same."""
        return None if self._requested(pod) else Status.skip()

    def pre_score_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def score_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def score(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
        total = weights = 0
        for name, scorer, weight in self._requested(pod):
            use = use_of_node(pod, node.view, node.row, name, nonzero=True)
            total += scorer.of_node([use]) * weight
            weights += weight
        return total // weights if weights else MAX_NODE_SCORE

    def score_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Scores:
        total, weights = np.zeros(len(nodes), np.int64), 0
        for name, scorer, weight in self._requested(pod):
            use = use_of_all(pod, nodes, name, nonzero=True)
            total += scorer.of_all([use], len(nodes)) * weight
            weights += weight
        if not weights:
            return np.full(len(nodes), MAX_NODE_SCORE)
        total //= weights
        return total

    def _requested(self, pod: ClusterPod) -> tuple[tuple[str, Scorer, int], ...]:
        """The resources that the pod requests, each with its formula and weight."""
        return tuple(one for one in self._resources if pod_amount(pod, one[0], nonzero=False))


@dataclass(frozen=True, kw_only=True, slots=True)
class ScarceResourceAvoidanceArgs:
    """The scarce resources, by name."""

    resources: tuple[str, ...] = ()

    def validate(self) -> Iterator[FieldError]:
        if not self.resources:
            yield warning(("resources",), "without any, all nodes score the same")
        for at, name in enumerate(self.resources):
            if not name:
                yield invalid(("resources", at), name, "wanted the name of a resource")


@takes_args(ScarceResourceAvoidanceArgs)
class ScarceResourceAvoidance(PreScorePlugin, ScorePlugin, VectorScorePlugin):
    """Scores nodes by how many of the resources that a pod would leave idle there are scarce."""

    def __init__(self, args: ScarceResourceAvoidanceArgs, handle: Handle) -> None:
        self._scarce = frozenset(args.resources)

    def pre_score(
        self, state: CycleState, pod: ClusterPod, nodes: View, feasible: Mask
    ) -> Status | None:
        """Where the pod requests all that is scarce, all nodes score the same."""
        return None if self._scarce - _requested(pod) else Status.skip()

    def pre_score_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def score_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def score(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
        idle = {
            name
            for name in node.view.resources
            if name not in _UNCOUNTED and node.allocatable(name) > 0
        } - _requested(pod)
        scarce = idle & self._scarce
        if not scarce:
            return MAX_NODE_SCORE
        return (len(idle) - len(scarce)) * MAX_NODE_SCORE // len(idle)

    def score_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Scores:
        requested = _requested(pod)
        idle, scarce = np.zeros(len(nodes), np.int64), np.zeros(len(nodes), np.int64)
        for name, column in nodes.resources.items():
            if name in _UNCOUNTED or name in requested:
                continue
            has = nodes.allocatable[:, column] > 0
            idle += has
            if name in self._scarce:
                scarce += has
        if not scarce.any():
            return np.full(len(nodes), MAX_NODE_SCORE)
        np.subtract(idle, scarce, out=scarce)
        scarce *= MAX_NODE_SCORE
        scores: Scores = scarce // np.maximum(idle, 1)
        scores[idle == 0] = MAX_NODE_SCORE
        return scores


def _requested(pod: ClusterPod) -> frozenset[str]:
    return frozenset(name for name, _ in pod.spec.requests)
