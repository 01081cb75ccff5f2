"""CPUSetAllocator: which CPUs containers get, and who loses the CPU quota."""

import dataclasses
import json

import pytest

from koord.api.annotations import RESOURCE_STATUS
from koord.api.kubelet import NO_POLICY, STATIC
from koord.api.machine import format_cpulist, parse_cpulist
from koord.api.node import Node, SystemQoS
from koord.api.nodeslo import HostApplication, NodeSLO
from koord.api.nodetopology import CpuManagerPolicy
from koord.api.pod import Container
from koord.api.qos import QOS_LABEL, KubeQoS, QoSClass
from koord.plugin import InvalidObject
from koordlet.plugin import PodMeta, resources
from koordlet.plugin.testing import FakeHost, PluginHarness, make_pod
from koordlet.rules.node_topology import (
    CpuPool,
    KubeletFacts,
    NodeTopology,
    TopologyInputs,
    node_topology,
)
from koordlet_plugins.cpuset_allocator import (
    CPUSetAllocator,
    CpusetRule,
    Pools,
    choose_cpus,
    pod_cpus,
    pools_of,
)
from tests.support.machines import PAIRS, machine

CPUSET, QUOTA = resources.CPUSET_CPUS_WANTED, resources.CPU_QUOTA
GUARANTEED, BURSTABLE, BEST_EFFORT = KubeQoS
POOLS = tuple(CpuPool(node, node, parse_cpulist(cpus)) for node, cpus in enumerate(("0-7", "8-15")))


def on_node(node: int, resource: str, amount: str) -> object:
    return {"numaNodeResources": [{"node": node, "resources": {resource: amount}}]}


NODE_1_CPU = on_node(1, "cpu", "2")
NODE_1_BATCH = on_node(1, "kubernetes.io/batch-cpu", "2000")
NODE_1_PAGES = on_node(1, "hugepages-2Mi", "1Gi")
NODE_7 = on_node(7, "cpu", "2")
NODE_0_CPU_AND_1_PAGES = {
    "numaNodeResources": [
        {"node": 0, "resources": {"cpu": "2"}},
        {"node": 1, "resources": {"hugepages-2Mi": "1Gi"}},
    ]
}


def rule(*, be_by_numa: bool = False, system: str = "", by_kubelet: bool = False) -> CpusetRule:
    return CpusetRule(Pools(POOLS, POOLS, parse_cpulist(system), by_kubelet), be_by_numa)


def pod(label: str = "", status: object = None, qos: KubeQoS = BURSTABLE) -> PodMeta:
    return make_pod(
        "web",
        qos=qos,
        labels={QOS_LABEL: label} if label else {},
        annotations={} if status is None else {RESOURCE_STATUS: json.dumps(status)},
        containers=(Container("main", requests={"cpu": "2"}),),
        sandbox=True,
    )


@pytest.mark.parametrize(
    ("meta", "known", "cpus"),
    [
        (pod("LSR", {"cpuset": "2-3"}, GUARANTEED), rule(), "2-3"),
        (pod("LSR", {"cpuset": "2-3"}, GUARANTEED), CpusetRule(None), "2-3"),
        (pod("BE", {"cpuset": "2-3"}, BEST_EFFORT), rule(), "2-3"),
        (pod("LS"), rule(), "0-15"),
        (pod("LS"), rule(by_kubelet=True), "0-15"),
        (pod("LS", qos=BEST_EFFORT), rule(), "0-15"),
        (pod("LS", NODE_1_CPU), rule(), "8-15"),
        (pod("LS", NODE_1_PAGES), rule(), "0-15"),
        (pod("LS", NODE_0_CPU_AND_1_PAGES), rule(), "0-15"),
        (pod("LS", NODE_7), rule(), "0-15"),
        (pod("LS"), CpusetRule(None), None),
        (pod("BE", NODE_1_BATCH, BEST_EFFORT), rule(be_by_numa=True), "8-15"),
        (pod("BE", NODE_1_BATCH, BEST_EFFORT), rule(), None),
        (pod(), rule(), "0-15"),
        (pod(), rule(by_kubelet=True), None),
        (pod(qos=BEST_EFFORT), rule(), None),
        (pod("LSR", qos=GUARANTEED), rule(), "0-15"),
        (pod("SYSTEM"), rule(system="0-3"), "0-3"),
        (pod("SYSTEM", NODE_1_CPU), rule(system="0-3"), "0-3"),
        (pod("SYSTEM"), rule(), "0-15"),
        (pod("LS"), CpusetRule(Pools((CpuPool(0, 0, frozenset()),), ())), None),
        (pod("LS"), CpusetRule(Pools((CpuPool(0, 0, frozenset()), POOLS[1]), ())), "8-15"),
    ],
)
def test_cpus_of_a_pod(meta: PodMeta, known: CpusetRule, cpus: str | None) -> None:
    """Own CPUs first, then those of the class, of NUMA nodes, and the shared ones."""
    choice = choose_cpus(pod_cpus(meta.pod), meta.kube_qos, known)

    assert (format_cpulist(choice.cpus) if choice else None) == cpus


@pytest.mark.parametrize(
    ("label", "status", "qos"),
    [
        ("LS", {"cpuset": "0-1"}, QoSClass.LS),
        ("", {"cpuset": "0-1"}, QoSClass.LSR),
        ("", NODE_1_CPU, QoSClass.NONE),
        ("ls", None, QoSClass.NONE),
    ],
)
def test_a_pod_without_a_class_is_lsr_when_it_has_cpus(label, status, qos) -> None:
    """The node's annotation has reserved them for it."""
    assert pod_cpus(pod(label, status).pod).qos is qos


def topology(
    shared: str = "0-3", policy: str = NO_POLICY, system: SystemQoS | None = None
) -> NodeTopology:
    """A node of 4 CPUs, some of which are shared."""
    inputs = TopologyInputs(machine(PAIRS), Node("n"), (), KubeletFacts())
    pool = CpuPool(0, 0, parse_cpulist(shared))
    found, _ = node_topology(inputs)
    return dataclasses.replace(
        found,
        ls_pools=(pool,),
        be_pools=(pool,),
        cpu_manager=CpuManagerPolicy(policy),
        system_qos=system,
    )


def test_pools_of_a_topology() -> None:
    """A malformed list of CPUs is no empty list."""
    found = pools_of(topology("1-2", STATIC, SystemQoS("0-1")))

    assert (found.by_kubelet, found.system) == (True, {0, 1})
    assert [pool.cpus for pool in found.ls] == [{1, 2}]
    with pytest.raises(InvalidObject, match="system-qos-resource"):
        pools_of(topology(system=SystemQoS("0-")))


async def test_cpus_and_quota_land_and_go(host: FakeHost, value) -> None:
    """Of container and sandbox; the pod's quota goes, too, as its CPUs are its own."""
    groups = host.add_pod("web", GUARANTEED, ("web-main",))
    places = [groups.containers["web-main"], groups.sandbox]
    limited = [groups.group, groups.containers["web-main"]]
    for group in limited:
        period = "200000 100000\n" if host.version == 2 else "200000\n"
        group.write("cpu.max" if host.version == 2 else "cpu/cpu.cfs_quota_us", period)
    before = [value(CPUSET, group) for group in places]
    harness = PluginHarness(
        CPUSetAllocator(), pods=[pod("LSR", {"cpuset": "2-3"}, GUARANTEED)], host=host
    )

    async with harness:
        await harness.rounds(1)
        assert [value(CPUSET, group) for group in places] == [{2, 3}, {2, 3}]
        assert [value(QUOTA, group) for group in limited] == [-1, -1]
        harness.set_pods(pod("LSR", None, GUARANTEED))
        await harness.advance(0.1)
        assert [value(CPUSET, group) for group in places] == before
        assert [value(QUOTA, group) for group in limited] == [200_000, 200_000]


async def test_the_quota_may_stay(host: FakeHost, value) -> None:
    """With --disable-unset-cpu-quota."""
    groups = host.add_pod("web", GUARANTEED, ("web-main",))
    harness = PluginHarness(
        CPUSetAllocator(),
        args=["--disable-unset-cpu-quota"],
        pods=[pod("", {"cpuset": "2-3"}, GUARANTEED)],
        host=host,
    )

    async with harness:
        await harness.rounds(1)
        assert value(CPUSET, groups.sandbox) == {2, 3}
        assert {claim["resource"] for claim in harness.claims()} == {CPUSET.name}


async def test_latency_sensitive_host_applications_share_the_cpus(host: FakeHost, value) -> None:
    """Of other classes they are left where they are."""
    groups = [host.group(path) for path in ("host-latency-sensitive/redis", "host-best-effort/job")]
    before = value(CPUSET, groups[1])
    apps = (HostApplication("redis", qos="LS"), HostApplication("job", qos="BE"))
    harness = PluginHarness(CPUSetAllocator(), host=host)

    async with harness:
        harness.states.set_node_topology(topology("2-3"))
        harness.set_node_slo(NodeSLO(host_applications=apps))
        await harness.advance(0.1)
        assert [value(CPUSET, group) for group in groups] == [{2, 3}, before]
        harness.set_node_slo(NodeSLO())
        await harness.advance(0.1)
        assert harness.claims() == []


async def test_a_new_topology_moves_pods_at_once(host: FakeHost, value) -> None:
    """CPUs that were given to another pod are not shared any more; metrics count those that are."""
    main = host.add_pod("web", BURSTABLE, ("web-main",)).containers["web-main"]
    harness = PluginHarness(CPUSetAllocator(), pods=[pod("LS")], host=host)

    def cores(kind: str) -> float | None:
        name = f"koordlet_cpuset_{kind}_cpu_cores"
        return harness.registry.get_sample_value(name, {"node": "test-node"})

    async with harness:
        await harness.rounds(1)
        assert (harness.claims(), cores("share_pool")) == ([], None)
        harness.states.set_node_topology(topology("0-3"))
        await harness.advance(0.1)
        assert value(CPUSET, main) == {0, 1, 2, 3}
        harness.states.set_node_topology(topology("2-3"))
        await harness.advance(0.1)
        assert value(CPUSET, main) == {2, 3}
        assert (cores("share_pool"), cores("be_share_pool")) == (2, 2)
        harness.states.set_node_topology(topology("0-3", system=SystemQoS("many")))
        await harness.rounds(2)
        assert value(CPUSET, main) == {2, 3}
        assert harness.metric("rejected_total", object="node") == 1
