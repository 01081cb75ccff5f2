"""A simulated cluster around our daemons: nodes, agents, kubelets, one controller.

An agent here writes the NodeMetric that koordlet would write for what the pods on its node use,
and serves the counters that koordlet serves. The API server is the bed.
"""

import asyncio
import math
import random
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from benchmarks.demo.agents import address_of
from koord.kube.client import NODE_METRICS, NODES, PODS, ApiClient, Resource
from koord.kube.errors import ApiError

Json = dict[str, Any]

NAMESPACE = "shop"
SCHEDULER = "koord-scheduler"
CORES, MEMORY_GIB = 8, 32  # of a node
SYSTEM = 0.3  # cores that a node uses beside its pods
REPLICA_SETS = Resource("apps/v1", "replicasets")
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


@dataclass(frozen=True, slots=True)
class App:
    """A ReplicaSet whose pods use more, or less, than they request."""

    name: str
    replicas: int
    requests: float  # cores
    uses: float  # cores


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod as the API server has it."""

    name: str
    app: str
    node: str  # "": it is pending
    running: bool


@dataclass(slots=True)
class World:
    """The cluster as it was seen last, and what changes it."""

    client: ApiClient
    nodes: Sequence[str]
    apps: Mapping[str, App]
    traffic: Mapping[str, float]  # bytes per second that a node receives beside its pods
    draw: random.Random = field(default_factory=lambda: random.Random(7))
    pods: dict[str, Pod] = field(default_factory=dict)  # by name
    _uids: dict[str, str] = field(default_factory=dict)  # of the ReplicaSets
    _reported: float = -math.inf

    async def make(self, crowded: int) -> None:
        """Make nodes and ReplicaSets; their pods run on the first nodes, so many, all of them."""
        create = self.client.create
        for number, name in enumerate(self.nodes):
            await create(NODES.collection(), _node(name, f"zone-{number % 3}", address_of(number)))
            await create(NODE_METRICS.collection(), self._metric(name, ()))
        number = 0
        for app in self.apps.values():
            made = await create(REPLICA_SETS.collection(NAMESPACE), _replica_set(app))
            self._uids[app.name] = made["metadata"]["uid"]
            for _ in range(app.replicas):
                node = self.nodes[number % crowded]
                number += 1
                await create(PODS.collection(NAMESPACE), self._pod(app, node))
        await self.look()
        await self._report()

    async def step(self, report_every: float) -> list[str]:
        """Do what controller, kubelets and agents do; return what has happened, for people."""
        before = self.pods
        await self.look()
        events = [
            f"{name} was evicted from {pod.node}"
            for name, pod in before.items()
            if name not in self.pods
        ]
        for name, pod in self.pods.items():
            if pod.node and not pod.running:
                events.append(f"{name} was bound to {pod.node}")
                await self._run(name)
        for app in self.apps.values():
            there = sum(pod.app == app.name for pod in self.pods.values())
            for _ in range(app.replicas - there):
                made = await self.client.create(PODS.collection(NAMESPACE), self._pod(app, ""))
                events.append(f"{made['metadata']['name']} was created")
        if time.monotonic() - self._reported >= report_every:
            await self._report()
        return events

    async def look(self) -> None:
        """See which pods there are, and where."""
        found = await self.client.list(PODS.collection(NAMESPACE))
        self.pods = {
            item["metadata"]["name"]: Pod(
                item["metadata"]["name"],
                item["metadata"]["labels"]["app"],
                item["spec"].get("nodeName", ""),
                item.get("status", {}).get("phase") == "Running",
            )
            for item in found.items
            if "deletionTimestamp" not in item["metadata"]
        }

    def usage(self, node: str) -> float:
        """Cores that a node uses."""
        own = (self.apps[pod.app].uses for pod in self.pods.values() if pod.node == node)
        return SYSTEM + sum(own)

    def share(self, node: str) -> float:
        """The usage as a share of the node's cores."""
        return self.usage(node) / CORES

    async def _report(self) -> None:
        on: dict[str, list[Pod]] = defaultdict(list)
        for pod in self.pods.values():
            on[pod.node].append(pod)
        reports = (self._write_report(node, on[node]) for node in self.nodes)
        await asyncio.gather(*reports)
        self._reported = time.monotonic()

    async def _write_report(self, node: str, pods: Sequence[Pod]) -> None:
        path = NODE_METRICS.object(node, subresource="status")
        try:
            await self.client.merge_patch(path, {"status": self._metric(node, pods)["status"]})
        except ApiError:
            return  # the next report comes soon

    def _metric(self, node: str, pods: Sequence[Pod]) -> Json:
        used = {"resources": {"cpu": f"{self.usage(node):.3f}", "memory": f"{1 + len(pods)}Gi"}}
        windows = dict.fromkeys(("avg", "p50", "p90", "p95", "p99"), used)
        return {
            "apiVersion": NODE_METRICS.api_version,
            "kind": "NodeMetric",
            "metadata": {"name": node},
            "spec": {"metricCollectPolicy": {"reportIntervalSeconds": 60}},
            "status": {
                "updateTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                "nodeMetric": {
                    "nodeUsage": used,
                    "systemUsage": {"resources": {"cpu": f"{SYSTEM}", "memory": "1Gi"}},
                    "aggregatedNodeUsages": [{"duration": "5m0s", "usage": windows}],
                },
                "podsMetric": [self._pod_metric(pod) for pod in pods],
            },
        }

    def _pod_metric(self, pod: Pod) -> Json:
        cores = f"{self.apps[pod.app].uses:.3f}"
        usage = {"resources": {"cpu": cores, "memory": "1Gi"}}
        return {"name": pod.name, "namespace": NAMESPACE, "podUsage": usage}

    async def _run(self, name: str) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": now}
        status = {"phase": "Running", "startTime": now, "conditions": [ready]}
        path = PODS.object(name, namespace=NAMESPACE, subresource="status")
        await self.client.merge_patch(path, {"status": status})

    def _pod(self, app: App, node: str) -> Json:
        name = f"{app.name}-{''.join(self.draw.choices(_LETTERS, k=5))}"
        requests = {"cpu": f"{app.requests}", "memory": "1Gi"}
        owner = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "name": app.name,
            "uid": self._uids[app.name],
            "controller": True,
        }
        running = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                "labels": {"app": app.name},
                "ownerReferences": [owner],
            },
            "spec": {
                "schedulerName": SCHEDULER,
                "containers": [{"name": "main", "resources": {"requests": requests}}],
                **({"nodeName": node} if node else {}),
            },
            "status": running if node else {"phase": "Pending"},
        }


def _node(name: str, zone: str, address: str) -> Json:
    room = {"cpu": str(CORES), "memory": f"{MEMORY_GIB}Gi", "pods": "110"}
    labels = {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {
            "capacity": room,
            "allocatable": room,
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "InternalIP", "address": address}],
        },
    }


def _replica_set(app: App) -> Json:
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": app.name, "namespace": NAMESPACE},
        "spec": {"replicas": app.replicas, "selector": {"matchLabels": {"app": app.name}}},
    }
