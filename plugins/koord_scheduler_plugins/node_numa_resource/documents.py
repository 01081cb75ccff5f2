"""What the REST endpoint says of a node."""

from collections.abc import Iterable, Mapping

from koord.api.machine import format_cpulist
from koord.plugin import InvalidObject
from koord_scheduler.plugin import ClusterPod
from koord_scheduler_plugins.node_numa_resource.holdings import (
    allocation_of,
    exclusive_policy,
    quantity_text,
)
from koord_scheduler_plugins.node_numa_resource.machine import Machine
from koord_scheduler_plugins.node_numa_resource.topology import Amounts, Zones

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
        "policy": dict(report.kubelet),
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
