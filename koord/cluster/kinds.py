"""The kinds of objects, and the facts that are kept of each."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from itertools import islice
from sys import intern
from types import MappingProxyType
from typing import TypeVar

import msgspec
from msgspec import Raw, structs

from koord.api.annotations import annotation_fields
from koord.api.node import NODE_RESERVATION, reserved_amounts
from koord.cluster import wire
from koord.cluster.decoder import ObjectKind
from koord.cluster.facts import (
    ClusterNamespace,
    ClusterNode,
    ClusterPod,
    ClusterService,
    Condition,
    ContainerKind,
    ContainerState,
    DisruptionBudget,
    Owner,
    PriorityClass,
    ReportedAggregate,
    ReportedHostUsage,
    ReportedPods,
    ReportedPodUsage,
    ReportedUsage,
    Selector,
    Taint,
    Workload,
    kind_of_pod,
)
from koord.cluster.keptfields import kept_annotations
from koord.cluster.lenient_decoding import (
    UNCHECKED_ITEMS,
    UNREADABLE,
    DecodingFaults,
    LenientDecoder,
    bounded_amounts,
    take_within_limit,
)
from koord.cluster.placement import controller_of
from koord.cluster.pod_specs import (
    MAX_ALLOCATABLE,
    MAX_AMOUNT,
    SharedSpecs,
    read_amount,
    read_amounts,
)
from koord.cluster.selectors import equalities, read_selector
from koord.util import goformat
from koord.util.errors import InvalidObject

_MAX_NAME = 253  # characters of a name in a reference
SCHEDULER_NAME = "scheduling.koordinator.sh/scheduler-name"  # a label in place of the spec's
RAW_ALLOCATABLE = "node.koordinator.sh/raw-allocatable"  # an annotation of nodes
_ALWAYS_USED = {"cpu", "memory"}  # resources
_MAX_DISRUPTED = 2000  # pods in the status of a PodDisruptionBudget; the API allows as many
_SHORT = 16  # characters of an amount or a duration that is remembered
_FEW_DIGITS = 8  # characters of an amount of memory that is remembered
_KNOWN = ("kubernetes.io", "k8s.io", "koordinator.sh")  # ends of prefixes of labels
_LONGEST_SHARED = 16  # items of a list that is read once for all objects that have it


@dataclass(frozen=True, slots=True)
class UsageReport:
    """A NodeMetric: its status, and how often there is to be one. What it does not say is None."""

    node: str
    update_time: float | None = None  # Unix seconds
    usage: ReportedUsage | None = None  # of the whole node, averaged
    system_usage: ReportedUsage | None = None
    host_usage: ReportedUsage | None = None  # of all host applications together
    host_applications: tuple[ReportedHostUsage, ...] = ()
    reclaimable: ReportedUsage | None = None  # what prod pods request and will not use
    aggregated: tuple[ReportedAggregate, ...] = ()
    pods: Sequence[ReportedPodUsage] = ()
    interval: float | None = None  # seconds from one report to the next

    def pod_keys(self) -> list[str]:
        """namespace/name of the pods whose usage it has, in their order."""
        pods = self.pods
        if isinstance(pods, ReportedPods):
            return pods.keys()
        return [f"{one.namespace}/{one.name}" for one in pods]

    def pod_columns(self) -> ReportedPods:
        """The pods' usage as columns."""
        return self.pods if isinstance(self.pods, ReportedPods) else ReportedPods(self.pods)

    @property
    def key(self) -> str:
        return self.node


K = TypeVar("K")
T = TypeVar("T")
_State = tuple[ContainerKind, int, str | None, str | None, int]

_AMOUNTS = msgspec.json.Decoder(wire.Amounts | None)
_ITEMS = msgspec.json.Decoder(list[Raw])
_LABELS: LenientDecoder[wire.Labels] = LenientDecoder("selector", wire.Labels)
_LABEL_SELECTOR: LenientDecoder[wire.LabelSelector] = LenientDecoder("selector", wire.LabelSelector)
_TAINTS: LenientDecoder[list[wire.Taint]] = LenientDecoder("taints", list[wire.Taint])


def _read_pod(found: wire.Pod, sharing: SharedSpecs, faults: DecodingFaults) -> ClusterPod:
    malformed = tuple(faults)  # what the API server could not have taken
    meta, spec, status = (
        found.metadata,
        found.spec or wire.PodSpecFields(),
        found.status or wire.PodStatus(),
    )
    namespace = intern(meta.namespace or "default")
    volumes = spec.volumes or ()
    labels = _bounded_labels(meta.labels, faults, sharing.kept.pod_labels)
    found_conditions = status.conditions or []
    if len(found_conditions) > UNCHECKED_ITEMS:
        found_conditions = take_within_limit(
            found_conditions, _texts_of_condition, "conditions", faults
        )
    conditions, ready = _shared(
        _conditions, tuple([(one.type, one.status, one.reason or "") for one in found_conditions])
    )
    rules = sharing.spec(spec, status, namespace)
    if rules.faults:
        faults.take(rules.faults)
    own, kept = DecodingFaults(), sharing.kept
    claims = [name for one in volumes if (name := _claim_name(one, meta.name))]
    if len(claims) > UNCHECKED_ITEMS:
        claims = take_within_limit(claims, lambda name: (name,), "volumes", own)
    annotations: tuple[tuple[str, str], ...] = ()
    if meta.annotations and kept.pod_annotations:
        annotations = kept_annotations(meta.annotations, kept.pod_annotations, own)
    if malformed or own:
        rules = structs.replace(rules, unread=(*malformed, *rules.unread, *own))
        faults.take(own)
    return ClusterPod(
        name=meta.name,
        uid=meta.uid or "",
        label_set=sharing.label_set(namespace, labels),
        spec=rules,
        node=intern(spec.node_name or ""),
        phase=intern(status.phase or ""),
        qos=intern(status.qos_class or ""),
        priority=spec.priority,
        preemption_policy=intern(spec.preemption_policy or ""),
        scheduling_gates=tuple([one.name for one in spec.scheduling_gates])
        if spec.scheduling_gates
        else (),
        workload_group=_workload_group(spec.workload_ref),
        nominated_node=intern(status.nominated_node_name or ""),
        created=_time(meta.creation_timestamp, "creationTimestamp", faults),
        started=_time(status.start_time, "startTime", faults),
        ready=ready,
        status_reason=intern(status.reason or ""),
        scheduler_name=intern(labels.get(SCHEDULER_NAME) or spec.scheduler_name or ""),
        containers=_containers_of(status, faults),
        conditions=conditions,
        condition_times=_times(
            [one.last_transition_time for one in found_conditions], "lastTransitionTime", faults
        ),
        deleting=meta.deletion_timestamp is not None,
        overdue_at=None if meta.deletion_timestamp is None else _overdue_at(meta, faults),
        local_storage=any(
            wire.is_given(one.empty_dir) or wire.is_given(one.host_path) for one in volumes
        ),
        claims=tuple(claims),
        owners=_owners_of(meta, faults),
        annotations=annotations,
    )


def _overdue_at(meta: wire.Metadata, faults: DecodingFaults) -> float | None:
    """When a pod that is being deleted should have gone, even if its grace began only then."""
    deleted = _time(meta.deletion_timestamp, "deletionTimestamp", faults)
    return None if deleted is None else deleted + (meta.deletion_grace_period_seconds or 0)


def _workload_group(found: wire.WorkloadReference | None) -> str:
    """The group of a Workload that a pod belongs to; no name that Kubernetes takes has a colon."""
    if found is None or not found.name or not found.pod_group:
        return ""
    parts = (found.name, found.pod_group, found.pod_group_replica_key or "")
    return intern(":".join(part[:_MAX_NAME] for part in parts if part))


def _containers_of(found: wire.PodStatus, faults: DecodingFaults) -> tuple[ContainerState, ...]:
    """States of the containers that do not simply run."""
    states: list[_State] = []
    for kind, statuses in (
        (ContainerKind.REGULAR, found.container_statuses),
        (ContainerKind.INIT, found.init_container_statuses),
        (ContainerKind.EPHEMERAL, found.ephemeral_container_statuses),
    ):
        for one in statuses or ():
            state = one.state
            waiting = None if state is None else state.waiting
            ended = None if state is None else state.terminated
            if one.restart_count or waiting is not None or ended is not None:
                states.append(
                    (
                        kind,
                        one.restart_count or 0,
                        None if waiting is None else waiting.reason or "",
                        None if ended is None else ended.reason or "",
                        0 if ended is None else ended.exit_code or 0,
                    )
                )
    if not states:
        return ()
    if len(states) > UNCHECKED_ITEMS:
        states = take_within_limit(states, _texts_of_state, "containerStatuses", faults)
    return _shared(_container_states, tuple(states))


def _texts_of_state(one: _State) -> tuple[str, ...]:
    return one[2] or "", one[3] or ""


def _shared(read: Callable[[tuple[K, ...]], T], found: tuple[K, ...]) -> T:
    """Return the result of a cached function for a list; results for long lists are not cached."""
    if len(found) <= _LONGEST_SHARED:
        return read(found)
    plain: Callable[[tuple[K, ...]], T] = vars(read)["__wrapped__"]
    return plain(found)


@lru_cache(maxsize=4096)  # init containers that have ended well, and the like, are all the same
def _container_states(found: tuple[_State, ...]) -> tuple[ContainerState, ...]:
    return tuple(ContainerState(*one) for one in found)


@lru_cache(maxsize=4096)  # those of all pods that run are the same
def _conditions(
    found: tuple[tuple[str, str, str], ...],
) -> tuple[tuple[Condition, ...], bool]:
    """Conditions, and whether they say that the pod is ready."""
    conditions = tuple(Condition(*map(intern, one)) for one in found)
    return conditions, any(one.type == "Ready" and one.status == "True" for one in conditions)


def _claim_name(found: wire.PodVolume, pod: str) -> str:
    """The claim of a volume; "": it has none. Source: Kubernetes, ephemeral.VolumeClaimName."""
    if found.persistent_volume_claim is not None:
        return found.persistent_volume_claim.claim_name
    return f"{pod}-{found.name}" if wire.is_given(found.ephemeral) else ""


def _bounded_labels(
    labels: dict[str, str] | None, faults: DecodingFaults, first: Set[str] = frozenset()
) -> Mapping[str, str]:
    """Return labels that take KEPT_BYTES together.

    If some are cut, those of first are kept before those of Kubernetes and Koordinator, and these
    before others.
    """
    if not labels:
        return {}
    if len(labels) <= UNCHECKED_ITEMS:
        return labels
    items = sorted(labels.items(), key=lambda item: (item[0] not in first, not _is_known(item[0])))
    kept = take_within_limit(items, lambda item: item, "labels", faults)
    return labels if len(kept) == len(labels) else dict(kept)


def _is_known(key: str) -> bool:
    return key.partition("/")[0].endswith(_KNOWN)


def _texts_of_condition(one: wire.PodCondition) -> tuple[str, ...]:
    return one.type, one.status, one.reason or ""


def _owners_of(meta: wire.Metadata, faults: DecodingFaults) -> tuple[Owner, ...]:
    if not meta.owner_references:
        return ()
    found = [
        (one.kind or "", one.name or "", one.uid or "", bool(one.controller))
        for one in meta.owner_references
    ]
    if len(found) > UNCHECKED_ITEMS:  # the controller counts whatever else is cut
        found.sort(key=lambda one: not one[3])
        found = take_within_limit(found, lambda one: one[:3], "ownerReferences", faults)
    return _shared(_owners, tuple(found))


@lru_cache(maxsize=16_384)  # the pods of a ReplicaSet share theirs
def _owners(found: tuple[tuple[str, str, str, bool], ...]) -> tuple[Owner, ...]:
    return tuple(Owner(*one) for one in found)


def _read_node(found: wire.Node, sharing: SharedSpecs, faults: DecodingFaults) -> ClusterNode:
    meta = found.metadata
    spec, status = found.spec or wire.NodeSpec(), found.status or wire.NodeStatus()
    amounts = read_amounts(status.allocatable, "allocatable", faults)
    if MAX_AMOUNT in amounts.values():
        amounts = {name: min(amount, MAX_ALLOCATABLE) for name, amount in amounts.items()}
    unreserved = None
    if reservation := _reserved(meta.annotations or {}):
        unreserved = _of_compute(amounts)
        for name, reserved in reservation.items():
            if name in amounts:
                amounts[name] = max(amounts[name] - reserved, 0)
    conditions = _shared(
        _node_conditions, tuple([(one.type, one.status) for one in status.conditions or ()])
    )
    taints = _TAINTS.read(spec.taints, faults)
    return ClusterNode(
        name=meta.name,
        uid=meta.uid or "",
        labels=MappingProxyType(_bounded_labels(meta.labels, faults, sharing.kept.node_labels)),
        taints=tuple(Taint(one.key, one.effect, one.value or "") for one in taints or ()),
        unschedulable=bool(spec.unschedulable) or _are_unread(spec.taints, taints),
        ready=all(status == "True" for type_, status in conditions if type_ == "Ready"),
        allocatable=bounded_amounts(amounts, "allocatable", faults),
        raw_allocatable=_raw_allocatable(meta.annotations or {}),
        unreserved=unreserved,
        capacity=_of_compute(_compute_amounts(status.capacity, faults)),
        conditions=conditions,
        images=sharing.images.read(status.images, faults),
        annotations=kept_annotations(meta.annotations or {}, sharing.kept.node_annotations, faults),
        internal_ip=next(
            (one.address or "" for one in status.addresses or () if one.type == "InternalIP"), ""
        ),
    )


def _compute_amounts(
    found: Mapping[str, str | int | float] | None, faults: DecodingFaults
) -> Mapping[str, int]:
    said = {name: text for name, text in (found or {}).items() if name in _ALWAYS_USED}
    return read_amounts(said, "capacity", faults)


def _of_compute(amounts: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple((name, amounts[name]) for name in ("cpu", "memory") if name in amounts)


@lru_cache(maxsize=1024)  # most nodes have the same ones
def _node_conditions(found: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    return found


def _are_unread(found: Raw, taints: list[wire.Taint] | None) -> bool:
    """Whether a node has a taint that cannot be read: nothing new is to come there."""
    return wire.is_given(found) and (taints is None or len(taints) < len(_ITEMS.decode(found)))


def _raw_allocatable(annotations: Mapping[str, str]) -> tuple[tuple[str, int], ...] | None:
    """The allocatable before it was amplified.

    None: nothing says so, or it is null or malformed, which as in Koordinator counts as nothing.
    """
    text = annotations.get(RAW_ALLOCATABLE)
    if text is None:
        return None
    try:
        found = _AMOUNTS.decode(text)
        if found is None:
            return None
        return tuple(sorted((name, read_amount(name, each)) for name, each in found.items()))
    except (*UNREADABLE, ValueError):
        return None


def _reserved(annotations: Mapping[str, str]) -> dict[str, int]:
    """Return the amounts that a node reservation takes from allocatable, by resource name.

    Source: Koordinator, TransformNodeWithNodeReservation.
    """
    text = annotations.get(NODE_RESERVATION)
    if text is None:
        return {}
    try:
        policy = annotation_fields(text, NODE_RESERVATION).text("applyPolicy")
    except InvalidObject:  # as in Koordinator, a malformed one reserves nothing
        return {}
    if policy not in ("", "Default"):
        return {}
    return {
        name: amount.milli if name == "cpu" else amount.integer
        for name, amount in reserved_amounts(annotations).items()
    }


def _read_namespace(
    found: wire.NamedObject, _: SharedSpecs, faults: DecodingFaults
) -> ClusterNamespace:
    labels = _bounded_labels(found.metadata.labels, faults)
    return ClusterNamespace(found.metadata.name, MappingProxyType(labels))


def _read_budget(
    found: wire.PodDisruptionBudget, _: SharedSpecs, faults: DecodingFaults
) -> DisruptionBudget:
    meta, spec = found.metadata, found.spec or wire.BudgetSpec()
    namespace = meta.namespace or "default"
    status = found.status or wire.BudgetStatus()
    own = DecodingFaults()
    selector, allowed = _label_selector(spec.selector, own), status.disruptions_allowed or 0
    if own:  # whichever pods it is for: none of them may be disrupted
        faults.take(own)
        selector, allowed = (), 0
    disrupted = frozenset(islice(status.disrupted_pods or (), _MAX_DISRUPTED))
    return DisruptionBudget(namespace, meta.name, selector, allowed, disrupted)


def _read_priority_class(
    found: wire.PriorityClass, _: SharedSpecs, faults: DecodingFaults
) -> PriorityClass:
    return PriorityClass(found.metadata.name, found.value or 0, bool(found.global_default))


def _read_service(found: wire.Service, _: SharedSpecs, faults: DecodingFaults) -> ClusterService:
    meta, labels = found.metadata, (found.spec or wire.ServiceSpec()).selector
    namespace = intern(meta.namespace or "default")
    return ClusterService(namespace, meta.name, equalities(labels) if labels else None)


def _selector_of_labels(found: Raw, faults: DecodingFaults) -> Selector | None:
    labels = _LABELS.read(found, faults)
    return None if labels is None else equalities(labels)


def _label_selector(found: Raw, faults: DecodingFaults) -> Selector | None:
    try:
        return read_selector(_LABEL_SELECTOR.read(found, faults), "selector")
    except InvalidObject as err:
        faults.note("selector", str(err))
        return None


def _workload(
    kind: str, read: Callable[[Raw, DecodingFaults], Selector | None] = _label_selector
) -> ObjectKind[Workload]:
    def keep(found: wire.Workload, _: SharedSpecs, faults: DecodingFaults) -> Workload:
        meta, spec = found.metadata, found.spec or wire.WorkloadSpec()
        replicas = spec.replicas
        return Workload(
            kind=kind,
            namespace=intern(meta.namespace or "default"),
            name=meta.name,
            uid=meta.uid or "",
            replicas=1 if replicas is None else replicas,  # Kubernetes' default
            controller=controller_of(_owners_of(meta, faults)),
            selector=read(spec.selector, faults),
        )

    return ObjectKind(kind, wire.Workload, keep)


def read_usage(found: wire.NodeMetric, _: SharedSpecs, faults: DecodingFaults) -> UsageReport:
    """Return what is kept of a NodeMetric."""
    status = found.status or wire.NodeMetricStatus()
    metric = status.node_metric or wire.NodeUsage()
    policy = (found.spec or wire.NodeMetricSpec()).metric_collect_policy
    interval = None if policy is None else policy.report_interval_seconds
    reclaimable = status.prod_reclaimable_metric
    applications = tuple(
        [
            ReportedHostUsage(usage, intern(one.priority or ""))
            for one in status.host_application_metric or ()
            if (usage := _usage(one.usage, faults)) is not None
        ]
    )
    return UsageReport(
        node=found.metadata.name,
        update_time=_time(status.update_time, "updateTime", faults),
        usage=_usage(metric.node_usage, faults),
        system_usage=_usage(metric.system_usage, faults),
        host_usage=_total([one.usage for one in applications]),
        host_applications=applications,
        reclaimable=None if reclaimable is None else _usage(reclaimable.resource, faults),
        aggregated=tuple(
            filter(None, [_aggregated(one, faults) for one in metric.aggregated_node_usages or ()])
        ),
        pods=_pod_usages(status.pods_metric or (), faults),
        interval=None if interval is None else float(interval),
    )


def _pod_usages(found: Iterable[wire.PodUsage], faults: DecodingFaults) -> ReportedPods:
    """The usage of each pod that has any: the largest part of a NodeMetric, so in few steps."""
    names, pods_kinds, figures = list[str](), list[tuple[str, str, str]](), list[float]()
    others: dict[int, tuple[tuple[str, int], ...]] = {}
    for one in found:
        usage = one.pod_usage
        resources = None if usage is None else usage.resources
        plain = (
            _plain_figures(resources) if resources and len(resources) == len(_ALWAYS_USED) else None
        )
        if plain is None:
            read = _usage(usage, faults, in_part=True)
            if read is None:
                continue
            plain = read.cores, read.memory_bytes
            if read.others:
                others[len(names)] = read.others
        names.append(one.name)
        pods_kinds.append(kind_of_pod(one.namespace, one.priority or "", one.qos or ""))
        figures += plain
    return ReportedPods.of_columns(names, pods_kinds, figures, others)


def _aggregated(found: wire.Aggregated, faults: DecodingFaults) -> ReportedAggregate | None:
    """The figures of one window; None: it is not clear which one."""
    types = found.usage or wire.UsageByType()
    try:
        text = found.duration or "0s"
        duration = _duration(text) if len(text) < _SHORT else goformat.parse_duration(text)
    except ValueError as err:
        faults.note("duration", str(err))
        return None
    windows = (types.avg, types.p50, types.p90, types.p95, types.p99)
    return ReportedAggregate(duration, *(_usage(one, faults) for one in windows))


@lru_cache(maxsize=64)  # all nodes have the same few windows
def _duration(text: str) -> float:
    return goformat.parse_duration(text)


def _total(found: Sequence[ReportedUsage]) -> ReportedUsage | None:
    if not found:
        return None
    return ReportedUsage(sum(one.cores for one in found), sum(one.memory_bytes for one in found))


def _usage(
    found: wire.ResourceMap | None, faults: DecodingFaults, *, in_part: bool = False
) -> ReportedUsage | None:
    """The amounts of a ResourceMap; None: it lacks cpu or memory, as a cold window does.

    in_part: what it lacks is 0, as in Koordinator; None: it lacks everything, or has what cannot be
    read.
    """
    resources = None if found is None else found.resources
    if not resources:
        return None
    if len(resources) == len(_ALWAYS_USED):
        usage = _plain_usage(resources)
        if usage is not None:
            return usage
    said = read_amounts(resources, "usage", faults)
    amounts = {name: amount for name, amount in said.items() if amount < MAX_AMOUNT}
    if not amounts:
        return None
    cpu, memory = amounts.pop("cpu", None), amounts.pop("memory", None)
    if not in_part and (cpu is None or memory is None):
        return None
    if (cpu is None and "cpu" in resources) or (memory is None and "memory" in resources):
        return None  # a figure that cannot be read is not a usage of 0
    return ReportedUsage((cpu or 0) / 1000, float(memory or 0), tuple(amounts.items()))


def _plain_usage(resources: wire.Amounts) -> ReportedUsage | None:
    """Cpu and memory, as nearly all have them; None: it is not these two, or one is malformed."""
    found = _plain_figures(resources)
    return None if found is None else ReportedUsage(*found)


def _plain_figures(resources: wire.Amounts) -> tuple[float, float] | None:
    """Cores and bytes; None as of _plain_usage."""
    try:
        cpu, memory = resources["cpu"], resources["memory"]
        is_short = type(cpu) is str and len(cpu) < _SHORT
        milli = _milli(cpu) if is_short else read_amount("cpu", cpu)
        is_short = type(memory) is str and len(memory) < _FEW_DIGITS
        count = _bytes(memory) if is_short else read_amount("memory", memory)
    except (KeyError, ValueError):
        return None
    return (milli / 1000, float(count)) if milli < MAX_AMOUNT > count else None


@lru_cache(maxsize=8192)  # whole milli-cores: few nodes have more
def _milli(text: str | int | float) -> int:
    return read_amount("cpu", text)


@lru_cache(maxsize=8192)  # as 500Mi: bytes to the last digit hardly come twice
def _bytes(text: str | int | float) -> int:
    return read_amount("memory", text)


def _time(text: str | None, name: str, faults: DecodingFaults) -> float | None:
    return _times((text,), name, faults)[0]


def _times(
    texts: Iterable[str | None], name: str, faults: DecodingFaults
) -> tuple[float | None, ...]:
    """Unix seconds; None where there is no text, or none that is a time."""
    try:
        return tuple([_timestamp(text) if text else None for text in texts])
    except (ValueError, OverflowError) as err:
        faults.note(name, str(err))
        return tuple([_readable_time(text) for text in texts])


def _readable_time(text: str | None) -> float | None:
    try:
        return _timestamp(text) if text else None
    except (ValueError, OverflowError):
        return None


@lru_cache(maxsize=4096)  # a pod has few times, and they are near those of the next one
def _timestamp(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


POD = ObjectKind("pod", wire.Pod, _read_pod)
NODE = ObjectKind("node", wire.Node, _read_node)
NODE_METRIC = ObjectKind("NodeMetric", wire.NodeMetric, read_usage)
NAMESPACE = ObjectKind("namespace", wire.NamedObject, _read_namespace)
BUDGET = ObjectKind("PodDisruptionBudget", wire.PodDisruptionBudget, _read_budget)
PRIORITY_CLASS = ObjectKind("PriorityClass", wire.PriorityClass, _read_priority_class)
SERVICE = ObjectKind("Service", wire.Service, _read_service)
REPLICATION_CONTROLLER = _workload("ReplicationController", _selector_of_labels)
REPLICA_SET = _workload("ReplicaSet")
DEPLOYMENT = _workload("Deployment")
STATEFUL_SET = _workload("StatefulSet")
CLONE_SET = _workload("CloneSet")
WORKLOADS = (REPLICATION_CONTROLLER, REPLICA_SET, DEPLOYMENT, STATEFUL_SET, CLONE_SET)
