"""The chain on Kubernetes' own CRD server: what a pod uses becomes a status in the cluster."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from controlplane import ControlPlane
from front import Front
from realdaemon import running

from koordlet.kube.client import ApiClient
from koordlet.kube.config import ApiConfig
from koordlet.kube.errors import KubeError
from koordlet.kube.resource import NODE_METRICS, NODES, PODS
from koordlet.plugin.testing import FakeHost

UID = "11111111-2222-3333-4444-555555555555"
MIB = 2**20
PATIENCE = 60.0  # real seconds
WARM = 12.0  # real seconds after which the host's steps do not matter any more


@pytest.fixture
async def front(api_config: ApiConfig, client: ApiClient, node_name: str) -> AsyncIterator[Front]:
    """The cluster as our node sees it, with itself and one pod, before koord-manager saw it."""
    front = Front(api_config)
    front.objects.create(
        NODES.collection(),
        {"metadata": {"name": node_name}, "status": {"capacity": {"cpu": "4", "memory": "16Gi"}}},
    )
    front.objects.create(
        PODS.collection(),
        {
            "metadata": {"namespace": "shop", "name": "web", "uid": UID},
            "spec": {"nodeName": node_name, "containers": [{"name": "app"}]},
            "status": {
                "phase": "Running",
                "qosClass": "Burstable",
                "containerStatuses": [{"name": "app", "containerID": "containerd://c1"}],
            },
        },
    )
    await front.start()
    yield front
    await front.stop()


class BusyHost:
    """A host whose pod works by the real clock."""

    def __init__(self, directory: Path) -> None:
        self.host = FakeHost(directory, cpus=4)
        self.pod = self.host.add_pod(UID)
        self.pod.group.use_memory(100 * MIB)
        self.cores = 0.5

    async def run(self) -> None:
        """Count CPU time until cancelled, a little at a time."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.05)
            now = time.monotonic()
            used, last = self.cores * (now - last), now
            self.host.use_cpu(used, idle=4 * used)
            for group in (self.pod.group, *self.pod.containers.values()):
                group.use_cpu(used)


@pytest.fixture
async def busy(tmp_path: Path) -> AsyncIterator[BusyHost]:
    busy = BusyHost(tmp_path / "host")
    task = asyncio.create_task(busy.run())
    yield busy
    task.cancel()


@pytest.fixture
async def daemon(
    tmp_path: Path, front: Front, busy: BusyHost, node_name: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """The real process, on a node without a kubelet that could be asked, beside koord-manager."""
    flags = ("--disable-query-kubelet-config", "--manager-duties=off")
    async with running(tmp_path, busy.host, front.url, node_name, *flags) as daemon:
        yield daemon


class Metric:
    """The NodeMetric of our node on the real server."""

    def __init__(self, client: ApiClient, name: str) -> None:
        self._client, self._name = client, name

    async def create(self) -> None:
        """What koord-manager does."""
        policy = {"aggregateDurationSeconds": 60, "reportIntervalSeconds": 30}
        await self._client.create(
            NODE_METRICS.collection(),
            {
                "apiVersion": NODE_METRICS.api_version,
                "kind": "NodeMetric",
                "metadata": {"name": self._name},
                "spec": {"metricCollectPolicy": policy},
            },
        )

    async def status_after(self, last: str) -> dict[str, Any]:
        """Wait for a status that was measured later."""
        async with asyncio.timeout(PATIENCE):
            while True:
                await asyncio.sleep(0.1)
                try:
                    found = await self._client.get(NODE_METRICS.object(self._name))
                except KubeError:
                    continue  # it is being restarted
                if found.get("status", {}).get("updateTime", "") > last:
                    return found["status"]


def milli(text: str) -> int:
    return int(text[:-1]) if text.endswith("m") else int(text) * 1000


async def test_what_a_pod_uses_reaches_the_cluster(
    daemon, busy: BusyHost, front: Front, client: ApiClient, node_name: str, own_plane: ControlPlane
) -> None:
    """From the NodeMetric's creation on, early after a sharp change, and through a restart."""
    metric = Metric(client, node_name)
    await asyncio.sleep(WARM)
    assert front.asked("patch") == []

    created = time.monotonic()
    await metric.create()
    first = await metric.status_after("")
    assert time.monotonic() - created < 8
    [pod] = first["podsMetric"]
    assert (pod["namespace"], pod["name"], pod["qos"]) == ("shop", "web", "LS")
    assert milli(pod["podUsage"]["resources"]["cpu"]) == pytest.approx(500, rel=0.05)
    assert pod["podUsage"]["resources"]["memory"] == "100Mi"
    node_cpu = milli(first["nodeMetric"]["nodeUsage"]["resources"]["cpu"])
    assert node_cpu == pytest.approx(500, rel=0.05)

    busy.cores = 3.0
    second = await metric.status_after(first["updateTime"])
    assert milli(second["podsMetric"][0]["podUsage"]["resources"]["cpu"]) > 550

    await asyncio.to_thread(own_plane.stop_server)
    await asyncio.sleep(2)
    await asyncio.to_thread(own_plane.start_server)
    third = await metric.status_after(second["updateTime"])
    assert milli(third["podsMetric"][0]["podUsage"]["resources"]["cpu"]) > 900

    assert {entry.verb for entry in front.requests} == {"list", "watch", "get", "patch", "create"}
    assert len(front.asked("get")) == 1, "the spec, once"
    for entry in front.requests:
        name = entry.json["metadata"]["name"] if entry.verb == "create" else entry.path
        assert node_name in entry.query.get("fieldSelector", name)
