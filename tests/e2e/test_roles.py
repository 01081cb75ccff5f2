"""The real process with the arguments of the manifests, where RBAC allows what their role does."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from koord.kube.client import NODE_METRICS, NODE_SLOS, NODE_TOPOLOGIES, PODS, ApiClient, Resource
from koord.kube.errors import NotFound
from koordlet.plugin.testing import FakeHost
from tests.support.deploy.overlay import overlay
from tests.support.kube.certificates import Authority
from tests.support.kube.kubelet import Kubelet, make_kubelet
from tests.support.processes.agent import running
from tests.support.real_apiserver.accounts import Accounts
from tests.support.real_apiserver.cluster_objects import READY, ClusterObjects
from tests.support.real_apiserver.recorder import Recorder
from tests.support.real_apiserver.rights import of_server

TIMEOUT = 90.0  # real seconds
CONTAINER = {"name": "app", "image": "app", "resources": {"requests": {"cpu": "100m"}}}
RUNNING = {
    **READY,
    "phase": "Running",
    "containerStatuses": [{"name": "app", "containerID": "containerd://c1"}],
}
# Where a test has the host's directories.
OF_THE_HOST = ("--sys-root-dir", "--sys-fs-root-dir", "--run-dir")


class Cluster:
    """One node as the manifests have it."""

    def __init__(
        self, recorder: Recorder, client: ApiClient, made: list[dict[str, Any]], node: str,
        token: str, uid: str,
    ) -> None:  # fmt: skip
        self.recorder, self.client, self.node = recorder, client, node
        self.token, self.uid = token, uid
        [daemonset] = [each for each in made if each["kind"] == "DaemonSet"]
        [container] = daemonset["spec"]["template"]["spec"]["containers"]
        self.args = [
            each for each in container["args"] if each.partition("=")[0] not in OF_THE_HOST
        ]

    async def manage(self) -> None:
        """What koord-manager does."""
        policy = {"aggregateDurationSeconds": 60, "reportIntervalSeconds": 10}
        for resource, kind, spec in (
            (NODE_METRICS, "NodeMetric", {"metricCollectPolicy": policy}),
            (NODE_SLOS, "NodeSLO", {}),
        ):
            await self.client.create(
                resource.collection(),
                {
                    "apiVersion": resource.api_version,
                    "kind": kind,
                    "metadata": {"name": self.node},
                    "spec": spec,
                },
            )

    async def has(self, resource: Resource, field: str = "metadata") -> bool:
        try:
            return field in await self.client.get(resource.object(self.node))
        except NotFound:
            return False

    async def is_reported(self) -> bool:
        return (
            await self.has(NODE_METRICS, "status")
            and await self.has(NODE_SLOS)
            and await self.has(NODE_TOPOLOGIES)
        )


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[Kubelet]:
    """A kubelet whose certificate the cluster's CA has signed."""
    kubelet = make_kubelet(Authority(tmp_path))
    await kubelet.start()
    yield kubelet
    await kubelet.stop()


@pytest.fixture
async def cluster(
    request: pytest.FixtureRequest, render: Any, tmp_path: Path, recorder: Recorder,
    objects: ClusterObjects, accounts: Accounts, client: ApiClient, node_name: str,
    kubelet: Kubelet,
) -> Cluster:  # fmt: skip
    """The manifests with the components that the test names, applied."""
    (tmp_path / "overlay").mkdir()
    made = render(overlay(tmp_path / "overlay", *request.param))
    capacity = {"capacity": {"cpu": "4", "memory": "16Gi"}}
    await objects.add_node(node_name, {**capacity, **kubelet.status})
    spec = {"nodeName": node_name, "containers": [CONTAINER]}
    pod = await objects.add_pod("web", spec, RUNNING)
    kubelet.pods = [pod]
    kubelet.token = await accounts.agent(node_name, *request.param)
    uid = pod["metadata"]["uid"]
    return Cluster(recorder, client, made, node_name, kubelet.token, uid)


async def problems(run_dir: Path) -> dict[str, str] | None:
    """What the daemon finds wrong with itself; None while it cannot be asked."""
    with contextlib.suppress(aiohttp.ClientError, OSError):
        connector = aiohttp.UnixConnector(str(run_dir / "ctl.sock"))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get("http://koordlet/status") as response,
        ):
            found: dict[str, str] = (await response.json())["problems"]
            return found
    return None


async def until(ask: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not await ask():  # noqa: ASYNC110 - the server has no event to await
            await asyncio.sleep(0.1)


async def healthy(cluster: Cluster, directory: Path, *args: str) -> None:
    """Run it until it has reported and finds nothing wrong."""
    host = FakeHost(directory / "host", cpus=4)
    host.add_pod(cluster.uid)
    async with running(
        directory,
        host,
        cluster.recorder.url,
        cluster.node,
        *cluster.args,
        *args,
        token=cluster.token,
    ):

        async def is_well() -> bool:
            return await cluster.is_reported() and await problems(directory / "run") == {}

        await until(is_well)


@pytest.mark.parametrize("cluster", [(), ("measure-only",)], indirect=True, ids=str)
async def test_the_default_asks_for_what_its_role_allows(cluster: Cluster, tmp_path: Path) -> None:
    """Beside koord-manager and a trusted kubelet: no pods, no events, no evictions."""
    await cluster.manage()

    await healthy(cluster, tmp_path, f"--kubelet-ca-file={tmp_path / 'ca.crt'}")

    assert cluster.recorder.asked("list", PODS.collection()) == []
    assert {each.verb for each in cluster.recorder.requests} >= {"list", "watch", "patch", "create"}


@pytest.mark.parametrize("cluster", [("manager-duties",)], indirect=True, ids=str)
async def test_without_koord_manager_the_component_is_enough(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The agent makes both objects of its node."""
    await healthy(cluster, tmp_path, f"--kubelet-ca-file={tmp_path / 'ca.crt'}")

    assert await cluster.has(NODE_SLOS, "spec")


@pytest.mark.parametrize("cluster", [("pods-from-api-server",)], indirect=True, ids=str)
async def test_pods_of_the_api_server_need_their_component(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Where the kubelet is not asked."""
    await cluster.manage()

    await healthy(cluster, tmp_path, "--kubelet-sync-interval=0", "--disable-query-kubelet-config")

    assert cluster.recorder.asked("list", PODS.collection())


@pytest.mark.parametrize("cluster", [()], indirect=True, ids=str)
async def test_a_right_that_is_missing_is_named(cluster: Cluster, tmp_path: Path) -> None:
    """The default, and a kubelet of an unknown CA: what is wrong says where to go."""
    await cluster.manage()
    host = FakeHost(tmp_path / "host", cpus=4)
    async with running(
        tmp_path, host, cluster.recorder.url, cluster.node, *cluster.args, token=cluster.token
    ):

        async def says_so() -> bool:
            found = await problems(tmp_path / "run") or {}
            return "component pods-from-api-server" in found.get("source pod list", "")

        await until(says_so)
    assert {of_server(each).resource for each in cluster.recorder.refused} == {"pods"}
    cluster.recorder.refused.clear()
