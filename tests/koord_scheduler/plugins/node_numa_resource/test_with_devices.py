"""CPUs and GPUs of the same NUMA nodes: NodeNUMAResource and DeviceShare in one profile."""

import json
from collections.abc import Mapping

import pytest

from koord.api.annotations import RESOURCE_STATUS
from koord_scheduler.plugin.testing import PluginHarness, fake_cluster, make_pod
from koord_scheduler_plugins.default_binding import DefaultPreBind
from koord_scheduler_plugins.device_share.plugin import DEVICE_OBJECTS, DeviceShare
from koord_scheduler_plugins.node_numa_resource.plugin import TOPOLOGIES, NodeNUMAResource
from tests.support.scheduler.devices import device_object, gpu
from tests.support.scheduler.numa import held, topology_object

ALLOCATED = "scheduling.koordinator.sh/device-allocated"
SINGLE = {"node.koordinator.sh/numa-topology-policy": "SingleNUMANode"}


@pytest.mark.parametrize(
    ("cpu", "gpus", "taken", "numa", "minors"),
    [
        pytest.param(8, 1, {}, [0], [0], id="1"),
        pytest.param(8, 1, {0: {"cpu": "32"}}, [1], [4], id="2"),
        pytest.param(8, 6, {}, None, None, id="3"),
        pytest.param(8, 4, {}, [0], [0, 1, 2, 3], id="all of a NUMA node"),
    ],
)
async def test_what_a_pod_gets(
    cpu: int,
    gpus: int,
    taken: Mapping[int, Mapping[str, str]],
    numa: list[int] | None,
    minors: list[int] | None,
) -> None:
    """Spec 09, 19.15: 8 cards, four on each of two NUMA nodes with 32 CPUs."""
    cluster = fake_cluster()
    cluster.node("n1", cpu=64, memory="512Gi", labels=SINGLE, allocatable={"nvidia.com/gpu": 8})
    if taken:
        cluster.pod("a", "n1", cpu=32, annotations=held("", taken))
    harness = PluginHarness(
        NodeNUMAResource,
        cluster,
        extra_plugins={"DeviceShare": DeviceShare, "DefaultPreBind": DefaultPreBind},
    )
    harness.server.answer(lambda call: {})
    harness.informers.apply(TOPOLOGIES, topology_object("n1", "2x1x16x2", memory="256Gi"))
    cards = [gpu(minor, numa=minor // 4, pcie=str(minor // 2)) for minor in range(8)]
    harness.informers.apply(DEVICE_OBJECTS, device_object("n1", cards))
    requests = {"cpu": str(cpu), "nvidia.com/gpu": str(gpus)}
    containers = [{"name": "main", "resources": {"requests": requests, "limits": requests}}]
    pod = make_pod("web", spec={"containers": containers}, phase="Pending")
    async with harness:
        done = await harness.schedule(pod)
        if numa is None:
            assert done.node is None
            assert (
                "Unaligned NUMA Hint cause cpu prefer [01 10] among [01 10 11],"
                "gpu prefer [11] among [11]"
            ) in done.status.message
            return
        written = cluster.state.pod(pod.key)
        assert written is not None
        annotations = dict(written.annotations)
        status = json.loads(annotations[RESOURCE_STATUS])
        assert [one["node"] for one in status["numaNodeResources"]] == numa
        given = json.loads(annotations[ALLOCATED])["gpu"]
        assert [one["minor"] for one in given] == minors
