"""koord-manager: reports of 30 pods a node once a minute, read and made resources of the nodes.

First without the connection to an API server, and with the garbage collector as it is by default.
Then as a process on the bed: how long after a NodeMetric event the patch of its node is seen, by a
client that watches both.
"""

import asyncio
import gc
import http.client
import itertools
import json
import os
import re
import shutil
import statistics
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from benchmarks.bed.machine import cpu_seconds, tree
from benchmarks.bed.running import Bed
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
LATENCY_BUDGET = 1.0  # seconds, median
PROGRAM = Path(sys.executable).with_name("koord-manager")
REPORTS = 5_000 / 60  # a second
_NAME = re.compile(rb'"name":"(n[0-9]+)"')
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
            limits=plugins.limits,
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
    if shutil.which("go") is not None:
        yield from _on_the_bed(smoke=smoke)


def _on_the_bed(*, smoke: bool) -> Iterator[Row]:
    """Yield the time from a report to the patch of its node, and the CPU time with a connection.

    As many reports come as of 5,000 nodes a minute, and each third one changes what a node offers:
    all at once would be more than the 50 requests a second that the daemon allows itself.
    """
    nodes, seconds = (100, 8.0) if smoke else (1_000, 48.0)
    config_map = {
        "metadata": {"name": "slo-controller-config", "namespace": "koordinator-system"},
        "data": {"colocation-config": '{"enable": true}'},
    }
    config = {"apiVersion": "manager/v1alpha1", "kind": "ManagerConfiguration"}
    with Bed() as bed:
        use = {"hot": 0, "low": 1, "lowPct": 15}  # so that a change is below 30 percent
        bed.call("/bed/seed", {"nodes": nodes, "podsPerNode": PODS, "zones": 3, "metric": use})
        bed.call("/api/v1/namespaces/koordinator-system/configmaps", config_map)
        bed.run([str(PROGRAM), "--config={config}", "--port=0", "--secure-port=0"], config)
        bed.logged("cluster.synced")
        time.sleep(nodes / 10)  # NodeMetrics and NodeSLOs are as they should be
        reporter = _Reporter(bed.url, nodes)
        patches = _Patches(bed.url)
        time.sleep(3 * nodes / REPORTS)
        bed.check()
        used, began = cpu_seconds(tree(bed.program.pid)), time.monotonic()
        time.sleep(seconds)
        bed.check()
        ended = time.monotonic()
        cores = (cpu_seconds(tree(bed.program.pid)) - used) / (ended - began)
        reporter.stop()
    delays = sorted(_delays(reporter.changes, patches.events, began, ended))
    if len(delays) < seconds * REPORTS / 6:
        raise RuntimeError(f"wanted a patch for each third report, found {len(delays)}")
    what = f"manager on the bed, {nodes:,} nodes"
    yield Row(f"{what}: cores", cores, "cores")
    median = statistics.median(delays)
    yield Row(f"{what}: report to patch", median, "s", budget=LATENCY_BUDGET)
    yield Row("  the 99th percentile", delays[int(len(delays) * 0.99)], "s")
    yield Row("  patches a second", len(delays) / (ended - began), "1/s")


class _Reporter:
    """Patches the status of one NodeMetric after the other, as agents do, until it is stopped."""

    def __init__(self, url: str, nodes: int) -> None:
        self.changes: dict[str, list[float]] = {}  # by node: when its use has changed
        self._connection = http.client.HTTPConnection(url.removeprefix("http://"))
        self._nodes = nodes
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End. Returns when nothing is sent any more."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        began = time.monotonic()
        for number in itertools.count():
            if self._ended.wait(max(0.0, began + number / REPORTS - time.monotonic())):
                return
            turn, node = divmod(number, self._nodes)
            name, step = f"n{node:05d}", node + turn
            before = time.monotonic()
            self._send(name, 1 + step // 3 % 2 * 3)
            if turn and step % 3 == 0:
                self.changes.setdefault(name, []).append(before)

    def _send(self, name: str, cores: int) -> None:
        usage = {"resources": {"cpu": str(cores), "memory": "4Gi"}}
        metric = {"systemUsage": usage, "nodeUsage": usage}
        status = {"updateTime": time_text(time.time()), "nodeMetric": metric}
        path = f"/apis/slo.koordinator.sh/v1alpha1/nodemetrics/{name}/status"
        headers = {"Content-Type": "application/merge-patch+json"}
        self._connection.request("PATCH", path, json.dumps({"status": status}), headers)
        with self._connection.getresponse() as answer:
            answer.read()
            if answer.status != 200:
                raise RuntimeError(f"wanted a patched NodeMetric, found {answer.status}")


class _Patches:
    """The changes of nodes on the bed, and when they came; until the bed ends."""

    def __init__(self, url: str) -> None:
        self.events: list[tuple[float, str]] = []  # time and name
        watch = f"{url}/api/v1/nodes?watch=true&timeoutSeconds=3600"
        self._stream = urllib.request.urlopen(watch, timeout=600)
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        try:
            for line in self._stream:
                found = _NAME.search(line)
                if found is not None:
                    self.events.append((time.monotonic(), found[1].decode()))
        except OSError:
            pass  # the bed has ended


def _delays(
    changes: Mapping[str, list[float]],
    patches: list[tuple[float, str]],
    began: float,
    ended: float,
) -> Iterator[float]:
    """Yield for each change of a node how long it took until the next patch of it."""
    by_node: dict[str, list[float]] = {}
    for at, name in patches:
        by_node.setdefault(name, []).append(at)
    for name, times in changes.items():
        for at in times:
            after = next((one for one in by_node.get(name, ()) if one >= at), None)
            if began <= at <= ended and after is not None:
                yield after - at


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
