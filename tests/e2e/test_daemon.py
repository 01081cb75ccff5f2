"""The chain on a real API server: what a pod uses becomes a status in the cluster."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from koord.kube.client import NODE_METRICS, PODS, ApiClient
from koord.kube.errors import KubeError
from koordlet.plugin.testing import FakeHost
from tests.support.kube.certificates import Authority
from tests.support.kube.kubelet import Kubelet, make_kubelet, rbac
from tests.support.processes.agent import running
from tests.support.real_apiserver.accounts import Accounts
from tests.support.real_apiserver.cluster_objects import READY, ClusterObjects
from tests.support.real_apiserver.control_plane import ControlPlane
from tests.support.real_apiserver.recorder import Recorder

NEW_UID = "66666666-7777-8888-9999-000000000000"
MIB = 2**20
TIMEOUT = 60.0  # real seconds
WARM = 12.0  # real seconds after which the host's steps do not matter any more
SPEC: dict[str, Any] = {
    "containers": [
        {"name": "app", "image": "app", "resources": {"requests": {"cpu": "100m"}}},
    ],
}
RUNNING = {
    **READY,
    "phase": "Running",
    "containerStatuses": [{"name": "app", "containerID": "containerd://c1"}],
}


def pod(uid: str, name: str, node: str) -> dict[str, Any]:
    """A pod as the kubelet has it."""
    return {
        "metadata": {"namespace": "shop", "name": name, "uid": uid},
        "spec": {"nodeName": node, **SPEC},
        "status": {"qosClass": "Burstable", **RUNNING},
    }


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[Kubelet]:
    """The kubelet of our node, over HTTPS with a CA of its own."""
    kubelet = make_kubelet(Authority(tmp_path))
    await kubelet.start()
    yield kubelet
    await kubelet.stop()


@pytest.fixture
async def uid(objects: ClusterObjects, kubelet: Kubelet, node_name: str) -> str:
    """The pod of our node, before koord-manager saw it.

    It has another name than with the kubelet, which shows the source of the list.
    """
    capacity = {"capacity": {"cpu": "4", "memory": "16Gi"}}
    await objects.add_node(node_name, {**capacity, **kubelet.status})
    made = await objects.add_pod("web-by-server", {"nodeName": node_name, **SPEC}, RUNNING)
    uid: str = made["metadata"]["uid"]
    kubelet.pods = [pod(uid, "web", node_name)]
    return uid


class BusyHost:
    """A host whose pod works by the real clock."""

    def __init__(self, directory: Path, uid: str) -> None:
        self.host = FakeHost(directory, cpus=4)
        self.pod = self.host.add_pod(uid)
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
async def busy(tmp_path: Path, uid: str) -> AsyncIterator[BusyHost]:
    busy = BusyHost(tmp_path / "host", uid)
    task = asyncio.create_task(busy.run())
    yield busy
    task.cancel()


class Daemon:
    """The process's answers on its control socket."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def status(self) -> dict[str, Any]:
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(self._socket))) as session,
            session.get("http://koordlet/status") as response,
        ):
            found: dict[str, Any] = await response.json()
            return found

    async def until(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        async with asyncio.timeout(TIMEOUT):
            while True:
                with contextlib.suppress(aiohttp.ClientError, OSError):
                    if holds(found := await self.status()):
                        return found
                await asyncio.sleep(0.02)


@pytest.fixture
async def daemon(
    tmp_path: Path, recorder: Recorder, accounts: Accounts, kubelet: Kubelet, busy: BusyHost,
    node_name: str,
) -> AsyncIterator[Daemon]:  # fmt: skip
    """The real process, beside koord-manager. It never asks the kubelet because time is over."""
    flags = (
        f"--kubelet-ca-file={tmp_path / 'ca.crt'}",
        "--kubelet-sync-interval=1h",
        "--manager-duties=off",
    )
    token = kubelet.token = await accounts.agent(node_name, "pods-from-api-server")
    async with running(tmp_path, busy.host, recorder.url, node_name, *flags, token=token):
        yield Daemon(tmp_path / "run" / "ctl.sock")


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
        async with asyncio.timeout(TIMEOUT):
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
    daemon: Daemon, busy: BusyHost, recorder: Recorder, kubelet: Kubelet, client: ApiClient,
    node_name: str, own_plane: ControlPlane,
) -> None:  # fmt: skip
    """From the NodeMetric's creation on, early after a sharp change, and through a restart."""
    metric = Metric(client, node_name)
    await asyncio.sleep(WARM)
    assert recorder.asked("patch") == []

    created = time.monotonic()
    await metric.create()
    first = await metric.status_after("")
    assert time.monotonic() - created < 20, "at once, not at its place in the 30 s"
    [pod] = first["podsMetric"]
    assert (pod["namespace"], pod["name"], pod["qos"]) == ("shop", "web", "LS")
    assert milli(pod["podUsage"]["resources"]["cpu"]) == pytest.approx(500, rel=0.05)
    assert pod["podUsage"]["resources"]["memory"] == "100Mi"
    node_cpu = milli(first["nodeMetric"]["nodeUsage"]["resources"]["cpu"])
    assert node_cpu == pytest.approx(500, rel=0.05)

    busy.cores = 3.0
    second = await metric.status_after(first["updateTime"])
    assert milli(second["podsMetric"][0]["podUsage"]["resources"]["cpu"]) > 550

    assert recorder.refused == []
    await asyncio.to_thread(own_plane.stop_server)
    await asyncio.sleep(2)
    await asyncio.to_thread(own_plane.start_server)
    # While it starts it refuses everything, as it does not know the roles yet.
    third = await metric.status_after(second["updateTime"])
    assert milli(third["podsMetric"][0]["podUsage"]["resources"]["cpu"]) > 900

    recorder.refused.clear()

    assert {rbac(entry) for entry in kubelet.requests} == {
        ("get", "nodes/pods"), ("get", "nodes/configz"),
    }  # fmt: skip
    assert not [entry for entry in recorder.requests if entry.path == PODS.collection()]
    assert {entry.verb for entry in recorder.requests} == {
        "list",
        "watch",
        "get",
        "patch",
        "create",
    }
    # While the server was away its metadata was asked for, before a report was sent.
    whole = [entry for entry in recorder.asked("get") if "Partial" not in entry.headers["Accept"]]
    assert len(whole) == 1, "the spec, once"
    for entry in recorder.requests:
        name = entry.json["metadata"]["name"] if entry.verb == "create" else entry.path
        assert node_name in entry.query.get("fieldSelector", name)


async def test_a_new_pod_is_known_by_its_cgroup(
    daemon: Daemon, busy: BusyHost, kubelet: Kubelet, node_name: str
) -> None:
    """It triggers a request to the kubelet before the next turn. It goes the same way."""
    await daemon.until(lambda status: "states" not in status["problems"])  # has the first list
    kubelet.pods.append(pod(NEW_UID, "new", node_name))
    group = busy.host.add_pod(NEW_UID)
    await daemon.until(lambda status: status["pods"] == 2)

    kubelet.pods.pop()
    group.remove()
    await daemon.until(lambda status: status["pods"] == 1)


async def test_the_server_lists_the_pods_of_a_kubelet_that_refuses(
    daemon: Daemon, busy: BusyHost, recorder: Recorder, kubelet: Kubelet, client: ApiClient,
    node_name: str,
) -> None:  # fmt: skip
    """Because it takes another token, say. Reports go on, and health says what to do."""
    kubelet.token = "another"
    busy.host.add_pod(NEW_UID)
    status = await daemon.until(lambda status: "source pod list" in status["problems"])
    problem = status["problems"]["source pod list"]
    assert "from the API server: GET /pods: refused with 401: Unauthorized; grant get" in problem

    metric = Metric(client, node_name)
    await metric.create()
    [reported] = (await metric.status_after(""))["podsMetric"]
    assert reported["name"] == "web-by-server"
    asked = [entry.verb for entry in recorder.requests if entry.path == PODS.collection()]
    assert asked == ["list", "watch"]
