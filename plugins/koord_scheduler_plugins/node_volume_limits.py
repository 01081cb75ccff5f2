"""NodeVolumeLimits: a node has no more volumes of a CSI driver than the driver can attach there.

Source: Kubernetes, plugins/nodevolumelimits/csi.go.
"""

import asyncio
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from koord_scheduler.plugin import (
    OK,
    Action,
    ClusterEvent,
    ClusterPod,
    ClusterState,
    CycleState,
    EnqueueExtensions,
    EventResource,
    FilterPlugin,
    Handle,
    HintedEvent,
    Mask,
    NodeInfo,
    PartHealth,
    PreFilterPlugin,
    QueueingHint,
    SharedPart,
    Status,
    Stop,
    VectorFilterPlugin,
    Verdicts,
    View,
)
from koord_scheduler.plugin.storage import (
    CsiNode,
    VolumeAttachment,
    Volumes,
    VolumeUse,
    limit_on,
    missing,
    uses_claim,
    volumes_of,
    volumes_on,
)

_STATE = "NodeVolumeLimits/PreFilter"
_PART = "NodeVolumeLimits volumes of nodes"
_NODES_A_TURN = 50  # of the event loop


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The CSI volumes of a pod, and what keeps it from all nodes; never changed."""

    volumes: Volumes
    obstacle: Status | None = None

    def clone(self) -> Self:
        return self


class _Attached(SharedPart):
    """The volumes of all nodes, known once in the process."""

    def __init__(self, cluster: ClusterState) -> None:
        self.volumes = VolumeUse(cluster.storage)
        self._cluster = cluster

    async def run(self, stop: Stop) -> None:
        """There is nothing to do but to know."""
        await stop.wait()

    async def wait_ready(self) -> None:
        """It is ready when it knows the volumes of the cluster, which takes a while."""
        for number, _ in enumerate(self.volumes.steps(self._cluster.view()), 1):
            if number % _NODES_A_TURN == 0:
                await asyncio.sleep(0)

    def health(self) -> PartHealth:
        return OK


class NodeVolumeLimits(PreFilterPlugin, FilterPlugin, VectorFilterPlugin, EnqueueExtensions):
    """Rejects nodes to which the pod's volumes cannot be attached beside those that are."""

    rejection = Status.unschedulable("node(s) exceed max volume count")

    def __init__(self, args: Any, handle: Handle) -> None:
        """It has no arguments."""
        self._cluster = handle.services.cluster
        self._storage = handle.services.cluster.storage
        self._attached = handle.services.shared.get(_PART, lambda: _Attached(self._cluster))

    def events_to_register(self) -> Iterable[HintedEvent]:
        node = ClusterEvent(EventResource.CSI_NODE, Action.ADD | Action.UPDATE)
        attachment = ClusterEvent(EventResource.VOLUME_ATTACHMENT, Action.DELETE)
        return (
            HintedEvent(node, _driver_helps),
            HintedEvent(ClusterEvent(EventResource.ASSIGNED_POD, Action.DELETE), _pod_left),
            HintedEvent(ClusterEvent(EventResource.CLAIM, Action.ADD), _claim_helps),
            HintedEvent(attachment, self._detached),
        )

    def pre_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> Status | None:
        if not pod.claims and not pod.spec.disks:
            return Status.skip()
        wanted = volumes_of((pod,), nodes, self._storage)
        obstacle = _obstacle(pod, nodes)
        if not wanted and obstacle is None:
            return Status.skip()
        state.write(_STATE, _Wanted(wanted, obstacle))
        return None

    def pre_filter_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        return None if pod.claims or pod.spec.disks else ()

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        wanted = state.read(_STATE, _Wanted)
        if wanted.obstacle is not None:
            return wanted.obstacle
        there = volumes_on(node.name, node.pods, node.view, self._storage)
        for driver, names in wanted.volumes.items():
            limit = limit_on(node.name, driver, self._storage)
            known = there.get(driver, frozenset())
            more = len(names - known)
            if limit is not None and more and len(known) + more > limit:
                return self.rejection
        return None

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mask | Verdicts:
        wanted = state.read(_STATE, _Wanted)
        if wanted.obstacle is not None:
            return Verdicts(np.ones(len(nodes), np.int32), (wanted.obstacle,))
        return ~self._attached.volumes.exceeds(wanted.volumes, nodes)

    def _detached(self, pod: ClusterPod, old: object, new: object) -> QueueingHint:
        """A volume of one of the pod's drivers, which is what counts."""
        assert isinstance(old, VolumeAttachment)  # noqa: S101 - it was deleted
        wanted = volumes_of((pod,), self._cluster.view(), self._storage)
        return QueueingHint.QUEUE if old.driver in wanted else QueueingHint.SKIP


def _obstacle(pod: ClusterPod, nodes: View) -> Status | None:
    """A claim that is not there."""
    for name in pod.claims:
        if nodes.claim(pod.namespace, name) is None:
            text = missing("persistentvolumeclaim", name)
            return Status.unresolvable(f"looking up PVC {pod.namespace}/{name}: {text}")
    return None


def _driver_helps(pod: ClusterPod, old: object, new: object) -> QueueingHint:
    """A node whose drivers are new, or one of them can attach more, or has no limit any more."""
    assert isinstance(new, CsiNode)  # noqa: S101 - it was added or changed
    if not isinstance(old, CsiNode):
        return QueueingHint.QUEUE
    for driver in old.drivers:
        now = new.driver(driver.name)
        after = None if now is None else now.most_volumes
        if driver.most_volumes is not None and (after is None or after > driver.most_volumes):
            return QueueingHint.QUEUE
    return QueueingHint.SKIP


def _pod_left(pod: ClusterPod, old: object, new: object) -> QueueingHint:
    """One that had volumes."""
    had = isinstance(old, ClusterPod) and (old.claims or old.spec.disks)
    return QueueingHint.QUEUE if had else QueueingHint.SKIP


def _claim_helps(pod: ClusterPod, old: object, new: object) -> QueueingHint:
    return QueueingHint.QUEUE if uses_claim(pod, new) else QueueingHint.SKIP
