"""MissingPlugins and DynamicResources: reject pods that need what this process does not have."""

import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any

from koord.api.annotations import RESOURCE_SPEC
from koord.api.nodetopology import NUMA_TOPOLOGY_SPEC
from koord_scheduler.plugin import (
    Action,
    ClusterEvent,
    ClusterPod,
    CycleState,
    EnqueueExtensions,
    EventResource,
    Handle,
    HintedEvent,
    PodClaims,
    PreFilterPlugin,
    QueueingHint,
    Status,
    View,
    reads,
)

GANG = "gang.scheduling.koordinator.sh/name"  # an annotation
POD_GROUPS = (  # labels
    "pod-group.scheduling.sigs.k8s.io",
    "pod-group.scheduling.sigs.k8s.io/name",
)
QUOTA = "quota.scheduling.koordinator.sh/name"  # a label
RESERVATION_AFFINITY = "scheduling.koordinator.sh/reservation-affinity"  # an annotation
OPERATING_MODE = "scheduling.koordinator.sh/operating-mode"  # a label
DEVICE_ANNOTATIONS = (
    "scheduling.koordinator.sh/device-allocate-hint",
    "scheduling.koordinator.sh/device-joint-allocate",
    "scheduling.koordinator.sh/gpu-partition-spec",
)
DEVICE_RESOURCES = frozenset(
    f"{domain}/{name}"
    for domain in ("koordinator.sh", "kubernetes.io")  # the latter is an older one
    for name in ("gpu", "gpu.shared", "gpu-core", "gpu-memory", "gpu-memory-ratio", "rdma", "fpga")
)

Annotations = Mapping[str, str]
Request = tuple[str, str]
"""Requests of a pod: the annotation, label or resource, and words for people."""

MAX_ANNOTATION_BYTES = 32 << 10
_STRICT_POLICIES = ("Restricted", "SingleNUMANode")
_MAX_VALUE_LENGTH = 80  # characters of what a pod says, in a reason


@reads(
    pod_annotations=dict.fromkeys(
        (GANG, RESERVATION_AFFINITY, RESOURCE_SPEC, NUMA_TOPOLOGY_SPEC, *DEVICE_ANNOTATIONS),
        MAX_ANNOTATION_BYTES,
    )
)
class MissingPlugins(PreFilterPlugin, EnqueueExtensions):
    """Rejects pods that ask for what no plugin of their profile claims."""

    def __init__(self, args: Any, handle: Handle) -> None:
        """It has no arguments."""
        self._claims = handle.claims or PodClaims(profile=handle.profile)

    def events_to_register(self) -> Iterable[HintedEvent]:
        changed = ClusterEvent(EventResource.UNSCHEDULED_POD, Action.UPDATE)
        return (HintedEvent(changed, self._pod_changed),)

    def pre_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> Status | None:
        reasons = tuple(self._reasons(pod))
        return Status.unresolvable(*reasons) if reasons else Status.skip()

    def pre_filter_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def _reasons(self, pod: ClusterPod) -> Iterator[str]:
        annotations, claimed = dict(pod.annotations), self._claims.enabled
        for plugin, requests in _RULES.items():
            for key, request in requests(pod, annotations):
                if key not in claimed:
                    remedy = self._claims.remedy(key, plugin)
                    yield f"{request} needs a plugin that claims it: {remedy}"

    def _pod_changed(self, pod: ClusterPod, old: object, new: object) -> QueueingHint:
        """The pod asks for nothing of that kind any more."""
        still = isinstance(new, ClusterPod) and any(self._reasons(new))
        return QueueingHint.SKIP if still else QueueingHint.QUEUE


def _gang(pod: ClusterPod, annotations: Annotations) -> Iterator[Request]:
    if annotations.get(GANG):
        yield GANG, f'gang "{_short(annotations[GANG])}" (annotation {GANG})'
    for label in POD_GROUPS:
        if pod.labels.get(label):
            yield label, f'pod group "{pod.labels[label]}" (label {label})'


def _quota(pod: ClusterPod, annotations: Annotations) -> Iterator[Request]:
    if pod.labels.get(QUOTA):
        yield QUOTA, f'quota "{pod.labels[QUOTA]}" (label {QUOTA})'


def _reservation(pod: ClusterPod, annotations: Annotations) -> Iterator[Request]:
    """Whether the pod has a reservation affinity: it then needs a node with such a reservation."""
    if RESERVATION_AFFINITY in annotations:
        yield RESERVATION_AFFINITY, f"a required reservation (annotation {RESERVATION_AFFINITY})"
    if pod.labels.get(OPERATING_MODE) == "Reservation":
        yield OPERATING_MODE, f"a pod that is a reservation (label {OPERATING_MODE})"


def _numa(pod: ClusterPod, annotations: Annotations) -> Iterator[Request]:
    """Yield the NUMA requirements of a pod; preferences may be left unfulfilled."""
    spec = _fields(annotations, RESOURCE_SPEC)
    policy = "unreadable" if spec is None else spec.get("requiredCPUBindPolicy")
    if policy:
        yield RESOURCE_SPEC, f'required CPU binding "{_short(policy)}" (annotation {RESOURCE_SPEC})'
    spec = _fields(annotations, NUMA_TOPOLOGY_SPEC)
    policy = "unreadable" if spec is None else spec.get("numaTopologyPolicy")
    if spec is None or policy in _STRICT_POLICIES:
        text = f'NUMA topology policy "{_short(policy)}" (annotation {NUMA_TOPOLOGY_SPEC})'
        yield NUMA_TOPOLOGY_SPEC, text
    elif spec.get("singleNUMANodeExclusive") == "Required":
        yield NUMA_TOPOLOGY_SPEC, f"a NUMA node of its own (annotation {NUMA_TOPOLOGY_SPEC})"


def _devices(pod: ClusterPod, annotations: Annotations) -> Iterator[Request]:
    for name, _ in pod.spec.requests:
        if name in DEVICE_RESOURCES:
            yield name, f"resource {name}"
    for key in DEVICE_ANNOTATIONS:
        if key in annotations:
            yield key, f"allocation of devices (annotation {key})"


_RULES: Mapping[str, Callable[[ClusterPod, Annotations], Iterator[Request]]] = {
    "Coscheduling": _gang,
    "ElasticQuota": _quota,
    "Reservation": _reservation,
    "NodeNUMAResource": _numa,
    "DeviceShare": _devices,
}
"""Readers of what pods ask for, by the plugin of Koordinator that claims it."""


def _fields(annotations: Annotations, key: str) -> Mapping[str, Any] | None:
    """The object of an annotation, empty if the pod has none; None: it cannot be read."""
    text = annotations.get(key)
    if not text:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _short(value: object) -> str:
    return str(value)[:_MAX_VALUE_LENGTH]


_REJECTED = Status.unresolvable(
    "resource claims (spec.resourceClaims, dynamic resource allocation) are not supported by this "
    "scheduler; schedule such pods with kube-scheduler"
)


class DynamicResources(PreFilterPlugin, EnqueueExtensions):
    """Rejects pods with resource claims."""

    def __init__(self, args: Any, handle: Handle) -> None:
        """Its arguments are those of allocating, which it does not do."""

    def events_to_register(self) -> Iterable[HintedEvent]:
        """None: a pod keeps its claims as long as it lives."""
        return ()

    def pre_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> Status | None:
        return _REJECTED if pod.spec.resource_claims else Status.skip()

    def pre_filter_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()
