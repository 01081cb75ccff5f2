"""A pod stays where no other node could give it its devices as the scheduler's rules have it."""

import json
from typing import Any

import numpy as np
import pytest

from koord.api.annotations import DEVICE_ALLOCATED, RESOURCE_STATUS
from koord.api.devices.requests import ALLOCATE_HINT, JOINT_ALLOCATE, PARTITION_SPEC
from koord.api.nodetopology import CPU_TOPOLOGY, NUMA_TOPOLOGY_POLICY, NUMA_TOPOLOGY_SPEC
from koord.cluster.facts import ClusterPod
from koord.kube.client import DEVICES, NODE_TOPOLOGIES
from koord_descheduler.plugin.testing import FakeCluster, fake_services
from koord_descheduler.rules.nodefit import NodeFit
from tests.support.scheduler.devices import CARD, CORE, MEMORY, RATIO, RDMA_SHARE, d8

GPU = "nvidia.com/gpu"
WHOLE = {CORE: "100", RATIO: "100", MEMORY: str(CARD)}
ROOM = {GPU: 8, RDMA_SHARE: 400}
HONOR = {
    "node.koordinator.sh/gpu-model": "H800",
    "node.koordinator.sh/gpu-partition-policy": "Honor",
}
PCIE = {ALLOCATE_HINT: {"gpu": {"requiredTopologyScope": "PCIe"}}}
SINGLE = {NUMA_TOPOLOGY_POLICY: "SingleNUMANode"}
Annotations = dict[str, Any]


class Cluster:
    """Two nodes D8; pods have GPUs, and NodeFit says whether one could leave the first."""

    def __init__(self, labels: dict[str, str] | None = None, kubelet: str = "") -> None:
        self.cluster = FakeCluster()
        self.services = fake_services(self.cluster)
        self.fit = NodeFit(self.services.hardware.fits)
        detail = [{"id": cpu, "core": cpu, "socket": 0, "node": cpu // 8} for cpu in range(16)]
        for name in ("here", "there"):
            self.cluster.node(name, cpu=64, memory="256Gi", allocatable=ROOM, labels=labels or {})
            self.services.informers.apply(DEVICES, d8(name))
            annotations = {CPU_TOPOLOGY: json.dumps({"detail": detail})}
            report: Annotations = {"metadata": {"name": name, "annotations": annotations}}
            if kubelet:
                report["topologyPolicies"] = [kubelet]
            self.services.informers.apply(NODE_TOPOLOGIES, report)

    def pod(
        self, name: str, node: str, minors: list[int], *, cpus: str = "", count: int = 0,
        nics: list[int] | None = None, annotations: Annotations | None = None,
    ) -> ClusterPod:  # fmt: skip
        given: Annotations = {"gpu": [{"minor": minor, "resources": WHOLE} for minor in minors]}
        requests = {GPU: str(len(minors))} if minors else {}
        if nics:
            given["rdma"] = [{"minor": nic, "resources": {RDMA_SHARE: "1"}} for nic in nics]
            requests[RDMA_SHARE] = "1"
        written = {DEVICE_ALLOCATED: json.dumps(given)} if requests else {}
        if cpus:
            written[RESOURCE_STATUS] = json.dumps({"cpuset": cpus})
            requests["cpu"] = str(count)
        for key, value in (annotations or {}).items():
            written[key] = json.dumps(value)
        spec = {"containers": [{"name": "main", "resources": {"requests": requests}}]}
        return self.cluster.pod(name, node, annotations=written, spec=spec)

    def may_leave(self, pod: ClusterPod) -> bool:
        view = self.cluster.state.view()
        return not self.fit.elsewhere(pod, view, np.ones(len(view), np.bool_)).reason


@pytest.mark.parametrize(
    ("labels", "annotations", "taken", "leaves"),
    [
        # two cards are free on the other node, of one partition or not
        (HONOR, {}, [0, 1, 2, 4, 6, 7], False),
        (HONOR, {}, [0, 1, 2, 3, 6, 7], True),
        ({}, {}, [0, 1, 2, 4, 6, 7], True),
        (HONOR, {PARTITION_SPEC: {}}, [0, 1, 2, 4, 6, 7], False),
        # in one scope or not
        ({}, PCIE, [0, 2, 4, 5, 6, 7], False),
        ({}, PCIE, [0, 1, 4, 5, 6, 7], True),
        (
            {},
            {ALLOCATE_HINT: {"gpu": {"requiredTopologyScope": "NUMANode"}}},
            [1, 2, 3, 5, 6, 7],
            False,
        ),
        # a switch to itself
        ({}, {ALLOCATE_HINT: {"gpu": {"exclusivePolicy": "PCIeLevel"}}}, [0, 2, 4], True),
        ({}, {ALLOCATE_HINT: {"gpu": {"exclusivePolicy": "PCIeLevel"}}}, [0, 2, 4, 6], False),
        # of one NUMA node, where the node or the pod says so
        (SINGLE, {}, [1, 2, 3, 5, 6, 7], False),
        (SINGLE, {}, [0, 1, 2, 3, 6, 7], True),
        ({}, {NUMA_TOPOLOGY_SPEC: {"numaTopologyPolicy": "SingleNUMANode"}},
         [1, 2, 3, 5, 6, 7], False),
    ],
)  # fmt: skip
def test_free_cards_must_be_where_the_rules_want_them(labels, annotations, taken, leaves):
    at = Cluster(labels)
    pod = at.pod("two", "here", [0, 1], annotations=annotations)
    for minor in taken:
        at.pod(f"on-{minor}", "there", [minor])

    assert at.may_leave(pod) is leaves


@pytest.mark.parametrize(("nics_taken", "leaves"), [([], True), ([1], False)])
def test_interfaces_beside_cards_must_be_on_their_switch(nics_taken, leaves):
    """Only the first switch has cards: its interface decides."""
    at = Cluster()
    joint = {
        JOINT_ALLOCATE: {"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"},
        ALLOCATE_HINT: {"rdma": {"exclusivePolicy": "DeviceLevel"}},
    }
    pod = at.pod("joint", "here", [0], nics=[1], annotations=joint)
    at.pod("others", "there", [2, 3, 4, 5, 6, 7])
    for nic in nics_taken:
        at.pod(f"nic-{nic}", "there", [], nics=[nic])

    assert at.may_leave(pod) is leaves


@pytest.mark.parametrize(
    ("labels", "kubelet", "taken", "leaves"),
    [
        (SINGLE, "", "0-3,8-11", True),
        (SINGLE, "", "0-5,8-13", False),
        ({}, "SingleNUMANodePodLevel", "0-5,8-13", False),
        ({}, "SingleNUMANodeContainerLevel", "0-5,8-13", True),
        ({}, "", "0-5,8-13", True),
    ],
)
def test_cpus_of_one_numa_node(labels, kubelet, taken, leaves):
    """As many are free in both together, but the policy wants them of one."""
    at = Cluster(labels, kubelet)
    pod = at.pod("four", "here", [], cpus="0-3", count=4)
    at.pod("other", "there", [], cpus=taken, count=12)

    assert at.may_leave(pod) is leaves


def test_a_kubelet_that_aligns_pods_counts_for_cards_alone():
    """Its policy is in NodeResourceTopology, which is read for any pod with devices."""
    at = Cluster(kubelet="SingleNUMANode")
    pod = at.pod("two", "here", [0, 1])
    at.pod("others", "there", [1, 2, 3, 5, 6, 7])
    assert at.may_leave(pod)
    aligned = Cluster(kubelet="SingleNUMANodePodLevel")
    pod = aligned.pod("two", "here", [0, 1])
    aligned.pod("others", "there", [1, 2, 3, 5, 6, 7])
    assert not aligned.may_leave(pod)


@pytest.mark.parametrize(("taken", "leaves"), [([4, 5, 6, 7], True), ([0, 1, 2, 3], False)])
def test_cards_and_cpus_of_the_same_numa_node(taken, leaves):
    """CPUs are free in the first NUMA node only."""
    at = Cluster(SINGLE)
    pod = at.pod("both", "here", [0], cpus="0-3", count=4)
    at.pod("cpus", "there", [], cpus="8-15", count=8)
    at.pod("cards", "there", taken)

    assert at.may_leave(pod) is leaves


def test_a_device_that_cannot_be_read_in_full_counts_by_its_amounts():
    at = Cluster(HONOR)
    pod = at.pod("two", "here", [0, 1])
    at.pod("others", "there", [0, 1, 2, 4, 6, 7])
    assert not at.may_leave(pod)
    broken = d8("there")
    broken["spec"]["devices"][0]["labels"] = 7
    at.services.informers.apply(DEVICES, broken)
    assert at.may_leave(pod)
