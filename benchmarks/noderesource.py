"""koord-manager: reports of 30 pods a node once a minute, read and made resources of the nodes.

Without the connection to an API server, and with the garbage collector as it is by default.
"""

import asyncio
import gc
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from benchmarks.table import Row
from koord.api.nodemetric import time_text
from koord.cluster import kinds
from koord.cluster.decoder import Decoder
from koord.component.plugins.discovery import discover
from koord.kube.client import ApiClient
from koord.util.clock import SystemClock
from koord_manager.cluster import METRIC, ManagerCluster
from koord_manager.config import feature_gates
from koord_manager.controllers.noderesource import NodeResources
from koord_manager.controllers.worker import NodeResourceMetrics
from koord_manager.framework.calculator import Calculator
from koord_manager.framework.facts import ClusterConfig, load_cluster_config
from koord_manager.framework.interfaces import PluginRegistry
from koord_manager.framework.loading import Plugins, fields_read
from koord_manager.page import node_map

PODS = 30  # of a node
CORE_BUDGET = 0.08  # with 5,000 nodes
MEMORY_BUDGET = 230.0  # MiB with 150,000 pods, so that the process has 300
_PAGE = os.sysconf("SC_PAGE_SIZE")
_WINDOWS = ("5m0s", "10m0s", "30m0s")
_TYPES = ("avg", "p50", "p90", "p95", "p99")


class _NoServer(ApiClient):
    """Takes each patch."""

    def __init__(self) -> None:
        self.patches = 0

    async def patch(self, path: str, body: object, content_type: str, **rest: Any) -> Any:
        self.patches += 1
        return {}


def run(*, smoke: bool) -> Iterator[Row]:
    """Yield CPU seconds a minute, as a share of a core, and memory."""
    nodes = 100 if smoke else 5_000
    gc.collect()
    before = _resident()
    registry = PluginRegistry()
    discover(registry)
    names = [entry.name for entry in registry]
    kept, clock = fields_read(registry, names), SystemClock()
    decoder, cluster = Decoder(kept), ManagerCluster()
    cluster.now = clock.wall
    for number in range(nodes):
        cluster.put(kinds.NODE, decoder.object(kinds.NODE, _node(number)))
        for pod in range(PODS):
            cluster.put(kinds.POD, decoder.object(kinds.POD, _pod(number, pod)))
        cluster.put(METRIC, decoder.object(METRIC, _metric(number, 9000)))
    plugins = Plugins(registry, names, {}, feature_gates(names), clock)
    config, _ = load_cluster_config({"colocation-config": '{"enable":true}'}, ClusterConfig())
    resources = NodeResources(
        cluster,
        None,
        Calculator(
            plugins.node_resource,
            declared=kept.node_annotations,
            max_decrease_percent=30,
            call=plugins.calculate,
            failed=plugins.failed,
        ),
        lambda: config,
        _NoServer(),
        clock,
        NodeResourceMetrics(CollectorRegistry()),
        lambda event: None,
    )
    asyncio.run(_all(resources, nodes))
    reports = [_metric(number, 9100) for number in range(nodes)]
    began = time.process_time()
    for report in reports:
        cluster.put(METRIC, decoder.object(METRIC, report))
    asyncio.run(_all(resources, nodes))
    cores = (time.process_time() - began) / 60
    what = f"manager, {nodes:,} nodes"
    budget = CORE_BUDGET * nodes / 5_000
    yield Row(f"{what}: reports of a minute", cores, "cores", budget=budget)
    yield from _page(cluster, what)
    if not smoke:
        yield Row(
            f"{what}: memory, without code", _resident() - before, "MiB", budget=MEMORY_BUDGET
        )


def _page(cluster: ManagerCluster, what: str) -> Iterator[Row]:
    """Yield what the map of the status page costs, and its size as JSON."""
    names = [
        f"kubernetes.io/{kind}-{one}" for kind in ("batch", "mid") for one in ("cpu", "memory")
    ]
    states = {name: ["enabled"] for name in cluster.snapshot.node_names()}
    node_map(cluster.view(), names, states)
    began = time.process_time()
    text = json.dumps(node_map(cluster.view(), names, states))
    yield Row(f"{what}: map of the status page", (time.process_time() - began) * 1000, "ms")
    yield Row(f"{what}: the map as JSON", len(text) / 1024, "KiB")


async def _all(resources: NodeResources, nodes: int) -> None:
    for number in range(nodes):
        await resources.reconcile(f"node-{number:05d}")


def _resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE / (1 << 20)


def _node(number: int) -> bytes:
    name, amounts = f"node-{number:05d}", {"cpu": "64", "memory": "256Gi", "pods": "110"}
    meta = {"name": name, "uid": f"uid-{number}", "labels": {"kubernetes.io/hostname": name}}
    return json.dumps(
        {"metadata": meta, "status": {"capacity": amounts, "allocatable": amounts}}
    ).encode()


def _pod(number: int, pod: int) -> bytes:
    is_prod = pod % 2 == 1
    batch = {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "1Gi"}
    requests = {"cpu": "500m", "memory": "1Gi"} if is_prod else batch
    meta = {
        "name": f"app-{pod}-{number:05d}",
        "namespace": f"team-{pod}",
        "uid": f"uid-{number}-{pod}",
        "labels": {"app": f"app-{pod}", "koordinator.sh/qosClass": "LS" if is_prod else "BE"},
    }
    spec = {
        "nodeName": f"node-{number:05d}",
        "priority": 9500 if is_prod else 5500,
        "containers": [{"name": "main", "resources": {"requests": requests}}],
    }
    status = {"phase": "Running", "qosClass": "Burstable"}
    return json.dumps({"metadata": meta, "spec": spec, "status": status}).encode()


def _metric(number: int, used: int) -> bytes:
    usage = {"resources": {"cpu": f"{used}m", "memory": "20Gi"}}
    windows = [{"duration": one, "usage": dict.fromkeys(_TYPES, usage)} for one in _WINDOWS]
    pods = [
        {
            "name": f"app-{pod}-{number:05d}",
            "namespace": f"team-{pod}",
            "priority": "koord-prod" if pod % 2 else "koord-batch",
            "podUsage": {"resources": {"cpu": f"{used // 40 + pod}m", "memory": "500Mi"}},
        }
        for pod in range(PODS)
    ]
    metric = {"nodeUsage": usage, "systemUsage": usage, "aggregatedNodeUsages": windows}
    status = {"updateTime": time_text(time.time()), "nodeMetric": metric, "podsMetric": pods}
    meta = {"name": f"node-{number:05d}", "uid": f"metric-{number}", "resourceVersion": str(used)}
    return json.dumps({"metadata": meta, "spec": {}, "status": status}).encode()
