"""TaintToleration and NodeUnschedulable: pods stay off nodes that they do not tolerate."""

from collections.abc import Hashable, Iterable
from typing import Any

from koord_scheduler.plugin import (
    UNSCHEDULABLE_TAINT,
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
    PreScorePlugin,
    QueueingHint,
    ScorePlugin,
    Status,
    View,
    about_itself,
    intolerable_preferences,
    tolerates,
)
from koord_scheduler.plugin.vector import (
    Mask,
    Scores,
    VectorFilterPlugin,
    VectorNormalizeScorePlugin,
    VectorScorePlugin,
    default_normalize,
    is_schedulable,
    tolerates_taints,
    untolerated_preferences,
)


class TaintToleration(
    FilterPlugin,
    VectorFilterPlugin,
    PreScorePlugin,
    ScorePlugin,
    VectorScorePlugin,
    VectorNormalizeScorePlugin,
    EnqueueExtensions,
):
    """Taints NoSchedule and NoExecute reject; of PreferNoSchedule each costs score."""

    rejection = Status.unresolvable("node(s) had untolerated taint(s)")

    def __init__(self, args: Any, handle: Handle) -> None:
        """It has no arguments."""

    def events_to_register(self) -> Iterable[HintedEvent]:
        node = ClusterEvent(EventResource.NODE, Action.ADD | Action.UPDATE_NODE_TAINT)
        pod = ClusterEvent(EventResource.UNSCHEDULED_POD, Action.UPDATE_POD_TOLERATION)
        return HintedEvent(node, _untainted_node_helps), HintedEvent(pod, about_itself)

    def filter_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        return None if tolerates(pod.spec, node.node.taints) else self.rejection

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mask:
        return tolerates_taints(pod, nodes)

    def pre_score(
        self, state: CycleState, pod: ClusterPod, nodes: View, feasible: Mask
    ) -> Status | None:
        """Where no node has such a taint, all would have the same score."""
        preferences = nodes.traits.preferences
        wanted = preferences and any(intolerable_preferences(pod.spec, one) for one in preferences)
        return None if wanted else Status.skip()

    def pre_score_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        return nodes.traits

    def score_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def score(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
        return intolerable_preferences(pod.spec, node.node.taints)

    def score_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Scores:
        return untolerated_preferences(pod, nodes)

    def normalize_scores(self, state: CycleState, pod: ClusterPod, scores: Scores) -> Scores:
        """The fewer, the better."""
        return default_normalize(scores, reverse=True)


def _untainted_node_helps(pod: ClusterPod, old: object, new: object) -> QueueingHint:
    """A node that is new, or had a taint, and is tolerated."""
    before = isinstance(old, ClusterNode) and tolerates(pod.spec, old.taints)
    after = isinstance(new, ClusterNode) and tolerates(pod.spec, new.taints)
    return QueueingHint.QUEUE if after and not before else QueueingHint.SKIP


class NodeUnschedulable(FilterPlugin, VectorFilterPlugin, EnqueueExtensions):
    """Rejects nodes with spec.unschedulable."""

    rejection = Status.unresolvable("node(s) were unschedulable")

    def __init__(self, args: Any, handle: Handle) -> None:
        """It has no arguments."""

    def events_to_register(self) -> Iterable[HintedEvent]:
        node = ClusterEvent(EventResource.NODE, Action.ADD | Action.UPDATE_NODE_TAINT)
        pod = ClusterEvent(EventResource.UNSCHEDULED_POD, Action.UPDATE_POD_TOLERATION)
        return HintedEvent(node, _uncordoned_node_helps), HintedEvent(pod)

    def filter_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        if not node.node.unschedulable:
            return None
        tolerated = any(one.tolerates(UNSCHEDULABLE_TAINT) for one in pod.spec.tolerations)
        return None if tolerated else self.rejection

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mask:
        return is_schedulable(pod, nodes)


def _uncordoned_node_helps(pod: ClusterPod, old: object, new: object) -> QueueingHint:
    """A node that is new, or was cordoned, and is schedulable."""
    before = isinstance(old, ClusterNode) and not old.unschedulable
    after = isinstance(new, ClusterNode) and not new.unschedulable
    return QueueingHint.QUEUE if after and not before else QueueingHint.SKIP
