"""NodeName: a pod that names a node is for that node only.

Source: Kubernetes, plugins/nodename/node_name.go.
"""

from collections.abc import Hashable, Iterable
from typing import Any

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
    PreFilterPlugin,
    QueueingHint,
    Status,
    VectorFilterPlugin,
    View,
    has_name,
)


class NodeName(PreFilterPlugin, FilterPlugin, VectorFilterPlugin, EnqueueExtensions):
    """Rejects all nodes but the one that the pod's spec names."""

    rejection = Status.unresolvable("node(s) didn't match the requested node name")

    def __init__(self, args: Any, handle: Handle) -> None:
        """It has no arguments."""

    def events_to_register(self) -> Iterable[HintedEvent]:
        return (HintedEvent(ClusterEvent(EventResource.NODE, Action.ADD), _node_helps),)

    def pre_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> Status | None:
        """Most pods name none."""
        return None if pod.node else Status.skip()

    def pre_filter_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        return pod.node

    def filter_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        return pod.node

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        return None if pod.node in ("", node.name) else self.rejection

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mask:
        return has_name(pod, nodes)


def _node_helps(pod: ClusterPod, old: object, new: object) -> QueueingHint:
    named = isinstance(new, ClusterNode) and pod.node in ("", new.name)
    return QueueingHint.QUEUE if named else QueueingHint.SKIP
