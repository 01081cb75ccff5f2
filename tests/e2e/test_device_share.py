"""koord-scheduler with DeviceShare on a real API server, with the rights that ship."""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from koord.api.annotations import DEVICE_ALLOCATED
from koord.kube.client import CONFIG_MAPS, DEVICES, PODS, ApiClient, Resource
from koord.kube.errors import AlreadyExists
from tests.support.processes.control_plane import running_scheduler, scheduler_config
from tests.support.real_apiserver.accounts import Accounts
from tests.support.real_apiserver.cluster_objects import READY, SHOP, ClusterObjects
from tests.support.real_apiserver.control_plane import ControlPlane
from tests.support.real_apiserver.recorder import Recorder
from tests.support.scheduler.devices import (
    CORE,
    MEMORY,
    RATIO,
    RDMA_SHARE,
    d8,
    device_object,
    gpu,
)

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


PLACE, TEMPLATES = "koordinator-system", "gpu-shared-resource-templates"
NPU = {
    MEMORY: str(24 << 30),
    RATIO: "100",
    "huawei.com/npu-core": "8",
    "huawei.com/npu-cpu": "7",
    "huawei.com/npu-dvpp": "100",
}
VIR01 = {
    MEMORY: str(3 << 30),
    "huawei.com/npu-core": "1",
    "huawei.com/npu-cpu": "1",
    "huawei.com/npu-dvpp": "12",
    "koordinator.sh/gpu.shared": "1",
}


@pytest.fixture
async def npu(client: ApiClient, objects: ClusterObjects, node_name: str) -> AsyncIterator[str]:
    """A node with an NPU, and the namespace of the templates."""
    amounts = {"cpu": "8", "pods": "110", "koordinator.sh/gpu.shared": "100", **NPU}
    labels = {
        "node.koordinator.sh/gpu-vendor": "huawei",
        "node.koordinator.sh/gpu-model": "Ascend-310P",
    }
    status = {**READY, "capacity": amounts, "allocatable": amounts}
    await objects.add_node(node_name, status, labels=labels)
    device = device_object(node_name, [gpu(0, resources=NPU)])
    del device["metadata"]["uid"]
    await client.create(DEVICES.collection(), device)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": PLACE}}
    with contextlib.suppress(AlreadyExists):
        await client.create(Resource("v1", "namespaces").collection(), namespace)
    yield node_name
    await client.delete(DEVICES.object(node_name))


async def test_templates_come_from_their_config_map(
    own_plane: ControlPlane,
    tmp_path: Path,
    client: ApiClient,
    recorder: Recorder,
    objects: ClusterObjects,
    accounts: Accounts,
    npu: str,
) -> None:
    """The role lets no other ConfigMap be read; the pod waits until there is a template."""
    token = await accounts.scheduler("scheduler/patch-pods")
    async with running_scheduler(tmp_path, recorder.url, CONFIG, token=token):
        resources = {"requests": VIR01, "limits": VIR01}
        container = {"name": "app", "image": "app", "resources": resources}
        await objects.add_pod("npu", {"schedulerName": NAME, "containers": [container]})
        condition = await objects.pod_condition("npu", "PodScheduled")
        assert "no matched GPU shared resource template" in condition["message"]
        amounts = "".join(
            f"    {name}: {each}\n" for name, each in VIR01.items() if "shared" not in name
        )
        text = f"huawei-Ascend-310P:\n  vir01:\n{amounts}"
        meta = {"name": TEMPLATES, "namespace": PLACE}
        config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}
        await client.create(
            CONFIG_MAPS.collection(PLACE), {**config_map, "data": {"data.yaml": text}}
        )
        [card] = devices(await objects.placed("npu"))["gpu"]
        assert card["extension"] == {"gpuSharedResourceTemplate": "vir01"}
    await client.delete(CONFIG_MAPS.object(TEMPLATES, namespace=PLACE))
