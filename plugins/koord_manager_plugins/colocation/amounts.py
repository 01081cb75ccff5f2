"""What prod pods and the system of a node have: requests, usage, reservations. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from koord.api.annotations import RESOURCE_STATUS, annotation_fields
from koord.api.node import NODE_RESERVATION, reserved_amounts
from koord.api.nodemetric import Amounts
from koord.api.qos import (
    KoordPriorityClass,
    KubeQoS,
    QoSClass,
    priority_class_with_default,
    qos_with_default,
)
from koord.plugin import InvalidObject
from koord_manager.plugin import ClusterPod, NodeFacts, ReportedUsage

BATCH_CPU, BATCH_MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
MID_CPU, MID_MEMORY = "kubernetes.io/mid-cpu", "kubernetes.io/mid-memory"
LOW_CLASSES = frozenset({KoordPriorityClass.BATCH, KoordPriorityClass.FREE})
_LOWER_THAN_PROD = LOW_CLASSES | {KoordPriorityClass.MID}
_COUNTED_PHASES = ("Running", "Pending")
_OF_HOST: Mapping[str, KoordPriorityClass] = {each.value: each for each in KoordPriorityClass}
NOTHING = Amounts()


def amounts(found: Mapping[str, int]) -> Amounts:
    return Amounts(found.get("cpu", 0), found.get("memory", 0))


def usage_amounts(usage: ReportedUsage | None) -> Amounts:
    """Return a usage; nothing where none is reported."""
    if usage is None:
        return NOTHING
    return Amounts(round(usage.cores * 1000), round(usage.memory_bytes))


def percent(of: Amounts, cpu: int, memory: int) -> Amounts:
    """Return so many percent of each, cut."""
    return Amounts(_share(of.milli_cores, cpu), _share(of.memory_bytes, memory))


def _share(of: int, share: int) -> int:
    product = of * share
    return product // 100 if product >= 0 else -(-product // 100)


def capacity(node: NodeFacts) -> Amounts:
    return amounts(dict(node.node.capacity))


def reserved(node: NodeFacts) -> Amounts:
    """Return what the kubelet or the annotation reserves, whichever is more of each resource.

    What the kubelet reserves is taken from the allocatable before it was amplified.
    """
    own, found = capacity(node), node.node
    before = found.raw_allocatable or found.unreserved or found.allocatable
    by_kubelet = own.less(amounts(dict(before)))
    text = node.annotation(NODE_RESERVATION)
    if text is None:
        return by_kubelet
    said = reserved_amounts({NODE_RESERVATION: text})
    cpu, memory = said.get("cpu"), said.get("memory")
    return by_kubelet.higher(Amounts(cpu.milli if cpu else 0, memory.integer if memory else 0))


def system_usage(node: NodeFacts, *, of_prod_only: bool) -> Amounts:
    """Return the usage of the system with host applications: of prod and mid, or of prod alone."""
    report = node.report
    if report is None:
        return NOTHING
    found = usage_amounts(report.system_usage)
    counted = {KoordPriorityClass.PROD}
    if not of_prod_only:
        counted.add(KoordPriorityClass.MID)
    for one in report.host_applications:
        if _OF_HOST.get(one.priority) in counted:
            found += usage_amounts(one.usage)
    return found


def priority_class(pod: ClusterPod) -> KoordPriorityClass:
    """Return the priority class of a pod, or what its QoS class stands for."""
    return priority_class_with_default(pod.labels, pod.priority, qos_class(pod))


def qos_class(pod: ClusterPod) -> QoSClass:
    try:
        kube = KubeQoS(pod.qos)
    except ValueError:  # its kubelet has not said yet
        kube = KubeQoS.BURSTABLE if pod.spec.requests else KubeQoS.BEST_EFFORT
    return qos_with_default(pod.labels, kube)


@dataclass(frozen=True, slots=True)
class PodShare:
    """What counts of one pod that is neither batch nor free, or of usage without a pod."""

    request: Amounts
    used: Amounts
    most: Amounts  # the higher of the two
    numa: tuple[int, ...] = ()  # NUMA nodes that were chosen for it; empty: it may be on all


def counted_pods(node: NodeFacts) -> Iterator[PodShare]:
    """Yield the shares of all pods that are neither batch nor free.

    A pod that is not in the report counts with its request; usage that is of no pod of the node
    counts as well.

    Source: Koordinator, batchresource calculateOnNode; there a pod without a report is missing in
    the higher of request and usage.
    """
    report = node.report
    used = {(one.namespace, one.name): one for one in report.pods} if report else {}
    for pod in node.pods:
        if pod.phase not in _COUNTED_PHASES:
            continue
        reported = used.pop((pod.namespace, pod.name), None)
        found = priority_class(pod)
        if found in LOW_CLASSES:
            continue
        requests = dict(pod.spec.requests)
        request = amounts(requests)
        if found is KoordPriorityClass.MID:  # its native requests have become mid resources
            request += Amounts(requests.get(MID_CPU, 0), requests.get(MID_MEMORY, 0))
        numa = _numa_nodes(pod)
        if reported is None:
            yield PodShare(request, request, request, numa)
            continue
        usage = usage_amounts(reported.usage)
        most = request.higher(usage)
        if qos_class(pod) is QoSClass.LSE:  # nobody else may use its CPUs
            usage = Amounts(request.milli_cores, usage.memory_bytes)
        yield PodShare(request, usage, most, numa)
    for one in used.values():
        if one.priority not in LOW_CLASSES:
            usage = usage_amounts(one.usage)
            yield PodShare(NOTHING, usage, usage)


def prod_requests(node: NodeFacts) -> Amounts:
    """Return the requests of the pods that are neither mid nor batch nor free."""
    found = NOTHING
    for pod in node.pods:
        if pod.phase in _COUNTED_PHASES and priority_class(pod) not in _LOWER_THAN_PROD:
            found += amounts(dict(pod.spec.requests))
    return found


def _numa_nodes(pod: ClusterPod) -> tuple[int, ...]:
    text = dict(pod.annotations).get(RESOURCE_STATUS) if pod.annotations else None
    if text is None:
        return ()
    try:
        found = annotation_fields(text, RESOURCE_STATUS).objects("numaNodeResources")
        return tuple(sorted({one.integer("node") or 0 for one in found}))
    except InvalidObject:
        return ()
