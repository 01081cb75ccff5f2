"""Small clusters of JSON objects, and snapshots of them."""

import json
from dataclasses import dataclass, field
from typing import Any

from koord.cluster.decoder import Decoder, ObjectKind
from koord.cluster.facts import ClusterNode, ClusterPod
from koord.cluster.keptfields import KeptFields
from koord.cluster.kinds import NAMESPACE, NODE, POD
from koord.cluster.state import Snapshot
from koord.cluster.storage import CLAIM, VOLUME

Json = dict[str, Any]
KEPT = KeptFields(
    pod_annotations=dict.fromkeys(
        (
            "descheduler.alpha.kubernetes.io/evict",
            "kubernetes.io/config.mirror",
            "kubernetes.io/config.source",
            "scheduling.koordinator.sh/eviction-cost",
        ),
        256,
    ),
    node_annotations={"scheduling.koordinator.sh/usage-thresholds": 4096},
)
DECODER = Decoder(KEPT)
ROOM = {"cpu": "4", "memory": "8Gi", "pods": "10"}


def read(kind: ObjectKind[Any], obj: Json, decoder: Decoder = DECODER) -> Any:
    return decoder.object(kind, json.dumps(obj).encode())


def read_pod(obj: Json, decoder: Decoder = DECODER) -> ClusterPod:
    return read(POD, obj, decoder)


def read_node(obj: Json) -> ClusterNode:
    return read(NODE, obj)


def node(
    name: str, labels: dict[str, str] | None = None, allocatable: Json | None = None, **spec: Any
) -> Json:
    labels = {"kubernetes.io/hostname": name, **(labels or {})}
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": labels},
        "spec": spec,
        "status": {"allocatable": ROOM if allocatable is None else allocatable},
    }


def pod(
    name: str,
    node: str = "",
    labels: dict[str, str] | None = None,
    requests: Json | None = None,
    namespace: str = "default",
    **spec: Any,
) -> Json:
    container: Json = {"name": "main", "resources": {"requests": requests or {}}}
    if "ports" in spec:
        container["ports"] = spec.pop("ports")
    meta = {"name": name, "namespace": namespace, "uid": f"uid-{namespace}-{name}"}
    return {
        "metadata": {**meta, "labels": labels or {}},
        "spec": {"nodeName": node, "containers": [container], **spec},
        "status": {"phase": "Running"},
    }


def finished(obj: Json) -> Json:
    return {**obj, "status": {"phase": "Succeeded"}}


def deleting(obj: Json) -> Json:
    meta = {**obj["metadata"], "deletionTimestamp": "2026-07-24T06:52:45Z"}
    return {**obj, "metadata": meta}


def named(name: str, labels: dict[str, str]) -> Json:
    return {"metadata": {"name": name, "labels": labels}}


def claim(name: str, volume: str = "", namespace: str = "default") -> Json:
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"volumeName": volume},
    }


def volume(name: str, *terms: Json) -> Json:
    spec = {"nodeAffinity": {"required": {"nodeSelectorTerms": list(terms)}}} if terms else {}
    return {"metadata": {"name": name}, "spec": spec}


def expression(key: str, operator: str, *values: str) -> Json:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


def node_affinity(*terms: Json) -> Json:
    required = {"nodeSelectorTerms": list(terms)}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def near(kind: str, *terms: Json) -> Json:
    """kind is podAffinity or podAntiAffinity."""
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}


def term(topology_key: str, labels: dict[str, str] | None, **more: Any) -> Json:
    selector = {} if labels is None else {"labelSelector": {"matchLabels": labels}}
    return {"topologyKey": topology_key, **selector, **more}


@dataclass
class Cluster:
    """Objects as JSON."""

    nodes: list[Json] = field(default_factory=list)
    pods: list[Json] = field(default_factory=list)
    claims: list[Json] = field(default_factory=list)
    volumes: list[Json] = field(default_factory=list)
    namespaces: list[Json] = field(default_factory=list)

    def snapshot(self) -> Snapshot:
        snapshot = Snapshot()
        for obj in self.nodes:
            snapshot.put_node(read_node(obj))
        for obj in self.pods:
            snapshot.put_pod(read_pod(obj))
        for obj in self.claims:
            snapshot.put_claim(read(CLAIM, obj))
        for obj in self.volumes:
            snapshot.put_volume(read(VOLUME, obj))
        for obj in self.namespaces:
            snapshot.put_namespace(read(NAMESPACE, obj))
        return snapshot
