"""The NUMA zones of a NodeResourceTopology: the resources of each NUMA node for pods.

Source: Koordinator, calTopologyZoneList; NodeResourceTopology v1alpha1.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from koord.api.nodes.machine import Machine, NumaMemory
from koord.api.quantity import Quantity
from koord.util.cpulist import format_cpulist
from koord.util.errors import InvalidObject

ZONE_TYPE = "Node"
_HUGE_PAGES = {"hugepages-1Gi": 1 << 30, "hugepages-2Mi": 2 << 20}  # resource -> page size
_NONE = Quantity(0)


@dataclass(frozen=True, slots=True)
class Zone:
    """One NUMA node, and those of its resources that pods may use."""

    name: str
    resources: Mapping[str, Quantity]


def node_zones(
    machine: Machine, *, huge_pages: bool, reserved: Mapping[str, Quantity]
) -> tuple[Zone, ...]:
    """Return the zones in the order of their NUMA nodes.

    huge_pages: whether memory set aside for huge pages is separate. reserved is the amount that
    each zone keeps for the system; see reserved_per_zone.

    Raises:
        InvalidObject: CPUs and memory are not on the same NUMA nodes.
    """
    cpus = machine.topology.by(lambda cpu: cpu.node)
    if cpus.keys() != machine.memory.keys():
        raise InvalidObject(
            "NUMA nodes",
            wanted="CPUs and memory on the same nodes",
            found=f'CPUs on "{format_cpulist(cpus)}", memory on "{format_cpulist(machine.memory)}"',
        )
    return tuple(
        Zone(
            f"node-{node}",
            _less(_resources(len(cpus[node]), machine.memory[node], huge_pages), reserved),
        )
        for node in sorted(cpus)
    )


def reserved_per_zone(
    capacity: Mapping[str, str], allocatable: Mapping[str, str], zones: int
) -> dict[str, Quantity]:
    """Return the share of each zone when the node's reservation is spread evenly over all."""
    found = {}
    for name in ("cpu", "memory"):
        if name not in capacity or name not in allocatable:
            continue
        whole = Quantity.parse(capacity[name])
        milli = Quantity(whole.nano - Quantity.parse(allocatable[name]).nano).milli
        if milli > 0:
            found[name] = Quantity(-(-milli // zones) * 10**6, whole.format)
    return found


def _resources(cpus: int, memory: NumaMemory, huge_pages: bool) -> dict[str, Quantity]:
    """The resources of a zone, by name in ascending order."""
    pages = {
        name: memory.huge_pages.get(size, 0) if huge_pages else 0
        for name, size in _HUGE_PAGES.items()
    }
    return {
        "cpu": Quantity.of_milli(cpus * 1000),
        **{name: Quantity.of_bytes(count) for name, count in pages.items()},
        "memory": Quantity.of_bytes(max(memory.total - sum(pages.values()), 0)),
    }


def _less(
    resources: Mapping[str, Quantity], reserved: Mapping[str, Quantity]
) -> dict[str, Quantity]:
    return {
        name: Quantity(max(whole.nano - reserved.get(name, _NONE).nano, 0), whole.format)
        for name, whole in resources.items()
    }
