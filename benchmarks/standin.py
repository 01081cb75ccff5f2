"""A control plane for one node with pods, in a process of its own: API server and kubelet.

Usage: python -m benchmarks.standin PODS DIRECTORY [NODESLO]. Prints its addresses as JSON, and
serves until its input ends. NODESLO is the spec of the node's NodeSLO, as JSON. GET /benchmark on
the API server returns the counts of requests so far. The kubelet's pods are also served without
TLS, for Koordinator's koordlet, which cannot be told its CA.
"""

import asyncio
import hashlib
import json
import sys
import uuid
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from aiohttp import web

from benchmarks.tree import CONTAINERS_PER_POD
from koord.kube.client import NODE_METRICS, NODE_SLOS, NODES, PODS, Resource
from tests.support.kube.apiserver import ApiServer, Place, Recorded
from tests.support.kube.certificates import Authority
from tests.support.kube.kubelet import Kubelet, make_kubelet

NODE = "benchmark"
Object = dict[str, Any]

_KINDS = {
    "nodes": "Node",
    "pods": "Pod",
    "nodeslos": "NodeSLO",
    "nodemetrics": "NodeMetric",
    "noderesourcetopologies": "NodeResourceTopology",
}
"""By the last part of a collection's path. Go's clients read nothing of another kind."""


class Metered(ApiServer):
    """Counts requests and the bytes of bodies both ways."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._counts: Counter[str] = Counter()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/benchmark":
            return web.json_response(self._counts)
        body = await request.read()
        recorded = Recorded(request.method, request.path, dict(request.query), {}, body)
        self._counts[f"{recorded.verb} {recorded.path}"] += 1
        self._counts["bytes in"] += len(body)
        response = await super()._handle(request)
        self.requests.clear()  # a long run must not pile them up
        if isinstance(response, web.Response):
            self._counts["bytes out"] += response.body_length
        return response

    def _list(self, request: web.Request, place: Place) -> Object:
        kind = _KINDS.get(place.collection.rpartition("/")[2], "")
        return {**super()._list(request, place), "kind": f"{kind}List"}

    async def _deliver(self, request: web.Request, response: Any, *rest: Any) -> None:
        await super()._deliver(request, _Counted(response, self._counts), *rest)


class _Counted:
    """The answer of a watch, which goes on for minutes."""

    def __init__(self, response: web.StreamResponse, counts: Counter[str]) -> None:
        self._response = response
        self._counts = counts

    async def write(self, piece: bytes) -> None:
        self._counts["bytes out"] += len(piece)
        await self._response.write(piece)


def pod(number: int) -> Object:
    """A pod of a usual size, with the UID and containers that the tree has for it."""
    names = [f"container-{index}" for index in range(CONTAINERS_PER_POD)]
    return {
        "metadata": {
            "namespace": f"shop-{number % 10}",
            "name": f"web-7c9d8b6f5b-{number:05d}",
            "uid": str(uuid.UUID(int=number)),
            "labels": {f"app.kubernetes.io/label-{index}": "value" for index in range(6)},
            "annotations": {f"example.com/annotation-{index}": "v" * 60 for index in range(6)},
            "ownerReferences": [{"kind": "ReplicaSet", "name": "workload", "uid": "1" * 36}],
        },
        "spec": {
            "nodeName": NODE,
            "priority": 0,
            "containers": [_container(name, number % 3) for name in names],
            "volumes": [{"name": f"volume-{n}", "configMap": {"name": "c"}} for n in range(4)],
            "tolerations": [{"key": f"k{n}", "operator": "Exists"} for n in range(4)],
        },
        "status": {
            "phase": "Running",
            "qosClass": ("Guaranteed", "Burstable", "BestEffort")[number % 3],
            "conditions": [{"type": f"Condition{n}", "status": "True"} for n in range(5)],
            "containerStatuses": [
                {
                    "name": name,
                    "containerID": "containerd://"
                    + hashlib.sha256(f"{number}.{index}".encode()).hexdigest(),
                    "image": "registry.example.com/workload:1.0",
                    "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
                }
                for index, name in enumerate(names)
            ],
        },
    }


def _container(name: str, qos: int) -> Object:
    amounts = {"cpu": "500m", "memory": "512Mi"}
    resources = ({"limits": amounts, "requests": amounts}, {"requests": amounts}, {})[qos]
    return {
        "name": name,
        "image": "registry.example.com/workload:1.0",
        "resources": resources,
        "env": [{"name": f"VARIABLE_{n}", "value": "value"} for n in range(10)],
        "volumeMounts": [{"name": f"volume-{n}", "mountPath": f"/mnt/{n}"} for n in range(4)],
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 10},
    }


def _fill(server: ApiServer, node_status: Object, pods: Iterable[Object], node_slo: Object) -> None:
    capacity = {"cpu": "2", "memory": "24Gi"}
    status = {**node_status, "capacity": capacity, "allocatable": capacity}
    _create(server, NODES, {"status": status})
    _create(server, NODE_SLOS, {"spec": node_slo})
    _create(server, NODE_METRICS, {"spec": {"metricCollectPolicy": {"reportIntervalSeconds": 60}}})
    for each in pods:
        _create(server, PODS, each)


def _create(server: ApiServer, resource: Resource, item: Object) -> None:
    kind, meta = _KINDS[resource.plural], item.get("metadata", {"name": NODE})
    full = {"apiVersion": resource.api_version, "kind": kind, **item, "metadata": meta}
    server.objects.create(resource.collection(), full)


async def _serve(pods: list[Object], directory: Path, node_slo: Object) -> None:
    authority = Authority(directory)
    kubelet, read_only, server = make_kubelet(authority), Kubelet(), Metered()
    kubelet.pods = read_only.pods = pods
    servers = kubelet, read_only, server
    for each in servers:
        await each.start()
    _fill(server, kubelet.status, pods, node_slo)
    addresses = {
        "server": server.url,
        "kubelet_ca": str(authority.certificate),
        "kubelet_read_only_port": read_only.port,
    }
    print(json.dumps(addresses), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for each in servers:
        await each.stop()


def main() -> None:
    count, directory, *node_slo = sys.argv[1:]
    pods = [pod(number) for number in range(int(count))]
    asyncio.run(_serve(pods, Path(directory), json.loads(node_slo[0]) if node_slo else {}))


if __name__ == "__main__":
    main()
