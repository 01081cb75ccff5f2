"""PodTopologySpread: pods spread evenly over zones, nodes or other domains.

Source: Kubernetes, plugins/podtopologyspread.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np

from koord_scheduler.plugin import (
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
    Mask,
    NodeInfo,
    NodeScore,
    NormalizeScorePlugin,
    PreFilterExtensions,
    PreFilterPlugin,
    PreScorePlugin,
    QueueingHint,
    ScorePlugin,
    Scores,
    Spread,
    SpreadConstraint,
    Status,
    VectorFilterPlugin,
    VectorNormalizeScorePlugin,
    VectorScorePlugin,
    Verdicts,
    View,
    selector_of,
    selects,
    spreads,
    takes_args,
)
from koord_scheduler_plugins.pod_topology_spread.args import PodTopologySpreadArgs
from koord_scheduler_plugins.pod_topology_spread.defaults import Defaults
from koord_scheduler_plugins.pod_topology_spread.scoring import SoftSpread

__all__ = ["PodTopologySpread", "PodTopologySpreadArgs"]

_HARD, _SOFT = "PodTopologySpread.Filter", "PodTopologySpread.Score"
_MISMATCH = "node(s) didn't match pod topology spread constraints"
_SKEWED = Status.unschedulable(_MISMATCH)
_UNLABELLED = Status.unresolvable(f"{_MISMATCH} (missing required label)")


@dataclass(slots=True)
class _Hard:
    """Constraints with DoNotSchedule, and the pods that they count."""

    spreads: list[Spread]

    def clone(self) -> "_Hard":
        return _Hard([one.clone() for one in self.spreads])


@takes_args(PodTopologySpreadArgs)
class PodTopologySpread(
    PreFilterPlugin,
    PreFilterExtensions,
    FilterPlugin,
    VectorFilterPlugin,
    PreScorePlugin,
    ScorePlugin,
    VectorScorePlugin,
    NormalizeScorePlugin,
    VectorNormalizeScorePlugin,
    EnqueueExtensions,
):
    """Rejects nodes beyond the skew of DoNotSchedule, and scores by ScheduleAnyway."""

    rejection = _SKEWED

    def __init__(self, args: PodTopologySpreadArgs, handle: Handle) -> None:
        self._defaults = Defaults(args, handle.services.cluster)

    def events_to_register(self) -> Iterable[HintedEvent]:
        pods = Action.ADD | Action.UPDATE_POD_LABEL | Action.DELETE
        nodes = Action.ADD | Action.DELETE | Action.UPDATE_NODE_LABEL | Action.UPDATE_NODE_TAINT
        return (
            HintedEvent(ClusterEvent(EventResource.POD, pods), self._pod_helps),
            HintedEvent(ClusterEvent(EventResource.NODE, nodes), self._node_helps),
        )

    def pre_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> Status | None:
        constraints = self._hard(pod)
        if not constraints:
            return Status.skip()
        state.write(_HARD, _Hard(spreads(pod, constraints, nodes)))
        return None

    def pre_filter_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        return None if self._hard(pod) else ()

    def add_pod(
        self, state: CycleState, pod: ClusterPod, added: ClusterPod, node: NodeInfo
    ) -> Status | None:
        _count(state, added, node, 1)
        return None

    def remove_pod(
        self, state: CycleState, pod: ClusterPod, removed: ClusterPod, node: NodeInfo
    ) -> Status | None:
        _count(state, removed, node, -1)
        return None

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        for one in state.read(_HARD, _Hard).spreads:
            if one.domains.codes[node.row] < 0:
                return _UNLABELLED
            if not one.allows_row(node.row):
                return _SKEWED
        return None

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mask | Verdicts:
        found = [(one, one.allows()) for one in state.read(_HARD, _Hard).spreads]
        passes: Mask = np.logical_and.reduce([allowed for _, allowed in found])
        if passes.all():
            return passes
        numbers = np.zeros(len(nodes), np.int32)
        for one, allowed in reversed(found):  # the first constraint is the one that is named
            numbers[~allowed] = 1
            if not one.domains.complete:
                numbers[~one.domains.present] = 2
        return Verdicts(numbers, (_SKEWED, _UNLABELLED))

    def pre_score(
        self, state: CycleState, pod: ClusterPod, nodes: View, feasible: Mask
    ) -> Status | None:
        constraints = self._soft(pod)
        if not constraints:
            return Status.skip()
        own = _has_own(pod)
        # nodes without a zone are still spread over by hostname
        require_all = own or not self._defaults.of_system
        soft = SoftSpread(pod, constraints, nodes, feasible, require_all=require_all)
        state.write(_SOFT, soft)
        return None

    def pre_score_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        return None if self._soft(pod) else ()

    def score(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
        return state.read(_SOFT, SoftSpread).score(node.row)

    def score_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Scores:
        return state.read(_SOFT, SoftSpread).scores()

    def normalize_score(
        self, state: CycleState, pod: ClusterPod, scores: list[NodeScore]
    ) -> Status | None:
        state.read(_SOFT, SoftSpread).normalize(scores)
        return None

    def normalize_scores(self, state: CycleState, pod: ClusterPod, scores: Scores) -> Scores:
        return state.read(_SOFT, SoftSpread).normalized(scores)

    def _hard(self, pod: ClusterPod) -> tuple[SpreadConstraint, ...]:
        return pod.spec.spread if _has_own(pod) else self._defaults.hard(pod)

    def _soft(self, pod: ClusterPod) -> tuple[SpreadConstraint, ...]:
        return pod.spec.soft_spread if _has_own(pod) else self._defaults.soft(pod)

    def _pod_helps(self, pod: ClusterPod, old: object, new: object) -> QueueingHint:
        """A pod that a constraint counts now and did not before, or the other way round."""
        constraints = self._hard(pod)
        if isinstance(new, ClusterPod) and new.uid == pod.uid:
            return QueueingHint.QUEUE
        before, after = (_counted(pod, constraints, one) for one in (old, new))
        return QueueingHint.QUEUE if before != after else QueueingHint.SKIP

    def _node_helps(self, pod: ClusterPod, old: object, new: object) -> QueueingHint:
        """A node that comes to a domain, leaves it, or counts there from now on or no more."""
        constraints = self._hard(pod)
        before, after = (_place(pod, constraints, one) for one in (old, new))
        return QueueingHint.QUEUE if before != after else QueueingHint.SKIP


def _has_own(pod: ClusterPod) -> bool:
    """Whether the pod has constraints of its own: then none of the defaults counts."""
    return bool(pod.spec.spread or pod.spec.soft_spread)


def _count(state: CycleState, pod: ClusterPod, node: NodeInfo, amount: int) -> None:
    if not pod.finished:
        for one in state.read(_HARD, _Hard).spreads:
            one.change(node.row, pod, amount)


def _counted(
    pod: ClusterPod, constraints: Iterable[SpreadConstraint], other: object
) -> tuple[bool, ...]:
    """Which constraints of a pod count another one."""
    return tuple(
        isinstance(other, ClusterPod)
        and other.namespace == pod.namespace
        and selects(selector_of(pod, one), other.labels)
        for one in constraints
    )


def _place(
    pod: ClusterPod, constraints: tuple[SpreadConstraint, ...], node: object
) -> object | None:
    """All that constraints look at in a node; None: it counts for none of them."""
    if not isinstance(node, ClusterNode):
        return None
    labels = node.labels
    if not all(one.topology_key in labels for one in constraints):
        return None
    affine = bool(pod.spec.node_selector) or pod.spec.node_terms is not None
    return (
        [labels[one.topology_key] for one in constraints],
        node.taints if any(one.honor_taints for one in constraints) else (),
        dict(labels) if affine and any(one.honor_affinity for one in constraints) else {},
    )
