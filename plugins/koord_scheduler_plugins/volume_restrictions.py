"""VolumeRestrictions: disks that only one pod of a node may have, and claims of one pod only.

Source: Kubernetes, plugins/volumerestrictions/volume_restrictions.go.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

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
    PreFilterExtensions,
    PreFilterPlugin,
    QueueingHint,
    Status,
    VectorFilterPlugin,
    Verdicts,
    View,
    in_time,
)
from koord_scheduler.plugin.storage import (
    READ_WRITE_ONCE_POD,
    VolumePods,
    missing,
    named_claims,
    uses_claim,
)

_STATE = "VolumeRestrictions/PreFilter"
_DISK = Status.unschedulable("node(s) had no available disk")
_ONCE = Status.unschedulable(
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already "
    "in-use by another pod"
)


@dataclass(slots=True)
class _Exclusive:
    """Claims of the pod that only one pod may use, and how often others do."""

    claims: frozenset[str]
    uses: int

    def clone(self) -> Self:
        return replace(self)

    def count(self, pod: ClusterPod, other: ClusterPod, times: int) -> None:
        """Count what another pod uses of them; times is 1 or -1."""
        if other.namespace == pod.namespace and not other.finished:
            self.uses += times * sum(name in self.claims for name in other.claims)


class VolumeRestrictions(
    PreFilterPlugin, PreFilterExtensions, FilterPlugin, VectorFilterPlugin, EnqueueExtensions
):
    """Rejects nodes whose pods have the pod's disks; all, while its claim is another pod's."""

    def __init__(self, args: Any, handle: Handle) -> None:
        """It has no arguments."""
        self._pods = VolumePods()

    def events_to_register(self) -> Iterable[HintedEvent]:
        return (
            HintedEvent(ClusterEvent(EventResource.ASSIGNED_POD, Action.DELETE), _pod_left),
            HintedEvent(ClusterEvent(EventResource.NODE, Action.ADD)),
            HintedEvent(ClusterEvent(EventResource.CLAIM, Action.ADD), _claim_helps),
        )

    def pre_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> Status | None:
        if not pod.claims and not pod.spec.disks:
            return Status.skip()
        exclusive = set()
        for name in named_claims(pod):
            claim = nodes.claim(pod.namespace, name)
            if claim is None:
                return Status.unresolvable(missing("persistentvolumeclaim", name))
            if READ_WRITE_ONCE_POD in claim.access_modes:
                exclusive.add(name)
        if exclusive or pod.spec.disks:
            self._pods.follow(nodes)
        uses = sum(sum(self._pods.users(f"{pod.namespace}/{name}").values()) for name in exclusive)
        if not uses and not pod.spec.disks:
            return Status.skip()
        state.write(_STATE, _Exclusive(frozenset(exclusive), uses))
        return None

    def pre_filter_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        return None if pod.claims or pod.spec.disks else ()

    def add_pod(
        self, state: CycleState, pod: ClusterPod, added: ClusterPod, node: NodeInfo
    ) -> Status | None:
        state.read(_STATE, _Exclusive).count(pod, added, 1)
        return None

    def remove_pod(
        self, state: CycleState, pod: ClusterPod, removed: ClusterPod, node: NodeInfo
    ) -> Status | None:
        state.read(_STATE, _Exclusive).count(pod, removed, -1)
        return None

    def filter_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        return state.read(_STATE, _Exclusive).uses > 0

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        if pod.spec.disks and any(_share_disk(pod, other) for other in node.pods):
            return _DISK
        return _ONCE if state.read(_STATE, _Exclusive).uses > 0 else None

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Verdicts:
        numbers = np.zeros(len(nodes), np.int32)
        if state.read(_STATE, _Exclusive).uses > 0:
            numbers[:] = 2
        if pod.spec.disks:
            self._pods.follow(nodes)
            for row, others in self._pods.rows.items():
                if any(_share_disk(pod, other) for other in others):
                    numbers[row] = 1
        return Verdicts(numbers, (_DISK, _ONCE))


def _share_disk(pod: ClusterPod, other: ClusterPod) -> bool:
    return not other.finished and any(
        one.conflicts(theirs) for theirs in other.spec.disks for one in in_time(pod.spec.disks)
    )


def _pod_left(pod: ClusterPod, old: object, new: object) -> QueueingHint:
    """One that had a disk, or a claim, of the rejected pod."""
    assert isinstance(old, ClusterPod)  # noqa: S101 - it was deleted
    shared = old.namespace == pod.namespace and not set(old.claims).isdisjoint(pod.claims)
    helps = shared or any(
        one.conflicts(theirs) for theirs in old.spec.disks for one in pod.spec.disks
    )
    return QueueingHint.QUEUE if helps else QueueingHint.SKIP


def _claim_helps(pod: ClusterPod, old: object, new: object) -> QueueingHint:
    return QueueingHint.QUEUE if uses_claim(pod, new) else QueueingHint.SKIP
