"""Objects of a cluster from short calls: as the descheduler reads them from the API server.

An amount is a quantity: a number, or a text like "500m" or "2Gi". spec and status are JSON as in a
manifest; they are laid over what the other arguments say, field by field.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from koord.cluster import decoding
from koord.cluster.decoder import Decoder, Kind
from koord.cluster.decoding import UsageReport
from koord.cluster.facts import (
    ClusterNode,
    ClusterPod,
    DisruptionBudget,
    Owner,
    Workload,
)

T = TypeVar("T")
Json = dict[str, Any]
Amount = float | str
Amounts = Mapping[str, Amount]

HOSTNAME = "kubernetes.io/hostname"

_DECODER = Decoder()  # equal pods of a test share what those of a cluster share


def read(kind: Kind[T], manifest: Mapping[str, Any]) -> T:
    """Return what the descheduler keeps of an object.

    Raises:
        InvalidObject: it is malformed.
    """
    return _DECODER.object(kind, json.dumps(manifest).encode())


def make_node(
    name: str,
    *,
    cpu: Amount = 4,
    memory: Amount = "16Gi",
    pods: int = 110,
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, str]] = (),
    ready: bool = True,
    unschedulable: bool = False,
    allocatable: Amounts | None = None,
) -> ClusterNode:
    """A node. allocatable has further resources; taints are as in a manifest."""
    amounts = {"cpu": cpu, "memory": memory, "pods": pods, **(allocatable or {})}
    return read(
        decoding.NODE,
        {
            "metadata": {
                "name": name,
                "uid": f"uid-{name}",
                "labels": {HOSTNAME: name, **(labels or {})},
            },
            "spec": {"taints": list(taints), "unschedulable": unschedulable},
            "status": {
                "allocatable": _texts(amounts),
                "conditions": [{"type": "Ready", "status": str(ready)}],
            },
        },
    )


def make_pod(
    name: str,
    *,
    namespace: str = "default",
    node: str = "",
    cpu: Amount = 0,
    memory: Amount = 0,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    owner: Workload | None = None,
    priority: int | None = None,
    phase: str = "Running",
    qos: str = "Burstable",
    created: float | None = None,
    spec: Json | None = None,
    status: Json | None = None,
) -> ClusterPod:
    """A pod that requests so much. created is in Unix seconds."""
    requests = {key: value for key, value in (("cpu", cpu), ("memory", memory)) if value}
    container = {"name": "main", "resources": {"requests": _texts(requests)}}
    meta: Json = {
        "name": name,
        "namespace": namespace,
        "uid": f"uid-{namespace}-{name}",
        "labels": dict(labels or {}),
        "annotations": dict(annotations or {}),
    }
    if created is not None:
        meta["creationTimestamp"] = _moment(created)
    if owner is not None:
        meta["ownerReferences"] = [_reference(owner)]
    own = {"nodeName": node, "priority": priority, "containers": [container]}
    condition = {"type": "Ready", "status": str(phase == "Running")}
    seen = {"phase": phase, "qosClass": qos, "conditions": [condition]}
    return read(
        decoding.POD,
        {
            "metadata": meta,
            "spec": {**own, **(spec or {})},
            "status": {**seen, **(status or {})},
        },
    )


def make_workload(
    kind: str,
    name: str,
    *,
    namespace: str = "default",
    replicas: int = 1,
    owner: Workload | None = None,
) -> Workload:
    """A controller of pods: a ReplicaSet, StatefulSet and so on, perhaps of a Deployment."""
    controller = None
    if owner is not None:
        controller = Owner(owner.kind, owner.name, owner.uid, controller=True)
    return Workload(
        kind=kind,
        namespace=namespace,
        name=name,
        uid=f"uid-{kind}-{namespace}-{name}",
        replicas=replicas,
        controller=controller,
    )


def make_budget(
    name: str, labels: Mapping[str, str], *, namespace: str = "default", allowed: int = 1
) -> DisruptionBudget:
    """A PodDisruptionBudget for the pods with these labels, of which so many may go now."""
    return read(
        decoding.BUDGET,
        {
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"selector": {"matchLabels": dict(labels)}},
            "status": {"disruptionsAllowed": allowed},
        },
    )


def make_report(
    node: str,
    *,
    at: float,
    usage: Amounts,
    system: Amounts | None = None,
    pods: Mapping[str, Amounts] | None = None,
    p95: Amounts | None = None,
    window: str = "5m0s",
    status: Json | None = None,
) -> UsageReport:
    """The NodeMetric of a node, made at so many Unix seconds.

    Amounts are by "cpu" and "memory"; pods by namespace/name. Percentiles of the window are as
    p95 says; None: as usage.
    """
    peak = _usage(usage if p95 is None else p95)
    percentiles = {"avg": _usage(usage), "p50": peak, "p90": peak, "p95": peak, "p99": peak}
    found: Json = {
        "updateTime": _moment(at),
        "nodeMetric": {
            "nodeUsage": _usage(usage),
            "aggregatedNodeUsages": [{"duration": window, "usage": percentiles}],
        },
        "podsMetric": [_pod_usage(key, amounts) for key, amounts in (pods or {}).items()],
    }
    if system is not None:
        found["nodeMetric"]["systemUsage"] = _usage(system)
    return read(
        decoding.NODE_METRIC, {"metadata": {"name": node}, "status": {**found, **(status or {})}}
    )


def _pod_usage(key: str, amounts: Amounts) -> Json:
    namespace, _, name = key.partition("/")
    return {"namespace": namespace, "name": name, "podUsage": _usage(amounts)}


def _usage(amounts: Amounts) -> Json:
    return {"resources": _texts(amounts)}


def _texts(amounts: Amounts) -> dict[str, str]:
    return {name: str(amount) for name, amount in amounts.items()}


def _reference(owner: Workload) -> Json:
    return {"kind": owner.kind, "name": owner.name, "uid": owner.uid, "controller": True}


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
