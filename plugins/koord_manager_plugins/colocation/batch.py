"""BatchResource: batch-cpu and batch-memory, what is left of a node beside prod pods.

Source: Koordinator, noderesource/plugins/batchresource.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from koord.api.annotations import RESOURCE_STATUS
from koord.api.fields import Fields
from koord.api.node import NODE_RESERVATION
from koord.api.nodemetric import Amounts
from koord.api.qos import PRIORITY_CLASS_LABEL, QOS_LABEL, KoordPriorityClass
from koord.api.quantity import Quantity
from koord.api.slocontroller import (
    CPU_NORMALIZATION,
    RATIO_LABELS,
    STRATEGY_ANNOTATION,
    ColocationStrategy,
)
from koord.plugin import InvalidObject
from koord_manager.plugin import (
    Calculation,
    Handle,
    NodeFacts,
    NodeResourcePlugin,
    NodeTopology,
    Offered,
    Term,
    reads,
)
from koord_manager_plugins.colocation.amounts import (
    BATCH_CPU,
    BATCH_MEMORY,
    NOTHING,
    PodShare,
    capacity,
    counted_pods,
    percent,
    reserved,
    system_usage,
)

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
        given, problems = third_party(node)
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
        pods = tuple(counted_pods(node))
        found = batch_amounts(node, pods)
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
            offered = zone_amounts(node, node.topology, pods)
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
    """What a node offers, before any factor: milli-cores and bytes."""

    cpu: Explained
    memory: Explained


def batch_amounts(node: NodeFacts, pods: Iterable[PodShare]) -> BatchAmounts:
    """Return what a node offers to batch pods."""
    strategy, whole, kept = node.strategy, capacity(node), reserved(node)
    system = system_usage(node, of_prod_only=False).higher(kept)
    request, used, most = _sums(pods)
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


def _sums(pods: Iterable[PodShare]) -> tuple[Amounts, Amounts, Amounts]:
    """Requests, usage, and the higher of the two, of all pods together."""
    request = used = most = NOTHING
    for one in pods:
        request += one.request
        used += one.used
        most += one.most
    return request, used, most


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
    sums = [[NOTHING, NOTHING, NOTHING] for _ in zones]
    for pod in pods:
        chosen = [number for number in pod.numa if 0 <= number < count] or range(count)
        for at, each in enumerate((pod.request, pod.used, pod.most)):
            part = _split(each, len(chosen))
            for number in chosen:
                sums[number][at] += part
    return {
        zone.name: _of_zone(Amounts(zone.milli_cores, zone.memory_bytes), strategy, kept, system, s)
        for zone, s in zip(zones, sums, strict=True)
    }


def _of_zone(
    whole: Amounts,
    strategy: ColocationStrategy,
    kept: Amounts,
    system: Amounts,
    sums: list[Amounts],
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
