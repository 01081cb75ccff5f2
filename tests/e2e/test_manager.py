"""koord-manager on a real API server, with the rights that ship."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from koord.api.nodemetric import time_text
from koord.kube.client import (
    CONFIG_MAPS,
    NODE_METRICS,
    NODE_SLOS,
    NODES,
    ApiClient,
)
from koord.kube.errors import KubeError
from tests.support.processes.control_plane import running_manager
from tests.support.real_apiserver.cluster_objects import ClusterObjects
from tests.support.real_apiserver.control_plane import ControlPlane
from tests.support.real_apiserver.recorder import Recorder

NAMESPACE = "koordinator-system"
BATCH_CPU = "kubernetes.io/batch-cpu"
ORIGIN = "node.koordinator.sh/originExtendedAllocatable"
PATIENCE = 30.0  # real seconds


def status(cpu: str) -> dict[str, Any]:
    usage = {"resources": {"cpu": cpu, "memory": "1Gi"}}
    return {
        "updateTime": time_text(time.time()),
        "nodeMetric": {
            "nodeUsage": usage,
            "systemUsage": {"resources": {"cpu": "1", "memory": "1Gi"}},
        },
        "podsMetric": [
            {"name": "a", "namespace": "shop", "priority": "koord-prod", "podUsage": usage}
        ],
    }


async def until(holds: Callable[[], Any]) -> Any:
    async with asyncio.timeout(PATIENCE):
        while True:
            if found := await holds():
                return found
            await asyncio.sleep(0.1)


async def test_a_node_offers_what_its_report_leaves(
    own_plane: ControlPlane, client: ApiClient, objects: ClusterObjects, manager_token: str,
    node_name: str, tmp_path: Path,
) -> None:  # fmt: skip
    """By one patch of its status, with annotations, beside a kubelet that writes the status too."""
    amounts = {"cpu": "10", "memory": "16Gi", "pods": "10"}
    await objects.add_node(node_name, {"capacity": amounts, "allocatable": amounts})
    config = {
        "metadata": {"name": "slo-controller-config", "namespace": NAMESPACE},
        "data": {"colocation-config": '{"enable":true,"cpuReclaimThresholdPercent":100}'},
    }
    await client.create(CONFIG_MAPS.collection(NAMESPACE), config)

    async def node() -> dict[str, Any]:
        return await client.get(NODES.object(node_name))

    async def batch(wanted: str) -> bool:
        return (await node())["status"]["allocatable"].get(BATCH_CPU) == wanted

    try:
        async with Recorder(own_plane.config) as recorder:
            async with running_manager(tmp_path, recorder.url, token=manager_token):
                await until(lambda: client_has(client, NODE_SLOS.object(node_name)))
                metric = await until(lambda: client_has(client, NODE_METRICS.object(node_name)))
                assert metric["spec"]["metricCollectPolicy"]["reportIntervalSeconds"] == 60
                assert metric["metadata"]["ownerReferences"][0]["name"] == node_name
                path = NODE_METRICS.object(node_name, subresource="status")
                uid = metric["metadata"]["uid"]
                await client.replace_status(path, uid, status("2"))
                await until(lambda: batch("7k"))
                found = await node()
                assert BATCH_CPU in found["metadata"]["annotations"][ORIGIN]
                assert found["status"]["capacity"][BATCH_CPU] == "7k"
                assert found["status"]["allocatable"]["cpu"] == "10"
                writes = [one for one in recorder.requests
                          if one.method == "PATCH" and "/nodes/" in one.path]  # fmt: skip
                assert len(writes) <= 2  # annotations at first, then what the report leaves
            assert [f"{one.verb} {one.path}" for one in recorder.refused] == []
    finally:
        await client.delete(CONFIG_MAPS.object("slo-controller-config", namespace=NAMESPACE))


async def client_has(client: ApiClient, path: str) -> dict[str, Any] | None:
    try:
        return await client.get(path)
    except KubeError:
        return None
