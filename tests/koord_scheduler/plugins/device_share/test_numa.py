"""Devices and NUMA nodes: hints, and DeviceShare beside NodeNUMAResource (spec 09, 19.8, 19.15)."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from koord.api.annotations import DEVICE_ALLOCATED, AllocatedDevice
from koord.api.devices.allocation import FILTERING, DevicesUnavailable
from koord.api.devices.requests import (
    ALLOCATE_HINT,
    JOINT_ALLOCATE,
    PodDevices,
    pod_devices,
)
from koord_scheduler.plugin.koordinator import NUMATopologyHint
from koord_scheduler.plugin.testing import ProfileHarness, fake_cluster, make_pod
from koord_scheduler_plugins.device_share.hints import MAX_MASKS, device_hints
from koord_scheduler_plugins.device_share.plugin import DEVICE_OBJECTS
from koord_scheduler_plugins.device_share.reserved import designated_table
from koord_scheduler_plugins.node_numa_resource.plugin import TOPOLOGIES
from tests.support.scheduler.devices import (
    RDMA_SHARE,
    d8,
    device_object,
    gpu,
    table,
    whole,
)
from tests.support.scheduler.numa import topology_object

POLICY = "node.koordinator.sh/numa-topology-policy"
COUNT = {"allocateStrategy": "RequestsAsCount"}


def wants(
    gpus: int = 0, rdma: int = 0, hint: dict[str, object] | None = None, *, joint: bool = False
) -> PodDevices:
    annotations = {ALLOCATE_HINT: json.dumps({"rdma": hint or {}})}
    if joint:
        annotations[JOINT_ALLOCATE] = '{"deviceTypes":["gpu","rdma"]}'
    found = pod_devices([("nvidia.com/gpu", gpus), (RDMA_SHARE, rdma)], annotations)
    assert found is not None
    return found


def hint(*nodes: int, preferred: bool = True, score: int = 0) -> NUMATopologyHint:
    return NUMATopologyHint(frozenset(nodes), preferred, score)


ROW_1 = [hint(0, score=500), hint(1), hint(0, 1, preferred=False, score=500)]


@pytest.mark.parametrize(
    ("wanted", "used", "expected"),
    [
        (wants(1, 2), (), {"gpu": ROW_1, "rdma": ROW_1}),
        (
            wants(4),
            (0,),
            {"gpu": [hint(1, score=500), hint(0, 1, preferred=False, score=500)]},
        ),
        (
            wants(rdma=2, hint=COUNT),
            (),
            {
                "rdma": [
                    hint(0, score=500),
                    hint(1, score=500),
                    hint(0, 1, preferred=False, score=500),
                ]
            },
        ),
        (wants(rdma=4, hint={**COUNT, "vfSelector": {}}), (), {"rdma": [hint(0, 1, score=500)]}),
        (wants(1, 1, {"vfSelector": {}}, joint=True), (), {"gpu": ROW_1, "rdma": ROW_1}),
    ],
)
def test_hints(wanted, used, expected):
    assert device_hints(table(d8(), whole(*used)), wanted, FILTERING) == expected


def test_hints_of_devices_that_a_pod_comes_with():
    """Upstream gives the hint of their NUMA nodes alone; larger sets are never preferred here."""
    wanted = wants(2)
    given = {"gpu": [AllocatedDevice(minor, "", {}) for minor in (4, 5)]}
    found = device_hints(designated_table(table(d8()), wanted, given), wanted, FILTERING)
    assert found == {"gpu": [hint(1, score=500), hint(0, 1, preferred=False, score=500)]}


def test_more_devices_than_the_node_has_are_refused():
    with pytest.raises(DevicesUnavailable, match="Insufficient NUMA Scoped Devices") as raised:
        device_hints(table(d8()), wants(17), FILTERING)
    assert raised.value.final
    fpga = pod_devices([("koordinator.sh/fpga", 100)], {})
    assert fpga is not None
    with pytest.raises(DevicesUnavailable, match="Insufficient fpga devices"):
        device_hints(table(d8()), fpga, FILTERING)


def test_a_node_whose_devices_are_near_to_all_numa_nodes_gives_no_hints():
    on = table(device_object("n", [gpu(0, numa=-1, pcie="0")]))
    assert device_hints(on, wants(1), FILTERING) == {}


def test_numa_nodes_with_gaps_and_many_of_them_are_bounded():
    cards = [gpu(at, numa=3 * at, pcie=str(at)) for at in range(40)]
    found = device_hints(table(device_object("n", cards)), wants(1), FILTERING)
    assert len(found["gpu"]) == MAX_MASKS
    assert found["gpu"][1] == hint(3)


@asynccontextmanager
async def running(
    policy: str = "SingleNUMANode", **args: bool
) -> AsyncIterator[tuple[ProfileHarness, Callable[[str], list[int]]]]:
    """A node of 2 x 32 CPUs with the devices of d8, and the two plugins."""
    cluster = fake_cluster()
    names = ("NodeNUMAResource", "DeviceShare")
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [
            {
                "schedulerName": "default-scheduler",
                "plugins": {"multiPoint": {"enabled": [{"name": name} for name in names]}},
                "pluginConfig": [{"name": "DeviceShare", "args": args}],
            }
        ],
    }
    kit = ProfileHarness(config, cluster, installed=True)
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}
    cluster.apply(
        {
            "kind": "Node",
            "metadata": {"name": "d8", "labels": {POLICY: policy}},
            "status": {"allocatable": amounts},
        }
    )
    kit.informers.apply(TOPOLOGIES, topology_object("d8", "2x1x16x2"))
    kit.informers.apply(DEVICE_OBJECTS, d8())
    kit.server.answer(lambda call: {})

    def cards(name: str) -> list[int]:
        pod = cluster.state.pod(f"default/{name}")
        assert pod is not None
        found = json.loads(dict(pod.annotations)[DEVICE_ALLOCATED])
        return [one["minor"] for one in found["gpu"]]

    async with kit:
        yield kit, cards


def asks(name: str, cpu: int, gpus: int):
    amounts = {"cpu": str(cpu), "nvidia.com/gpu": str(gpus)}
    amounts = {key: one for key, one in amounts.items() if one != "0"}
    return make_pod(
        name,
        phase="Pending",
        spec={"containers": [{"name": "main", "resources": {"requests": amounts}}]},
    )


async def test_cpus_and_cards_come_from_one_numa_node():
    """19.15.1 and 2: where CPUs of the first are gone, cards are of the second, too."""
    async with running() as (kit, cards):
        assert (await kit.schedule(asks("a", 8, 1))).node == "d8"
        assert (await kit.schedule(asks("b", 24, 1))).node == "d8"
        assert (await kit.schedule(asks("c", 8, 1))).node == "d8"
        assert [cards(name) for name in "abc"] == [[0], [1], [4]]


async def test_more_cards_than_a_numa_node_has():
    """19.15.3 and 4."""
    async with running() as (kit, _):
        refused = await kit.schedule(asks("a", 8, 6))
        assert refused.node is None
        assert "NUMA" in refused.status.message
    async with running(disableDeviceNUMATopologyAlignment=True) as (kit, cards):
        assert (await kit.schedule(asks("a", 8, 6))).node == "d8"
        assert cards("a") == [0, 1, 2, 3, 4, 5]


async def test_pods_without_cpus_get_the_cards_of_one_numa_node():
    """19.15.5."""
    async with running() as (kit, cards):
        assert (await kit.schedule(asks("a", 0, 1))).node == "d8"
        assert (await kit.schedule(asks("b", 0, 4))).node == "d8"
        assert (cards("a"), cards("b")) == ([0], [4, 5, 6, 7])
