"""Rates from cumulative counters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.collectors.engine.usage import READING_TTL, PreviousReadings, Rates

counters = st.integers(0, 2**64 - 1)
times = st.floats(0, 1e9)


@pytest.mark.parametrize(
    ("increase", "seconds", "cores"),
    [
        (1_000_000_000, 1.0, 1.0),
        (1_523_000_000, 1.004311, 1.516462530),
        (52_345_000, 1.000512345, 0.052318195),
        (1_000_000 * 1000, 1.0, 1.0),  # cgroup v2: usage_usec 1000000 -> 2000000
    ],
)
def test_cpu_of_a_pod_is_the_increase_over_the_time_between_readings(increase, seconds, cores):
    """Koordinator's worked examples."""
    rates = Rates(1.0)
    rates.rate("pod", 7_000, 100.0)

    assert rates.rate("pod", 7_000 + increase, 100.0 + seconds) / 1e9 == pytest.approx(cores)


def test_first_reading_has_no_rate():
    """There is nothing to compare it with."""
    assert Rates(1.0).rate("pod", 5, 100.0) is None


def test_reading_after_twenty_intervals_counts_as_the_first():
    """A mean over such a long gap would be taken for the present."""
    rates = Rates(1.0)
    rates.rate("pod", 0, 100.0)

    assert rates.rate("pod", 10, 121.0) is None
    assert rates.rate("pod", 20, 141.0) == pytest.approx(0.5)


def test_counter_that_goes_back_starts_anew():
    """Koordinator's unsigned arithmetic turned this into 18 billion cores."""
    rates = Rates(1.0)
    rates.rate("pod", 5_000_000_000, 100.0)

    assert rates.rate("pod", 0, 101.0) is None
    assert rates.rate("pod", 1_000_000_000, 102.0) == 1_000_000_000


def test_two_readings_at_one_time_have_no_rate():
    """Dividing by no time would be a crash or an infinite rate."""
    rates = Rates(1.0)
    rates.rate("pod", 0, 100.0)

    assert rates.rate("pod", 5, 100.0) is None


def test_group_known_to_have_been_absent_has_a_rate_from_its_first_reading():
    """Its counters were zero when it was not there."""
    assert Rates(1.0).rate("pod", 500, 100.5, absent_at=100.0) == pytest.approx(1000)


def test_absence_long_ago_does_not_count():
    """A rate over many seconds says little about the present."""
    assert Rates(1.0).rate("pod", 500, 104.0, absent_at=100.0) is None


def test_absence_does_not_count_once_there_is_a_reading():
    """Otherwise the mean since the creation would replace the present rate."""
    rates = Rates(1.0)
    rates.rate("pod", 500, 101.0, absent_at=100.0)

    assert rates.rate("pod", 500, 102.0, absent_at=100.0) == 0


def test_expired_readings_are_forgotten():
    """Pods come and go for months; what is kept does not grow."""
    previous: PreviousReadings[int] = PreviousReadings(1.0)
    for second in range(1000):
        previous.exchange(f"pod {second}", 1, float(second))
        previous.purge(float(second))

    assert len(previous) <= 2 * READING_TTL + 2


@given(counters, times, counters, times)
def test_rate_is_never_negative(first, start, second, end):
    """Whatever the counters and the clock do."""
    rates = Rates(1.0)
    rates.rate("key", first, start)
    rate = rates.rate("key", second, end)

    assert rate is None or rate >= 0
