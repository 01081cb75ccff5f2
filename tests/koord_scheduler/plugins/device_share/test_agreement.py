"""What the scheduler writes is what the agent grants: one node, from its report to its containers.

The Device object is the one that koordlet makes; the pods are placed by DeviceShare; the rules
behind koordlet's hooks then read the pods.
"""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koord.api.annotations import DEVICE_ALLOCATED
from koord.api.devices.requests import (
    ALLOCATE_HINT,
    JOINT_ALLOCATE,
)
from koord.api.node import parse_node
from koord.api.pod import Pod, parse_pod
from koord_scheduler.plugin.testing import PluginHarness, fake_cluster, make_pod
from koord_scheduler_plugins.device_share.plugin import DEVICE_OBJECTS, DeviceShare
from koordlet.rules.allocated_devices import gpu_environment, kubelet_devices
from koordlet.rules.allocations import pod_allocation, refused_allocations
from koordlet.rules.device_object import new_device_object
from koordlet.rules.devices import (
    DeviceTopology,
    Gpu,
    GpuSet,
    NodeDevices,
    RdmaInterface,
    XpuSet,
    node_devices,
)
from tests.support.scheduler.devices import CARD, CORE, MEMORY, RATIO, RDMA_SHARE

LIBRARY = "/usr/local/hami/libvgpu.so"
HAMI = {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}
NODE_OBJECT = {"metadata": {"name": "n1", "uid": "u1", "labels": HAMI}, "status": {}}
GPUS = GpuSet(
    "550",
    tuple(
        Gpu(
            uuid=f"GPU-{minor}",
            minor=minor,
            model="NVIDIA H800",
            memory=CARD,
            topology=DeviceTopology(minor // 4, f"pci0000:{minor // 2}0", f"0000:{minor}1:00.0"),
        )
        for minor in range(8)
    ),
)
NICS = tuple(
    RdmaInterface(
        name=f"mlx5_{at}",
        minor=at,
        topology=DeviceTopology(at // 2, f"pci0000:{at}0", f"0000:{at}9:00.0"),
        functions=tuple(f"0000:{at}9:00.{number}" for number in range(2, 8)),
        ports=1,
    )
    for at in range(4)
)
JOINT = {
    JOINT_ALLOCATE: '{"deviceTypes":["gpu","rdma"]}',
    ALLOCATE_HINT: '{"rdma":{"vfSelector":{}}}',
}
SHARED = "koordinator.sh/gpu.shared"
PODS: dict[str, tuple[dict[str, int], dict[str, str]]] = {
    "half": ({SHARED: 1, CORE: 50, RATIO: 50}, {}),
    "tenth": ({CORE: 10, RATIO: 10}, {}),
    "memory": ({MEMORY: 3 * 2**30}, {}),
    "memory-and-core": ({CORE: 30, MEMORY: CARD // 3}, {}),
    "two-halves": ({SHARED: 2, CORE: 100, RATIO: 100}, {}),
    "percent": ({"koordinator.sh/gpu": 200}, {}),
    "two": ({"nvidia.com/gpu": 2}, {}),
    "cores-and-memory": ({CORE: 200, MEMORY: CARD}, {}),
    "joint": ({"nvidia.com/gpu": 3, RDMA_SHARE: 1}, JOINT),
    "function": ({RDMA_SHARE: 1}, {ALLOCATE_HINT: '{"rdma":{"vfSelector":{}}}'}),
    "nic": ({RDMA_SHARE: 100}, {}),
    "all": ({RDMA_SHARE: 1}, {ALLOCATE_HINT: '{"rdma":{"allocateStrategy":"ApplyForAll"}}'}),
    "three": ({RDMA_SHARE: 3}, {ALLOCATE_HINT: '{"rdma":{"allocateStrategy":"RequestsAsCount"}}'}),
}


def reported() -> NodeDevices:
    return node_devices(GPUS, XpuSet(), NICS)


def spec(requests: dict[str, int]) -> dict[str, Any]:
    texts = {name: str(amount) for name, amount in requests.items()}
    return {"containers": [{"name": "main", "resources": {"requests": texts, "limits": texts}}]}


async def place(names: list[str]) -> tuple[list[Pod], int]:
    """Place pods one after the other; return those that have a node, as the agent sees them."""
    cluster = fake_cluster()
    cluster.node("n1", labels=HAMI)
    harness = PluginHarness(DeviceShare, cluster)
    made = new_device_object("n1", parse_node(NODE_OBJECT), reported(), 0.0)
    harness.informers.apply(DEVICE_OBJECTS, json.loads(json.dumps(made)))
    found = []
    async with harness:
        for number, name in enumerate(names):
            requests, annotations = PODS[name]
            key = f"p{number}"
            pod = make_pod(key, spec=spec(requests), annotations=annotations, labels=HAMI)
            done = await harness.schedule(pod)
            if done.node is None:
                continue
            written = cluster.state.pod(f"default/{key}")
            assert written is not None
            found.append(
                parse_pod(
                    {
                        "metadata": {
                            "name": key,
                            "namespace": "default",
                            "uid": f"uid-{key}",
                            "labels": HAMI,
                            "annotations": dict(written.annotations),
                            "creationTimestamp": f"2026-01-01T00:00:{number:02}Z",
                        },
                        "spec": {**spec(requests), "nodeName": "n1"},
                    }
                )
            )
    return found, len(names)


def check(pods: list[Pod]) -> None:
    """The agent refuses nothing, and no two pods get the same whole device or function."""
    claims = [(pod, pod_allocation(pod)) for pod in pods]
    assert [claim.refused for _, claim in claims] == [()] * len(pods)
    assert refused_allocations(claims, {}) == {}
    for pod in pods:
        given = json.loads(pod.annotations[DEVICE_ALLOCATED])
        devices = dict(kubelet_devices(pod, reported()))
        cards = [one["minor"] for one in given.get("gpu", ())]
        assert devices.get("nvidia.com/gpu", ()) == tuple(f"GPU-{minor}" for minor in cards)
        functions = [
            function["busID"]
            for one in given.get("rdma", ())
            for function in one.get("extension", {}).get("vfs", ({"busID": one["id"]},))
        ]
        assert devices.get(RDMA_SHARE, ()) == tuple(functions)
        env = gpu_environment(pod, "main", reported(), LIBRARY, monitored=False).env
        if cards:
            assert env["NVIDIA_VISIBLE_DEVICES"] == ",".join(map(str, cards))


@pytest.mark.parametrize("name", PODS)
async def test_the_agent_grants_what_the_scheduler_has_written(name):
    pods, _ = await place([name])
    assert len(pods) == 1
    check(pods)


async def test_shares_have_limits_and_whole_cards_have_none():
    [half, whole, memory], _ = await place(["half", "two", "memory"])
    limits = [
        {
            name: text
            for name, text in gpu_environment(
                pod, "main", reported(), LIBRARY, monitored=False
            ).env.items()
            if name.startswith("CUDA_DEVICE")
        }
        for pod in (half, whole, memory)
    ]
    assert limits == [
        {"CUDA_DEVICE_MEMORY_LIMIT": str(CARD // 2), "CUDA_DEVICE_SM_LIMIT": "50"},
        {},
        {"CUDA_DEVICE_MEMORY_LIMIT": str(3 * 2**30)},
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.sampled_from(sorted(PODS)), max_size=25))
async def test_a_full_node_is_granted_as_a_whole(names):
    pods, asked = await place(names)
    assert len(pods) <= asked
    check(pods)
