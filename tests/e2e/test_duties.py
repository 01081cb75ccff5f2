"""A node in a cluster without koord-manager, on a real API server."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from koord.kube.client import (
    CONFIG_MAPS,
    LEASES,
    MERGE_PATCH,
    NODE_METRICS,
    NODE_SLOS,
    NODES,
    ApiClient,
    Resource,
)
from koord.kube.errors import NotFound
from koordlet.cli.ctl.client import CtlClient
from koordlet.plugin.testing import FakeHost
from tests.support.processes.agent import running
from tests.support.real_apiserver.accounts import Accounts
from tests.support.real_apiserver.cluster_objects import ClusterObjects
from tests.support.real_apiserver.recorder import Recorder

TIMEOUT = 60.0  # real seconds


class Manager:
    """What an administrator and koord-manager do: ConfigMap and Lease."""

    def __init__(self, objects: ClusterObjects) -> None:
        self._objects = objects

    async def configure(self, interval: int, burst_percent: int) -> None:
        """Ask for reports every so many seconds, and for a CPU burst."""
        colocation = {"enable": True, "metricReportIntervalSeconds": interval}
        burst = {"clusterStrategy": {"cpuBurstPercent": burst_percent}}
        data = {"colocation-config": json.dumps(colocation), "cpu-burst-config": json.dumps(burst)}
        await self._store(CONFIG_MAPS, "slo-controller-config", {"data": data})

    async def renew_lease(self, time: str) -> None:
        spec = {"holderIdentity": "manager", "leaseDurationSeconds": 15, "renewTime": time}
        await self._store(LEASES, "koordinator-manager", {"spec": spec})

    async def _store(self, resource: Resource, name: str, item: dict[str, Any]) -> None:
        await self._objects.have(resource, name, item, namespace="koordinator-system")


class Mine:
    """The objects of our node on the real server, and what the daemon says of them."""

    def __init__(self, client: ApiClient, name: str, run_dir: Path) -> None:
        self._client, self._name, self._ctl = client, name, CtlClient([run_dir])

    async def get(self, resource: Resource) -> dict[str, Any]:
        """The object; without fields while there is none."""
        try:
            return await self._client.get(resource.object(self._name))
        except NotFound:
            return {}

    async def is_reported(self) -> bool:
        return "nodeMetric" in (await self.get(NODE_METRICS)).get("status", {})

    async def interval(self) -> int:
        return (await self.get(NODE_METRICS))["spec"]["metricCollectPolicy"][
            "reportIntervalSeconds"
        ]

    async def burst(self) -> int:
        return (await self.get(NODE_SLOS))["spec"]["cpuBurstStrategy"]["cpuBurstPercent"]

    async def state(self, kind: str) -> str:
        status = await asyncio.to_thread(self._ctl.get, "status")
        return status["manager_duties"][kind]


def managers(item: dict[str, Any]) -> set[tuple[str, str]]:
    """Who wrote an object: field manager and subresource."""
    entries = item["metadata"]["managedFields"]
    return {(entry["manager"], entry.get("subresource", "")) for entry in entries}


async def until(ask: Callable[[], Awaitable[object]], answer: object) -> None:
    async with asyncio.timeout(TIMEOUT):
        while await ask() != answer:  # noqa: ASYNC110 - the server has no event to await
            await asyncio.sleep(0.1)


async def test_the_node_keeps_its_objects_until_a_manager_is_seen(
    tmp_path: Path, recorder: Recorder, client: ApiClient, objects: ClusterObjects,
    accounts: Accounts, node_name: str,
) -> None:  # fmt: skip
    """It makes them and follows the ConfigMap, until others write them or renew the Lease."""
    host, flag = FakeHost(tmp_path / "host", cpus=4), "--disable-query-kubelet-config"
    node, manager = Mine(client, node_name, tmp_path / "run"), Manager(objects)
    await objects.add_node(node_name, {"capacity": {"cpu": "4", "memory": "16Gi"}})
    uid = (await client.get(NODES.object(node_name)))["metadata"]["uid"]
    token = await accounts.agent(node_name, "manager-duties", "pods-from-api-server")
    async with running(tmp_path, host, recorder.url, node_name, flag, token=token):
        await until(node.is_reported, True)
        metric, slo = await node.get(NODE_METRICS), await node.get(NODE_SLOS)
        assert managers(metric) == {("koordlet-duties", ""), ("koordlet-reporter", "status")}
        assert managers(slo) == {("koordlet-duties", "")}
        for item in (metric, slo):
            assert [owner["uid"] for owner in item["metadata"]["ownerReferences"]] == [uid]

        await manager.configure(interval=30, burst_percent=400)
        await until(node.interval, 30)
        await until(node.burst, 400)
        assert len(recorder.asked("patch", NODE_SLOS.collection())) == 1

        burst = {"spec": {"cpuBurstStrategy": {"cpuBurstPercent": 700}}}
        path = NODE_SLOS.object(node_name)
        await client.patch(path, burst, MERGE_PATCH, field_manager="koordinator-manager")
        left = "left alone: koordinator-manager writes its spec"
        await until(lambda: node.state("NodeSLO"), left)
        await manager.configure(interval=40, burst_percent=500)
        await until(node.interval, 40)
        assert await node.burst() == 700

        await manager.renew_lease("2026-07-24T06:00:00.000000Z")
        left = "left alone: koord-manager holds its Lease"
        await until(lambda: node.state("NodeMetric"), left)
        await manager.configure(interval=50, burst_percent=600)
        await manager.renew_lease("2026-07-24T06:00:02.000000Z")
        await asyncio.sleep(1)
        assert (await node.interval(), await node.burst()) == (40, 700)
    created = [entry.path for entry in recorder.asked("create", "/apis/slo.koordinator.sh")]
    assert sorted(created) == [NODE_METRICS.collection(), NODE_SLOS.collection()]
