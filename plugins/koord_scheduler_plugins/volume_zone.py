"""VolumeZone: a pod goes where the zone and region labels of its volumes say.

Source: Kubernetes, plugins/volumezone/volume_zone.go.
"""

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
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
    Mask,
    NodeInfo,
    PreFilterPlugin,
    QueueingHint,
    Status,
    VectorFilterPlugin,
    View,
)
from koord_scheduler.plugin.storage import (
    Claim,
    StorageClass,
    Volume,
    missing,
    named_claims,
    uses_claim,
)

_STATE = "VolumeZone/PreFilter"
_BETA_ZONE = "failure-domain.beta.kubernetes.io/zone"
_BETA_REGION = "failure-domain.beta.kubernetes.io/region"
_ZONE, _REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
_LABELS = (_BETA_ZONE, _BETA_REGION, _ZONE, _REGION)
_TODAY = {_BETA_ZONE: _ZONE, _BETA_REGION: _REGION}

Domain = tuple[str, frozenset[str]]
"""A label, and the values that a node may have; of a beta label the one of today will do."""


@dataclass(frozen=True, slots=True)
class _Domains:
    """What the labels of a pod's volumes demand; never changed."""

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
            HintedEvent(claim, _claim_helps),
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
        state.write(_STATE, _Domains(tuple(found)))
        return None

    def pre_filter_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        return None if pod.claims else ()

    def filter_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        return state.read(_STATE, _Domains).domains

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        labels = node.labels
        if not any(label in labels for label in _LABELS):
            return None  # a cluster of one zone may have no labels
        for label, values in state.read(_STATE, _Domains).domains:
            value = labels.get(label, labels.get(_TODAY.get(label, label)))
            if value not in values:
                return self.rejection
        return None

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mask:
        allowed = np.ones(len(nodes), np.bool_)
        for label, values in state.read(_STATE, _Domains).domains:
            column = nodes.traits.label(label)
            matches = column.among(values)
            if label in _TODAY:
                today = nodes.traits.label(_TODAY[label])
                matches |= ~column.present & today.among(values)
            allowed &= matches
        if not allowed.all():
            labeled = np.zeros(len(nodes), np.bool_)
            for label in _LABELS:
                labeled |= nodes.traits.label(label).present
            allowed |= ~labeled
        return allowed

    def _why_not_unbound(self, claim: Claim) -> str:
        """What is wrong with a claim that is not bound; "": it waits for its first pod."""
        if not claim.storage_class:
            return "PersistentVolumeClaim had no pv name and storageClass name"
        found = self._storage.classes.get(claim.storage_class)
        if found is None:
            return missing("storageclass.storage.k8s.io", claim.storage_class)
        if found.waits_for_consumer is None:
            return f'VolumeBindingMode not set for StorageClass "{found.name}"'
        return "" if found.waits_for_consumer else "PersistentVolume had no name"


def _domains(volume: Volume) -> Iterator[Domain]:
    """What a volume's labels demand; one that names an empty zone demands nothing.

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


def _claim_helps(pod: ClusterPod, old: object, new: object) -> QueueingHint:
    return QueueingHint.QUEUE if uses_claim(pod, new) else QueueingHint.SKIP


def _volume_helps(pod: ClusterPod, old: object, new: object) -> QueueingHint:
    """One that is new, or is in another zone or region now."""
    assert isinstance(new, Volume)  # noqa: S101 - it was added or changed
    if isinstance(old, Volume) and [*_domains(old)] == [*_domains(new)]:
        return QueueingHint.SKIP
    return QueueingHint.QUEUE
