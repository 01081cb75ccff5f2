"""Devices and CPUs that are free on nodes, beyond amounts: a necessary condition of a move."""

import json
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from koord.api.annotations import DEVICE_ALLOCATED, RESOURCE_STATUS
from koord.api.node import NODE_RESERVATION, SYSTEM_QOS_RESOURCE
from koord.api.nodetopology import CPU_MANAGER_POLICY, CPU_TOPOLOGY, POD_CPU_ALLOCS
from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord.kube.client import DEVICES, NODE_TOPOLOGIES
from koord_descheduler.plugin.testing import FakeCluster, fake_services
from koord_descheduler.rules.hardware import (
    CORE,
    HardwareNeed,
    cpus_of,
    devices_of,
    free_cpus,
    free_devices,
    need_of,
)
from koord_descheduler.rules.nodefit import NodeFit

GI = 2**30
WHOLE = {"gpu-core": 100, "gpu-memory-ratio": 100, "gpu-memory": 80 * GI}
HALF = {"gpu-core": 50, "gpu-memory-ratio": 50, "gpu-memory": 40 * GI}


def named(amounts: Mapping[str, int]) -> dict[str, int]:
    return {f"koordinator.sh/{name}": amount for name, amount in amounts.items()}


def device(name: str, gpus: int = 8, **changes: Any) -> dict[str, Any]:
    devices = [
        {"type": "gpu", "minor": minor, "health": True, "resources": named(WHOLE), **changes}
        for minor in range(gpus)
    ]
    return {"metadata": {"name": name}, "spec": {"devices": devices}}


def topology(name: str, cpus: int, annotations: Mapping[str, Any] | None = None) -> dict[str, Any]:
    detail = [{"id": cpu, "core": cpu // 2, "socket": 0, "node": 0} for cpu in range(cpus)]
    every = {CPU_TOPOLOGY: {"detail": detail}, **(annotations or {})}
    texts = {key: json.dumps(value) for key, value in every.items()}
    return {"metadata": {"name": name, "annotations": texts}}


class Hardware:
    """A cluster with nodes of 8 GPUs and 64 CPUs, and what NodeFit says of its pods."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.services = fake_services(self.cluster)
        self.informers = self.services.informers
        self.fit = NodeFit(self.services.hardware.fits)
        room = named({"gpu-core": 1600, "gpu-memory-ratio": 1600})
        for name in ("here", "there"):
            self.cluster.node(name, cpu=64, memory="256Gi", allocatable=room)

    def gpu_pod(
        self, name: str, node: str, given: Mapping[int, Mapping[str, int]], **requests: int
    ) -> ClusterPod:
        """given: amounts by minor. requests: by short name."""
        devices = [{"minor": minor, "resources": named(one)} for minor, one in given.items()]
        wanted = named({key.replace("_", "-"): one for key, one in requests.items()})
        return self._pod(name, node, wanted, DEVICE_ALLOCATED, {"gpu": devices})

    def bound_pod(self, name: str, node: str, cpus: str, count: int) -> ClusterPod:
        return self._pod(name, node, {"cpu": count}, RESOURCE_STATUS, {"cpuset": cpus})

    def _pod(
        self, name: str, node: str, requests: Mapping[str, int], key: str, value: object
    ) -> ClusterPod:
        texts = {one: str(amount) for one, amount in requests.items()}
        container = {"name": "main", "resources": {"requests": texts}}
        annotations = {key: json.dumps(value)}
        spec = {"containers": [container]}
        return self.cluster.pod(name, node, annotations=annotations, spec=spec)

    def reason(self, pod: ClusterPod) -> str:
        view = self.cluster.state.view()
        return self.fit.elsewhere(pod, view, np.ones(len(view), np.bool_)).reason


@pytest.fixture
def hardware() -> Hardware:
    """The cluster, with the Device and the topology of both nodes."""
    found = Hardware()
    for name in ("here", "there"):
        found.informers.apply(DEVICES, device(name))
        found.informers.apply(NODE_TOPOLOGIES, topology(name, 64))
    return found


NONE_FREE = "none of 1 nodes fits: 1 no such devices or CPUs free as it has"


def test_enough_in_total_but_no_whole_gpu(hardware: Hardware) -> None:
    """Half of each GPU of the other node is in use: its free 400 percent are no GPU."""
    pod = hardware.gpu_pod("whole", "here", {0: WHOLE}, gpu_core=100, gpu_memory_ratio=100)
    assert hardware.reason(pod) == ""

    for minor in range(8):
        share = {"gpu_core": 50, "gpu_memory_ratio": 50}
        hardware.gpu_pod(f"half{minor}", "there", {minor: HALF}, **share)
    assert hardware.reason(pod) == NONE_FREE
    half = hardware.gpu_pod("half", "here", {1: HALF}, gpu_core=50, gpu_memory_ratio=50)
    assert hardware.reason(half) == ""
    larger = {"gpu-core": 60, "gpu-memory-ratio": 60, "gpu-memory": 48 * GI}
    pod = hardware.gpu_pod("larger", "here", {2: larger}, gpu_core=60, gpu_memory_ratio=60)
    assert hardware.reason(pod) == NONE_FREE


def test_several_whole_gpus_need_as_many_on_one_node(hardware: Hardware) -> None:
    four = dict.fromkeys(range(4), WHOLE)
    pod = hardware.gpu_pod("four", "here", four, gpu_core=400, gpu_memory_ratio=400)
    hardware.gpu_pod("a", "there", four, gpu_core=400, gpu_memory_ratio=400)
    assert hardware.reason(pod) == ""

    hardware.gpu_pod("b", "there", {4: HALF}, gpu_core=50, gpu_memory_ratio=50)
    assert hardware.reason(pod) == NONE_FREE


def test_a_gpu_that_is_not_healthy_is_none(hardware: Hardware) -> None:
    """And the next word of the Device counts at once, without another change of the cluster."""
    pod = hardware.gpu_pod("one", "here", {0: WHOLE}, gpu_core=100, gpu_memory_ratio=100)
    assert hardware.reason(pod) == ""
    hardware.informers.apply(DEVICES, device("there", health=False))
    assert hardware.reason(pod) == NONE_FREE
    hardware.informers.delete(DEVICES, "there")
    assert hardware.reason(pod) == NONE_FREE


def test_cpus_of_its_own_need_as_many_that_no_pod_has(hardware: Hardware) -> None:
    pod = hardware.bound_pod("lsr", "here", "0-7", 8)
    hardware.bound_pod("a", "there", "0-55", 56)
    assert hardware.reason(pod) == ""
    hardware.informers.apply(NODE_TOPOLOGIES, topology("there", 60))
    assert hardware.reason(pod) == NONE_FREE


@pytest.mark.parametrize(
    "annotations",
    [
        {CPU_MANAGER_POLICY: {"policy": "static", "reservedCPUs": "0-3"}},
        {NODE_RESERVATION: {"reservedCPUs": "60-63"}},
        {SYSTEM_QOS_RESOURCE: {"cpuset": "0-3"}},
        {POD_CPU_ALLOCS: [{"uid": "u", "cpuset": "60-63", "managedByKubelet": True}]},
        {SYSTEM_QOS_RESOURCE: "malformed"},
    ],
)
def test_cpus_that_no_pod_gets_are_not_free(
    hardware: Hardware, annotations: Mapping[str, Any]
) -> None:
    """60 of 64 CPUs are left by the kubelet and the system; 56 of them have a pod."""
    pod = hardware.bound_pod("lsr", "here", "0-7", 8)
    hardware.bound_pod("a", "there", "4-59", 56)
    assert hardware.reason(pod) == ""
    hardware.informers.apply(NODE_TOPOLOGIES, topology("there", 64, annotations))
    assert hardware.reason(pod) == NONE_FREE


def test_cpus_that_the_system_shares_are_free(hardware: Hardware) -> None:
    shared = {SYSTEM_QOS_RESOURCE: {"cpuset": "0-3", "cpusetExclusive": False}}
    hardware.informers.apply(NODE_TOPOLOGIES, topology("there", 64, shared))
    assert hardware.reason(hardware.bound_pod("lsr", "here", "0-63", 64)) == ""


def test_without_objects_nothing_is_known_and_all_nodes_do() -> None:
    """The CRD is missing, or nothing reports devices."""
    bare = Hardware()
    pod = bare.gpu_pod("one", "here", {0: WHOLE}, gpu_core=100, gpu_memory_ratio=100)
    assert bare.reason(pod) == ""
    assert bare.reason(bare.bound_pod("lsr", "here", "0-7", 8)) == ""


def test_nothing_is_followed_until_a_pod_needs_it(
    hardware: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    informer = hardware.informers.informer

    def counted(resource: object, **more: object) -> object:
        asked.append(resource)
        return informer(resource, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(hardware.informers, "informer", counted)
    assert hardware.reason(hardware.cluster.pod("plain", "here", cpu=1)) == ""
    assert asked == []
    hardware.reason(hardware.bound_pod("lsr", "here", "0-7", 8))
    assert asked == [NODE_TOPOLOGIES]


def test_no_pod_leaves_before_devices_are_listed(
    hardware: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = hardware.gpu_pod("one", "here", {0: WHOLE}, gpu_core=100, gpu_memory_ratio=100)
    followed = type(hardware.informers.informer(DEVICES))
    monkeypatch.setattr(followed, "answered", property(lambda _: False))
    assert hardware.reason(pod) == NONE_FREE


@pytest.mark.parametrize(
    ("requests", "gpus", "each"),
    [
        ({"nvidia.com/gpu": 2}, 2, (100, 100, 0)),
        ({"koordinator.sh/gpu": 50}, 1, (50, 50, 0)),
        ({"kubernetes.io/gpu": 200}, 2, (100, 100, 0)),
        ({"koordinator.sh/gpu-memory": 8 * GI}, 1, (0, 0, 8 * GI)),
        ({"koordinator.sh/gpu-core": 30, "koordinator.sh/gpu-memory": GI}, 1, (30, 0, GI)),
        ({"koordinator.sh/gpu.shared": 2, "koordinator.sh/gpu-memory": 4 * GI}, 2, (0, 0, 2 * GI)),
    ],
)
def test_spellings_of_a_request(
    hardware: Hardware, requests: Mapping[str, int], gpus: int, each: tuple[int, ...]
) -> None:
    pod = hardware._pod("p", "here", requests, DEVICE_ALLOCATED, {"gpu": [{"minor": 0}]})
    assert need_of(pod) == HardwareNeed((("gpu", gpus, each),))


def test_an_annotation_counts_no_further_than_the_request(hardware: Hardware) -> None:
    """A pod that says that it has all GPUs holds up nobody; a malformed one says nothing."""
    pod = hardware.gpu_pod("one", "here", {0: WHOLE}, gpu_core=100, gpu_memory_ratio=100)
    hardware.gpu_pod("liar", "there", dict.fromkeys(range(8), WHOLE), gpu_core=100,
                     gpu_memory_ratio=100)  # fmt: skip
    hardware.bound_pod("other", "there", "0-63", 1)
    assert hardware.reason(pod) == ""
    assert hardware.reason(hardware.bound_pod("lsr", "here", "0-7", 8)) == ""
    assert need_of(hardware.bound_pod("odd", "here", "7-0", 8)) is None


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"devices": None},
        {"devices": [{"type": "gpu", "minor": -1, "health": True, "resources": named(WHOLE)}]},
        {"devices": [{"type": "gpu", "health": True, "resources": named({"gpu-core": -1})}]},
        {"devices": [{"type": "gpu", "health": True, "resources": {CORE: "x"}}]},
        {"devices": [{"type": "gpu", "health": True, "resources": named(WHOLE)}] * 2},
        {"devices": [{"type": [], "health": True}, 7]},
    ],
)
def test_a_device_that_lies_has_nothing(spec: object) -> None:
    assert devices_of({"metadata": {"name": "n"}, "spec": spec}) == {}


def plain(pod: ClusterPod, view: View, devices: Mapping, topologies: Mapping) -> list[bool]:
    """The rule node by node."""
    need = need_of(pod)
    assert need is not None
    found = []
    for row in range(len(view)):
        name = view.node(row).name
        free = free_devices(devices_of(devices.get(name, {})), view.pods(row))
        enough = free_cpus(cpus_of(topologies.get(name, {})), view.pods(row)) >= need.cpus
        for kind, count, each in need.devices:
            have = [
                amounts
                for (of, _), amounts in free.items()
                if of == kind and all(a >= b for a, b in zip(amounts, each, strict=True))
            ]
            enough = enough and len(have) >= count
        found.append(enough)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_columns_say_what_the_rule_says_node_by_node(seed: int) -> None:
    """Also after changes, of which only the rows that have changed are computed anew."""
    draw, hardware = random.Random(seed), Hardware()
    names = [f"n{number}" for number in range(12)]
    for name in names:
        hardware.cluster.node(name)
        if draw.random() < 0.8:
            hardware.informers.apply(DEVICES, device(name, draw.choice((0, 1, 4, 8))))
        if draw.random() < 0.8:
            hardware.informers.apply(NODE_TOPOLOGIES, topology(name, draw.choice((4, 16, 64))))
    for turn in range(4):
        for number in range(10):
            node, minor = draw.choice(names), draw.randrange(8)
            percent = draw.choice((10, 50, 100))
            given = {minor: {"gpu-core": percent, "gpu-memory-ratio": percent}}
            hardware.gpu_pod(f"g{turn}{number}", node, given, gpu_core=percent,
                             gpu_memory_ratio=percent)  # fmt: skip
            first, count = draw.randrange(32), draw.randrange(1, 16)
            cpus = f"{first}-{first + count - 1}"
            hardware.bound_pod(f"c{turn}{number}", draw.choice(names), cpus, count)
        hardware.informers.apply(DEVICES, device(draw.choice(names), draw.choice((1, 8))))
        view = hardware.cluster.state.view()
        devices = hardware.informers.informer(DEVICES).objects
        topologies = hardware.informers.informer(NODE_TOPOLOGIES).objects
        for key in draw.sample(sorted(hardware.cluster.state.snapshot.pod_keys()), 12):
            pod = hardware.cluster.state.pod(key)
            assert pod is not None
            mask = hardware.services.hardware.fits(pod, view)
            assert mask is not None
            assert mask.tolist() == plain(pod, view, devices, topologies)
