"""NodePorts: the ports of the node that a pod needs must be free.

Source: Kubernetes, plugins/nodeports/node_ports.go.
"""

from collections.abc import Hashable, Iterable
from typing import Any

from koord_scheduler.plugin import (
    Action,
    ClusterEvent,
    ClusterPod,
    CycleState,
    EnqueueExtensions,
    EventResource,
    FilterPlugin,
    Handle,
    HintedEvent,
    NodeInfo,
    PreFilterPlugin,
    QueueingHint,
    Status,
    View,
    ports_conflict,
)
from koord_scheduler.plugin.vector import Mask, VectorFilterPlugin, has_free_ports


class NodePorts(PreFilterPlugin, FilterPlugin, VectorFilterPlugin, EnqueueExtensions):
    """Rejects nodes on which another pod has a port that this one needs."""

    rejection = Status.unschedulable("node(s) didn't have free ports for the requested pod ports")

    def __init__(self, args: Any, handle: Handle) -> None:
        """It has no arguments."""

    def events_to_register(self) -> Iterable[HintedEvent]:
        return (
            HintedEvent(ClusterEvent(EventResource.POD, Action.DELETE), _pod_helps),
            HintedEvent(ClusterEvent(EventResource.NODE, Action.ADD)),
        )

    def pre_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> Status | None:
        """Most pods need none."""
        return None if pod.spec.host_ports else Status.skip()

    def pre_filter_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def filter_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        wanted = pod.spec.host_ports
        for other in node.pods:
            if not other.finished and ports_conflict(wanted, other.spec.host_ports):
                return self.rejection
        return None

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mask:
        return has_free_ports(pod, nodes)


def _pod_helps(pod: ClusterPod, old: object, new: object) -> QueueingHint:
    """A pod that has left its node, and had a port that is needed."""
    helps = (
        isinstance(old, ClusterPod)
        and bool(old.node)
        and ports_conflict(pod.spec.host_ports, old.spec.host_ports)
    )
    return QueueingHint.QUEUE if helps else QueueingHint.SKIP
