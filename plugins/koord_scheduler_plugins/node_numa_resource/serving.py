"""CPUs and NUMA nodes as others see them: metrics, REST, reasons."""

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge

from koord.api.machine import format_cpulist
from koord.api.nodetopology import BindPolicy
from koord.plugin import Clock, InvalidObject
from koord.plugin.kube import Event, EventType, ObjectRef
from koord_scheduler.plugin import ClusterPod
from koord_scheduler.plugin.koordinator import NodePart, NUMATopologyPolicy
from koord_scheduler_plugins.node_numa_resource.accumulator import CORES_OF_A_SOCKET
from koord_scheduler_plugins.node_numa_resource.columns import MachineTable, policy_number
from koord_scheduler_plugins.node_numa_resource.holdings import (
    NO_ALLOCATION,
    allocation_of,
    exclusive_policy,
    quantity_text,
)
from koord_scheduler_plugins.node_numa_resource.machine import Machine
from koord_scheduler_plugins.node_numa_resource.pods import PodDemand
from koord_scheduler_plugins.node_numa_resource.topology import Amounts, MachineReport, Zones


class NUMAMetrics:
    """Counters of allocations given to pods, and of refusals."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.allocations = Counter(
            "scheduler_numa_allocations",
            "Pods for which CPUs or amounts of NUMA nodes were chosen, and those that got none.",
            ["result"],
            registry=registry,
        )
        self.admissions = Counter(
            "scheduler_numa_admissions",
            "Nodes on which NUMA nodes were chosen for a pod, and nodes on which none would do.",
            ["policy", "result"],
            registry=registry,
        )
        self.bound_cpus = Gauge(
            "scheduler_numa_bound_cpus", "CPUs that pods have of their own.", registry=registry
        )
        self.fragmented_cores = Gauge(
            "scheduler_numa_fragmented_cores",
            "Cores with free CPUs and others: pods with whole cores cannot have them.",
            registry=registry,
        )
        self.without_topology = Gauge(
            "scheduler_numa_nodes_without_topology",
            "Nodes of which no CPU is known: pods with CPUs of their own cannot be placed there.",
            registry=registry,
        )

    def show(self, table: MachineTable) -> None:
        """Compute the gauges of a table when they are asked for."""
        self.bound_cpus.set_function(lambda: float(table.column("bound").sum()))
        self.fragmented_cores.set_function(lambda: float(table.column("broken").sum()))
        self.without_topology.set_function(lambda: float((table.column("threads") == 0).sum()))


_PINS = "KubeletPinsCPUs"  # reason of an event
_PINS_TEXT = (
    "the kubelet has the CPU manager policy static: it may give Guaranteed pods the CPUs that "
    "pods of this node have of their own, and the scheduler knows that only afterwards; set "
    "cpuManagerPolicy none where pods of class LSE or LSR run"
)
_MAX_EVENTS = 20  # in _WINDOW; the others come with the next pods of their nodes
_WINDOW = 60.0  # seconds


class PinningKubelets:
    """Reports nodes on which two give CPUs away: the kubelet and the scheduler.

    One event for a node, and another one when what its kubelet reports has changed.
    """

    def __init__(self, emit: Callable[[Event], None], clock: Clock) -> None:
        self._emit = emit
        self._clock = clock
        self._reported: set[str] = set()  # names of nodes
        self._began = float("-inf")  # of the window; monotonic seconds
        self._emitted = 0  # since then

    def take_report(self, old: MachineReport | None, new: MachineReport | None) -> None:
        """A NodeResourceTopology has come, changed or gone."""
        if old is not None and (new is None or new.kubelet != old.kubelet):
            self._reported.discard(old.name)

    def bind_cpus(self, report: MachineReport) -> None:
        """A pod is bound to a node with CPUs of its own."""
        if not report.kubelet.pins_cpus or report.name in self._reported:
            return
        now = self._clock.monotonic()
        if now - self._began >= _WINDOW:
            self._began, self._emitted = now, 0
        if self._emitted == _MAX_EVENTS:
            return
        self._emitted += 1
        self._reported.add(report.name)
        about = ObjectRef("v1", "Node", report.name, uid=report.name)  # as the kubelet's events
        self._emit(Event(about, EventType.WARNING, _PINS, _PINS_TEXT, "koord-scheduler"))


Json = dict[str, object]


def node_document(machine: Machine, pods: Iterable[ClusterPod]) -> Json:
    """Return a node with its CPUs, its NUMA nodes, and the pods that have some of them."""
    layout, report, rules = machine.layout, machine.report, machine.rules
    ratios = report.ratios if report.ratios is not None else rules.ratios
    return {
        "name": machine.node.name,
        "cpuTopology": {
            "numCPUs": len(layout.cpus),
            "numCores": len(layout.cores),
            "numNodes": len(layout.nodes),
            "numSockets": len(layout.sockets),
            "cpuDetails": {str(cpu): _cpu(machine, cpu) for cpu in sorted(layout.cpus)},
        },
        "reservedCPUs": format_cpulist(report.reserved),
        "maxRefCount": machine.use.max_count,
        "policy": report.kubelet.to_json(),
        "numaTopologyPolicy": rules.policy or "",
        "numaNodeResources": _zones(machine.zones),
        "amplificationRatios": dict(ratios or {}),
        "remainingNUMANodeResources": _zones(machine.available()),
        "allocatedNUMANodeResources": _zones(machine.used),
        "availableCPUs": format_cpulist(machine.free),
        "allocatedCPUs": {str(cpu): _cpu(machine, cpu) for cpu in sorted(machine.use.counts)},
        "allocatedPods": list(_pods(pods)),
    }


def _cpu(machine: Machine, cpu: int) -> Json:
    where, use = machine.layout.cpus[cpu], machine.use
    return {
        "cpuID": cpu,
        "coreID": where.core,
        "nodeID": where.node,
        "socketID": where.socket,
        "refCount": use.counts.get(cpu, 0),
        "exclusivePolicy": ",".join(sorted(use.exclusive.get(cpu, ()))),
    }


def _pods(pods: Iterable[ClusterPod]) -> Iterable[Json]:
    for pod in sorted(pods, key=lambda pod: pod.key):
        if pod.finished:
            continue
        try:
            found = allocation_of(pod)
        except InvalidObject:
            continue
        if found:
            yield {
                "uid": pod.uid,
                "namespace": pod.namespace,
                "name": pod.name,
                "cpuset": format_cpulist(found.cpus),
                "cpuExclusivePolicy": exclusive_policy(pod) or "None",
                "numaNodeResources": _zones(dict(found.numa)),
            }


def _zones(zones: Zones) -> list[Json]:
    return [{"node": node, "resources": _amounts(zones[node])} for node in sorted(zones)]


def _amounts(amounts: Amounts) -> Mapping[str, str]:
    return {name: quantity_text(name, amount) for name, amount in sorted(amounts.items())}


def machine_parts(machine: Machine, pods: Iterable[ClusterPod]) -> Iterator[NodePart]:
    """Yield the NUMA nodes of a node, and its CPUs by socket, NUMA node and core."""
    of_cpu: dict[int, list[str]] = {}
    of_zone: dict[int, list[str]] = {}
    for pod in pods:
        try:
            found = NO_ALLOCATION if pod.finished else allocation_of(pod)
        except InvalidObject:
            continue  # it has nothing in the account either
        for cpu in found.cpus:
            of_cpu.setdefault(cpu, []).append(pod.key)
        for zone, _ in found.numa:
            of_zone.setdefault(zone, []).append(pod.key)
    for zone, amounts in sorted(machine.zones.items()):
        used = machine.used.get(zone, {})
        shares = [used.get(name, 0) / amount for name, amount in amounts.items() if amount]
        left = ", ".join(
            f"{name} {quantity_text(name, amount)}"
            for name, amount in sorted(machine.available().get(zone, {}).items())
        )
        yield NodePart(
            ("amounts",),
            f"NUMA node {zone}",
            tuple(sorted(of_zone.get(zone, ()))),
            max(shares, default=0.0),
            f"left: {left}",
        )
    layout = machine.layout
    for number in sorted(layout.cpus, key=layout.cpus.__getitem__):
        where = layout.cpus[number]
        core = where.core - where.socket * CORES_OF_A_SOCKET
        holders = tuple(sorted(of_cpu.get(number, ())))
        yield NodePart(
            (f"socket {where.socket}", f"NUMA node {where.node}", f"core {core}"),
            f"CPU {number}",
            holders,
            1.0 if holders else 0.0,
            "reserved" if number in machine.report.reserved else "",
        )


def advice(demand: PodDemand, table: MachineTable) -> Iterator[str]:
    """Yield sentences on the CPUs of nodes, for a pod that gets none; costs no trial."""
    yield from _numa_advice(demand, table)
    if not demand.binds:
        return
    count, known = demand.milli_cpu // 1000, table.column("threads") > 0
    if not known.all():
        yield (
            f"{np.count_nonzero(~known)} of {len(known)} nodes have no CPU topology: koordlet does "
            "not run there, or cannot write NodeResourceTopology"
        )
    if not known.any():
        return
    free = table.column("free")[known]
    whole, cores = table.column("whole")[known], table.column("cores")[known]
    if int(free.max()) < count:
        most = int(free.max())
        yield f"{count} CPUs of its own are requested, and at most {most} are free on one node"
        return
    lacks = {
        BindPolicy.FULL_PCPUS: (whole, "CPUs of whole cores", "FullPCPUs"),
        BindPolicy.SPREAD_BY_PCPUS: (cores, "CPUs of different cores", "SpreadByPCPUs"),
    }
    if demand.required is None:
        return
    column, what, policy = lacks[demand.required]
    if int(column.max()) < count:
        fits = int(np.count_nonzero(free >= count))
        yield (
            f"{count} {what} are requested, and at most {int(column.max())} are free on one node; "
            f"with preferredCPUBindPolicy {policy} in place of the required one, CPUs would be "
            f"enough on {fits} nodes"
        )


def _numa_advice(demand: PodDemand, table: MachineTable) -> Iterator[str]:
    """Yield a sentence where the CPU is free, but scattered over NUMA nodes."""
    single, milli = policy_number(NUMATopologyPolicy.SINGLE_NUMA_NODE), demand.milli_cpu
    policy = table.column("policy")
    if demand.policy is not None:
        policy = np.where(policy == 0, policy_number(demand.policy), policy)
    bound = policy == single
    most, left = table.column("most"), table.column("left")
    if not milli or not bound.any() or (bound & (most >= milli)).any():
        return
    scattered = int(np.count_nonzero(bound & (left >= milli)))
    if scattered:
        whose = "numaTopologyPolicy" if demand.policy is not None else "the NUMA policy of nodes"
        yield (
            f"{milli}m CPU of one NUMA node is requested, and at most {int(most[bound].max())}m "
            f"are left on one: CPU is fragmented by NUMA node on {scattered} nodes, which have as "
            f"much on several; Restricted or BestEffort as {whose} in place of SingleNUMANode "
            "would do there"
        )
