"""What the scheduler writes is what the agent grants: one node, from its report to its containers.

The NodeResourceTopology is the one that koordlet makes; the pods are placed by NodeNUMAResource;
koordlet's rules of allocations, of shared CPUs and of cpusets then read the pods.
"""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koord.api.kubelet import CpuManagerState
from koord.api.machine import Cpu, CpuBasics, CpuTopology, Machine, NumaMemory
from koord.api.node import parse_node
from koord.api.pod import Pod, parse_pod
from koord.api.qos import KubeQoS
from koord_scheduler.plugin.testing import PluginHarness, fake_cluster, make_pod
from koord_scheduler_plugins.default_binding import DefaultPreBind
from koord_scheduler_plugins.node_numa_resource.plugin import TOPOLOGIES, NodeNUMAResource
from koordlet.rules.allocations import pod_allocation, refused_allocations
from koordlet.rules.node_resource_topology import new_topology_object
from koordlet.rules.node_topology import KubeletFacts, NodeTopology, TopologyInputs, node_topology
from koordlet_plugins.cpuset_allocator import CpusetRule, choose_cpus, pod_cpus, pools_of

GI = 2**30
CPUS = tuple(Cpu(node=at // 8, socket=at // 8, core=at // 2, cpu=at) for at in range(16))
MACHINE = Machine(
    CpuBasics("m", "v", hyper_threading=True, turbo=False, l3_mask=""),
    CpuTopology(CPUS),
    {node: NumaMemory(32 * GI) for node in (0, 1)},
)
RESERVED = {"node.koordinator.sh/reservation": '{"reservedCPUs":"0-1"}'}
NODE = parse_node({"metadata": {"name": "n1", "uid": "u1", "annotations": RESERVED}, "status": {}})
SINGLE = {"scheduling.koordinator.sh/numa-topology-spec": '{"numaTopologyPolicy":"SingleNUMANode"}'}
SPREAD = {"scheduling.koordinator.sh/resource-spec": '{"requiredCPUBindPolicy":"SpreadByPCPUs"}'}
FORGED = {"scheduling.koordinator.sh/resource-status": '{"cpuset":"0-15"}'}
PODS: dict[str, tuple[str, str, dict[str, str]]] = {
    "two": ("LSR", "2", {}),
    "four": ("LSE", "4", {}),
    "spread": ("LSR", "3", SPREAD),
    "share": ("LS", "1500m", {}),
    "forged": ("LS", "1", FORGED),
    "forged-lsr": ("LSR", "1", FORGED),
    "single": ("LS", "2", SINGLE),
    "single-lsr": ("LSR", "2", SINGLE),
}


def reported(pods: tuple[Pod, ...] = ()) -> NodeTopology:
    kubelet = KubeletFacts(state=CpuManagerState())
    found, problems = node_topology(
        TopologyInputs(machine=MACHINE, node=NODE, pods=pods, kubelet=kubelet)
    )
    assert problems == ()
    return found


def spec(cpu: str) -> dict[str, Any]:
    amounts = {"cpu": cpu, "memory": "1Gi"}
    return {"containers": [{"name": "main", "resources": {"requests": amounts, "limits": amounts}}]}


async def place(names: list[str]) -> list[Pod]:
    """Place pods one after the other; return those that have a node, as the agent sees them."""
    cluster = fake_cluster()
    cluster.node("n1", cpu=16, memory="64Gi")
    harness = PluginHarness(
        NodeNUMAResource, cluster, extra_plugins={"DefaultPreBind": DefaultPreBind}
    )
    made = new_topology_object("n1", NODE, reported())
    harness.informers.apply(TOPOLOGIES, json.loads(json.dumps(made)))
    harness.server.answer(lambda call: {})
    found = []
    async with harness:
        for number, name in enumerate(names):
            qos, cpu, annotations = PODS[name]
            key, labels = f"p{number}", {"koordinator.sh/qosClass": qos}
            pod = make_pod(
                key, spec=spec(cpu), annotations=annotations, labels=labels, phase="Pending"
            )
            done = await harness.schedule(pod)
            written = cluster.state.pod(f"default/{key}")
            if done.node is None or written is None:
                continue
            meta = {
                "name": key,
                "namespace": "default",
                "uid": f"uid-{key}",
                "labels": labels,
                "annotations": dict(written.annotations),
                "creationTimestamp": f"2026-01-01T00:00:{number:02}Z",
            }
            found.append(parse_pod({"metadata": meta, "spec": {**spec(cpu), "nodeName": "n1"}}))
    return found


def check(pods: list[Pod]) -> None:
    """The agent refuses nothing, no CPU is granted twice, and others share what is left."""
    claims = [(pod, pod_allocation(pod)) for pod in pods]
    assert [claim.refused for _, claim in claims] == [()] * len(pods)
    assert refused_allocations(claims, {}) == {}
    rule = CpusetRule(pools=pools_of(reported(tuple(pods))))
    own: set[int] = set()
    for pod, claim in claims:
        if not claim.cpus:
            continue
        choice = choose_cpus(pod_cpus(pod), KubeQoS.GUARANTEED, rule)
        assert choice is not None
        assert choice.cpus == claim.cpus
        assert not own & claim.cpus
        assert not claim.cpus & {0, 1}
        own |= claim.cpus
    for pod, claim in claims:
        choice = choose_cpus(pod_cpus(pod), KubeQoS.BURSTABLE, rule)
        if not claim.cpus and choice is not None:
            assert not choice.cpus & (own | {0, 1})


async def test_cpus_are_those_that_the_agent_grants() -> None:
    pods = await place(["two", "four", "spread", "share", "single-lsr", "forged", "forged-lsr"])
    assert len(pods) == 7
    given = [len(pod_allocation(pod).cpus) for pod in pods]
    assert given == [2, 4, 3, 0, 2, 0, 1]
    check(pods)


async def test_what_a_tenant_has_written_is_refused_by_both() -> None:
    """Bound by its author to the node: the agent grants nothing, and the scheduler counts none."""
    forged = parse_pod(
        {
            "metadata": {"name": "x", "namespace": "d", "uid": "x", "annotations": FORGED},
            "spec": spec("2"),
        }
    )
    assert pod_allocation(forged).cpus == frozenset()
    cluster = fake_cluster()
    cluster.node("n1", cpu=16)
    cluster.pod("x", "n1", spec=spec("2"), annotations=FORGED)
    harness = PluginHarness(NodeNUMAResource, cluster)
    harness.informers.apply(TOPOLOGIES, new_topology_object("n1", NODE, reported()))
    async with harness:
        qos = {"koordinator.sh/qosClass": "LSR"}
        assert harness.decide(make_pod("web", cpu=14, labels=qos)).feasible == ("n1",)


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(st.sampled_from(sorted(PODS)), max_size=8))
async def test_any_pods(names: list[str]) -> None:
    check(await place(names))


@pytest.mark.parametrize("name", sorted(PODS))
async def test_each_kind_of_pod_is_placed(name: str) -> None:
    assert len(await place([name])) == 1
