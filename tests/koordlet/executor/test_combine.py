"""Several plugins' claims on one value become one value."""

import pytest

from koordlet.executor.claims.claim import Claim, Part, Target
from koordlet.executor.claims.table import combinable, combine, scaled_quota
from koordlet.host.resource import Level
from koordlet.host.resources import (
    CPU_QUOTA,
    CPU_SHARES,
    CPUSET_CPUS_WANTED,
    SCHED_GROUP_IDENTITY,
)

POD = Target(Level.POD, "kubepods/burstable/pod1")


def parts(resource, *, original=None, **values):
    """Claims by part, from their values."""
    claims = {}
    for name, value in values.items():
        part = Part(name)
        claims[part] = Claim(
            target=POD, resource=resource, value=value, reason="test", part=part, original=original
        )
    return claims


@pytest.mark.parametrize(
    ("quota", "ratio", "scaled"),
    [
        (50000, 1.2, 41667),
        (100000, 1.2, 83334),
        (200000, 1.2, 166667),
        (400000, 1.15, 347827),
        (100000, 1.0, 100000),
        (100000, 0.8, 100000),
        (100000, -1.0, 100000),
        (-1, 1.5, -1),
        (1000, 1.5, 1000),  # not 667, which the kernel refuses
    ],
)
def test_quota_of_a_faster_cpu(quota, ratio, scaled):
    """Koordinator's worked values, but for what the kernel would not take."""
    assert scaled_quota(quota, ratio) == scaled


@pytest.mark.parametrize(
    ("claims", "quota"),
    [
        (parts(CPU_QUOTA, value=50000), 50000),
        (parts(CPU_QUOTA, value=-1), -1),
        (parts(CPU_QUOTA, value=500), 1000),
        (parts(CPU_QUOTA, ratio=1.2, original=100000), 83334),
        (parts(CPU_QUOTA, extra=20000, original=100000), 120000),
        (parts(CPU_QUOTA, ratio=1.2, extra=20000, original=100000), 103334),
        (parts(CPU_QUOTA, value=200000, ratio=1.2, extra=1, original=100000), 166668),
        (parts(CPU_QUOTA, value=-1, ratio=1.2, extra=20000, original=100000), -1),
        (parts(CPU_QUOTA, extra=20000, original=-1), -1),
    ],
)
def test_base_quota_ratio_and_burst(claims, quota):
    """The base is divided by the ratio, the burst comes on top, and no limit stays none."""
    assert combine(CPU_QUOTA, claims) == quota


def test_allocated_cpus_win_over_a_pool():
    """And the pool counts when nothing was allocated."""
    pool, both = {"value": {0, 1}}, {"value": {0, 1}, "pin": {3}}

    assert combine(CPUSET_CPUS_WANTED, parts(CPUSET_CPUS_WANTED, **pool)) == {0, 1}
    assert combine(CPUSET_CPUS_WANTED, parts(CPUSET_CPUS_WANTED, **both)) == {3}


def test_what_the_node_slo_says_wins_over_what_a_plugin_needs():
    """The switch for group identities, which SystemConfig and GroupIdentity both may set."""
    claims = parts(SCHED_GROUP_IDENTITY, value=1, pin=0)

    assert combine(SCHED_GROUP_IDENTITY, claims) == 0
    del claims[Part.PIN]
    assert combine(SCHED_GROUP_IDENTITY, claims) == 1


def test_most_values_have_one_owner():
    """Only few are decided by several."""
    assert combinable(CPU_SHARES) == {Part.VALUE}
    assert combine(CPU_SHARES, parts(CPU_SHARES, value=512)) == 512
