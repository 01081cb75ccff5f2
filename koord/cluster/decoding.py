"""The kinds of objects, and the facts that are kept of each."""

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from itertools import islice
from sys import intern
from types import MappingProxyType

import msgspec
from msgspec import Raw

from koord.api.decoding.annotation import annotation_fields
from koord.api.nodes.reservation import NODE_RESERVATION, reserved_amounts
from koord.api.reservations import RESERVE_POD
from koord.api.schedulinghint import SCHEDULING_HINTS
from koord.cluster import wire
from koord.cluster.decoder import Kind
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
    Selector,
    Taint,
    Workload,
)
from koord.cluster.podspecs import Sharing, read_amount, read_amounts
from koord.cluster.selectors import equalities, read_selector
from koord.cluster.usage import AggregatedUsage, PodMetric, Usage
from koord.cluster.workloads import controller_of
from koord.util import goduration
from koord.util.errors import InvalidObject

KEPT_ANNOTATIONS = frozenset(
    {
        "controller.kubernetes.io/pod-deletion-cost",
        "descheduler.alpha.kubernetes.io/evict",
        "descheduler.alpha.kubernetes.io/prefer-no-eviction",
        "gang.scheduling.koordinator.sh/name",
        "kubernetes.io/config.mirror",
        "kubernetes.io/config.source",
        "scheduling.koordinator.sh/device-allocate-hint",
        "scheduling.koordinator.sh/device-joint-allocate",
        "scheduling.koordinator.sh/eviction-cost",
        "scheduling.koordinator.sh/gpu-partition-spec",
        "scheduling.koordinator.sh/load-estimated-scaling-factors",
        "scheduling.koordinator.sh/load-estimated-seconds-after-initialized",
        "scheduling.koordinator.sh/load-estimated-seconds-after-pod-scheduled",
        "scheduling.koordinator.sh/numa-topology-spec",
        "scheduling.koordinator.sh/reservation-affinity",
        "scheduling.koordinator.sh/resource-spec",
        RESERVE_POD,
        *SCHEDULING_HINTS,
    }
)
KEPT_NODE_ANNOTATIONS = frozenset({"scheduling.koordinator.sh/usage-thresholds"})
SCHEDULER_NAME = "scheduling.koordinator.sh/scheduler-name"  # a label in place of the spec's
_ALWAYS_USED = ("cpu", "memory")  # resources
RAW_ALLOCATABLE = "node.koordinator.sh/raw-allocatable"  # an annotation of nodes
_MOST_DISRUPTED = 2000  # pods in the status of a PodDisruptionBudget; the API allows as many
_LONGEST_ANNOTATION = 256  # characters; a longer one is cut
_LONGEST_NODE_ANNOTATION = 4096  # as above
_LONGEST_OF = dict.fromkeys(SCHEDULING_HINTS, 32_768)  # as above, of those that list nodes


@dataclass(frozen=True, slots=True)
class UsageReport:
    """A NodeMetric: its status, and how often there is to be one. What it does not say is None."""

    node: str
    update_time: float | None = None  # Unix seconds
    usage: Usage | None = None  # of the whole node, averaged
    system_usage: Usage | None = None
    host_usage: Usage | None = None  # of all host applications together
    aggregated: tuple[AggregatedUsage, ...] = ()
    pods: tuple[PodMetric, ...] = ()
    interval: float | None = None  # seconds from one report to the next

    @property
    def key(self) -> str:
        return self.node


_AMOUNTS = msgspec.json.Decoder(wire.Amounts | None)
_LABELS = msgspec.json.Decoder(wire.Labels | None)
_LABEL_SELECTOR = msgspec.json.Decoder(wire.LabelSelector | None)


def _read_pod(found: wire.Pod, sharing: Sharing) -> ClusterPod:
    meta, spec, status = found.metadata, found.spec or wire.Spec(), found.status or wire.PodStatus()
    namespace = intern(meta.namespace or "default")
    where = f"pod {namespace}/{meta.name}"
    volumes = spec.volumes or ()
    labels = meta.labels or {}
    found_conditions = status.conditions or ()
    conditions, ready = _conditions(
        tuple([(one.type, one.status, one.reason or "") for one in found_conditions])
    )
    return ClusterPod(
        name=meta.name,
        uid=meta.uid or "",
        label_set=sharing.label_set(namespace, labels),
        spec=sharing.spec(spec, namespace, where),
        node=intern(spec.node_name or ""),
        phase=intern(status.phase or ""),
        qos=intern(status.qos_class or ""),
        priority=spec.priority,
        preemption_policy=intern(spec.preemption_policy or ""),
        scheduling_gates=tuple([one.name for one in spec.scheduling_gates])
        if spec.scheduling_gates
        else (),
        nominated_node=intern(status.nominated_node_name or ""),
        created=_time(meta.creation_timestamp, where),
        started=_time(status.start_time, where),
        ready=ready,
        status_reason=intern(status.reason or ""),
        scheduler_name=intern(labels.get(SCHEDULER_NAME) or spec.scheduler_name or ""),
        containers=_containers_of(status),
        conditions=conditions,
        condition_times=_times([one.last_transition_time for one in found_conditions], where),
        deleting=meta.deletion_timestamp is not None,
        local_storage=any(
            wire.given(one.empty_dir) or wire.given(one.host_path) for one in volumes
        ),
        claims=tuple([name for one in volumes if (name := _claim_name(one, meta.name))]),
        owners=_owners_of(meta),
        annotations=_kept_annotations(meta, KEPT_ANNOTATIONS, _LONGEST_ANNOTATION)
        if meta.annotations
        else (),
    )


def _kept_annotations(
    meta: wire.Metadata, kept: Set[str], longest: int
) -> tuple[tuple[str, str], ...]:
    found = meta.annotations or {}
    return tuple(
        [(key, found[key][: _LONGEST_OF.get(key, longest)]) for key in sorted(kept & found.keys())]
    )


def _containers_of(found: wire.PodStatus) -> tuple[ContainerState, ...]:
    """States of the containers that do not simply run."""
    states = []
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
    return _container_states(tuple(states)) if states else ()


@lru_cache(maxsize=4096)  # init containers that have ended well, and the like, are all the same
def _container_states(
    found: tuple[tuple[ContainerKind, int, str | None, str | None, int], ...],
) -> tuple[ContainerState, ...]:
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
    return f"{pod}-{found.name}" if wire.given(found.ephemeral) else ""


def _owners_of(meta: wire.Metadata) -> tuple[Owner, ...]:
    return _owners(
        tuple(
            [
                (one.kind or "", one.name or "", one.uid or "", bool(one.controller))
                for one in meta.owner_references or ()
            ]
        )
    )


@lru_cache(maxsize=16_384)  # the pods of a ReplicaSet share theirs
def _owners(found: tuple[tuple[str, str, str, bool], ...]) -> tuple[Owner, ...]:
    return tuple(Owner(*one) for one in found)


def _read_node(found: wire.Node, sharing: Sharing) -> ClusterNode:
    meta = found.metadata
    spec, status = found.spec or wire.NodeSpec(), found.status or wire.NodeStatus()
    where = f"node {meta.name}"
    amounts = read_amounts(status.allocatable or {}, where)
    for name, reserved in _reserved(meta.annotations or {}).items():
        if name in amounts:
            amounts[name] = max(amounts[name] - reserved, 0)
    conditions = _node_conditions(
        tuple([(one.type, one.status) for one in status.conditions or ()])
    )
    return ClusterNode(
        name=meta.name,
        uid=meta.uid or "",
        labels=MappingProxyType(meta.labels or {}),
        taints=tuple(Taint(one.key, one.effect, one.value or "") for one in spec.taints or ()),
        unschedulable=bool(spec.unschedulable),
        ready=all(status == "True" for type_, status in conditions if type_ == "Ready"),
        allocatable=tuple(sorted(amounts.items())),
        raw_allocatable=_raw_allocatable(meta.annotations or {}, where),
        conditions=conditions,
        images=sharing.images.read(status.images),
        annotations=_kept_annotations(meta, KEPT_NODE_ANNOTATIONS, _LONGEST_NODE_ANNOTATION),
        internal_ip=next(
            (one.address or "" for one in status.addresses or () if one.type == "InternalIP"), ""
        ),
    )


@lru_cache(maxsize=1024)  # most nodes have the same ones
def _node_conditions(found: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    return found


def _raw_allocatable(
    annotations: Mapping[str, str], where: str
) -> tuple[tuple[str, int], ...] | None:
    """The allocatable before it was amplified.

    None: nothing says so, or it is null or malformed, which as in Koordinator counts as nothing.
    """
    text = annotations.get(RAW_ALLOCATABLE)
    if text is None:
        return None
    try:
        found = _AMOUNTS.decode(text)
        amounts = None if found is None else read_amounts(found, where)
    except (InvalidObject, msgspec.DecodeError, RecursionError):
        return None
    return None if amounts is None else tuple(sorted(amounts.items()))


def _reserved(annotations: Mapping[str, str]) -> dict[str, int]:
    """What an administrator's reservation takes from allocatable, by name of the resource.

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


def _read_namespace(found: wire.Named, _: Sharing) -> ClusterNamespace:
    return ClusterNamespace(found.metadata.name, MappingProxyType(found.metadata.labels or {}))


def _read_budget(found: wire.Budget, _: Sharing) -> DisruptionBudget:
    meta, spec = found.metadata, found.spec or wire.BudgetSpec()
    namespace = meta.namespace or "default"
    selector = read_selector(spec.selector, f"PodDisruptionBudget {namespace}/{meta.name}")
    status = found.status or wire.BudgetStatus()
    disrupted = frozenset(islice(status.disrupted_pods or (), _MOST_DISRUPTED))
    return DisruptionBudget(
        namespace, meta.name, selector, status.disruptions_allowed or 0, disrupted
    )


def _read_priority_class(found: wire.PriorityClass, _: Sharing) -> PriorityClass:
    return PriorityClass(found.metadata.name, found.value or 0, bool(found.global_default))


def _read_service(found: wire.Service, _: Sharing) -> ClusterService:
    meta, labels = found.metadata, (found.spec or wire.ServiceSpec()).selector
    namespace = intern(meta.namespace or "default")
    return ClusterService(namespace, meta.name, equalities(labels) if labels else None)


def _selector_of_labels(found: Raw, where: str) -> Selector | None:
    labels = _LABELS.decode(found)
    return None if labels is None else equalities(labels)


def _label_selector(found: Raw, where: str) -> Selector | None:
    return read_selector(_LABEL_SELECTOR.decode(found), where)


def _workload(
    kind: str, read: Callable[[Raw, str], Selector | None] = _label_selector
) -> Kind[Workload]:
    def keep(found: wire.Workload, _: Sharing) -> Workload:
        meta, spec = found.metadata, found.spec or wire.WorkloadSpec()
        replicas = spec.replicas
        return Workload(
            kind=kind,
            namespace=intern(meta.namespace or "default"),
            name=meta.name,
            uid=meta.uid or "",
            replicas=1 if replicas is None else replicas,  # Kubernetes' default
            controller=controller_of(_owners_of(meta)),
            selector=read(spec.selector, f"{kind} {meta.namespace}/{meta.name}"),
        )

    return Kind(kind, wire.Workload, keep)


def _read_usage(found: wire.NodeMetric, _: Sharing) -> UsageReport:
    where = f"NodeMetric {found.metadata.name}"
    status = found.status or wire.NodeMetricStatus()
    metric = status.node_metric or wire.NodeUsage()
    policy = (found.spec or wire.NodeMetricSpec()).metric_collect_policy
    interval = None if policy is None else policy.report_interval_seconds
    return UsageReport(
        node=found.metadata.name,
        update_time=_time(status.update_time, where),
        usage=_usage(metric.node_usage, where),
        system_usage=_usage(metric.system_usage, where),
        host_usage=_total(
            [_usage(one.usage, where) for one in status.host_application_metric or ()]
        ),
        aggregated=tuple(_aggregated(one, where) for one in metric.aggregated_node_usages or ()),
        pods=tuple(
            [
                PodMetric(
                    one.name,
                    intern(one.namespace),
                    usage,
                    intern(one.priority or ""),
                    intern(one.qos or ""),
                )
                for one in status.pods_metric or ()
                if (usage := _usage(one.pod_usage, where, in_part=True)) is not None
            ]
        ),
        interval=None if interval is None else float(interval),
    )


def _aggregated(found: wire.Aggregated, where: str) -> AggregatedUsage:
    types = found.usage or wire.UsageByType()
    try:
        duration = goduration.parse(found.duration or "0s")
    except ValueError as err:
        wanted = "a duration like 5m0s"
        raise InvalidObject(f"{where}: duration", wanted=wanted, found=found.duration) from err
    windows = (types.avg, types.p50, types.p90, types.p95, types.p99)
    return AggregatedUsage(duration, *(_usage(one, where) for one in windows))


def _total(found: Iterable[Usage | None]) -> Usage | None:
    known = [one for one in found if one is not None]
    if not known:
        return None
    return Usage(sum(one.cores for one in known), sum(one.memory_bytes for one in known))


def _usage(found: wire.ResourceMap | None, where: str, *, in_part: bool = False) -> Usage | None:
    """The amounts of a ResourceMap; None: it lacks cpu or memory, as a cold window does.

    in_part: what it lacks is 0, as in Koordinator; None: it lacks everything.
    """
    resources = None if found is None else found.resources
    if not resources:
        return None
    cpu, memory = resources.get("cpu"), resources.get("memory")
    others: tuple[tuple[str, int], ...] = ()
    if len(resources) > (cpu is not None) + (memory is not None):
        rest = {name: text for name, text in resources.items() if name not in _ALWAYS_USED}
        others = tuple(read_amounts(rest, where).items())
    milli = 0 if cpu is None else read_amount("cpu", cpu, where)
    count = 0 if memory is None else read_amount("memory", memory, where)
    if not in_part and (cpu is None or memory is None):
        return None
    return Usage(milli / 1000, float(count), others)


def _time(text: str | None, where: str) -> float | None:
    return _times((text,), where)[0]


def _times(texts: Iterable[str | None], where: str) -> tuple[float | None, ...]:
    """Unix seconds; None where there is no text."""
    try:
        return tuple([_timestamp(text) if text else None for text in texts])
    except (ValueError, OverflowError) as err:
        wanted = "times like 2026-07-24T06:52:45Z"
        raise InvalidObject(where, wanted=wanted, found=list(texts)) from err


@lru_cache(maxsize=4096)  # a pod has few times, and they are near those of the next one
def _timestamp(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


POD = Kind("pod", wire.Pod, _read_pod)
NODE = Kind("node", wire.Node, _read_node)
NODE_METRIC = Kind("NodeMetric", wire.NodeMetric, _read_usage)
NAMESPACE = Kind("namespace", wire.Named, _read_namespace)
BUDGET = Kind("PodDisruptionBudget", wire.Budget, _read_budget)
PRIORITY_CLASS = Kind("PriorityClass", wire.PriorityClass, _read_priority_class)
SERVICE = Kind("Service", wire.Service, _read_service)
REPLICATION_CONTROLLER = _workload("ReplicationController", _selector_of_labels)
REPLICA_SET = _workload("ReplicaSet")
DEPLOYMENT = _workload("Deployment")
STATEFUL_SET = _workload("StatefulSet")
CLONE_SET = _workload("CloneSet")
WORKLOADS = (REPLICATION_CONTROLLER, REPLICA_SET, DEPLOYMENT, STATEFUL_SET, CLONE_SET)
