"""Two writers of one value: how often ours is written again, and the reports about it."""

import pytest

from koordlet.executor.claims.claim import ClaimState, Key, Target
from koordlet.executor.kernel.plan import ConflictPolicy, OnForeignChange
from koordlet.host.resources import MIN_FREE_KBYTES
from koordlet.plugin.testing import SimulatedClock

KEY = Key(Target.node(), MIN_FREE_KBYTES)


@pytest.fixture
def clock():
    return SimulatedClock()


def fight(clock, policies, seconds):
    """Another agent writes every second; return when ours was written again, and the reports."""
    retaken, reported, start = [], [], clock.monotonic()
    while clock.monotonic() < start + seconds:
        verdict = policies.judge(KEY, "12345")
        if verdict is None:
            policies.retaken(KEY)
            retaken.append(round(clock.monotonic() - start))
        elif verdict.foreign_change:
            reported.append((verdict.foreign_change, verdict.state))
        clock.tick(1)
    return retaken, reported


def test_a_value_is_retaken_five_times_in_any_hour(clock):
    """After 10 s, doubling; then it is left to the other, until an hour has passed."""
    policies = ConflictPolicy(clock, lambda: OnForeignChange.RETAKE)

    retaken, reported = fight(clock, policies, 7000)

    assert retaken[:5] == [10, 31, 72, 153, 314]
    assert all(late - early >= 3600 for early, late in zip(retaken, retaken[5:], strict=False))
    found, yielded = ("foreign", ClaimState.WAITING), ("yielded", ClaimState.YIELDED)
    assert reported[:6] == [found] * 5 + [yielded]


def test_a_quarrel_that_ended_begins_anew_after_an_hour(clock):
    """With ten seconds."""
    policies = ConflictPolicy(clock, lambda: OnForeignChange.RETAKE)
    fight(clock, policies, 100)
    policies.ended(KEY)
    clock.tick(3700)

    assert fight(clock, policies, 15)[0] == [10]


def test_yield_never_writes_again(clock):
    """It is reported once."""
    policies = ConflictPolicy(clock, lambda: OnForeignChange.YIELD)

    assert fight(clock, policies, 100) == ([], [("yielded", ClaimState.YIELDED)])
