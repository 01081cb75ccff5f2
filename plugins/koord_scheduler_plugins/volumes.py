"""VolumeRestrictions, VolumeZone and NodeVolumeLimits: nodes that can have the volumes of a pod."""

import asyncio
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from koord.plugin import OK, PartHealth, Stop
from koord_scheduler.plugin import (
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
    NodeInfo,
    PreFilterExtensions,
    PreFilterPlugin,
    QueueingHint,
    SharedPart,
    Status,
    View,
    in_time,
)
from koord_scheduler.plugin.storage import (
    READ_WRITE_ONCE_POD,
    Claim,
    CsiNode,
    StorageClass,
    Volume,
    VolumeAttachment,
    VolumePods,
    Volumes,
    VolumeUse,
    limit_on,
    missing,
    named_claims,
    uses_claim,
    volumes_of,
    volumes_on,
)
from koord_scheduler.plugin.vector import Mask, VectorFilterPlugin, Verdicts

_RESTRICTIONS_STATE = "VolumeRestrictions/PreFilter"
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
            HintedEvent(ClusterEvent(EventResource.CLAIM, Action.ADD), _exclusive_claim_helps),
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
        state.write(_RESTRICTIONS_STATE, _Exclusive(frozenset(exclusive), uses))
        return None

    def pre_filter_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        return None if pod.claims or pod.spec.disks else ()

    def add_pod(
        self, state: CycleState, pod: ClusterPod, added: ClusterPod, node: NodeInfo
    ) -> Status | None:
        state.read(_RESTRICTIONS_STATE, _Exclusive).count(pod, added, 1)
        return None

    def remove_pod(
        self, state: CycleState, pod: ClusterPod, removed: ClusterPod, node: NodeInfo
    ) -> Status | None:
        state.read(_RESTRICTIONS_STATE, _Exclusive).count(pod, removed, -1)
        return None

    def filter_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        return state.read(_RESTRICTIONS_STATE, _Exclusive).uses > 0

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        if pod.spec.disks and any(_share_disk(pod, other) for other in node.pods):
            return _DISK
        return _ONCE if state.read(_RESTRICTIONS_STATE, _Exclusive).uses > 0 else None

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Verdicts:
        numbers = np.zeros(len(nodes), np.int32)
        if state.read(_RESTRICTIONS_STATE, _Exclusive).uses > 0:
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


def _exclusive_claim_helps(pod: ClusterPod, old: object, new: object) -> QueueingHint:
    return QueueingHint.QUEUE if uses_claim(pod, new) else QueueingHint.SKIP


_ZONE_STATE = "VolumeZone/PreFilter"
_BETA_ZONE = "failure-domain.beta.kubernetes.io/zone"
_BETA_REGION = "failure-domain.beta.kubernetes.io/region"
_ZONE, _REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
_LABELS = (_BETA_ZONE, _BETA_REGION, _ZONE, _REGION)
_GA_LABELS = {_BETA_ZONE: _ZONE, _BETA_REGION: _REGION}

Domain = tuple[str, frozenset[str]]
"""A label, and the values that a node may have; of a beta label the one of today will do."""


@dataclass(frozen=True, slots=True)
class _Domains:
    """Topology domains that the labels of a pod's volumes require; never changed."""

    domains: tuple[Domain, ...]

    def clone(self) -> Self:
        return self


class VolumeZone(PreFilterPlugin, FilterPlugin, VectorFilterPlugin, EnqueueExtensions):
    """Rejects nodes of other zones and regions than the pod's bound volumes have as labels."""

    rejection = Status.unresolvable("node(s) had no available volume zone")

    def __init__(self, args: Any, handle: Handle) -> None:
        """It has no arguments."""
        self._storage = handle.services.cluster.storage

    def events_to_register(self) -> Iterable[HintedEvent]:
        node = ClusterEvent(EventResource.NODE, Action.ADD | Action.UPDATE_NODE_LABEL)
        claim = ClusterEvent(EventResource.CLAIM, Action.ADD | Action.UPDATE)
        volume = ClusterEvent(EventResource.VOLUME, Action.ADD | Action.UPDATE)
        return (
            HintedEvent(ClusterEvent(EventResource.STORAGE_CLASS, Action.ADD), _class_helps),
            HintedEvent(node),
            HintedEvent(claim, _zone_claim_helps),
            HintedEvent(volume, _volume_helps),
        )

    def pre_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> Status | None:
        if not pod.claims:
            return Status.skip()
        found: list[Domain] = []
        for name in named_claims(pod):
            claim = nodes.claim(pod.namespace, name)
            if claim is None:
                return Status.unresolvable(missing("persistentvolumeclaim", name))
            if not claim.volume:
                rejection = self._why_not_unbound(claim)
                if rejection:
                    return Status.unresolvable(rejection)
                continue
            volume = nodes.volume(claim.volume)
            if volume is None:
                return Status.unresolvable(missing("persistentvolume", claim.volume))
            found += _domains(volume)
        if not found:
            return Status.skip()
        state.write(_ZONE_STATE, _Domains(tuple(found)))
        return None

    def pre_filter_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        return None if pod.claims else ()

    def filter_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        return state.read(_ZONE_STATE, _Domains).domains

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        labels = node.labels
        if not any(label in labels for label in _LABELS):
            return None  # a cluster of one zone may have no labels
        for label, values in state.read(_ZONE_STATE, _Domains).domains:
            value = labels.get(label, labels.get(_GA_LABELS.get(label, label)))
            if value not in values:
                return self.rejection
        return None

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mask:
        allowed = np.ones(len(nodes), np.bool_)
        for label, values in state.read(_ZONE_STATE, _Domains).domains:
            column = nodes.traits.label(label)
            matches = column.among(values)
            if label in _GA_LABELS:
                today = nodes.traits.label(_GA_LABELS[label])
                matches |= ~column.present & today.among(values)
            allowed &= matches
        if not allowed.all():
            labeled = np.zeros(len(nodes), np.bool_)
            for label in _LABELS:
                labeled |= nodes.traits.label(label).present
            allowed |= ~labeled
        return allowed

    def _why_not_unbound(self, claim: Claim) -> str:
        """Return the error of a claim that is not bound; "": it waits for its first pod."""
        if not claim.storage_class:
            return "PersistentVolumeClaim had no pv name and storageClass name"
        found = self._storage.classes.get(claim.storage_class)
        if found is None:
            return missing("storageclass.storage.k8s.io", claim.storage_class)
        if found.waits_for_consumer is None:
            return f'VolumeBindingMode not set for StorageClass "{found.name}"'
        return "" if found.waits_for_consumer else "PersistentVolume had no name"


def _domains(volume: Volume) -> Iterator[Domain]:
    """Yield the domains that a volume's labels require; a label with an empty zone requires none.

    Source: Kubernetes, cloud-provider volumehelpers.LabelZonesToSet.
    """
    for label in _LABELS:
        if label in volume.labels:
            values = frozenset(one.strip() for one in volume.labels[label].split("__"))
            if "" not in values:
                yield label, values


def _class_helps(pod: ClusterPod, old: object, new: object) -> QueueingHint:
    """One whose claims wait for their first pod."""
    helps = isinstance(new, StorageClass) and new.waits_for_consumer
    return QueueingHint.QUEUE if helps else QueueingHint.SKIP


def _zone_claim_helps(pod: ClusterPod, old: object, new: object) -> QueueingHint:
    return QueueingHint.QUEUE if uses_claim(pod, new) else QueueingHint.SKIP


def _volume_helps(pod: ClusterPod, old: object, new: object) -> QueueingHint:
    """One that is new, or is in another zone or region now."""
    assert isinstance(new, Volume)  # noqa: S101 - it was added or changed
    if isinstance(old, Volume) and [*_domains(old)] == [*_domains(new)]:
        return QueueingHint.SKIP
    return QueueingHint.QUEUE


_LIMITS_STATE = "NodeVolumeLimits/PreFilter"
_PART = "NodeVolumeLimits volumes of nodes"
_NODES_PER_TURN = 50  # of the event loop


@dataclass(frozen=True, slots=True)
class _PodCSIVolumes:
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
            if number % _NODES_PER_TURN == 0:
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
            HintedEvent(
                ClusterEvent(EventResource.ASSIGNED_POD, Action.DELETE), _pod_with_volumes_left
            ),
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
        state.write(_LIMITS_STATE, _PodCSIVolumes(wanted, obstacle))
        return None

    def pre_filter_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        return None if pod.claims or pod.spec.disks else ()

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        wanted = state.read(_LIMITS_STATE, _PodCSIVolumes)
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
        wanted = state.read(_LIMITS_STATE, _PodCSIVolumes)
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


def _pod_with_volumes_left(pod: ClusterPod, old: object, new: object) -> QueueingHint:
    """One that had volumes."""
    had = isinstance(old, ClusterPod) and (old.claims or old.spec.disks)
    return QueueingHint.QUEUE if had else QueueingHint.SKIP


def _claim_helps(pod: ClusterPod, old: object, new: object) -> QueueingHint:
    return QueueingHint.QUEUE if uses_claim(pod, new) else QueueingHint.SKIP
