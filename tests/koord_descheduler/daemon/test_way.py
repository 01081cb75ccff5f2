"""The way of a NodeMetric from the watch event to an eviction: the files in which functions run."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from koord.api.podmigrationjob import time_text
from koord.component.http.exposition import Exposition
from koord.component.plugins.discovery import discover
from koord.util.simulatedclock import SimulatedClock
from koord_descheduler.daemon.run import FAMILIES, load_settings, run_daemon
from tests.support.clusters import node
from tests.support.descheduler.migration import pod_json
from tests.support.kube.apiserver import ApiServer
from tests.support.kube.daemon_flags import kubeconfig
from tests.support.kube.inline_executor import InlineExecutor
from tests.support.kube.loopback_network import network_is_quiet
from tests.support.kube.object_store import Object, ObjectStore
from tests.support.kube.replicas import DaemonReplica, replicas
from tests.support.ways import NODE_METRIC, Way, shipped_config, walk

NODES, PODS, REPLICA_SETS = "/api/v1/nodes", "/api/v1/pods", "/apis/apps/v1/replicasets"
METRICS = "/apis/slo.koordinator.sh/v1alpha1/nodemetrics"
EVICTIONS = "/api/v1/namespaces/default/pods"
HOT, IDLE = 9000, 2000  # milli-cores of ten
PODS_OF_NODE = 5


class DatedStore(ObjectStore):
    """Dates what is created, as an API server does: a job without a date has timed out."""

    def __init__(self, clock: SimulatedClock) -> None:
        super().__init__()
        self._clock = clock

    def create(self, collection: str, item: Object) -> Object:
        item["metadata"].setdefault("creationTimestamp", time_text(self._clock.wall()))
        return super().create(collection, item)


def node_metric(name: str, milli_cores: int, at: float) -> Object:
    """A report of a node whose pods use what it uses."""

    def usage(cpu: int) -> Object:
        return {"resources": {"cpu": f"{cpu}m", "memory": "1Gi"}}

    pods = [
        {
            "namespace": "default",
            "name": f"{name}-{number}",
            "podUsage": usage(milli_cores // PODS_OF_NODE),
        }
        for number in range(PODS_OF_NODE)
    ]
    measured = {"nodeUsage": usage(milli_cores), "systemUsage": usage(0)}
    status = {"updateTime": time_text(at), "nodeMetric": measured, "podsMetric": pods}
    return {"metadata": {"name": name}, "spec": {}, "status": status}


@pytest.fixture
def warm(server: ApiServer, clock: SimulatedClock) -> ApiServer:
    """A cluster of three nodes, each with a ReplicaSet of its own, of which one is hot."""
    server.objects = DatedStore(clock)
    for name in ("n1", "n2", "n3"):
        server.objects.create(NODES, node(name, None, {"cpu": "10", "memory": "40Gi", "pods": "9"}))
        metadata = {"namespace": "default", "name": name, "uid": f"uid-{name}"}
        spec = {"replicas": PODS_OF_NODE}
        server.objects.create(REPLICA_SETS, {"metadata": metadata, "spec": spec})
        for number in range(PODS_OF_NODE):
            made = pod_json(f"{name}-{number}", node=name, owner=name, priority=9000)
            server.objects.create(PODS, made)
        usage = HOT if name == "n1" else IDLE
        server.objects.create(METRICS, node_metric(name, usage, clock.wall()))
    return server


async def test_a_node_metric_passes_the_files_of_its_way(
    tmp_path: Path, warm: ApiServer, clock: SimulatedClock, pass_time: Callable[..., Any]
) -> None:
    """With the shipped configuration and after another eviction; the next node gets hot."""
    asyncio.get_running_loop().set_default_executor(InlineExecutor())

    def make(directory: Path, config: str, *argv: str) -> DaemonReplica:
        replica = DaemonReplica(directory, clock, Exposition(FAMILIES, clock=clock))
        replica.config.write_text(config.replace("0.0.0.0:10251", f"127.0.0.1:{replica.port}"))
        replica.access.write_text(kubeconfig(warm.url))
        flags = [f"--config={replica.config}", "--secure-port=0", *argv]
        settings = load_settings(flags, {"KUBECONFIG": str(replica.access)}, discover=discover)
        replica.run(run_daemon(settings, replica.exposition, clock, stop=replica.stop))
        return replica

    def report(name: str, usage: int) -> None:
        warm.objects.replace(METRICS, node_metric(name, usage, clock.wall()))

    config = shipped_config("descheduler", "koord-descheduler.config")
    config = config.replace("dryRun: true", "dryRun: false\nleaderElection: {leaderElect: false}")
    config = config.replace("consecutiveAbnormalities: 5", "consecutiveAbnormalities: 1")
    way, began = Way(), clock.monotonic()
    async with replicas(make, tmp_path, clock, config) as start:
        start()
        await pass_time(lambda: bool(warm.asked("create", f"{EVICTIONS}/n1")), step=0.25)
        report("n1", IDLE)
        while clock.monotonic() < began + 59.5:  # a cycle a minute
            await network_is_quiet()
            await clock.advance(0.5)
        hot = node_metric("n2", HOT, clock.wall())
        way.end_with(warm, "POST", f"{EVICTIONS}/n2")
        await walk(way, clock, lambda: warm.objects.replace(METRICS, hot), seconds=5.0)

    way.check(NODE_METRIC)
