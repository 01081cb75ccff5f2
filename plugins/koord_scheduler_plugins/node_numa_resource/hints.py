"""NUMA hints of a pod on a node: of which NUMA nodes its CPU, memory and so on could come. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from koord_scheduler.plugin import Status
from koord_scheduler.plugin.koordinator import NUMATopologyHint, NUMATopologyPolicy
from koord_scheduler.plugin.vector import LeastAllocated, MostAllocated, ResourceSpec
from koord_scheduler_plugins.node_numa_resource.allocation import (
    Need,
    allocate,
    amplified_requests,
    free_amounts,
)
from koord_scheduler_plugins.node_numa_resource.machine import Machine
from koord_scheduler_plugins.node_numa_resource.topology import Amounts, Zones

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
