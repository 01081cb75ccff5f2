"""Batch and mid resources: what prod pods leave, and what they have requested in vain."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from koord.api.annotations import RESOURCE_STATUS, annotation_fields
from koord.api.fields import Fields
from koord.api.node import NODE_RESERVATION, reserved_amounts
from koord.api.nodemetric import Amounts
from koord.api.qos import (
    PRIORITY_CLASS_LABEL,
    QOS_LABEL,
    KoordPriorityClass,
    KubeQoS,
    QoSClass,
    priority_class_with_default,
    qos_with_default,
)
from koord.api.quantity import Quantity
from koord.api.slocontroller import (
    CPU_NORMALIZATION,
    RATIO_LABELS,
    STRATEGY_ANNOTATION,
    ColocationStrategy,
)
from koord.plugin import InvalidObject
from koord_manager.plugin import (
    MAX_ZONES,
    Calculation,
    ClusterPod,
    Handle,
    NodeFacts,
    NodeResourcePlugin,
    NodeTopology,
    Offered,
    ReportedPods,
    ReportedUsage,
    Term,
    reads,
)

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
    return node.without_report(_capacity, _capacity)


def _capacity(node: NodeFacts) -> Amounts:
    return amounts(dict(node.node.capacity))


def reserved(node: NodeFacts) -> Amounts:
    """Return what the kubelet or the annotation reserves, whichever is more of each resource.

    What the kubelet reserves is taken from the allocatable before it was amplified.
    """
    return node.without_report(_reserved, _reserved)


def _reserved(node: NodeFacts) -> Amounts:
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


class CountedPod(NamedTuple):
    """A pod that runs or will, as it counts in each report. Milli-cores and bytes."""

    request_cpu: int  # with mid resources, which native ones of a mid pod have become
    request_memory: int
    priority: KoordPriorityClass
    is_exclusive: bool  # nobody else may use its CPUs
    numa: tuple[int, ...]  # NUMA nodes that were chosen for it; empty: it may be on all

    @property
    def is_low(self) -> bool:
        return self.priority in LOW_CLASSES


_counted_pod = lru_cache(maxsize=8192)(CountedPod)  # pods of a workload share one


def count_pods(pods: Iterable[ClusterPod]) -> tuple[CountedPod | None, ...]:
    """Return how each pod counts; None: not at all."""
    return tuple([_count(pod) if pod.phase in _COUNTED_PHASES else None for pod in pods])


def _count(pod: ClusterPod) -> CountedPod:
    priority, requests = priority_class(pod), dict(pod.spec.requests)
    cpu, memory = requests.get("cpu", 0), requests.get("memory", 0)
    if priority is KoordPriorityClass.MID:
        cpu += requests.get(MID_CPU, 0)
        memory += requests.get(MID_MEMORY, 0)
    return _counted_pod(cpu, memory, priority, qos_class(pod) is QoSClass.LSE, _numa_nodes(pod))


class PodShare(NamedTuple):
    """The share of one pod that is neither batch nor free, or of usage without a pod.

    Milli-cores and bytes. most is the higher of request and usage.
    """

    request_cpu: int
    request_memory: int
    used_cpu: int
    used_memory: int
    most_cpu: int
    most_memory: int
    numa: tuple[int, ...] = ()  # as CountedPod's


def counted_pods(node: NodeFacts) -> Iterator[PodShare]:
    """Yield the shares of all pods that are neither batch nor free.

    A pod that is not in the report counts with its request; usage that is of no pod of the node
    counts as well.

    Source: Koordinator, batchresource calculateOnNode; there a pod without a report is missing in
    the higher of request and usage.
    """
    used = node.report.pod_columns().figures() if node.report else {}
    for pod, counted in zip(node.pods, node.of_pods(count_pods), strict=True):
        if counted is None:
            continue
        reported = used.pop((pod.namespace, pod.name), None)
        if counted.is_low:
            continue
        cpu, memory, _, is_exclusive, numa = counted
        if reported is None:
            yield PodShare(cpu, memory, cpu, memory, cpu, memory, numa)
            continue
        used_cpu, used_memory = round(reported[1] * 1000), round(reported[2])
        most_cpu, most_memory = max(cpu, used_cpu), max(memory, used_memory)
        used_cpu = cpu if is_exclusive else used_cpu
        yield PodShare(cpu, memory, used_cpu, used_memory, most_cpu, most_memory, numa)
    for priority, cores, size in used.values():
        if priority not in LOW_CLASSES:
            used_cpu, used_memory = round(cores * 1000), round(size)
            yield PodShare(0, 0, used_cpu, used_memory, used_cpu, used_memory)


@dataclass(frozen=True, slots=True)
class NamedPods:
    """The pods that a report names, as far as they count: what their usage is compared with.

    Columns have an item for each of at. Milli-cores and bytes.
    """

    at: tuple[int, ...]  # numbers in the report: of pods that are neither batch nor free
    request_cpu: tuple[int, ...]  # 0 of a pod that is not on the node
    request_memory: tuple[int, ...]
    exclusive: tuple[int, ...]  # items of the columns: their CPUs are used by nobody else
    request: Amounts  # of all pods that count, in the report or not
    unreported: Amounts  # of those that are not in it


def named_pods(pods: tuple[ClusterPod, ...], named: ReportedPods) -> NamedPods:
    """Return which pods of a report count, and with which requests; see counted_pods."""
    names, kinds = named.who()
    keys = [(kind[0], name) for kind, name in zip(kinds, names, strict=True)]
    numbers = {key: at for at, key in enumerate(keys)}
    found: list[tuple[int, int, int, bool]] = []
    request = unreported = NOTHING
    for pod, counted in zip(pods, count_pods(pods), strict=True):
        if counted is None:
            continue
        at = numbers.pop((pod.namespace, pod.name), None)
        if counted.is_low:
            continue
        own = Amounts(counted.request_cpu, counted.request_memory)
        request += own
        if at is None:
            unreported += own
        else:
            found.append((at, own.milli_cores, own.memory_bytes, counted.is_exclusive))
    found += [(at, 0, 0, False) for at in numbers.values() if kinds[at][1] not in LOW_CLASSES]
    return NamedPods(
        tuple([one[0] for one in found]),
        tuple([one[1] for one in found]),
        tuple([one[2] for one in found]),
        tuple([number for number, one in enumerate(found) if one[3]]),
        request,
        unreported,
    )


def sums_of_pods(node: NodeFacts) -> tuple[Amounts, Amounts, Amounts]:
    """Return what counted_pods are together: requests, usage, and the higher of the two."""
    found = node.of_named_pods(named_pods)
    if node.report is None:
        return found.request, found.request, found.request
    columns = node.report.pod_columns()
    cores, memory = columns.cores(), columns.memory_bytes()
    used_cpu = [round(cores[at] * 1000) for at in found.at]
    used_memory = [round(memory[at]) for at in found.at]
    most = Amounts(
        sum(map(max, found.request_cpu, used_cpu)), sum(map(max, found.request_memory, used_memory))
    )
    for number in found.exclusive:
        used_cpu[number] = found.request_cpu[number]
    used = Amounts(sum(used_cpu), sum(used_memory))
    return found.request, used + found.unreported, most + found.unreported


def prod_requests(pods: Iterable[ClusterPod]) -> Amounts:
    """Return the requests of the pods that are neither mid nor batch nor free."""
    found = [
        one for one in count_pods(pods) if one is not None and one.priority not in _LOWER_THAN_PROD
    ]
    return Amounts(sum(one.request_cpu for one in found), sum(one.request_memory for one in found))


def _numa_nodes(pod: ClusterPod) -> tuple[int, ...]:
    text = dict(pod.annotations).get(RESOURCE_STATUS) if pod.annotations else None
    if text is None:
        return ()
    try:
        found = annotation_fields(text, RESOURCE_STATUS).objects("numaNodeResources")
        numbers = {one.integer("node") or 0 for one in found}
    except InvalidObject:
        return ()
    return tuple(sorted(number for number in numbers if 0 <= number < MAX_ZONES))


THIRD_PARTY = "node.koordinator.sh/thirdPartyAllocations"  # annotation of a Node
ORIGIN = "node.koordinator.sh/originExtendedAllocatable"  # annotation of a Node
REQUEST, MOST = "request", "maxUsageRequest"  # policies; any other one is "usage"
_SMALL, _LARGE = 4096, 65_536  # bytes


@reads(
    node_annotations={
        STRATEGY_ANNOTATION: _LARGE,
        NODE_RESERVATION: _SMALL,
        CPU_NORMALIZATION: 64,
        THIRD_PARTY: _LARGE,
        ORIGIN: _SMALL,
    },
    node_labels=RATIO_LABELS,
    pod_annotations={RESOURCE_STATUS: _LARGE},
    pod_labels=(QOS_LABEL, PRIORITY_CLASS_LABEL),
)
class BatchResource(NodeResourcePlugin):
    """Offers batch-cpu and batch-memory, on nodes and on their NUMA zones."""

    order = 40

    def __init__(self, args: None, handle: Handle) -> None:
        """It has no arguments: the strategy is in slo-controller-config."""

    def calculate(self, node: NodeFacts, earlier: Calculation) -> Calculation:
        given, problems = node.without_report(third_party, third_party)
        why = _why_none(node)
        if why:
            none = Offered(amount=None, reason=why, given=0)
            gone: dict[str, dict[str, Quantity | None]] = {
                zone.name: {BATCH_CPU: None, BATCH_MEMORY: None}
                for zone in (node.topology.zones if node.topology else ())
                if BATCH_CPU in zone.names or BATCH_MEMORY in zone.names
            }
            return Calculation(
                resources={BATCH_CPU: none, BATCH_MEMORY: none}, zones=gone, problems=problems
            )
        found = batch_amounts(node)
        ratio = normalization(node, earlier)
        resources = {
            BATCH_CPU: Offered(
                amount=found.cpu.amount,
                terms=found.cpu.terms,
                is_measured=True,
                factor=ratio,
                given=given.milli_cores,
            ),
            BATCH_MEMORY: Offered(
                amount=found.memory.amount,
                terms=found.memory.terms,
                is_measured=True,
                given=given.memory_bytes,
            ),
        }
        zones: dict[str, dict[str, Quantity | None]] = {}
        if node.topology is not None and node.topology.zones:
            offered = zone_amounts(node, node.topology, tuple(counted_pods(node)))
            zones = {
                name: {
                    BATCH_CPU: Quantity.of_milli(int(each.milli_cores * 1000 * ratio)),
                    BATCH_MEMORY: Quantity.of_bytes(each.memory_bytes),
                }
                for name, each in offered.items()
            }
        return Calculation(resources=resources, zones=zones, problems=problems)


def _why_none(node: NodeFacts) -> str:
    if not node.strategy.enable:
        return "colocation is disabled"
    return node.stale or ("" if node.has_capacity else "the node says no capacity")


@dataclass(frozen=True, slots=True)
class Explained:
    """An amount, and the lines that lead to it; what they lead to below 0 is 0."""

    amount: int
    terms: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class BatchAmounts:
    """The offer of a node before any factor: milli-cores and bytes."""

    cpu: Explained
    memory: Explained


def batch_amounts(node: NodeFacts) -> BatchAmounts:
    """Return what a node offers to batch pods."""
    strategy, whole, kept = node.strategy, capacity(node), reserved(node)
    system = system_usage(node, of_prod_only=False).higher(kept)
    request, used, most = sums_of_pods(node)
    margin = _margin(whole, strategy)
    caps = percent(
        whole,
        strategy.batch_cpu_threshold_percent or 0,
        strategy.batch_memory_threshold_percent or 0,
    )

    def explained(policy: str, part: str, cap: int | None) -> Explained:
        def of(found: Amounts) -> int:
            value: int = getattr(found, part)
            return value

        taken, base, names = used, system, ("system usage or reservation", "usage of prod pods")
        if policy == REQUEST:
            taken, base, names = request, kept, ("reservation", "requests of prod pods")
        elif policy == MOST:
            taken, names = most, (names[0], "higher of usage and requests of prod pods")
        terms = [
            Term("capacity", of(whole)),
            Term("safety margin", -of(margin)),
            Term(names[0], -of(base)),
            Term(names[1], -of(taken)),
        ]
        left = sum(one.amount for one in terms)
        if left < 0:
            terms.append(Term("never below 0", -left))
            left = 0
        if cap is not None and left > cap:
            terms.append(Term("cap of batchThresholdPercent", cap - left))
            left = cap
        return Explained(left, tuple(terms))

    cpu_policy = MOST if strategy.cpu_calculate_policy == MOST else ""
    memory_policy = strategy.memory_calculate_policy
    return BatchAmounts(
        explained(
            cpu_policy,
            "milli_cores",
            None if strategy.batch_cpu_threshold_percent is None else caps.milli_cores,
        ),
        explained(
            memory_policy,
            "memory_bytes",
            None if strategy.batch_memory_threshold_percent is None else caps.memory_bytes,
        ),
    )


def _margin(whole: Amounts, strategy: ColocationStrategy) -> Amounts:
    return percent(
        whole,
        100 - strategy.cpu_reclaim_threshold_percent,
        100 - strategy.memory_reclaim_threshold_percent,
    )


def _three(found: list[int]) -> tuple[Amounts, Amounts, Amounts]:
    """Requests, usage, and the higher of the two."""
    return Amounts(*found[:2]), Amounts(*found[2:4]), Amounts(*found[4:])


def zone_amounts(
    node: NodeFacts, topology: NodeTopology, pods: Iterable[PodShare]
) -> dict[str, Amounts]:
    """Return what each NUMA zone offers to batch pods.

    Reservation and system are split evenly; a pod is split over the NUMA nodes that were chosen for
    it, else over all.
    """
    strategy, zones = node.strategy, topology.zones
    count = len(zones)
    kept = _split(reserved(node), count)
    system = _split(system_usage(node, of_prod_only=False), count).higher(kept)
    sums = [[0] * 6 for _ in zones]
    for pod in pods:
        chosen = [number for number in pod.numa if number < count] or range(count)
        for at, each in enumerate(pod[:6]):
            part = -(-each // len(chosen))
            for number in chosen:
                sums[number][at] += part
    return {
        zone.name: _of_zone(
            Amounts(zone.milli_cores, zone.memory_bytes), strategy, kept, system, _three(found)
        )
        for zone, found in zip(zones, sums, strict=True)
    }


def _of_zone(
    whole: Amounts,
    strategy: ColocationStrategy,
    kept: Amounts,
    system: Amounts,
    sums: tuple[Amounts, Amounts, Amounts],
) -> Amounts:
    request, used, most = sums
    margin = _margin(whole, strategy)
    by_usage = _left(whole, margin, system, used)
    by_most = _left(whole, margin, system, most)
    by_request = _left(whole, margin, kept, request)
    cpu = by_most if strategy.cpu_calculate_policy == MOST else by_usage
    memory = {REQUEST: by_request, MOST: by_most}.get(strategy.memory_calculate_policy, by_usage)
    found = Amounts(cpu.milli_cores, memory.memory_bytes)
    caps = percent(
        whole,
        strategy.batch_cpu_threshold_percent or 0,
        strategy.batch_memory_threshold_percent or 0,
    )
    return Amounts(
        found.milli_cores
        if strategy.batch_cpu_threshold_percent is None
        else min(found.milli_cores, caps.milli_cores),
        found.memory_bytes
        if strategy.batch_memory_threshold_percent is None
        else min(found.memory_bytes, caps.memory_bytes),
    )


def _left(whole: Amounts, margin: Amounts, base: Amounts, taken: Amounts) -> Amounts:
    return Amounts(
        max(whole.milli_cores - margin.milli_cores - base.milli_cores - taken.milli_cores, 0),
        max(whole.memory_bytes - margin.memory_bytes - base.memory_bytes - taken.memory_bytes, 0),
    )


def _split(found: Amounts, count: int) -> Amounts:
    return Amounts(-(-found.milli_cores // count), -(-found.memory_bytes // count))


def normalization(node: NodeFacts, earlier: Calculation) -> float:
    """Return the factor of batch-cpu: this round's ratio, else that of the Node; at least 1."""
    text = earlier.annotations.get(CPU_NORMALIZATION)
    if text is None and CPU_NORMALIZATION not in earlier.annotations:
        text = node.annotation(CPU_NORMALIZATION)
    try:
        ratio = float(text or "1")
    except ValueError:
        return 1.0
    return ratio if 1.0 < ratio <= 5.0 else 1.0


def third_party(node: NodeFacts) -> tuple[Amounts, tuple[str, ...]]:
    """Return what other systems have of the node's batch resources, and what is wrong with that."""
    text = node.annotation(THIRD_PARTY)
    if text is None:
        return NOTHING, ()
    try:
        found = NOTHING
        for one in Fields(json.loads(text), THIRD_PARTY).objects("allocations"):
            if one.text("priority") == KoordPriorityClass.BATCH.value:
                said = one.quantities("resources")
                cpu = Quantity.parse(said.get(BATCH_CPU, "0")).integer
                memory = Quantity.parse(said.get(BATCH_MEMORY, "0")).integer
                found += Amounts(max(cpu, 0), max(memory, 0))
    except (InvalidObject, ValueError, RecursionError) as err:
        return NOTHING, (f"annotation {THIRD_PARTY}: {err}",)
    return found, ()


STATIC = "static"  # midReclaimMode: a fixed share of the node


@reads(
    node_annotations={STRATEGY_ANNOTATION: 65_536, NODE_RESERVATION: 4096},
    node_labels=RATIO_LABELS,
    pod_labels=(QOS_LABEL, PRIORITY_CLASS_LABEL),
)
class MidResource(NodeResourcePlugin):
    """Offers mid-cpu and mid-memory on nodes."""

    order = 30

    def __init__(self, args: None, handle: Handle) -> None:
        """It has no arguments: the strategy is in slo-controller-config."""

    def calculate(self, node: NodeFacts, earlier: Calculation) -> Calculation:
        why = "" if node.strategy.enable else "colocation is disabled"
        why = why or node.stale or ("" if node.has_capacity else "the node says no capacity")
        if why:
            none = Offered(amount=None, reason=why)
            return Calculation(resources={MID_CPU: none, MID_MEMORY: none})
        return Calculation(resources=mid_resources(node))


def mid_resources(node: NodeFacts) -> dict[str, Offered]:
    """Return what a node offers to mid pods: milli-cores and bytes."""
    strategy, whole = node.strategy, capacity(node)
    cap = percent(whole, strategy.mid_cpu_threshold_percent, strategy.mid_memory_threshold_percent)
    if strategy.mid_reclaim_mode == STATIC:
        share = percent(
            whole,
            strategy.mid_static_cpu_reserved_percent,
            strategy.mid_static_memory_reserved_percent,
        )
        parts = [("static share of the capacity", share)]
    else:
        reclaimable, unallocated = _reclaimable(node, whole), _unallocated(node, whole)
        share = percent(
            unallocated, strategy.mid_unallocated_percent, strategy.mid_unallocated_percent
        )
        parts = [("reclaimable of prod pods", reclaimable), ("share of what is unallocated", share)]
    cpu = _offered([(name, one.milli_cores) for name, one in parts], cap.milli_cores)
    memory = _offered([(name, one.memory_bytes) for name, one in parts], cap.memory_bytes)
    return {MID_CPU: cpu, MID_MEMORY: memory}


def _reclaimable(node: NodeFacts, whole: Amounts) -> Amounts:
    """Return the part of prod requests that will stay unused, at most what is unused now."""
    report = node.report
    if report is None or report.usage is None:
        return NOTHING
    return usage_amounts(report.reclaimable).lower(whole.less(usage_amounts(report.usage)))


def _unallocated(node: NodeFacts, whole: Amounts) -> Amounts:
    base = system_usage(node, of_prod_only=True).higher(reserved(node))
    return whole.less(base + node.of_pods(prod_requests))


def _offered(parts: list[tuple[str, int]], cap: int) -> Offered:
    terms = [Term(name, amount) for name, amount in parts]
    total = sum(one.amount for one in terms)
    if total > cap:
        terms.append(Term("cap of midThresholdPercent", cap - total))
    return Offered(amount=min(total, cap), terms=tuple(terms), is_measured=True)
