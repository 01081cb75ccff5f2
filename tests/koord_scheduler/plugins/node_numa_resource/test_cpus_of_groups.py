"""What-ifs over CPUs: gangs that are planned whole, and pods that wait for a node."""

from typing import Any

from koord_scheduler.framework.groupplan import GroupPlan, NoGroupPlan
from koord_scheduler.framework.handle import Handle
from koord_scheduler.framework.interfaces import PreEnqueuePlugin
from koord_scheduler.plugin import POD, ClusterPod
from koord_scheduler.plugin.testing import PluginHarness, fake_cluster, make_pod
from koord_scheduler_plugins.node_numa_resource.plugin import TOPOLOGIES, NodeNUMAResource
from tests.support.scheduler.numa import held, topology_object


class Groups(PreEnqueuePlugin):
    """Gives the test its handle."""

    def __init__(self, args: object, handle: Handle) -> None:
        self.handle = handle

    def pre_enqueue(self, pod: ClusterPod) -> None:
        """Every pod may be tried."""


def lsr(name: str, cpu: int, **facts: Any) -> ClusterPod:
    qos = {"koordinator.sh/qosClass": "LSR"}
    return make_pod(name, cpu=cpu, labels=qos, phase="Pending", **facts)


async def test_members_of_a_gang_do_not_get_the_same_cpus() -> None:
    """16 CPUs on each of two nodes, though the nodes say that they have 64."""
    cluster = fake_cluster()
    harness = PluginHarness(NodeNUMAResource, cluster, extra_plugins={"Groups": Groups})
    for name in ("n1", "n2"):
        cluster.node(name, cpu=64)
        harness.informers.apply(TOPOLOGIES, topology_object(name))
    async with harness:
        groups = harness.plugin("Groups")
        assert isinstance(groups, Groups)
        planner = groups.handle.groups()
        for count, wanted in ((4, GroupPlan), (5, NoGroupPlan), (4, GroupPlan)):
            pods = [lsr(f"m{at}", 8) for at in range(count)]
            assert isinstance(planner.plan(pods, cluster.state.view()), wanted)


async def test_cpus_are_kept_for_the_pod_that_is_nominated_to_them() -> None:
    """Pods of lower priority get what it leaves, whatever they have written themselves."""
    cluster = fake_cluster()
    cluster.node("n1", cpu=64)
    harness = PluginHarness(NodeNUMAResource, cluster)
    harness.informers.apply(TOPOLOGIES, topology_object("n1"))
    async with harness:
        cluster.state.put(POD, lsr("high", 12, priority=9500, status={"nominatedNodeName": "n1"}))
        assert harness.decide(lsr("low", 6, priority=9000)).feasible == ()
        forged = lsr("forged", 6, priority=9000, annotations=held("0-5"))
        assert harness.decide(forged).feasible == ()
        assert harness.decide(lsr("small", 4, priority=9000)).feasible == ("n1",)
        cluster.delete("Pod", "default/high")
        assert harness.decide(lsr("low", 6, priority=9000)).feasible == ("n1",)
