"""NodeResourceTopology objects: what is known of the CPUs and NUMA nodes of a node.

Source: Koordinator, pkg/scheduler/plugins/nodenumaresource/topology_eventhandler.go.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from koord.api.annotations import annotation_fields
from koord.api.fields import Fields
from koord.api.nodetopology import (
    CPU_TOPOLOGY,
    NUMA_TOPOLOGY_POLICY,
    BindPolicy,
    CpuManagerPolicy,
    NUMATopologyPolicy,
    bind_policy_of_node,
    cpu_manager_policy,
    kubelet_topology_policy,
    policy_of,
    withheld_cpus,
)
from koord.api.quantity import Quantity
from koord.plugin import InvalidObject
from koord_scheduler_plugins.node_numa_resource.accumulator import (
    MAX_CPU,
    MAX_NUMA_NODE,
    NO_CPUS,
    CpuLayout,
)

AMPLIFICATION = "node.koordinator.sh/resource-amplification-ratio"  # of a Node, too
ZONE_TYPE = "Node"

MAX_RATIO = 1000.0
_MAX_ID = 65535  # of a core inside of its socket, and of a socket
_MAX_RESOURCES = 64  # of a zone
_CPU = "cpu"
_NOTHING: Mapping[str, Any] = MappingProxyType({})

Amounts = Mapping[str, int]
"""By resource: milli-cores of cpu, otherwise bytes or units."""
Zones = Mapping[int, Amounts]
"""Totals of NUMA nodes, by their ids."""


@dataclass(frozen=True, slots=True)
class MachineReport:
    """A NodeResourceTopology, as far as the scheduler needs it."""

    name: str = ""  # of the node
    layout: CpuLayout = NO_CPUS
    reserved: frozenset[int] = frozenset()  # CPUs that no pod gets
    zones: Zones = field(default_factory=dict)
    policy: NUMATopologyPolicy | None = None  # of the kubelet
    kubelet: CpuManagerPolicy = field(default_factory=CpuManagerPolicy)
    ratios: Mapping[str, float] | None = None  # None: zones are not amplified yet


NO_REPORT = MachineReport()


def amplify(amount: int, ratio: float) -> int:
    """Return an amount as it counts on a node with this ratio; in Go's arithmetic."""
    return amount if ratio <= 1 else math.ceil(float(amount) * ratio)


def parse_ratios(text: str, where: str = AMPLIFICATION) -> Mapping[str, float]:
    """Return the amplification ratios of an annotation, by resource.

    Raises:
        InvalidObject: it is malformed, or a ratio is below 0 or above MAX_RATIO.
    """
    fields = annotation_fields(text, where)
    found: dict[str, float] = {}
    for name in fields.raw:
        value = Fields(fields.raw, where).number(name)
        if value is not None:
            if not 0 <= value <= MAX_RATIO:
                wanted = f"a ratio up to {MAX_RATIO:.0f}"
                raise InvalidObject(f"{where}.{name}", wanted=wanted, found=value)
            found[name] = value
    return found


def amplified(zones: Zones, ratios: Mapping[str, float]) -> Zones:
    """Return what NUMA nodes have with the ratios of their node."""
    if all(ratio <= 1 for ratio in ratios.values()):
        return zones
    return {
        node: {name: amplify(amount, ratios.get(name, 1.0)) for name, amount in amounts.items()}
        for node, amounts in zones.items()
    }


def read_machine(found: Mapping[str, Any]) -> MachineReport:
    """Return what is kept of a NodeResourceTopology.

    Raises:
        InvalidObject: a part of it is malformed, or names CPUs or NUMA nodes that none can have.
    """
    meta = Fields(found, "nodeResourceTopology").nested("metadata")
    annotations = meta.texts("annotations")
    layout = _layout(annotations.get(CPU_TOPOLOGY, ""))
    reserved = withheld_cpus(annotations)
    text = annotations.get(AMPLIFICATION)
    ratios = None if text is None else parse_ratios(text)
    ratio = 1.0 if ratios is None else ratios.get(_CPU, 1.0)
    return MachineReport(
        name=meta.text("name"),
        layout=layout,
        reserved=reserved,
        zones=_without_reserved(dict(_zones(found)), layout, reserved, ratio),
        policy=kubelet_topology_policy(found),
        kubelet=cpu_manager_policy(annotations),
        ratios=ratios,
    )


@lru_cache(maxsize=256)  # machines of one kind share one; a cluster has few kinds
def _layout(text: str) -> CpuLayout:
    if not text:
        return NO_CPUS
    rows: dict[int, tuple[int, int, int, int]] = {}
    for each in annotation_fields(text, CPU_TOPOLOGY).objects("detail"):
        cpu = _number(each, "id", MAX_CPU)
        if cpu in rows:
            raise InvalidObject(each.path("id"), wanted="each CPU once", found=cpu)
        core, socket = _number(each, "core", _MAX_ID), _number(each, "socket", _MAX_ID)
        rows[cpu] = cpu, core, socket, _number(each, "node", MAX_NUMA_NODE)
    return CpuLayout(rows[cpu] for cpu in sorted(rows))


def _number(fields: Fields, key: str, most: int) -> int:
    found = fields.integer(key) or 0
    if not 0 <= found <= most:
        raise InvalidObject(fields.path(key), wanted=f"0 to {most}", found=found)
    return found


def _zones(found: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, int]]]:
    """Yield what each NUMA node has; zones of other types are left out."""
    for zone in Fields(found, "nodeResourceTopology").objects("zones"):
        parts = zone.text("name").split("node-")
        if zone.text("type") != ZONE_TYPE or len(parts) != 2 or not parts[1].isdecimal():
            continue
        node = int(parts[1]) if len(parts[1]) < 4 else MAX_NUMA_NODE + 1
        if node > MAX_NUMA_NODE:
            wanted = f"node-0 to node-{MAX_NUMA_NODE}"
            raise InvalidObject(zone.path("name"), wanted=wanted, found=zone.text("name"))
        amounts: dict[str, int] = {}
        for each in zone.objects("resources"):
            if len(amounts) == _MAX_RESOURCES:
                wanted = f"at most {_MAX_RESOURCES} resources"
                raise InvalidObject(zone.path("resources"), wanted=wanted, found="more")
            name, allocatable = each.required_text("name"), each.quantity("allocatable")
            amounts[name] = 0 if allocatable is None else max(amount_of(name, allocatable), 0)
        yield node, amounts


def amount_of(name: str, quantity: Quantity) -> int:
    """The quantity as amounts are counted here."""
    return min(quantity.milli if name == _CPU else quantity.integer, 2**63 - 1)


def _without_reserved(
    zones: dict[int, dict[str, int]], layout: CpuLayout, reserved: frozenset[int], ratio: float
) -> Zones:
    """Subtract the reserved CPUs from NUMA nodes; those of an amplified node are amplified, too."""
    for node in sorted(zones):
        cpu = zones[node].get(_CPU, 0)
        if cpu:
            count = len(reserved.intersection(layout.nodes.get(node, ())))
            zones[node][_CPU] = max(cpu - amplify(1000 * count, ratio), 0)
    return {node: zones[node] for node in sorted(zones)}


NUMA_ALLOCATE_STRATEGY = "node.koordinator.sh/numa-allocate-strategy"  # label of a Node


@dataclass(frozen=True, slots=True)
class TopologyRules:
    """The topology rules of a node: by its labels, its annotation, and its kubelet."""

    bind: BindPolicy | None = None  # CPUs are bound so, of pods of any class
    policy: NUMATopologyPolicy | None = None
    most: bool | None = None  # NUMA nodes with fewer free CPUs first; None: as the plugin says
    evenly: bool = False  # CPUs are divided evenly among NUMA nodes, unless a policy chooses some
    ratios: Mapping[str, float] | None = field(
        default_factory=dict
    )  # of amplification; None: not readable

    @property
    def cpu_ratio(self) -> float:
        """The amplification of CPUs, 1 or more."""
        return max((self.ratios or _NOTHING).get(_CPU, 1.0), 1.0)


def node_rules(
    labels: Mapping[str, str], annotations: Mapping[str, str], report: MachineReport
) -> TopologyRules:
    """Return what a node asks of pods."""
    strategy, policy = labels.get(NUMA_ALLOCATE_STRATEGY), labels.get(NUMA_TOPOLOGY_POLICY)
    text = annotations.get(AMPLIFICATION)
    ratios: Mapping[str, float] | None = _NOTHING
    try:
        if text is not None:
            ratios = parse_ratios(text)
    except InvalidObject:
        ratios = None
    return TopologyRules(
        bind=bind_policy_of_node(labels, report.kubelet),
        policy=policy_of(policy) if policy else report.policy,
        most=strategy == "MostAllocated" if strategy else None,
        evenly=strategy == "DistributeEvenly",
        ratios=ratios,
    )
