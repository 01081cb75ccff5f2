"""CPUBurst and SystemConfig on a real kernel: values are applied, and restored."""

from types import SimpleNamespace

import pytest

from koord.api.node import Node
from koord.api.nodeslo import merge_nodeslo
from koord.api.pod import Container
from koordlet.host.host import Host
from koordlet.host.resources import (
    CPU_BURST,
    CPU_QUOTA,
    CPU_THROTTLE,
    WATERMARK_SCALE_FACTOR,
)
from koordlet.plugin import kinds
from koordlet.plugin.testing import PluginHarness, make_pod
from koordlet_plugins.cpu_burst import CPUBurst
from koordlet_plugins.system_config import SystemConfig

from .conftest import REAL, burn

LIMIT = 2_000  # us per 100 ms, less than even a crowded machine runs a process at a time


@pytest.fixture
def throttled(tree):
    """A pod with a container that needs more than its limit: pod, container, and their quotas."""
    meta = make_pod("web", containers=(Container("main", limits={"cpu": "20m"}),))
    [container] = meta.containers
    for path in (meta.cgroup, container.cgroup):
        tree.make(path).write(CPU_QUOTA, str(LIMIT))
    host = Host(tree.paths)
    process = tree.run(container.cgroup, "")
    before = after = host.read(CPU_THROTTLE, container.cgroup)
    while after.nr_throttled == before.nr_throttled:
        process.do(burn(2.5 * LIMIT / 1e6))
        after = host.read(CPU_THROTTLE, container.cgroup)
    ratio = (after.nr_throttled - before.nr_throttled) / (after.nr_periods - before.nr_periods)
    return meta, container, ratio


async def test_a_throttled_container_really_bursts(tree, throttled):
    """Quota and burst budget of pod and container; the policy "none" takes all of it back."""
    meta, container, ratio = throttled
    host, groups = Host(tree.paths), (meta.cgroup, container.cgroup)

    def found(resource):
        return [host.read(resource, group) for group in groups]

    harness = PluginHarness(CPUBurst(), pods=[meta], host=tree)
    harness.states.set_node(Node("n1", capacity={"cpu": "16"}))
    harness.hold(kinds.NODE_CPU_USAGE, 1.0)
    harness.hold(kinds.CONTAINER_CPU_THROTTLED, ratio, container.container_id)
    async with harness:
        for policy, quota, budget in (("auto", 3 * LIMIT, LIMIT), ("none", LIMIT, 0)):
            slo = {"spec": {"cpuBurstStrategy": {"policy": policy}}}
            harness.set_node_slo(merge_nodeslo(slo)[0])
            await harness.rounds(12)
            assert found(CPU_QUOTA) == [quota, quota]
            assert found(CPU_BURST) == [budget, budget]


async def test_a_sysctl_is_really_set_and_restored():
    """watermark_scale_factor, one more than it is; a kernel without pressure does not care."""
    host = Host(REAL)
    before = host.read(WATERMARK_SCALE_FACTOR)
    harness = PluginHarness(
        SystemConfig(), host=SimpleNamespace(paths=REAL, objects={}, object_writers={})
    )
    harness.states.set_node(Node("n1", capacity={"memory": "64Gi"}))
    slo = {"spec": {"systemStrategy": {"watermarkScaleFactor": before + 1}}}
    harness.set_node_slo(merge_nodeslo(slo)[0])

    async with harness:
        await harness.rounds(1)
        assert host.read(WATERMARK_SCALE_FACTOR) == before + 1
    assert host.read(WATERMARK_SCALE_FACTOR) == before
