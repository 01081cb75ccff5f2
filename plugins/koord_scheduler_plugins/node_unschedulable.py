"""NodeUnschedulable: cordoned nodes are only for pods that tolerate that.

Source: Kubernetes, plugins/nodeunschedulable/node_unschedulable.go.
"""

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
    Mask,
    NodeInfo,
    QueueingHint,
    Status,
    VectorFilterPlugin,
    View,
    is_schedulable,
)


class NodeUnschedulable(FilterPlugin, VectorFilterPlugin, EnqueueExtensions):
    """Rejects nodes with spec.unschedulable."""

    rejection = Status.unresolvable("node(s) were unschedulable")

    def __init__(self, args: Any, handle: Handle) -> None:
        """It has no arguments."""

    def events_to_register(self) -> Iterable[HintedEvent]:
        node = ClusterEvent(EventResource.NODE, Action.ADD | Action.UPDATE_NODE_TAINT)
        pod = ClusterEvent(EventResource.UNSCHEDULED_POD, Action.UPDATE_POD_TOLERATION)
        return HintedEvent(node, _node_helps), HintedEvent(pod)

    def filter_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        if not node.node.unschedulable:
            return None
        tolerated = any(one.tolerates(UNSCHEDULABLE_TAINT) for one in pod.spec.tolerations)
        return None if tolerated else self.rejection

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mask:
        return is_schedulable(pod, nodes)


def _node_helps(pod: ClusterPod, old: object, new: object) -> QueueingHint:
    """A node that is new, or was cordoned, and is schedulable."""
    before = isinstance(old, ClusterNode) and not old.unschedulable
    after = isinstance(new, ClusterNode) and not new.unschedulable
    return QueueingHint.QUEUE if after and not before else QueueingHint.SKIP
