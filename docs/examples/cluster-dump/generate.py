#!/usr/bin/env python3
"""Writes the files of this directory: a small cluster as `kubectl get … -A -o json` prints it.

Eight nodes of 8 cores and 32 GiB with their NodeMetrics; on the busy ones pods that may leave, and
pods that may not, each for another reason.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Json = dict[str, Any]

NOW, LONG_AGO = "2026-07-24T06:52:45Z", "2026-07-24T06:31:10Z"
CREATED = "2026-07-01T08:00:00Z"
GIB = 1 << 30


def metadata(name: str, namespace: str = "", **rest: Any) -> Json:
    uid = f"{len(name):08x}-0000-4000-8000-{sum(map(ord, namespace + name)):012x}"
    return {
        "name": name,
        **({"namespace": namespace} if namespace else {}),
        "uid": uid,
        "creationTimestamp": CREATED,
        **rest,
    }


def node(name: str, **spec: Any) -> Json:
    labels = {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": f"zone-{name[-1]}"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata(name, labels=labels),
        "spec": spec,
        "status": {
            "allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def owner(kind: str, name: str, namespace: str) -> Json:
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "name": name,
        "uid": metadata(name, namespace)["uid"],
        "controller": True,
    }


class Cluster:
    """Objects, and the usage of pods by node."""

    def __init__(self) -> None:
        self.nodes: list[Json] = []
        self.pods: list[Json] = []
        self.others: list[Json] = []
        self.used: dict[str, list[tuple[Json, float, float]]] = {}

    def node(self, name: str, system: float, at: str = NOW, **spec: Any) -> None:
        """Add a node whose system takes so many cores."""
        self.nodes.append(node(name, **spec))
        pods = self.used.get(name, [])
        cpu = system + sum(cores for _, cores, _ in pods)
        memory = 1 + sum(gib for _, _, gib in pods)
        status = {
            "updateTime": at,
            "nodeMetric": {
                "nodeUsage": {"resources": amounts(cpu, memory)},
                "systemUsage": {"resources": amounts(system, 1)},
            },
            "podsMetric": [
                {
                    "name": pod["metadata"]["name"],
                    "namespace": pod["metadata"]["namespace"],
                    "podUsage": {"resources": amounts(cores, gib)},
                }
                for pod, cores, gib in pods
            ],
        }
        self.others.append(
            {
                "apiVersion": "slo.koordinator.sh/v1alpha1",
                "kind": "NodeMetric",
                "metadata": metadata(name),
                "status": status,
            }
        )

    def pod(
        self,
        name: str,
        on: str,
        *,
        cores: float,
        gib: float,
        requests: tuple[float, float],
        namespace: str = "shop",
        kind: str = "ReplicaSet",
        **spec: Any,
    ) -> None:
        """Add a pod that uses and requests so many cores and GiB; kind is its owner's."""
        app = name.rpartition("-")[0] or name
        meta = metadata(name, namespace, labels={"app": app})
        if kind:
            meta["ownerReferences"] = [owner(kind, app, namespace)]
        container = {"name": "main", "resources": {"requests": amounts(*requests)}}
        made = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": meta,
            "spec": {
                "nodeName": on,
                "schedulerName": "koord-scheduler",
                "containers": [container],
                **spec,
            },
            "status": {
                "phase": "Running",
                "qosClass": "Burstable",
                "startTime": CREATED,
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
        self.pods.append(made)
        self.used.setdefault(on, []).append((made, cores, gib))

    def workload(
        self, kind: str, name: str, replicas: int, namespace: str = "shop", **spec: Any
    ) -> None:
        self.others.append(
            {
                "apiVersion": "apps/v1",
                "kind": kind,
                "metadata": metadata(name, namespace),
                "spec": {"replicas": replicas, **spec},
            }
        )

    def budget(self, app: str, allowed: int, namespace: str = "shop") -> None:
        self.others.append(
            {
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": metadata(app, namespace),
                "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": app}}},
                "status": {"disruptionsAllowed": allowed},
            }
        )


def amounts(cores: float, gib: float) -> dict[str, str]:
    return {"cpu": f"{round(cores * 1000)}m", "memory": str(round(gib * GIB))}


def example() -> Cluster:
    made = Cluster()
    # worker-1 is short of CPU.
    made.pod("web-a", "worker-1", cores=0.8, gib=2, requests=(1, 2))
    made.pod("report-a", "worker-1", cores=0.9, gib=3, requests=(0.5, 3))
    made.pod("payment-a", "worker-1", cores=1.4, gib=2, requests=(1, 2))
    cache = [{"name": "data", "emptyDir": {}}]
    made.pod("cache-a", "worker-1", cores=1.3, gib=4, requests=(1, 4), volumes=cache)
    made.pod("debug", "worker-1", cores=1.1, gib=1, requests=(0.5, 1), kind="")
    pinned = {"disk": "fast"}
    made.pod("index-a", "worker-1", cores=1.2, gib=2, requests=(1, 2), nodeSelector=pinned)
    # worker-2 is short of memory.
    made.pod("web-b", "worker-2", cores=0.8, gib=6, requests=(1, 4))
    made.pod("batch-a", "worker-2", cores=1.2, gib=9, requests=(1, 6))
    made.pod("payment-b", "worker-2", cores=0.5, gib=8, requests=(1, 4))
    made.pod("dns-a", "worker-2", cores=0.2, gib=4, requests=(0.1, 1), namespace="kube-system")
    # worker-3 is busy, but what is busy there is no pod that can leave.
    made.pod("web-c", "worker-3", cores=0.1, gib=1, requests=(1, 2))
    # worker-4 is neither. worker-5, 6 and 7 have room, of which 5 is cordoned and 6 tainted.
    made.pod("payment-c", "worker-4", cores=3.5, gib=12, requests=(4, 12))
    made.pod("report-b", "worker-4", cores=1.0, gib=6, requests=(1, 6))
    made.pod("batch-b", "worker-7", cores=0.9, gib=4, requests=(1, 4))
    # worker-8 was hot when its agent reported for the last time.
    made.pod("web-d", "worker-8", cores=7.0, gib=8, requests=(4, 8))
    for number in range(1, 9):
        agent = f"agent-{number}"
        size: Json = {"cores": 0.1, "gib": 0.5, "requests": (0.1, 0.5)}
        made.pod(agent, f"worker-{number}", **size, namespace="monitoring", kind="DaemonSet")

    taint = {"key": "gpu", "value": "true", "effect": "NoSchedule"}
    made.node("worker-1", system=0.3)
    made.node("worker-2", system=0.3)
    made.node("worker-3", system=6.9)
    made.node("worker-4", system=0.3)
    made.node("worker-5", system=0.2, unschedulable=True)
    made.node("worker-6", system=0.2, taints=[taint])
    made.node("worker-7", system=0.2)
    made.node("worker-8", system=0.3, at=LONG_AGO)

    for app, replicas in (("web", 4), ("payment", 3), ("report", 2), ("batch", 2), ("cache", 1)):
        made.workload("ReplicaSet", app, replicas)
    made.workload("ReplicaSet", "index", 2)
    made.workload("ReplicaSet", "dns", 2, namespace="kube-system")
    made.budget("payment", allowed=0)
    made.budget("web", allowed=2)
    made.others.append(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata("web", "shop"),
            "spec": {"selector": {"app": "web"}},
        }
    )
    return made


def text(items: Iterable[Json]) -> str:
    """A list as kubectl prints it, but for its indentation."""
    lines = ",\n".join(json.dumps(item) for item in items)
    return f'{{"apiVersion": "v1", "kind": "List", "items": [\n{lines}\n]}}\n'


def files() -> dict[str, str]:
    """The files of this directory by name."""
    made = example()
    return {
        "nodes.json": text(made.nodes),
        "pods.json": text(made.pods),
        "others.json": text(made.others),
    }


if __name__ == "__main__":
    for name, content in files().items():
        (Path(__file__).parent / name).write_text(content)
