"""The times at which collectors are due."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.collectors.engine.sampler import Schedule
from koordlet.metriccache.kinds import Cadence

PERIODS = {Cadence.USAGE: 1.0, Cadence.PSI: 10.0}
BOTH = frozenset(PERIODS)
USAGE = frozenset({Cadence.USAGE})


def test_all_cadences_are_due_at_the_start_and_then_at_their_own_pace():
    """Nothing waits a whole period for its first turn."""
    schedule = Schedule(PERIODS, 100.0)
    due = [schedule.take(100.0 + second)[0] for second in range(11)]

    assert due == [BOTH, *[USAGE] * 9, BOTH]


def test_turns_missed_are_skipped_and_counted():
    """After a pass of 3.5 s the next turn is at 4 s, as if nothing had happened."""
    schedule = Schedule({Cadence.USAGE: 1.0}, 100.0)
    schedule.take(100.0)

    assert schedule.take(103.5) == (USAGE, 2)
    assert schedule.next == pytest.approx(104.0)


def test_a_timer_that_wakes_a_little_early_is_on_time():
    """Sleeps are not exact to the microsecond."""
    schedule = Schedule({Cadence.USAGE: 1.0}, 100.0)
    schedule.take(100.0)

    assert schedule.take(100.9999999) == (USAGE, 0)
    assert schedule.next == pytest.approx(102.0)


def test_nothing_is_due_before_its_time():
    """Asking twice in one turn does no harm."""
    schedule = Schedule({Cadence.USAGE: 1.0}, 100.0)
    schedule.take(100.0)

    assert schedule.take(100.5) == (frozenset(), 0)


@given(st.floats(0.1, 100), st.lists(st.floats(0, 50), min_size=1, max_size=30))
def test_next_turn_is_in_the_future_and_on_the_grid(period, delays):
    """However long the passes take, the pace stays that of the start."""
    schedule = Schedule({Cadence.USAGE: period}, 10.0)
    now = 10.0
    for delay in delays:
        now += delay
        schedule.take(now)

        assert now < schedule.next <= now + period + 1e-5
        assert (schedule.next - 10.0) / period == pytest.approx(
            round((schedule.next - 10.0) / period), abs=1e-6
        )
