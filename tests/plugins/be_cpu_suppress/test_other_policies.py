"""Policies cpuset and cpuIdle, and manager mode, on a fake host."""

import json

import pytest

from koord.api.annotations import RESOURCE_STATUS
from koord.api.machine import Cpu, parse_cpulist
from koord.api.node import NODE_RESERVATION, SYSTEM_QOS_RESOURCE
from koord.api.pod import Container
from koord.api.qos import QOS_LABEL, KubeQoS
from koordlet.plugin.testing import make_pod
from koordlet_plugins.be_cpu_suppress import GATE, MANAGER

BE = "kubepods/besteffort"
POD, CONTAINER, SANDBOX = f"{BE}/podbe", f"{BE}/podbe/c1", f"{BE}/podbe/sandbox-be"
T8 = tuple(Cpu(n // 4, n // 4, n // 2, n) for n in range(8))
LS = make_pod("ls", labels={QOS_LABEL: "LS"})


def best_effort(**annotations):
    return make_pod(
        "be",
        labels={QOS_LABEL: "BE"},
        qos=KubeQoS.BEST_EFFORT,
        annotations=annotations,
        containers=(Container("main", requests={"cpu": "1"}),),
    )


def given(qos, cpus):
    """A pod to which the scheduler gave CPUs."""
    status = {RESOURCE_STATUS: json.dumps({"cpuset": cpus})}
    asked = {"cpu": str(len(parse_cpulist(cpus)))}
    containers = (Container("main", requests=asked),)
    return make_pod(qos, labels={QOS_LABEL: qos}, annotations=status, containers=containers)


def cpus(node, *groups):
    return [node.read("cpus", group) for group in groups or (BE, POD, CONTAINER, SANDBOX)]


def eight(make_node, *pods, **options):
    """A node of two sockets with two cores each."""
    node = make_node(cpus=8, policy="cpuset", pods=(LS, best_effort(), *pods), **options)
    node.set_cpus(T8)
    return node


async def test_best_effort_pods_get_few_cpus(make_node):
    """Whole cores on both sockets, in every group down to sandboxes; fewer at once."""
    node = eight(make_node)
    node.use(ls=2.0)
    async with node:
        assert cpus(node) == ["0-1,4-5"] * 4
        assert node.gauge("cpu_cores", type="cpuset") == 4
        await node.run(1.5)
        node.use(ls=4.0)
        took = await node.until(lambda: cpus(node) == ["0-1"] * 4)
        assert took <= 0.4
        node.use(ls=0.0)
        await node.run(6.0)
        assert cpus(node) == ["0-5"] * 4
        node.set_slo(enable=False)
        await node.run(1.05)
        assert cpus(node) == (["0-7"] * 4 if node.host.version == 1 else [""] * 4)


async def test_lsr_pods_lend_and_lse_pods_do_not(make_node):
    """The worked example: CPUs 0 and 6 of an LSR pod, 7 of an LSE pod."""
    node = eight(make_node, given("LSR", "0,6"), given("LSE", "7"))
    node.use(ls=2.2)
    async with node:
        assert cpus(node, BE) == ["2-4"]


async def test_all_cpus_are_exclusive(make_node):
    """There is nothing to give, so nothing changes; Koordinator's agent crashes."""
    node = eight(make_node, given("LSE", "0-7"))
    before = cpus(node)
    async with node:
        await node.run(2.5)
        assert cpus(node) == before
        assert node.gauge("cpu_cores", type="cpuset") is None


async def test_a_container_that_ends_does_not_stop_the_round(make_node):
    """What is gone is gone; what is new is taken up by the next round."""
    node = eight(make_node)
    node.use(ls=3.2)
    async with node:
        node.host.remove(CONTAINER)
        node.host.add_pod("new", KubeQoS.BEST_EFFORT)
        await node.run(2.05)
        assert cpus(node, POD, f"{BE}/podnew/c1") == ["0-1"] * 2


async def test_the_kubelet_gives_cpus_itself(make_node, static_kubelet):
    """With its static policy only containers get few CPUs; the groups above them have the pool."""
    node = eight(make_node, given("LSE", "7"))
    node.harness.states.set_node_topology(static_kubelet(T8))
    node.use(ls=3.2)
    async with node:
        assert cpus(node, BE, POD) == ["0-6"] * 2
        assert cpus(node, CONTAINER, SANDBOX) == ["0-1"] * 2


async def test_the_pool_under_a_quota(make_node):
    """With a quota best-effort pods have all CPUs but those that are not theirs."""
    node = eight(make_node, given("LSE", "7"))
    node.set_node(
        capacity={"cpu": "8"},
        annotations={
            NODE_RESERVATION: '{"reservedCPUs": "0"}',
            SYSTEM_QOS_RESOURCE: '{"cpuset": "1"}',
        },
    )
    node.set_slo(policy="cfsQuota")
    async with node:
        assert cpus(node) == ["2-6"] * 4
        assert node.quota < 8


async def test_a_policy_follows_another(make_node):
    """What the one has changed is restored when the other begins."""
    node = eight(make_node)
    node.use(ls=3.2)
    before = cpus(node)
    async with node:
        assert cpus(node) == ["0-1"] * 4
        node.set_slo(policy="cfsQuota")
        await node.run(1.05)
        assert cpus(node) == before
        assert node.quota == pytest.approx(2.0, abs=0.05)
        assert node.gauge("cpu_cores", type="cpuset") is None
        node.set_slo(policy="cpuset")
        await node.run(1.05)
        assert cpus(node) == ["0-1"] * 4
        assert node.quota == float("inf")


@pytest.mark.parametrize("pinned", [True, False])
async def test_manager_mode_only_keeps_the_pool(make_node, pinned):
    """With the gate BECPUManager others hand out CPUs, whatever the strategy; it is said once."""
    annotations = {RESOURCE_STATUS: '{"cpuset": "1"}'} if pinned else {}
    be = best_effort(**annotations)
    node = make_node(cpus=8, policy="cpuset", pods=(be, given("LSE", "7")), gates=[GATE, MANAGER])
    untouched = cpus(node, CONTAINER)
    node.use(ls=5.0)
    async with node:
        await node.run(2.0)
        assert cpus(node, BE, POD) == ["0-6"] * 2
        assert cpus(node, CONTAINER) == (untouched if pinned else ["0-6"])
        assert len(node.harness.log.named("suppression.disabled")) == 1
        node.harness.gates = [GATE]
        await node.run(1.05)
        assert cpus(node, CONTAINER) == ["0-1"]


async def test_idle_pods(make_node):
    """cpuIdle: every best-effort pod becomes idle, new ones too, and is not any more afterwards."""
    async with make_node(policy="cpuIdle") as node:
        node.host.add_pod("new", KubeQoS.BEST_EFFORT)
        await node.run(1.05)
        groups = (BE, POD, f"{BE}/podnew", CONTAINER)
        assert [node.read("idle", group) for group in groups] == ["0", "1", "1", "0"]
        assert node.quota == float("inf")
        node.set_slo(enable=False)
        await node.run(1.05)
        assert node.read("idle", POD) == "0"


async def test_a_kernel_without_idle_groups(make_node):
    """Then it is cpuset, as an agent of Koordinator's takes it, and that is said once."""
    node = make_node(cpus=8, policy="cpuIdle")
    for file in node.host.paths.cgroup.rglob("cpu.idle"):
        file.unlink()
    node.use(ls=3.2)
    async with node:
        await node.run(3.0)
        assert cpus(node, BE) == ["0-1"]
        assert len(node.harness.log.named("cpu_idle.unsupported")) == 1


async def test_nothing_is_known_about_cpus(make_node):
    """Before the CPUs were collected no cpuset is touched; a quota needs none."""
    node = make_node(policy="cpuset")
    node.harness.metrics.cache.put("node_cpu_info", None)
    async with node:
        await node.run(1.05)
        assert node.changes == 0
        node.set_slo(policy="cfsQuota")
        await node.run(1.05)
        assert node.quota < 2
