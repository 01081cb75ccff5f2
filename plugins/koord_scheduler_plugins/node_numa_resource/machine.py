"""A node as pods find it: its CPUs and NUMA nodes, and what pods have of them."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import cached_property

from koord.api.nodetopology import BindPolicy
from koord_scheduler.plugin import ClusterNode
from koord_scheduler.plugin.koordinator import NUMANodeUse, Pool
from koord_scheduler_plugins.node_numa_resource.accumulator import (
    CpuLayout,
    CpuUse,
    ExclusivePolicy,
)
from koord_scheduler_plugins.node_numa_resource.holdings import (
    HeldSet,
    held_amounts,
    held_sets,
)
from koord_scheduler_plugins.node_numa_resource.topology import (
    MachineReport,
    TopologyRules,
    Zones,
    amplified,
    amplify,
    node_rules,
)

_CPU = "cpu"
_NOTHING: Zones = {}
UNBOUNDED = 2**62  # what is left of a resource that no NUMA node has


class Machine:
    """A node at one moment. What follows from it is computed when it is asked for, and kept."""

    def __init__(
        self, node: ClusterNode, report: MachineReport, pool: Pool, *, max_count: int = 1
    ) -> None:
        """pool: of NUMA_HOLDINGS. max_count: pods that one CPU can have."""
        self.node = node
        self.report = report
        self.pool = pool
        self._max_count = max_count

    @cached_property
    def rules(self) -> TopologyRules:
        return node_rules(self.node.labels, dict(self.node.annotations), self.report)

    @property
    def layout(self) -> CpuLayout:
        return self.report.layout

    @cached_property
    def zones(self) -> Zones:
        """Return the totals of NUMA nodes, amplified."""
        report, rules = self.report, self.rules
        return (
            report.zones
            if report.ratios is not None
            else amplified(report.zones, rules.ratios or {})
        )

    @cached_property
    def sets(self) -> tuple[HeldSet, ...]:
        """CPUs and NUMA nodes of pods; CPUs that the node does not have are left out."""
        return tuple(held_sets(self.pool))

    @cached_property
    def use(self) -> CpuUse:
        """The CPUs that pods have."""
        counts: dict[int, int] = {}
        exclusive: dict[int, set[ExclusivePolicy]] = {}
        for held in self.sets:
            for cpu in held.cpus:
                if cpu in self.layout.cpus:
                    counts[cpu] = counts.get(cpu, 0) + held.pods
                    if held.exclusive:
                        exclusive.setdefault(cpu, set()).add(held.exclusive)
        return CpuUse(
            layout=self.layout, counts=counts, exclusive=exclusive, max_count=self._max_count
        )

    @cached_property
    def free(self) -> frozenset[int]:
        """The CPUs that a pod could have."""
        return self.free_with()

    def free_with(self, *returned: Set[int]) -> frozenset[int]:
        """The CPUs that a pod could have if other pods returned some; each set counts once."""
        counts = self.use.counts
        if any(returned):
            counts = dict(counts)
            for cpus in returned:
                for cpu in cpus:
                    if cpu in counts:
                        counts[cpu] -= 1
        had = [cpu for cpu, count in counts.items() if count >= self._max_count]
        return self.layout.all.difference(had) - self.report.reserved

    def bindable(self, free: Set[int], policy: BindPolicy) -> frozenset[int]:
        """The free CPUs that a pod which requires a policy could have."""
        found: list[int] = []
        for cpus in self.layout.cores.values():
            there = [cpu for cpu in cpus if cpu in free]
            if policy is BindPolicy.SPREAD_BY_PCPUS:
                found += there[:1]
            elif len(there) == len(cpus):
                found += there
        return frozenset(found)

    def usable(self, policy: BindPolicy | None) -> "UsableCpus":
        """The CPUs that a pod could have; policy: that it requires; None: it requires none."""
        found = self._usable.get(policy)
        if found is None:
            cpus = self.free if policy is None else self.bindable(self.free, policy)
            found = self._usable[policy] = UsableCpus.of(self.layout, cpus)
        return found

    @cached_property
    def _usable(self) -> dict[BindPolicy | None, "UsableCpus"]:
        return {}

    @cached_property
    def bound(self) -> Mapping[int, int]:
        """How many CPUs of each NUMA node pods have."""
        found: dict[int, int] = {}
        for cpu in self.use.counts:
            node = self.layout.cpus[cpu].node
            found[node] = found.get(node, 0) + 1
        return found

    @property
    def bound_cpus(self) -> int:
        """How many CPUs pods have."""
        return len(self.use.counts)

    @cached_property
    def used(self) -> Zones:
        """Return the amounts that pods have of NUMA nodes; exclusive CPUs are amplified."""
        found = {node: dict(amounts) for node, amounts in held_amounts(self.pool).items()}
        ratio = self.rules.cpu_ratio
        for node, count in self.bound.items():
            of_node = found.setdefault(node, {})
            of_node[_CPU] = of_node.get(_CPU, 0) + amplify(1000 * count, ratio) - 1000 * count
        return found

    def available(self, reusable: Zones = _NOTHING) -> dict[int, dict[str, int]]:
        """Return the free amounts of NUMA nodes; reusable: held by pods, open to others."""
        if not reusable:
            return {node: dict(amounts) for node, amounts in self._left.items()}
        return self._available(reusable)

    def _available(self, reusable: Zones) -> dict[int, dict[str, int]]:
        found: dict[int, dict[str, int]] = {}
        for node, amounts in self.zones.items():
            used, again = self.used.get(node, {}), reusable.get(node, {})
            found[node] = {
                name: max(amount - max(used.get(name, 0) - again.get(name, 0), 0), 0)
                for name, amount in amounts.items()
            }
        return found

    def left(self, resource: str) -> int:
        """Return the free amount of a resource over all NUMA nodes; large where none has it."""
        if not any(resource in amounts for amounts in self.zones.values()):
            return UNBOUNDED
        return sum(amounts.get(resource, 0) for amounts in self._left.values())

    @cached_property
    def _left(self) -> Zones:
        return self._available(_NOTHING)

    @cached_property
    def most_left_cpu(self) -> int:
        """The most CPU that is left of one NUMA node, in milli-cores."""
        return max((one.get(_CPU, UNBOUNDED) for one in self._left.values()), default=0)

    def uses(self, *, amounts: bool) -> Mapping[int, NUMANodeUse]:
        """Return the uses of NUMA nodes by pods: by their CPUs, with amounts by these, too.

        Idle ones are absent. Koordinator looks at CPUs only.
        """
        found: dict[int, NUMANodeUse] = {}
        for held in self.sets:
            nodes = self.layout.nodes_of(held.cpus)
            if amounts:
                nodes |= held.numa
            for node in nodes:
                if len(nodes) > 1:
                    found[node] = NUMANodeUse.SHARED
                else:
                    found.setdefault(node, NUMANodeUse.SINGLE)
        return found


@dataclass(frozen=True, slots=True)
class UsableCpus:
    """CPUs that a pod could have."""

    cpus: frozenset[int]
    by_node: Mapping[int, frozenset[int]]  # by NUMA node

    @classmethod
    def of(cls, layout: CpuLayout, cpus: frozenset[int]) -> "UsableCpus":
        by_node = {node: cpus.intersection(there) for node, there in layout.nodes.items()}
        return cls(cpus, by_node)
