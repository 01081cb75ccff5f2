"""Machines that tests of CPU sets and NUMA nodes make up."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from koord.api.annotations import RESOURCE_SPEC, RESOURCE_STATUS
from koord.api.machine import parse_cpulist
from koord.cluster.account import Account
from koord_scheduler.plugin.testing import make_node, make_pod
from koord_scheduler_plugins.node_numa_resource.accumulator import (
    CpuLayout,
    CpuUse,
    ExclusivePolicy,
)
from koord_scheduler_plugins.node_numa_resource.holdings import NUMA_HOLDINGS
from koord_scheduler_plugins.node_numa_resource.machine import Machine
from koord_scheduler_plugins.node_numa_resource.topology import AMPLIFICATION, read_machine


def cpu_rows(shape: str) -> list[tuple[int, int, int, int]]:
    """CPUs of "sockets x NUMA nodes x cores x threads": number, core, socket, NUMA node."""
    sockets, nodes, cores, threads = (int(one) for one in shape.split("x"))
    rows = []
    for number in range(sockets * nodes * cores * threads):
        core = number // threads
        node = core // cores
        rows.append((number, core, node // nodes, node))
    return rows


def layout_of(shape: str) -> CpuLayout:
    return CpuLayout(cpu_rows(shape))


def use_of(
    layout: CpuLayout,
    cpus: str = "",
    policy: ExclusivePolicy = ExclusivePolicy.NONE,
    *,
    counts: Mapping[int, int] | None = None,
    max_count: int = 1,
) -> CpuUse:
    """A node on which pods have CPUs."""
    taken = parse_cpulist(cpus)
    return CpuUse(
        layout=layout,
        counts=dict.fromkeys(taken, 1) if counts is None else counts,
        exclusive={cpu: {policy} for cpu in taken} if policy else {},
        max_count=max_count,
    )


def topology_object(
    name: str,
    shape: str = "2x1x4x2",
    *,
    cpu: str | None = None,
    memory: str = "32Gi",
    policy: str = "None",
    annotations: Mapping[str, object] | None = None,
    zones: bool = True,
) -> dict[str, Any]:
    """A NodeResourceTopology as koordlet reports it. cpu: of each zone; None: its CPUs."""
    rows = cpu_rows(shape)
    detail = [
        {"id": number, "core": core, "socket": socket, "node": node}
        for number, core, socket, node in rows
    ]
    nodes = sorted({node for *_, node in rows})
    each = cpu or str(len(rows) // len(nodes))
    found: dict[str, Any] = {
        "apiVersion": "topology.node.k8s.io/v1alpha1",
        "kind": "NodeResourceTopology",
        "metadata": {
            "name": name,
            "annotations": {
                "node.koordinator.sh/cpu-topology": json.dumps({"detail": detail}),
                **{key: json.dumps(value) for key, value in (annotations or {}).items()},
            },
        },
        "topologyPolicies": [policy],
    }
    if zones:
        found["zones"] = [
            {
                "name": f"node-{node}",
                "type": "Node",
                "resources": [
                    {"name": key, "capacity": value, "allocatable": value, "available": value}
                    for key, value in (("cpu", each), ("memory", memory))
                ],
            }
            for node in nodes
        ]
    return found


def held(
    cpus: str = "",
    numa: Mapping[int, Mapping[str, object]] | None = None,
    policy: ExclusivePolicy = ExclusivePolicy.NONE,
) -> dict[str, str]:
    """The annotations of a pod that has CPUs and amounts of NUMA nodes."""
    status: dict[str, object] = {"cpuset": cpus} if cpus else {}
    if numa:
        status["numaNodeResources"] = [
            {"node": node, "resources": resources} for node, resources in numa.items()
        ]
    spec = {RESOURCE_SPEC: json.dumps({"preferredCPUExclusivePolicy": policy})} if policy else {}
    return {RESOURCE_STATUS: json.dumps(status), **spec}


def machine_of(
    shape: str,
    *pods: Mapping[str, str],
    cpu: str | None = None,
    memory: str = "128Gi",
    labels: Mapping[str, str] | None = None,
    ratio: float | None = None,
    max_count: int = 1,
    zones: Mapping[str, str] | None = None,
) -> Machine:
    """A node with pods that hold what their annotations say. zones: more of each NUMA node."""
    found = topology_object("n1", shape, cpu=cpu, memory=memory)
    for zone in found["zones"]:
        zone["resources"] += [
            {"name": name, "allocatable": value} for name, value in (zones or {}).items()
        ]
    account = Account([NUMA_HOLDINGS])
    everything = {"cpu": "10k", "memory": "8Ti", "hugepages-1Gi": "8Ti"}
    spec = {"containers": [{"name": "main", "resources": {"requests": everything}}]}
    for number, annotations in enumerate(pods):
        account.put(make_pod(f"p{number}", node="n1", annotations=annotations, spec=spec))
    node = make_node("n1", labels=labels)
    if ratio is not None:
        annotated = ((AMPLIFICATION, json.dumps({"cpu": ratio})),)
        node = msgspec.structs.replace(node, annotations=annotated)
    pool = account.freeze().pool(NUMA_HOLDINGS, "n1")
    return Machine(node, read_machine(found), pool, max_count=max_count)
