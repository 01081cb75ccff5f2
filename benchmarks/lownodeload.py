"""Rounds of LowNodeLoad in dry-run: 10 % of the nodes high, 60 % low, 30 pods a node.

The cluster has the shape of the bed's, and reports 60 s apart: in a round every 10 s a sixth of
them is new. The first round has seen none of them. Without the garbage collector, as in the
informer's benchmark; each line that a round logs is written to nowhere.
"""

import asyncio
import gc
import json
import os
import time
from collections.abc import Iterator
from contextlib import redirect_stderr
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.table import Row
from koord.cluster import kinds
from koord.cluster.decoder import Decoder
from koord.util.logs import configure, parse_levels
from koord_descheduler.plugin.testing import FakeCluster, PluginHarness
from koord_descheduler_plugins.low_node_load.plugin import LowNodeLoad

PODS_PER_NODE = 30
PAGE = 500  # pods
ROUNDS = 5
MEMORY_BUDGET = 450.0  # MiB with 150,000 pods
ARGS = {
    "lowThresholds": {"cpu": 30},
    "highThresholds": {"cpu": 70},
    "anomalyCondition": {"consecutiveAbnormalities": 1},
    "dryRun": True,
}


def run(*, smoke: bool) -> Iterator[Row]:
    """Yield CPU seconds of a round beside those of a plain sum over all pods, and memory."""
    gc.collect()
    gc.disable()
    configure("json", parse_levels("info"))
    try:
        with Path(os.devnull).open("w") as nowhere, redirect_stderr(nowhere):
            rows = list(_small(100 if smoke else 1_000))
            if not smoke:
                rows += _large(5_000)
    finally:
        gc.enable()
    yield from rows


def _small(nodes: int) -> Iterator[Row]:
    cluster = _cluster(nodes)
    for node_fit, budget in ((True, 0.2), (False, 0.1)):
        for planner in ("exact", "koordinator"):
            yield from _rounds(cluster, nodes, budget, nodeFit=node_fit, planner=planner)


def _large(nodes: int) -> Iterator[Row]:
    cluster = _cluster(nodes)
    yield from _rounds(cluster, nodes, 1.0, nodeFit=True)
    yield Row(f"peak memory, {nodes * PODS_PER_NODE} pods", _peak(), "MiB", MEMORY_BUDGET)
    yield from _rounds(cluster, nodes, None, nodeFit=False)


def _rounds(cluster: FakeCluster, nodes: int, budget: float | None, **args: Any) -> list[Row]:
    spent, reference, moved = asyncio.run(_measure(cluster, nodes, {**ARGS, **args}))
    assert moved > nodes / 10
    fit = "on" if args["nodeFit"] else "off"
    planner = args.get("planner", "exact")
    return [
        Row(f"{nodes} nodes, {planner}, nodeFit {fit}, {what}", value, "CPU s", limit, reference,
            "a plain sum over all pods")
        for what, value, limit in (
            ("first", spent[0], budget if planner == "exact" else None),
            ("later", sorted(spent[1:])[len(spent) // 2], None),
        )
    ]  # fmt: skip


async def _measure(
    cluster: FakeCluster, nodes: int, args: dict[str, Any]
) -> tuple[list[float], float, int]:
    """CPU seconds of each round and of the reference, and the pods that the last one moved."""
    decoder = Decoder()
    spent = []
    async with PluginHarness(LowNodeLoad, cluster, args=args) as found:
        for number in range(ROUNDS + 1):
            result = await found.cycle()
            assert not result.errors, result.errors
            spent.append(result.cpu_seconds)
            await cluster.clock.advance(10)
            for node in range(number % 6, nodes, 6):
                metric = _metric(node, nodes, cluster.clock.wall())
                cluster.state.put(kinds.NODE_METRIC, decoder.object(kinds.NODE_METRIC, metric))
        moved = sum(one.action == "evict" for one in found.decisions.pods())
    begun = time.process_time()
    total = {"cpu": 0.0, "memory": 0.0}
    for report in cluster.state.reports.values():
        for pod in report.pods:
            total["cpu"] += pod.usage.cores
            total["memory"] += pod.usage.memory_bytes
    return spent, time.process_time() - begun, moved


def _cluster(nodes: int) -> FakeCluster:
    cluster, decoder = FakeCluster(), Decoder()
    for number in range(nodes):
        cluster.state.put(kinds.NODE, decoder.object(kinds.NODE, _node(number)))
        metric = _metric(number, nodes, cluster.clock.wall())
        cluster.state.put(kinds.NODE_METRIC, decoder.object(kinds.NODE_METRIC, metric))
    pods = nodes * PODS_PER_NODE
    for first in range(0, pods, PAGE):
        texts = [_pod(number, nodes) for number in range(first, min(first + PAGE, pods))]
        page = decoder.page(kinds.POD, b'{"items":[' + b",".join(texts) + b"]}")
        assert not page.rejected
        for pod in page.objects:
            cluster.state.put(kinds.POD, pod)
    return cluster


def _node(number: int) -> bytes:
    name = f"n{number:05d}"
    labels = {
        "kubernetes.io/hostname": name,
        "topology.kubernetes.io/zone": f"z{number % 3}",
        "pool": f"p{number % 4}",
    }
    taints = [{"key": "dedicated", "value": "special", "effect": "NoSchedule"}]
    room = {"cpu": "32", "memory": "128Gi", "pods": "110", "ephemeral-storage": "200Gi"}
    spec = {"taints": taints} if number % 20 == 19 else {}
    metadata = {"name": name, "uid": f"uid-{number}", "labels": labels}
    status = {"allocatable": room}
    return json.dumps({"metadata": metadata, "spec": spec, "status": status}).encode()


def _pod(number: int, nodes: int) -> bytes:
    workload = f"rs-{number // 50}"
    owner = {"kind": "ReplicaSet", "name": workload, "uid": workload, "controller": True}
    requests = {"requests": {"cpu": "500m", "memory": "1Gi"}}
    return json.dumps(
        {
            "metadata": {
                "name": f"run-{number:06d}",
                "namespace": "default",
                "uid": f"6a1f0d3e-0000-4000-8000-{number:012d}",
                "creationTimestamp": "2026-07-24T06:52:45Z",
                "labels": {"app": f"app-{number // 50}"},
                "ownerReferences": [owner],
            },
            "spec": {
                "nodeName": f"n{number % nodes:05d}",
                "priority": 0,
                "containers": [{"name": "c", "resources": requests}],
            },
            "status": {"phase": "Running", "qosClass": "Burstable"},
        }
    ).encode()


def _metric(number: int, nodes: int, at: float) -> bytes:
    """The NodeMetric of a node; its kind is by its number, and its pods share its use."""
    kind = number % 100 / 100
    percent = 85 if kind < 0.1 else 15 if kind < 0.7 else 50
    cpu, memory = 320 * percent, 128 * 1024 * percent // 200

    def usage(of_cpu: float, of_memory: float) -> dict[str, Any]:
        return {"resources": {"cpu": f"{of_cpu:.0f}m", "memory": f"{of_memory:.0f}Mi"}}

    share = 0.95 / PODS_PER_NODE
    pods = [
        {
            "name": f"run-{each * nodes + number:06d}",
            "namespace": "default",
            "priority": "koord-prod",
            "qos": "LS",
            "podUsage": usage(cpu * share, memory * share),
        }
        for each in range(PODS_PER_NODE)
    ]
    status = {
        "updateTime": datetime.fromtimestamp(at, UTC).isoformat(),
        "nodeMetric": {
            "nodeUsage": usage(cpu, memory),
            "systemUsage": usage(cpu / 20, memory / 20),
        },
        "podsMetric": pods,
    }
    return json.dumps({"metadata": {"name": f"n{number:05d}"}, "status": status}).encode()


def _peak() -> float:
    """MiB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024
