"""Budget and quota: the worked examples of Koordinator's rules, and where ours differ."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.nodeslo import CgroupBase, HostApplication
from koord.api.pod import Pod
from koord.api.qos import QOS_LABEL, KubeQoS
from koordlet_plugins.be_cpu_suppress.policies import (
    CALM_BAND,
    MIN_QUOTA,
    NO_LIMIT,
    UPSTREAM_BAND,
    QuotaPace,
)
from koordlet_plugins.be_cpu_suppress.usage import (
    Allowance,
    NodeBudget,
    UsageSplit,
    is_best_effort,
    is_best_effort_app,
    split_usage,
)

PODS = (
    Pod("default", "ls", "ls", labels={QOS_LABEL: "LS"}, qos=KubeQoS.BURSTABLE),
    Pod("default", "be", "be", labels={QOS_LABEL: "BE"}, qos=KubeQoS.BEST_EFFORT),
)
APPS = (
    HostApplication("ls-app", qos="LS"),
    HostApplication("be-app", qos="BE", base=CgroupBase.KUBEPODS_BEST_EFFORT),
)


@pytest.mark.parametrize(
    ("cores", "threshold", "node", "pods", "apps", "reserved", "floor", "left"),
    [
        (16, 70, 12, {"ls": 8, "be": 2}, {}, 0, None, 1200),
        (16, 70, 12, {"unknown": 8, "be": 4}, {}, 0, None, 3200),
        (20, 70, 11, {"unknown": 8, "be": 4}, {}, 0, None, 6000),
        (20, 70, 12, {"ls": 8, "be": 2}, {"ls-app": 1}, 0, None, 4000),
        (20, 70, 12, {"ls": 8, "be": 2}, {"be-app": 1}, 0, None, 5000),
        (20, 70, 12, {"ls": 8, "be": 2}, {}, 0, 60, 12000),
        (100, 65, 60, {"ls": 50.5, "be": 7.5}, {}, 8, None, 6500),
        (64, 65, 70, {"ls": 60, "be": 5}, {}, 0, None, -23400),
    ],
)
def test_what_is_left(cores, threshold, node, pods, apps, reserved, floor, left):
    """Koordinator's examples, from usage to milli-cores."""
    used = split_usage(
        node,
        reserved,
        pods=PODS,
        pods_used=pods,
        counts_pod=lambda pod: not is_best_effort(pod),
        apps=APPS,
        apps_used=apps,
        counts_app=lambda app: not is_best_effort_app(app),
    )
    assert NodeBudget(cores * 1000, threshold, floor).left(used) == left


def test_parts_are_cut_one_by_one():
    """Fractions of a milli-core are lost per part, as in Koordinator."""
    assert NodeBudget(1000, 100).left(UsageSplit(0.0009, 0.0009, 0.0009)) == 1000


@pytest.mark.parametrize(
    ("cores", "left", "current", "quota"),
    [
        (80, 20000, 1000000, 1800000),
        (80, 20000, 1900000, 2000000),
        (80, 20000, 2400000, 2000000),
        (80, 20000, 1980000, 1980000),  # too little to matter
        (80, 1, 80000, 2000),  # the minimum always matters
        (80, 1, 2000, 2000),
        (80, 20000, NO_LIMIT, 2000000),  # no step from no limit
        (80, 500, NO_LIMIT, 50000),  # Koordinator leaves it without a limit
        (16, -3000, 500000, 2000),
        (16, 1200, 1500000, 120000),
        (16, 1200, 1000, 120000),
    ],
)
def test_quota_at_koordinators_pace(cores, left, current, quota):
    """Koordinator's examples: down at once, up by a tenth of the node, small changes not at all."""
    pace = QuotaPace(cores, 100_000, UPSTREAM_BAND)
    assert pace.next(Allowance(left, left), current) == quota


@pytest.mark.parametrize(
    ("least", "most", "current", "quota"),
    [
        (30_000, 60_000, 4_500_000, 4_500_000),  # in between: nothing changes
        (30_000, 44_000, 4_500_000, 4_400_000),  # above: gives way at once
        (30_000, 44_500, 4_500_000, 4_500_000),  # by less than a hundredth of the node: not at all
        (48_000, 60_000, 4_500_000, 4_500_000),  # less than a twentieth of the node to grow by
        (50_000, 60_000, 4_500_000, 5_000_000),
        (90_000, 95_000, 4_500_000, 5_500_000),  # a tenth of the node at most
        (90_000, 95_000, NO_LIMIT, 9_500_000),
    ],
)
def test_calm_quota(least, most, current, quota):
    """Between what must be given back and what may be had the quota stays; growth is slow."""
    assert QuotaPace(100, 100_000, CALM_BAND).next(Allowance(least, most), current) == quota


def test_another_period():
    """A quota is per period, however long the period is."""
    assert QuotaPace(4, 50_000).next(Allowance(1500, 1500), NO_LIMIT) == 75_000


@given(
    cores=st.integers(1, 512),
    period=st.integers(1000, 1_000_000),
    lefts=st.tuples(st.integers(-(10**6), 10**6), st.integers(-(10**6), 10**6)),
    current=st.integers(NO_LIMIT, 10**9),
)
def test_a_quota_is_never_too_small_nor_grows_too_fast(cores, period, lefts, current):
    """Whatever is measured, the kernel can take the quota, and growth is bounded."""
    pace = QuotaPace(cores, period)
    allowance = Allowance(min(lefts), max(lefts))
    quota = pace.next(allowance, current)
    assert quota == current or quota >= MIN_QUOTA or quota > current
    if current != NO_LIMIT:
        assert quota - current <= max(cores * period * 0.1, 0)
        assert quota <= max(current, pace.quota(allowance.most))
