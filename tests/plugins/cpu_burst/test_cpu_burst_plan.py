"""CPUBurst's plan for a pod: eligibility, base quotas, budgets and the pod's annotation."""

import pytest

from koord.api.pod import Container
from koord.api.qos import KubeQoS
from koord.api.qosstrategy import CPUBurst, CPUBurstPolicy
from koord.plugin import KoordError
from koordlet.plugin.testing import make_pod
from koordlet_plugins.cpu_burst.rules import (
    ANNOTATION,
    NodeSettings,
    has_own_cpus,
    may_burst,
    outside_share_pool,
    own_settings,
    plan_for,
)

NODE = NodeSettings(
    CPUBurst(policy=CPUBurstPolicy.AUTO), budget_within_quota=False, normalization=1.0
)


def pod(*limits, annotation=None, **more):
    containers = tuple(
        Container(f"c{n}", limits={"cpu": limit} if limit else {}) for n, limit in enumerate(limits)
    )
    annotations = {} if annotation is None else {ANNOTATION: annotation}
    return make_pod("web", containers=containers, annotations=annotations, **more)


def plan(meta, node=NODE):
    return plan_for(meta, own_settings(meta.pod), node)


@pytest.mark.parametrize(
    ("limits", "bases", "pod_base"),
    [
        (("2",), [200_000], 200_000),
        (("10m",), [1000], 1000),
        (("5m",), [1000], 1000),
        (("5", "3"), [500_000, 300_000], 800_000),
        (("5", None), [500_000], -1),
        ((None,), [], -1),
        (("0",), [], -1),
    ],
)
def test_base_quotas(limits, bases, pod_base):
    """The quota of the limit; a container without one is left alone, and its pod has none."""
    found = plan(pod(*limits))
    assert [container.base for container in found.containers] == bases
    assert found.base == pod_base


@pytest.mark.parametrize(
    ("label", "qos", "bursts", "own_cpus", "outside"),
    [
        ("LSE", KubeQoS.GUARANTEED, False, True, True),
        ("LSR", KubeQoS.GUARANTEED, False, True, True),
        ("BE", KubeQoS.BEST_EFFORT, False, False, True),
        ("LS", KubeQoS.BURSTABLE, True, False, False),
        ("SYSTEM", KubeQoS.BURSTABLE, True, False, False),
        ("", KubeQoS.GUARANTEED, True, False, False),
    ],
)
def test_whom_it_is_for(label, qos, bursts, own_cpus, outside):
    """The label decides, not the Kubernetes class."""
    meta = pod("1", qos=qos, labels={"koordinator.sh/qosClass": label})
    assert may_burst(meta.pod) is bursts
    assert has_own_cpus(meta.pod) is own_cpus
    assert outside_share_pool(meta.pod) is outside


@pytest.mark.parametrize(
    ("text", "policy", "percent"),
    [
        (None, "auto", 300),
        ('{"policy":"none"}', "none", 300),
        ('{"cfsQuotaBurstPercent":150}', "auto", 150),
        ('{"Policy":"cpuBurstOnly"}', "cpuBurstOnly", 300),
        ("null", "auto", 300),
    ],
)
def test_a_pods_own_settings(text, policy, percent):
    """They lie over the node's."""
    settings = plan(pod("1", annotation=text)).settings
    assert (settings.policy, settings.cfs_quota_burst_percent) == (policy, percent)


@pytest.mark.parametrize(
    "text",
    [
        '{"policy":"none"',
        '{"cpuBurstPercent":-1,"policy":"none"}',
        '{"cfsQuotaBurstPercent":-1}',
        '{"cfsQuotaBurstPeriodSeconds":-2}',
        '{"policy":7}',
        "[]",
    ],
)
def test_wrong_settings_are_refused_whole(text):
    """Half of what was meant is not what was meant."""
    with pytest.raises(KoordError, match="default/web"):
        own_settings(pod("1", annotation=text).pod)


def test_the_threshold_of_the_share_pool_is_the_nodes():
    """A pod cannot declare the node idle."""
    assert plan(pod("1", annotation='{"sharePoolThresholdPercent":100}')).settings == NODE.burst


@pytest.mark.parametrize(
    ("policy", "within_quota", "normalization", "budget"),
    [
        ("auto", False, 1.0, 2_000_000),
        ("cpuBurstOnly", False, 1.0, 2_000_000),
        ("cfsQuotaBurstOnly", False, 1.0, 0),
        ("none", False, 1.0, 0),
        ("auto", True, 1.0, 200_000),
        ("auto", True, 1.2, 166_667),
    ],
)
def test_budgets(policy, within_quota, normalization, budget):
    """A mainline kernel takes no budget above the quota, so the budget keeps below it."""
    burst = CPUBurst(policy=CPUBurstPolicy(policy))
    found = plan(pod("2"), NodeSettings(burst, within_quota, normalization))
    assert [container.budget for container in found.containers] == [budget]
