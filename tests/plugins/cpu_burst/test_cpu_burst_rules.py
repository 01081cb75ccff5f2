"""CPUBurst's rules: budgets, the state of the share pool, quotas and tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.qosstrategy import CPUBurst, CPUBurstPolicy
from koordlet_plugins.cpu_burst.rules import (
    BurstLimits,
    BurstTokens,
    Operation,
    PoolState,
    burst_budget,
    ceiling,
    next_quota,
    operation,
    permitted,
    share_pool,
)

IDLE, COOLING, OVERLOAD, UNKNOWN = PoolState
AUTO = CPUBurst(policy=CPUBurstPolicy.AUTO)
BUDGET_ONLY = CPUBurst(policy=CPUBurstPolicy.CPU_BURST_ONLY)
BELOW_LIMIT = CPUBurst(policy=CPUBurstPolicy.AUTO, cfs_quota_burst_percent=90)


@pytest.mark.parametrize(
    ("limit", "percent", "us"),
    [
        (5000, 1000, 5_000_000),
        (3000, 1000, 3_000_000),
        (5000, 500, 2_500_000),
        (100, 1000, 100_000),
        (150, 333, 49_950),
        (2500, 250, 625_000),
        (120_000, 1000, 120_000_000),
        (0, 1000, 0),
    ],
)
def test_burst_budgets(limit, percent, us):
    """A share of the limit, in microseconds of CPU time."""
    assert burst_budget(limit, percent) == us


@pytest.mark.parametrize(
    ("cpus", "reserved", "used", "elsewhere", "threshold", "ratio", "state"),
    [
        (16, [8], 10, [7], 50, 0.375, IDLE),
        (16, [8], 5, [], 50, 0.625, OVERLOAD),
        (16, [8], 10, [6.25], 50, 0.46875, COOLING),
        (16, [8], 3.6, [], 50, 0.45, COOLING),
        (16, [4, 4], 4, [], 50, 0.5, OVERLOAD),
        (8, [8], 1, [], 50, 1.0, OVERLOAD),
        (16, [], 9, [], 60, 0.5625, COOLING),
    ],
)
def test_states_of_the_share_pool(cpus, reserved, used, elsewhere, threshold, ratio, state):
    """Load decides by a threshold and nine tenths of it."""
    pool = share_pool(cpus, used, reserved=reserved, elsewhere=elsewhere)

    assert (pool.ratio, pool.state(threshold)) == (ratio, state)


@pytest.mark.parametrize(
    ("current", "settings", "allowed", "throttled", "pool", "expected"),
    [
        (200_000, AUTO, True, 0.5, IDLE, 240_000),
        (580_000, AUTO, True, 0.5, IDLE, 600_000),
        (580_000, AUTO, True, 0.0, IDLE, 580_000),
        (580_000, AUTO, True, None, IDLE, 580_000),
        (400_000, AUTO, True, 0.5, COOLING, 400_000),
        (400_000, AUTO, True, 0.5, UNKNOWN, 400_000),
        (400_000, AUTO, True, 0.5, OVERLOAD, 320_000),
        (400_000, AUTO, True, 0.0, OVERLOAD, 320_000),
        (202_000, AUTO, True, 0.0, OVERLOAD, 200_000),
        (400_000, BUDGET_ONLY, True, 0.5, IDLE, 200_000),
        (400_000, BUDGET_ONLY, True, 0.5, OVERLOAD, 200_000),
        (400_000, AUTO, False, 0.5, IDLE, 320_000),
        (400_000, BELOW_LIMIT, True, 0.5, IDLE, 200_000),
    ],
)
def test_quotas_of_two_cores(current, settings, allowed, throttled, pool, expected):
    """Throttling raises a quota by a fifth, load brings it down by one, limit and ceiling hold."""
    change = permitted(operation(settings, allowed=allowed, throttled=throttled), pool)

    assert next_quota(change, current, 200_000, settings.cfs_quota_burst_percent) == expected


def test_a_quota_grows_round_by_round():
    """Growth compounds."""
    quotas = [150_000]
    for _ in range(4):
        quotas.append(next_quota(Operation.UP, quotas[-1], 150_000, 300))
    assert quotas[1:] == [180_000, 216_000, 259_200, 311_040]


@given(
    st.sampled_from(Operation),
    st.integers(-1, 10**8),
    st.integers(1000, 10**8),
    st.integers(0, 10_000),
)
def test_a_quota_stays_between_limit_and_ceiling(change, current, base, percent):
    """Whatever is found in the kernel."""
    assert base <= next_quota(change, current, base, percent) <= ceiling(base, percent)


@pytest.mark.parametrize(
    ("capacity", "tokens", "percent", "seconds", "allowed", "left"),
    [
        (5000, 5000, 150, 10, True, 4500),
        (5000, 50, 200, 10, False, -950),
        (500, 5, 200, 10, False, -500),
        (5000, 500, 40, 10, True, 1100),
        (5000, 4500, 40, 10, True, 5000),
        (5000, 1000, 80, 10, True, 1000),
        (120_000, 0, 300, 1.9, False, -380),  # Koordinator's cuts to whole seconds: -200
        (0, 0, 50, 1, False, 0),
    ],
)
def test_tokens(capacity, tokens, percent, seconds, allowed, left):
    """Above the limit they are spent, well below it they are saved."""
    bucket = BurstTokens(capacity, now=100.0)
    bucket.tokens = tokens

    assert bucket.allow(100.0 + seconds, percent) is allowed
    assert bucket.tokens == pytest.approx(left)


def limited(period, percent=300):
    return CPUBurst(
        policy=CPUBurstPolicy.AUTO,
        cfs_quota_burst_period_seconds=period,
        cfs_quota_burst_percent=percent,
    )


@pytest.mark.parametrize(
    ("period", "percent", "allowed"),
    [(-1, 300, True), (-1, 90, True), (10, 99, False), (0, 300, False), (10, 300, True)],
)
def test_who_needs_tokens(period, percent, allowed):
    """Without a period there is no bound; a ceiling below the limit allows nothing within one."""
    assert BurstLimits().allow("c1", limited(period, percent), 0.0, 100.0) is allowed


def test_a_container_bursts_until_its_tokens_are_spent():
    """A fresh container has a quarter of its capacity: here 10 s at its highest quota."""
    limits = BurstLimits()
    answers = [limits.allow("c1", limited(40), float(now), 300.0) for now in range(12)]
    assert answers == [True] * 10 + [False] * 2


def test_another_period_starts_afresh():
    """Tokens of another capacity mean nothing."""
    limits = BurstLimits()
    for now in range(60):
        limits.allow("c1", limited(40), float(now), 300.0)

    assert limits.allow("c1", limited(50), 60.0, 300.0)


def test_tokens_of_a_container_that_is_gone_are_forgotten():
    """After twice the period it is forgotten that it had spent its tokens."""
    limits = BurstLimits()
    for now in range(60):
        limits.allow("c1", limited(40), float(now), 300.0)

    limits.recycle(139.0)
    assert not limits.allow("c1", limited(40), 139.0, 100.0)
    limits.recycle(219.1)
    assert limits.allow("c1", limited(40), 219.1, 100.0)
