"""koord-scheduler with DeviceShare on a real API server, with the rights that ship."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from koord.api.annotations import DEVICE_ALLOCATED
from koord.kube.client import DEVICES, PODS, ApiClient
from tests.support.processes.control_plane import running_scheduler, scheduler_config
from tests.support.real_apiserver.accounts import Accounts
from tests.support.real_apiserver.cluster_objects import READY, SHOP, ClusterObjects
from tests.support.real_apiserver.control_plane import ControlPlane
from tests.support.real_apiserver.recorder import Recorder
from tests.support.scheduler.devices import CORE, MEMORY, RATIO, RDMA_SHARE, d8

NAME = "device-scheduler"
CONFIG = scheduler_config(NAME, "DeviceShare")
AMOUNTS = {
    "cpu": "64",
    "memory": "512Gi",
    "pods": "110",
    "nvidia.com/gpu": "8",
    CORE: "800",
    RATIO: "800",
    RDMA_SHARE: "400",
}


def asks(**requests: str) -> dict[str, Any]:
    """The spec of a pod with these requests; of extended resources limits are as high."""
    names = {"core": CORE, "ratio": RATIO, "gpu": "nvidia.com/gpu", "rdma": RDMA_SHARE}
    amounts = {names[key]: one for key, one in requests.items()}
    resources = {"requests": amounts, "limits": amounts}
    container = {"name": "app", "image": "app", "resources": resources}
    return {"schedulerName": NAME, "containers": [container]}


def devices(pod: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = json.loads(
        pod["metadata"]["annotations"][DEVICE_ALLOCATED]
    )
    return found


@pytest.fixture
async def node(client: ApiClient, objects: ClusterObjects, node_name: str) -> AsyncIterator[str]:
    """A node with 8 GPUs and 4 interfaces."""
    await objects.add_node(node_name, {**READY, "capacity": AMOUNTS, "allocatable": AMOUNTS})
    device = d8(node_name)
    del device["metadata"]["uid"]
    await client.create(DEVICES.collection(), device)
    yield node_name
    await client.delete(DEVICES.object(node_name))


async def test_pods_get_devices_and_wait_for_them(
    own_plane: ControlPlane,
    tmp_path: Path,
    client: ApiClient,
    recorder: Recorder,
    objects: ClusterObjects,
    accounts: Accounts,
    node: str,
) -> None:
    """A share, whole cards with a function, one that has to wait; after a restart nothing twice."""
    joint = {
        "scheduling.koordinator.sh/device-joint-allocate": '{"deviceTypes":["gpu","rdma"]}',
        "scheduling.koordinator.sh/device-allocate-hint": '{"rdma":{"vfSelector":{}}}',
    }
    token = await accounts.scheduler("scheduler/patch-pods")
    async with running_scheduler(tmp_path, recorder.url, CONFIG, token=token):
        await objects.add_pod("half", asks(core="50", ratio="50"))
        half = await objects.placed("half")
        assert devices(half)["gpu"] == [
            {
                "minor": 0,
                "resources": {CORE: "50", MEMORY: "41600608Ki", RATIO: "50"},
                "id": "GPU-0",
            }
        ]
        await objects.add_pod("joint", asks(gpu="2", rdma="1"), annotations=joint)
        both = devices(await objects.placed("joint"))
        assert [one["minor"] for one in both["gpu"]] == [2, 3]
        assert both["rdma"][0]["extension"] == {"vfs": [{"busID": "0000:90:00.2"}]}
    async with running_scheduler(tmp_path, recorder.url, CONFIG, token=token):
        await objects.add_pod("four", asks(gpu="4"))
        four = devices(await objects.placed("four"))
        assert [one["minor"] for one in four["gpu"]] == [4, 5, 6, 7]
        await objects.add_pod("last", asks(gpu="1"))
        last = devices(await objects.placed("last"))
        assert [one["minor"] for one in last["gpu"]] == [1]
        await objects.add_pod("waits", asks(core="60", ratio="60"))
        condition = await objects.pod_condition("waits", "PodScheduled")
        assert "Insufficient" in condition["message"]
        await client.delete(PODS.object("half", namespace=SHOP))
        late = devices(await objects.placed("waits"))
        assert [one["minor"] for one in late["gpu"]] == [0]
