"""CgroupReconcile on a real kernel: memory.min, low and high land, and go away again."""

from koord.api.node import Node
from koord.api.nodeslo import merge_nodeslo
from koord.api.pod import Container
from koordlet.host.host import Host
from koordlet.host.resources import MEMORY_HIGH, MEMORY_LOW, MEMORY_MIN, MEMORY_OOM_GROUP
from koordlet.plugin.testing import PluginHarness, make_pod
from koordlet_plugins.cgroup_reconcile import CgroupReconcile

MIB = 2**20
OFF = (0, 0, -1, 0)


async def test_memory_qos_really_lands(tree):
    """At the levels of class, pod and container; switched off, everything is as before."""
    container = Container("main", {"memory": "64Mi"}, {"memory": "128Mi"})
    meta = make_pod("web", containers=(container,))
    groups = ("kubepods/burstable", meta.cgroup, meta.containers[0].cgroup)
    for group in groups:
        tree.make(group)
    host = Host(tree.paths)

    def found():
        rows = (MEMORY_MIN, MEMORY_LOW, MEMORY_HIGH, MEMORY_OOM_GROUP)
        return [tuple(host.read(row, group) for row in rows) for group in groups]

    settings = {
        "minLimitPercent": 50,
        "lowLimitPercent": 75,
        "throttlingPercent": 50,
        "oomKillGroup": 1,
    }
    harness = PluginHarness(CgroupReconcile(), pods=[meta], host=tree)
    harness.states.set_node(Node("n1", allocatable={"memory": "1Gi"}))
    async with harness:
        for enable in (True, False):
            section = {"lsClass": {"memoryQOS": {"enable": enable, **settings}}}
            slo, _ = merge_nodeslo({"spec": {"resourceQOSStrategy": section}})
            harness.set_node_slo(slo)
            await harness.rounds(1)
            pod = (32 * MIB, 48 * MIB, -1, 1)
            assert found() == ([pod, pod, (*pod[:2], 96 * MIB, 1)] if enable else [OFF] * 3)
