"""koord-scheduler with NodeNUMAResource on a real API server, with the rights that ship."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from koord.api.annotations import RESOURCE_STATUS
from koord.kube.client import NODE_TOPOLOGIES, PODS, ApiClient
from tests.support.processes.control_plane import running_scheduler, scheduler_config
from tests.support.real_apiserver.accounts import Accounts
from tests.support.real_apiserver.cluster_objects import READY, SHOP, ClusterObjects
from tests.support.real_apiserver.control_plane import ControlPlane
from tests.support.real_apiserver.recorder import Recorder
from tests.support.scheduler.numa import held, topology_object

NAME = "numa-scheduler"
CONFIG = scheduler_config(NAME, "NodeNUMAResource")
AMOUNTS = {"cpu": "16", "memory": "64Gi", "pods": "110"}
LSR = {"koordinator.sh/qosClass": "LSR"}
SINGLE = {"scheduling.koordinator.sh/numa-topology-spec": '{"numaTopologyPolicy":"SingleNUMANode"}'}


def asks(cpu: str) -> dict[str, Any]:
    resources = {"requests": {"cpu": cpu, "memory": "1Gi"}, "limits": {"cpu": cpu, "memory": "1Gi"}}
    container = {"name": "app", "image": "app", "resources": resources}
    return {"schedulerName": NAME, "containers": [container]}


async def given(objects: ClusterObjects, name: str) -> Any:
    """What a pod has got, once it has a node; None: nothing."""
    pod = await objects.placed(name)
    text = pod["metadata"].get("annotations", {}).get(RESOURCE_STATUS)
    return None if text is None else json.loads(text)


@pytest.fixture
async def node(client: ApiClient, objects: ClusterObjects, node_name: str) -> AsyncIterator[str]:
    """A node with two NUMA nodes of 8 CPUs."""
    await objects.add_node(node_name, {**READY, "capacity": AMOUNTS, "allocatable": AMOUNTS})
    await client.create(NODE_TOPOLOGIES.collection(), topology_object(node_name))
    yield node_name
    await client.delete(NODE_TOPOLOGIES.object(node_name))


async def test_pods_get_cpus_and_wait_for_them(
    own_plane: ControlPlane,
    tmp_path: Path,
    client: ApiClient,
    recorder: Recorder,
    objects: ClusterObjects,
    accounts: Accounts,
    node: str,
) -> None:
    """After a restart nothing is given twice, and what a pod leaves is given to one that waits."""
    token = await accounts.scheduler("scheduler/patch-pods")
    async with running_scheduler(tmp_path, recorder.url, CONFIG, token=token):
        await objects.add_pod("four", asks("4"), labels=LSR)
        assert await given(objects, "four") == {"cpuset": "0-3"}
        await objects.add_pod("forged", asks("1"), annotations=held("0-15"))
        assert await given(objects, "forged") is None
        await objects.add_pod("single", asks("2"), annotations=SINGLE)
        amounts = {"cpu": "2", "memory": "1Gi"}
        assert await given(objects, "single") == {
            "numaNodeResources": [{"node": 0, "resources": amounts}]
        }
    async with running_scheduler(tmp_path, recorder.url, CONFIG, token=token):
        await objects.add_pod("eight", asks("8"), labels=LSR)
        assert await given(objects, "eight") == {"cpuset": "8-15"}
        await client.delete(PODS.object("forged", namespace=SHOP))
        await client.delete(PODS.object("single", namespace=SHOP))
        await objects.add_pod("waits", asks("8"), labels=LSR)
        condition = await objects.pod_condition("waits", "PodScheduled")
        assert condition["status"] == "False"
        await client.delete(PODS.object("eight", namespace=SHOP))
        assert await given(objects, "waits") == {"cpuset": "8-15"}
