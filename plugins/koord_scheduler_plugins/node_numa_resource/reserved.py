"""CPUs and amounts of NUMA nodes of reservations: what their owners get of them.

Source: Koordinator, pkg/scheduler/plugins/nodenumaresource (reservation.go).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from koord.plugin import InvalidObject
from koord_scheduler.plugin import ClusterPod, Status
from koord_scheduler.plugin.koordinator import ReservationRoom
from koord_scheduler_plugins.node_numa_resource.accumulator import NOT_ENOUGH
from koord_scheduler_plugins.node_numa_resource.allocation import Need, Offer, allocate
from koord_scheduler_plugins.node_numa_resource.holdings import (
    NO_ALLOCATION,
    Allocation,
    allocation_of,
)
from koord_scheduler_plugins.node_numa_resource.machine import Machine

OUT_OF_SCOPE = Status.unschedulable(
    "pod has a nominated reservation but cannot be allocated within its NUMA scope"
)
_NOT_ENOUGH = Status.unschedulable(NOT_ENOUGH)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReservedCpus:
    """What a reservation has of a node's CPUs and NUMA nodes."""

    cpus: frozenset[int] = frozenset()  # that no consumer has
    numa: Mapping[int, Mapping[str, int]] = field(default_factory=dict)  # by NUMA node, likewise
    restricted: bool = False  # nothing comes from the rest of the node


def reserved_cpus(room: ReservationRoom) -> ReservedCpus | None:
    """Return what is left of a reservation; None: it has no CPUs or NUMA nodes of its own."""
    if not any(_allocation(pod) for pod in room.reserved):
        return None
    cpus: frozenset[int] = frozenset()
    numa: dict[int, dict[str, int]] = {}
    for pod in room.pods:
        found = _allocation(pod)
        cpus |= found.cpus
        for node, amounts in found.numa:
            into = numa.setdefault(node, {})
            for name, amount in amounts.items():
                into[name] = into.get(name, 0) + amount
    return ReservedCpus(cpus=cpus, numa=numa, restricted=room.restricted)


def allocate_reserved(
    machine: Machine,
    need: Need,
    nodes: frozenset[int] | None,
    found: ReservedCpus,
    *,
    most: bool,
) -> Allocation | Status:
    """Return what a pod gets that has a reservation, as allocate does.

    machine: the node with the pod of the reservation on it.
    """
    offer = Offer(reusable=found.numa, preferred=found.cpus)
    chosen = allocate(machine, need, nodes, most=most, offer=offer)
    if not found.restricted or isinstance(chosen, Status):
        return chosen
    if need.cpus > len(found.cpus):
        return _NOT_ENOUGH
    if nodes is not None and not found.numa:
        lacking = sorted(need.requests)
        return Status.unschedulable(*(f"Insufficient NUMA {name}" for name in lacking))
    inside = Offer(reusable=found.numa, required=found.numa, preferred=found.cpus)
    chosen = allocate(machine, need, nodes, most=most, offer=inside)
    if isinstance(chosen, Allocation) and not chosen.cpus <= found.cpus:
        return _NOT_ENOUGH
    return chosen


def _allocation(pod: ClusterPod) -> Allocation:
    try:
        return allocation_of(pod)
    except InvalidObject:
        return NO_ALLOCATION  # the account says so, too
