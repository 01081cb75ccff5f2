"""Allocation on one node: CPUs, amounts of NUMA nodes, and from which of them all could come. Pure.

Source: Koordinator, pkg/scheduler/plugins/nodenumaresource (resource_manager.go, topology_hint.go).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from koord.api.nodetopology import BindPolicy
from koord.plugin import InvalidObject
from koord_scheduler.plugin import ClusterPod, Status
from koord_scheduler.plugin.koordinator import NUMATopologyHint, NUMATopologyPolicy, ReservationRoom
from koord_scheduler.plugin.vector import LeastAllocated, MostAllocated, ResourceSpec
from koord_scheduler_plugins.node_numa_resource.accumulator import (
    NOT_ENOUGH,
    ExclusivePolicy,
    TooFewCpus,
    take_cpus,
)
from koord_scheduler_plugins.node_numa_resource.holdings import (
    NO_ALLOCATION,
    Allocation,
    allocation_of,
)
from koord_scheduler_plugins.node_numa_resource.machine import Machine, UsableCpus
from koord_scheduler_plugins.node_numa_resource.topology import Amounts, Zones, amplify

NO_ZONES = Status.unresolvable("insufficient resources on NUMA Node")

_CPU = "cpu"
_NONE = UsableCpus(frozenset(), {})


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """The need of a pod on one node."""

    requests: Amounts
    cpus: int = 0  # of its own; 0: none
    policy: BindPolicy | None = None  # of these CPUs
    required: bool = False  # the policy must be kept
    exclusive: ExclusivePolicy = ExclusivePolicy.NONE

    @property
    def required_policy(self) -> BindPolicy | None:
        return self.policy if self.required else None


@dataclass(frozen=True, kw_only=True, slots=True)
class NumaOffer:
    """Amounts that a pod may have beyond the free ones: those of reservations."""

    reusable: Zones = field(default_factory=dict)  # amounts that count as free
    required: Zones = field(default_factory=dict)  # with any, only these amounts are there
    preferred: frozenset[int] = frozenset()  # CPUs that come first; free, though a pod has them
    preemptible: frozenset[int] = frozenset()  # CPUs that are free, though a pod has them


NO_OFFER = NumaOffer()


def allocate(
    machine: Machine,
    need: Need,
    nodes: frozenset[int] | None,
    *,
    most: bool,
    offer: NumaOffer = NO_OFFER,
    trial: bool = False,
) -> Allocation | Status:
    """Return what a pod gets of a node, or why it gets nothing.

    nodes: NUMA nodes of which all of it comes; None: any, and no amounts are kept. most: NUMA nodes
    with fewer free CPUs come first, unless the node says otherwise. trial: CPUs are not chosen
    where it is certain that there are enough.
    """
    usable = _usable(machine, need, offer) if need.cpus else _NONE
    numa: list[tuple[int, dict[str, int]]] = []
    if nodes is not None:
        found = _amounts(machine, need, nodes, usable, offer)
        if isinstance(found, Status):
            return found
        numa = found
    taken: frozenset[int] = frozenset()
    if need.cpus and not (trial and _is_certain(machine, need, usable, numa)):
        try:
            taken = _cpus(machine, need, usable, numa, most=most, offer=offer)
        except TooFewCpus as err:
            return Status.unschedulable(str(err))
    return Allocation(taken, tuple(numa))


def designated_status(machine: Machine, need: Need, found: Allocation) -> Status | None:
    """Why a pod cannot have exactly what it comes with on a node; None: it can."""
    if len(found.cpus) != need.cpus or not found.cpus <= machine.free:
        return Status.unschedulable(NOT_ENOUGH)
    if not _keeps(machine, found.cpus, need.required_policy):
        return Status.unschedulable(_broken(need))
    left = machine.available()
    lacking: set[str] = set()
    for node, amounts in found.numa:
        there = left.get(node)
        if there is None:
            return NO_ZONES
        lacking.update(name for name, amount in amounts.items() if there.get(name, 0) < amount)
    reasons = [f"Insufficient NUMA {name}" for name in sorted(lacking)]
    return Status.unschedulable(*reasons) if reasons else None


def _broken(need: Need) -> str:
    return f"insufficient CPUs to satisfy required cpu bind policy {need.required_policy}"


def _is_certain(
    machine: Machine, need: Need, usable: UsableCpus, numa: list[tuple[int, dict[str, int]]]
) -> bool:
    """Whether there are CPUs for a pod, as counting them says."""
    policy = need.required_policy
    if policy is not None and not machine.layout.uniform:
        return False
    unit = machine.layout.cpus_per_core if policy is BindPolicy.FULL_PCPUS else 1
    if not numa:
        return need.cpus <= len(usable.cpus) and not need.cpus % unit and policy is None
    counts = [(node, amounts.get(_CPU, 0) // 1000) for node, amounts in numa]
    return sum(count for _, count in counts) == need.cpus and all(
        count <= len(usable.by_node.get(node, ())) and not count % unit for node, count in counts
    )


def _usable(machine: Machine, need: Need, offer: NumaOffer) -> UsableCpus:
    """The CPUs that the pod could have."""
    policy = need.required_policy
    if not (offer.preferred or offer.preemptible):
        return machine.usable(policy)
    free = machine.free_with(offer.preferred, offer.preemptible)
    return UsableCpus.of(machine.layout, free if policy is None else machine.bindable(free, policy))


def free_amounts(
    machine: Machine, need: Need, usable: UsableCpus, offer: NumaOffer = NO_OFFER
) -> dict[int, dict[str, int]]:
    """Return the free amounts of NUMA nodes for a pod; of CPUs at most those that it could bind.

    The CPU of pods with CPUs of their own is not amplified.
    """
    if offer.required:
        found = {node: dict(amounts) for node, amounts in offer.required.items()}
    else:
        found = machine.available(offer.reusable)
    if need.cpus:
        ratio = machine.rules.cpu_ratio
        for node, amounts in found.items():
            if _CPU in amounts:
                there = 1000 * len(usable.by_node.get(node, ()))
                amounts[_CPU] = min(int(amounts[_CPU] / ratio), there)
    return found


def _amounts(
    machine: Machine, need: Need, nodes: frozenset[int], usable: UsableCpus, offer: NumaOffer
) -> list[tuple[int, dict[str, int]]] | Status:
    """Divide what a pod requests among NUMA nodes; fewer free ones come first."""
    if not machine.zones:
        return NO_ZONES
    free = free_amounts(machine, need, usable, offer)
    found: dict[int, dict[str, int]] = {}
    lacking: list[str] = []
    for name, amount in sorted(need.requests.items()):
        order = sorted(nodes, key=lambda node: (free.get(node, {}).get(name, 0), node))
        rest = amount
        for at, node in enumerate(order):
            there = free.get(node, {}).get(name, 0)
            taken = min(*_parts(machine, need, name, there, rest, len(order) - at))
            if taken > 0:
                found.setdefault(node, {})[name] = taken
                rest -= taken
        if rest > 0 and any(name in amounts for amounts in machine.zones.values()):
            lacking.append(f"Insufficient NUMA {name}")
    if lacking:
        return Status.unschedulable(*lacking)
    return [(node, found[node]) for node in sorted(found)]


def _parts(
    machine: Machine, need: Need, name: str, there: int, rest: int, left: int
) -> tuple[int, int]:
    """Return the amount of a NUMA node and its share of the rest; left: nodes to come."""
    if name != _CPU or not need.cpus:
        return there, rest if left == 1 else rest // left
    unit = 1000
    if need.required_policy is BindPolicy.FULL_PCPUS:
        unit *= machine.layout.cpus_per_core
    return there // 1000 * 1000, rest if left == 1 else rest // unit // left * unit


def _cpus(
    machine: Machine,
    need: Need,
    usable: UsableCpus,
    numa: list[tuple[int, dict[str, int]]],
    *,
    most: bool,
    offer: NumaOffer,
) -> frozenset[int]:
    """Return the CPUs of a pod. Raises TooFewCpus."""
    if len(usable.cpus) < need.cpus:
        raise TooFewCpus(NOT_ENOUGH)
    packs = machine.rules.most
    packs = most if packs is None else packs
    if not numa and machine.rules.evenly and not offer.preferred:
        numa = _even_shares(machine, need, usable)
    if not numa:
        taken = _take(machine, need, usable.cpus, need.cpus, packs, offer)
    else:
        taken = frozenset()
        for node, amounts in numa:
            there = usable.by_node.get(node, frozenset())
            count = min(len(there), amounts.get(_CPU, 0) // 1000)
            taken |= _take(machine, need, there, count, packs, offer)
        if len(taken) != need.cpus:
            raise TooFewCpus(NOT_ENOUGH)
    if not _keeps(machine, taken, need.required_policy):
        raise TooFewCpus(_broken(need))
    return taken


def _even_shares(
    machine: Machine, need: Need, usable: UsableCpus
) -> list[tuple[int, dict[str, int]]]:
    """Divide CPUs evenly among NUMA nodes, whole cores if they are wanted; the emptiest has more.

    Empty where they cannot be divided so.
    """
    unit = machine.layout.cpus_per_core if need.policy is BindPolicy.FULL_PCPUS else 1
    order = sorted(usable.by_node, key=lambda node: (len(usable.by_node[node]), node))
    rest, found = need.cpus, list[tuple[int, dict[str, int]]]()
    for at, node in enumerate(order):
        left, there = len(order) - at, len(usable.by_node[node])
        share = rest if left == 1 else min(there, rest // left) // unit * unit
        if share:
            found.append((node, {_CPU: 1000 * share}))
            rest -= share
    fits = not rest and all(
        amounts[_CPU] <= 1000 * len(usable.by_node[node]) for node, amounts in found
    )
    return found if fits else []


def _take(
    machine: Machine, need: Need, free: frozenset[int], count: int, most: bool, offer: NumaOffer
) -> frozenset[int]:
    """Take preferred CPUs first, then others."""
    policy = need.policy or BindPolicy.FULL_PCPUS
    found: frozenset[int] = frozenset()
    if preferred := free & offer.preferred:
        first = min(count, len(preferred))
        found = take_cpus(machine.use, preferred, first, policy, need.exclusive, most=most)
        free -= preferred
    others = take_cpus(machine.use, free, count - len(found), policy, need.exclusive, most=most)
    return found | others


def _keeps(machine: Machine, cpus: frozenset[int], policy: BindPolicy | None) -> bool:
    """Whether CPUs lie on cores as they must."""
    cores: dict[int, int] = {}
    for cpu in cpus:
        core = machine.layout.cpus[cpu].core
        cores[core] = cores.get(core, 0) + 1
    if policy is BindPolicy.FULL_PCPUS:
        return all(count == len(machine.layout.cores[core]) for core, count in cores.items())
    return policy is None or all(count == 1 for count in cores.values())


def amplified_requests(machine: Machine, need: Need) -> Mapping[str, int]:
    """Return the requests of a pod as they count against amplified amounts."""
    if not need.cpus or machine.rules.cpu_ratio <= 1:
        return need.requests
    cpu = amplify(need.requests.get(_CPU, 0), machine.rules.cpu_ratio)
    return {**need.requests, _CPU: cpu}


ALL_SIZES = 4  # NUMA nodes of a machine on which all choices are looked at

_NATIVE = frozenset({"cpu", "memory", "ephemeral-storage"})


@dataclass(frozen=True, slots=True)
class AmountScorer:
    """Scores amounts: the mean of the resources that count, 0 to 100."""

    resources: tuple[ResourceSpec, ...]
    most: bool

    def score(self, capacity: Amounts, requested: Amounts, pod: Mapping[str, int]) -> int:
        """requested: without the pod. What is there of a resource, and what the pod adds."""
        total = weight = 0
        for each in self.resources:
            name, there = each.name, capacity.get(each.name, 0)
            asked = pod.get(name, 0)
            if there <= 0 or (name not in _NATIVE and not asked):
                continue
            with_pod = requested.get(name, 0) + asked
            part = min(with_pod, there) if self.most else max(there - with_pod, 0)
            total += each.weight * (part * 100 // there)
            weight += each.weight
        return total // weight if weight else 0

    @property
    def columns(self) -> LeastAllocated | MostAllocated:
        """The same over all nodes."""
        weights = [each.weight for each in self.resources]
        return MostAllocated(weights) if self.most else LeastAllocated(weights)


def numa_hints(
    machine: Machine, need: Need, policy: NUMATopologyPolicy, scorer: AmountScorer, *, most: bool
) -> dict[str, list[NUMATopologyHint]]:
    """Return the possible NUMA nodes by resource that NUMA nodes of the machine have.

    A choice of them is possible if all of the pod fits there. Of a machine with many NUMA nodes the
    choices end with the smallest possible ones: larger ones are not preferred.
    """
    trial = _Trial(machine, need, scorer, most=most)
    found: dict[str, list[NUMATopologyHint]] = {}
    smallest: dict[str, int] = {}
    nodes = sorted(machine.zones)
    for size in range(1, len(nodes) + 1):
        if smallest and len(nodes) > ALL_SIZES and policy is not NUMATopologyPolicy.RESTRICTED:
            break
        for chosen in combinations(nodes, size):
            score = trial.score(chosen, found)
            if score is None:
                continue
            for name in found:
                if not any(node in trial.lacking[name] for node in chosen):
                    found[name].append(NUMATopologyHint(frozenset(chosen), score=score))
                    smallest.setdefault(name, size)
    restricted = policy is NUMATopologyPolicy.RESTRICTED
    return {
        name: [
            replace(one, preferred=restricted or len(one.nodes or ()) == smallest[name])
            for one in hints
        ]
        for name, hints in found.items()
    }


class _Trial:
    """Allocations on choices of NUMA nodes."""

    def __init__(self, machine: Machine, need: Need, scorer: AmountScorer, *, most: bool) -> None:
        self._machine, self._need, self._scorer, self._most = machine, need, scorer, most
        self._requests = amplified_requests(machine, need)
        self._left = machine.available()
        self._free: Zones = self._free_amounts()
        self.lacking = {
            name: frozenset(node for node in machine.zones if not self._free[node].get(name, 0))
            for name in need.requests
        }

    def _free_amounts(self) -> Zones:
        machine, need = self._machine, self._need
        if not need.cpus:
            return self._left
        return free_amounts(machine, need, machine.usable(need.required_policy))

    def score(self, chosen: Sequence[int], found: dict[str, list[NUMATopologyHint]]) -> int | None:
        """The score of NUMA nodes; None: the pod does not fit. Notes the resources they have."""
        zones = self._machine.zones
        for name in self._need.requests:
            if name not in found and any(name in zones[node] for node in chosen):
                found[name] = []
        free = _sum(self._free, chosen)
        if any(free.get(name, 0) < self._need.requests[name] for name in found):
            return None
        if self._need.cpus:
            nodes = frozenset(chosen)
            if isinstance(
                allocate(self._machine, self._need, nodes, most=self._most, trial=True), Status
            ):
                return None
        total, left = _sum(zones, chosen), _sum(self._left, chosen)
        taken = {name: amount - left.get(name, 0) for name, amount in total.items()}
        return self._scorer.score(total, taken, self._requests)


def _sum(zones: Zones, nodes: Sequence[int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for node in nodes:
        for name, amount in zones.get(node, {}).items():
            found[name] = found.get(name, 0) + amount
    return found


OUT_OF_SCOPE = Status.unschedulable(
    "pod has a nominated reservation but cannot be allocated within its NUMA scope"
)
_NOT_ENOUGH = Status.unschedulable(NOT_ENOUGH)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReservedCpus:
    """The CPUs and NUMA amounts that a reservation holds on a node."""

    cpus: frozenset[int] = frozenset()  # that no consumer has
    numa: Mapping[int, Mapping[str, int]] = field(default_factory=dict)  # by NUMA node, likewise
    restricted: bool = False  # nothing comes from the rest of the node
    taken_over: bool = False  # the CPUs are of running pods, and all of them must be taken


def reserved_cpus(room: ReservationRoom) -> ReservedCpus | None:
    """Return what is left of a reservation; None: it has no CPUs or NUMA nodes of its own.

    Of running pods that a reservation takes over, return what they have.
    """
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
    return ReservedCpus(
        cpus=cpus, numa=numa, restricted=room.restricted, taken_over=room.taken_over
    )


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
    offer = NumaOffer(reusable=found.numa, preferred=found.cpus)
    chosen = allocate(machine, need, nodes, most=most, offer=offer)
    if isinstance(chosen, Status):
        return chosen
    if found.taken_over:
        return chosen if not need.cpus or found.cpus <= chosen.cpus else _NOT_ENOUGH
    if not found.restricted:
        return chosen
    if need.cpus > len(found.cpus):
        return _NOT_ENOUGH
    if nodes is not None and not found.numa:
        lacking = sorted(need.requests)
        return Status.unschedulable(*(f"Insufficient NUMA {name}" for name in lacking))
    inside = NumaOffer(reusable=found.numa, required=found.numa, preferred=found.cpus)
    chosen = allocate(machine, need, nodes, most=most, offer=inside)
    if isinstance(chosen, Allocation) and not chosen.cpus <= found.cpus:
        return _NOT_ENOUGH
    return chosen


def _allocation(pod: ClusterPod) -> Allocation:
    try:
        return allocation_of(pod)
    except InvalidObject:
        return NO_ALLOCATION  # the account says so, too


def pods_by_numa_node(machine: Machine, pods: Iterable[ClusterPod]) -> list[frozenset[str]]:
    """Return the keys of the pods that have CPUs or amounts of each NUMA node, ascending."""
    found: dict[int, set[str]] = {}
    for pod in pods:
        allocation = _allocation(pod)
        nodes = {node for node, _ in allocation.numa}
        for node in nodes | machine.layout.nodes_of(allocation.cpus):
            found.setdefault(node, set()).add(pod.key)
    return [frozenset(keys) for _, keys in sorted(found.items())]
