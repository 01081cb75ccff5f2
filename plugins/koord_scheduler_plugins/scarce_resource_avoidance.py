"""ScarceResourceAvoidance: keeps nodes with scarce resources for the pods that request those.

Source: Koordinator, pkg/scheduler/plugins/scarceresourceavoidance.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import numpy as np

from koord_scheduler.plugin import (
    MAX_NODE_SCORE,
    ClusterPod,
    CycleState,
    Fault,
    Handle,
    Mask,
    NodeInfo,
    PreScorePlugin,
    ScorePlugin,
    Scores,
    Status,
    VectorScorePlugin,
    View,
    invalid,
    takes_args,
    warning,
)

_UNCOUNTED = ("pods", "storage")  # no pod requests these of a node


@dataclass(frozen=True, kw_only=True, slots=True)
class ScarceResourceAvoidanceArgs:
    """The scarce resources, by name."""

    resources: tuple[str, ...] = ()

    def validate(self) -> Iterator[Fault]:
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
