"""NodeResourcesFitPlus and ScarceResourceAvoidance: scores for single resources."""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from koord.plugin.args import FieldError, Key, invalid, takes_args, warning
from koord_scheduler.plugin import (
    MAX_NODE_SCORE,
    ClusterPod,
    CycleState,
    Handle,
    NodeInfo,
    PreScorePlugin,
    ScorePlugin,
    Status,
    View,
)
from koord_scheduler.plugin.vector import (
    LeastAllocated,
    Mask,
    MostAllocated,
    Scorer,
    Scores,
    VectorScorePlugin,
    pod_amount,
    use_of_all,
    use_of_node,
)

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
