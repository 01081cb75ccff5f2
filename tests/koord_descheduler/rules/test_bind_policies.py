"""CPUs of its own that a pod requires on whole cores, or on different ones."""

import json
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.annotations import RESOURCE_SPEC, RESOURCE_STATUS
from koord.api.machine import format_cpulist
from koord.api.nodetopology import (
    CPU_BIND_POLICY,
    CPU_MANAGER_POLICY,
    CPU_TOPOLOGY,
    NUMA_TOPOLOGY_POLICY,
)
from koord.cluster.facts import ClusterPod
from koord.kube.client import NODE_TOPOLOGIES
from koord_descheduler.plugin.testing import FakeCluster, fake_services
from koord_descheduler.rules.hardware import HardwareNeed
from koord_descheduler.rules.hardwaretable import node_cpus
from koord_descheduler.rules.nodefit import NodeFit

FULL, SPREAD = "FullPCPUs", "SpreadByPCPUs"
STATIC = {CPU_MANAGER_POLICY: {"policy": "static", "options": {"full-pcpus-only": "true"}}}


def topology(name: str, annotations: dict[str, Any] | None = None) -> dict[str, Any]:
    """8 CPUs: 2 NUMA nodes with 2 cores each, of 2 threads: 0 and 1, 2 and 3, and so on."""
    detail = [
        {"id": cpu, "core": cpu // 2 % 2, "socket": cpu // 4, "node": cpu // 4} for cpu in range(8)
    ]
    every = {CPU_TOPOLOGY: {"detail": detail}, **(annotations or {})}
    texts = {key: json.dumps(value) for key, value in every.items()}
    return {"metadata": {"name": name, "annotations": texts}}


class Cluster:
    """A pod on one node, and another node that it could leave for."""

    def __init__(
        self, labels: dict[str, str] | None = None, kubelet: dict[str, Any] | None = None
    ) -> None:
        self.cluster = FakeCluster()
        services = fake_services(self.cluster)
        self.fit = NodeFit(services.hardware.fits)
        for name, report in (("here", topology("here")), ("there", topology("there", kubelet))):
            marked = labels if name == "there" else {}
            self.cluster.node(name, cpu=64, memory="256Gi", labels=marked or {})
            services.informers.apply(NODE_TOPOLOGIES, report)

    def pod(
        self, node: str, cpus: str, count: int, required: str = "", qos: str = "LSR"
    ) -> ClusterPod:
        annotations = {RESOURCE_STATUS: json.dumps({"cpuset": cpus})}
        if required:
            annotations[RESOURCE_SPEC] = json.dumps({"requiredCPUBindPolicy": required})
        resources = {"requests": {"cpu": str(count)}}
        return self.cluster.pod(
            f"on-{node}",
            node,
            labels={"koordinator.sh/qosClass": qos},
            annotations=annotations,
            spec={"priority": 9500, "containers": [{"name": "main", "resources": resources}]},
        )

    def may_leave(self, pod: ClusterPod) -> bool:
        view = self.cluster.state.view()
        return not self.fit.elsewhere(pod, view, np.ones(len(view), np.bool_)).reason


@pytest.mark.parametrize(
    ("required", "labels", "kubelet", "taken", "leaves"),
    [
        # four CPUs are free, as two whole cores or as one of each core
        (FULL, {}, {}, "0-3", True),
        (FULL, {}, {}, "0,2,4,6", False),
        (SPREAD, {}, {}, "0-3", False),
        (SPREAD, {}, {}, "0,2,4,6", True),
        ("", {}, {}, "0,2,4,6", True),
        ("Default", {}, {}, "0,2,4,6", True),  # the scheduler's configuration says what it is
        ("whole", {}, {}, "0,2,4,6", True),
        # the node says how CPUs are bound, or its kubelet
        ("", {CPU_BIND_POLICY: "FullPCPUsOnly"}, {}, "0,2,4,6", False),
        ("", {CPU_BIND_POLICY: "SpreadByPCPUs"}, {}, "0-3", False),
        ("", {}, STATIC, "0,2,4,6", False),
        ("", {}, {CPU_MANAGER_POLICY: 7}, "0,2,4,6", False),  # no CPU of such a node is known
        # node and pod differ
        (SPREAD, {CPU_BIND_POLICY: "FullPCPUsOnly"}, {}, "0,2,4,6", False),
        (FULL, {CPU_BIND_POLICY: "FullPCPUsOnly"}, {}, "0-3", True),
    ],
)
def test_free_cpus_must_lie_on_cores_as_required(required, labels, kubelet, taken, leaves):
    at = Cluster(labels, kubelet)
    pod = at.pod("here", "0-3", 4, required)
    at.pod("there", taken, 4)

    assert at.may_leave(pod) is leaves


def test_three_cpus_are_no_whole_cores():
    at = Cluster()
    assert not at.may_leave(at.pod("here", "0-2", 3, FULL))
    assert at.may_leave(at.pod("here", "0-2", 3))


def test_whole_cores_of_one_numa_node():
    at = Cluster({NUMA_TOPOLOGY_POLICY: "SingleNUMANode"})
    pod = at.pod("here", "0-3", 4, FULL)
    assert at.may_leave(pod)
    at.pod("there", "0,4", 2)
    assert not at.may_leave(pod)


def test_what_a_pod_of_another_class_requires_does_not_count():
    """Its node gave it CPUs; others give it some only if they give them to all."""
    at = Cluster()
    pod = at.pod("here", "0-3", 4, FULL, qos="LS")
    at.pod("there", "0,2,4,6", 4)

    assert at.may_leave(pod)


@given(
    held=st.frozensets(st.integers(0, 7)),
    reserved=st.frozensets(st.integers(0, 7), max_size=3),
    count=st.integers(1, 8),
    required=st.sampled_from(["", FULL, SPREAD]),
)
def test_as_many_as_there_are_by_trying_each_set(held, reserved, count, required):
    kept = {"node.koordinator.sh/reservation": {"reservedCPUs": format_cpulist(reserved)}}
    report = topology("there", kept if reserved else None)
    policies = {FULL: "FullPCPUsOnly", SPREAD: "SpreadByPCPUs"}
    at = Cluster()
    others = [at.pod("there", format_cpulist(held), len(held))] if held else []
    labels = {CPU_BIND_POLICY: policies[required]} if required else {}
    cpus = node_cpus(report, labels, others)

    def is_bound_so(chosen: tuple[int, ...]) -> bool:
        on_cores = [cpu // 2 for cpu in chosen]
        if required == FULL:
            return all(on_cores.count(core) == 2 for core in on_cores)
        return required == "" or len(set(on_cores)) == len(on_cores)

    free = sorted(set(range(8)) - held - reserved)
    possible = any(is_bound_so(chosen) for chosen in combinations(free, count))
    assert cpus.gives(HardwareNeed(cpus=count), None) is possible
