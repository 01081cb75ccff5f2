"""Nodes as plugins of koord-manager see them, from manifests."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from koord.cluster import kinds
from koord.cluster.facts import ClusterPod
from koord.cluster.keptfields import reads_of, union
from koord.controlplane.testing import read
from koord.util.simulatedclock import SimulatedClock
from koord_manager.config import feature_gates
from koord_manager.framework.calculator import Calculator, History, NodeResult
from koord_manager.framework.facts import (
    ClusterConfig,
    NodeFacts,
    gather_facts,
    load_cluster_config,
    read_devices,
    read_topology,
)
from koord_manager.framework.interfaces import Handle, NodeResourcePlugin
from koord_manager_plugins.colocation import BatchResource, MidResource
from koord_manager_plugins.cpu_ratios import CPUNormalization, ResourceAmplification
from koord_manager_plugins.devices import GPUDeviceResource, RDMADeviceResource

NOW = 1_800_000_000.0
Json = dict[str, Any]
PLUGINS = {
    "CPUNormalization": CPUNormalization,
    "ResourceAmplification": ResourceAmplification,
    "MidResource": MidResource,
    "BatchResource": BatchResource,
    "GPUDeviceResource": GPUDeviceResource,
    "RDMADeviceResource": RDMADeviceResource,
}


def quantities(**amounts: object) -> Json:
    return {name: str(amount) for name, amount in amounts.items()}


def node(
    capacity: Json,
    allocatable: Json | None = None,
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Json:
    return {
        "metadata": {
            "name": "n1",
            "uid": "uid-n1",
            "labels": dict(labels or {}),
            "annotations": dict(annotations or {}),
        },
        "status": {"capacity": capacity, "allocatable": allocatable or capacity},
    }


def pod(
    name: str,
    request: Json | Sequence[Json] = (),
    *,
    qos: str = "",
    priority: int | None = None,
    phase: str = "Running",
    annotations: Mapping[str, str] | None = None,
) -> Json:
    """A pod on n1; several requests are several containers."""
    containers = [request] if isinstance(request, dict) else list(request)
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "labels": {"koordinator.sh/qosClass": qos} if qos else {},
            "annotations": dict(annotations or {}),
        },
        "spec": {
            "nodeName": "n1",
            "priority": priority,
            "containers": [
                {"name": f"c{at}", "resources": {"requests": each}}
                for at, each in enumerate(containers)
            ],
        },
        "status": {"phase": phase, "qosClass": "Burstable" if containers else "BestEffort"},
    }


def usage(cpu: object, memory: object) -> Json:
    return {"resources": quantities(cpu=cpu, memory=memory)}


def pod_usage(name: str, cpu: object, memory: object, priority: str = "koord-prod") -> Json:
    return {
        "namespace": "default",
        "name": name,
        "priority": priority,
        "podUsage": usage(cpu, memory),
    }


def host_usage(cpu: object, memory: object, priority: str) -> Json:
    return {"name": "app", "priority": priority, "usage": usage(cpu, memory)}


def report(
    *,
    node: Json | None = None,
    system: Json | None = None,
    pods: Sequence[Json] = (),
    hosts: Sequence[Json] = (),
    reclaimable: Json | None = None,
    age: float | None = 0.0,
) -> Json:
    """A NodeMetric of n1 that is so many seconds old; None: it has no time."""
    from koord.api.nodemetric import time_text

    metric: Json = {"nodeUsage": node, "systemUsage": system}
    return {
        "metadata": {"name": "n1"},
        "status": {
            **({} if age is None else {"updateTime": time_text(NOW - age)}),
            "nodeMetric": {key: value for key, value in metric.items() if value is not None},
            "podsMetric": list(pods),
            "hostApplicationMetric": list(hosts),
            "prodReclaimableMetric": {"resource": reclaimable or {}},
        },
    }


def config(**keys: Json) -> ClusterConfig:
    """The ConfigMap with these keys; _ stands for -."""
    data = {name.replace("_", "-"): json.dumps(value) for name, value in keys.items()}
    found, problems = load_cluster_config(data, ClusterConfig())
    assert not problems, problems
    return found


def facts(
    manifest: Json,
    pods: Sequence[Json] = (),
    metric: Json | None = None,
    *,
    strategy: Json | None = None,
    topology: Json | None = None,
    devices: Json | None = None,
    cluster: ClusterConfig | None = None,
) -> NodeFacts:
    """n1. strategy: fields of colocation-config, which is enabled."""
    if cluster is None:
        cluster = config(colocation_config={"enable": True, **(strategy or {})})
    found = read(kinds.NODE, manifest)
    facts, problems = gather_facts(
        found,
        cluster,
        now=NOW,
        report=None if metric is None else read(kinds.NODE_METRIC, metric),
        pods=tuple(_pods(pods)),
        topology=None if topology is None else read_topology(topology),
        devices=None if devices is None else read_devices(devices),
    )
    assert not problems, problems
    return facts


def _pods(manifests: Sequence[Json]) -> list[ClusterPod]:
    return [read(kinds.POD, one) for one in manifests]


def plugins(*names: str, gates: Mapping[str, bool] | None = None) -> list[NodeResourcePlugin]:
    """The shipped plugins of these names; without names all."""
    switches = feature_gates(())
    switches.replace_map(dict(gates or {}))
    clock, found = SimulatedClock(), []
    for name in names or PLUGINS:
        made = PLUGINS[name](None, Handle(name=name, clock=clock, gates=switches))
        made.name = name
        found.append(made)
    return found


def calculator(
    *names: str, percent: int = 30, gates: Mapping[str, bool] | None = None
) -> Calculator:
    declared = union(map(reads_of, PLUGINS.values())).node_annotations
    made = plugins(*names, gates=gates)
    return Calculator(made, declared=declared, max_decrease_percent=percent)


def calculate(node: NodeFacts, *names: str, **options: Any) -> NodeResult:
    """What n1 is to have when nothing is known of what it offered before."""
    return calculator(*names, **options).calculate(node, History())


def topology(*zones: tuple[object, object], annotations: Json | None = None) -> Json:
    """A NodeResourceTopology whose zones have so much CPU and memory."""
    return {
        "metadata": {
            "name": "n1",
            "uid": "uid-t",
            "resourceVersion": "7",
            "annotations": annotations or {},
        },
        "zones": [
            {
                "name": f"node-{at}",
                "type": "Node",
                "resources": [
                    {"name": name, "capacity": str(each), "allocatable": str(each),
                     "available": str(each)}
                    for name, each in (("cpu", cpu), ("memory", memory))
                ],
            }
            for at, (cpu, memory) in enumerate(zones)
        ],
    }  # fmt: skip
