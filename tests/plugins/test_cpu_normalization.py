"""CPUNormalization: quotas of latency-sensitive pods on fast CPUs."""

import pytest

from koord.api.annotations import RESOURCE_STATUS
from koord.api.node import Node
from koord.api.pod import Container
from koord.api.qos import QOS_LABEL, KubeQoS
from koord.plugin import InvalidObject
from koordlet.plugin import resources
from koordlet.plugin.pods.settings import NORMALIZATION_RATIO, is_noticeable_change
from koordlet.plugin.testing import PluginHarness, make_pod
from koordlet_plugins.cpu_normalization import CpuLimits, CPUNormalization, cpu_limits

QUOTA = resources.CPU_QUOTA
LS = {QOS_LABEL: "LS"}


def limited(name: str, cpu: str = "") -> Container:
    return Container(name, limits={"cpu": cpu} if cpu else {})


@pytest.mark.parametrize(
    ("labels", "annotations", "containers", "limits"),
    [
        (LS, {}, [limited("a", "1")], CpuLimits(1000, {"a": 1000})),
        (
            LS,
            {},
            [limited("a", "1500m"), limited("b", "2")],
            CpuLimits(3500, {"a": 1500, "b": 2000}),
        ),
        # the kubelet gives such a pod no quota, so neither do we
        (LS, {}, [limited("a", "1"), limited("b")], CpuLimits(None, {"a": 1000})),
        (LS, {}, [limited("a")], None),
        ({}, {}, [limited("a", "1")], CpuLimits(1000, {"a": 1000})),
        ({}, {RESOURCE_STATUS: '{"cpuset": "0-1"}'}, [limited("a", "2")], None),
        (LS, {RESOURCE_STATUS: "{"}, [limited("a", "2")], CpuLimits(2000, {"a": 2000})),
        ({QOS_LABEL: "LSR"}, {}, [limited("a", "1")], None),
        ({QOS_LABEL: "BE"}, {}, [limited("a", "1")], None),
        ({QOS_LABEL: "ls"}, {}, [limited("a", "1")], CpuLimits(1000, {"a": 1000})),
    ],
)
def test_which_limits_are_normalized(labels, annotations, containers, limits) -> None:
    """Those of LS pods, and of pods without a class and without CPUs of their own."""
    pod = make_pod("web", labels=labels, annotations=annotations, containers=tuple(containers)).pod

    assert cpu_limits(pod) == limits


def test_a_pod_whose_cpus_cannot_be_read_is_rejected() -> None:
    """Whether it is normalized depends on that."""
    pod = make_pod("web", annotations={RESOURCE_STATUS: "{"}, containers=(limited("a", "1"),)).pod

    with pytest.raises(InvalidObject, match="resource-status"):
        cpu_limits(pod)


@pytest.mark.parametrize(
    ("cpu", "ratio", "quota"),
    [("500m", "1.2", 41_667), ("1", "1.2", 83_334), ("2", "1.2", 166_667), ("4", "1.15", 347_827)],
)
async def test_quotas_are_lowered_and_come_back(host, value, cpu, ratio, quota) -> None:
    """By the ratio, while the node has it; after that the quota is that of the limit."""
    groups = host.add_pod("web", KubeQoS.BURSTABLE, ("web-main",))
    pod = make_pod("web", labels=LS, containers=(limited("main", cpu),))
    harness = PluginHarness(CPUNormalization(), pods=[pod], host=host)
    full = round(float(cpu.replace("500m", "0.5")) * 100_000)
    both = (groups.group, groups.containers["web-main"])

    async with harness:
        await harness.rounds(1)
        assert harness.changes == []
        harness.states.set_node(Node("test-node", annotations={NORMALIZATION_RATIO: ratio}))
        await harness.advance(0.1)
        assert [value(QUOTA, group) for group in both] == [quota, quota]
        harness.states.set_node(Node("test-node"))
        await harness.advance(0.1)
        assert [value(QUOTA, group) for group in both] == [full, full]


@pytest.mark.parametrize("ratio", ["1.00", "0.80"])
async def test_slow_cpus_change_nothing(host, ratio) -> None:
    """A limit is never raised."""
    host.add_pod("web", KubeQoS.BURSTABLE, ("web-main",))
    pod = make_pod("web", labels=LS, containers=(limited("main", "1"),))
    harness = PluginHarness(CPUNormalization(), pods=[pod], host=host)

    async with harness:
        harness.states.set_node(Node("test-node", annotations={NORMALIZATION_RATIO: ratio}))
        await harness.rounds(2)
        assert harness.changes == []


@pytest.mark.parametrize("text", ["fast", "-1", "0", "nan", "inf", "", " 1.2 ", "٢", "1e400"])
async def test_a_bad_ratio_is_reported_once_and_the_last_good_one_stays(host, value, text) -> None:
    """It would otherwise raise or lower the quotas of all pods at once."""
    groups = host.add_pod("web", KubeQoS.BURSTABLE, ("web-main",))
    pod = make_pod("web", labels=LS, containers=(limited("main", "1"),))
    harness = PluginHarness(CPUNormalization(), pods=[pod], host=host)

    async with harness:
        for ratio in ("1.25", text, text):
            harness.states.set_node(Node("test-node", annotations={NORMALIZATION_RATIO: ratio}))
            await harness.rounds(2)
        assert value(QUOTA, groups.group) == 80_000
        assert len(harness.log.named("setting.rejected")) == 1
        assert harness.metric("rejected_total", object="node") == 1


@pytest.mark.parametrize(
    ("ratio", "previous", "followed"),
    [(1.2, None, 1.2), (1.205, 1.2, 1.2), (1.22, 1.2, 1.22), (None, 1.2, None)],
)
def test_tiny_changes_of_the_ratio_are_none(ratio, previous, followed) -> None:
    """They would rewrite every quota of the node."""
    assert is_noticeable_change(ratio, previous) == followed
