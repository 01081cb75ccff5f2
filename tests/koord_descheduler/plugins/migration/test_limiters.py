"""Token buckets of objects: the specification's table, and checks that are one step with taking."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.util.simulatedclock import SimulatedClock
from koord_descheduler_plugins.migration.rules import EvictionRate, ObjectLimiters, RateLimit


def pace(most: float, duration: float, burst: int = 1, name: str = "w") -> RateLimit:
    return RateLimit("workload", name, most / duration, burst, duration)


@pytest.mark.parametrize(
    ("most", "duration", "burst", "at_once", "pause"),
    [
        (10, 300.0, 1, 1, 30.0),  # 100 replicas
        (2, 300.0, 1, 1, 150.0),  # 10 replicas
        (1, 300.0, 1, 1, 300.0),  # 3 replicas
        (10, 1.0, 2, 2, 0.1),
    ],
)
def test_the_table_of_limiters(
    most: float, duration: float, burst: int, at_once: int, pause: float
) -> None:
    """After so many evictions at once the next one may begin after that pause."""
    clock = SimulatedClock()
    limiters, rate_limits = ObjectLimiters(clock), [pace(most, duration, burst)]
    for _ in range(at_once):
        assert limiters.take(rate_limits) == 0

    assert limiters.take(rate_limits) == pytest.approx(pause)

    clock.tick(pause)
    assert limiters.take(rate_limits) == 0


def test_nothing_is_exceeded_before_the_first_eviction() -> None:
    """There is no bucket yet."""
    limiters = ObjectLimiters(SimulatedClock())

    assert limiters.pause([pace(1, 300)]) == 0
    assert len(limiters) == 0


def test_all_tokens_or_none() -> None:
    """What one limiter denies costs the other nothing."""
    limiters = ObjectLimiters(SimulatedClock())
    slow, quick = pace(1, 300, name="slow"), pace(5, 300, 5, name="quick")
    limiters.take([slow])

    assert limiters.take([quick, slow]) == pytest.approx(300)
    assert len(limiters) == 1
    assert [limiters.take([quick]) for _ in range(5)] == [0] * 5


def test_an_eviction_that_failed_makes_room() -> None:
    """Its token is given back."""
    limiters = ObjectLimiters(SimulatedClock())
    limiters.take([pace(1, 300)])
    limiters.give_back([pace(1, 300)])

    assert limiters.take([pace(1, 300)]) == 0


def test_a_changed_rate_counts_from_now_on() -> None:
    """The workload was scaled: what was taken stays taken."""
    clock = SimulatedClock()
    limiters = ObjectLimiters(clock)
    limiters.take([pace(1, 300)])
    clock.tick(150)

    assert limiters.take([pace(10, 300)]) == pytest.approx(150)  # at the old rate until it is taken
    clock.tick(150)
    assert limiters.take([pace(10, 300)]) == 0
    assert limiters.pause([pace(10, 300)]) == pytest.approx(30)


def test_idle_buckets_are_dropped() -> None:
    """After one and a half durations; memory is bounded by what is evicted."""
    clock = SimulatedClock()
    limiters = ObjectLimiters(clock)
    limiters.take([pace(1, 300)])
    clock.tick(449)
    limiters.forget_idle()
    assert len(limiters) == 1

    clock.tick(1)
    limiters.forget_idle()
    assert len(limiters) == 0


@given(st.lists(st.floats(0, 20), max_size=60), st.integers(1, 4))
def test_never_more_than_burst_and_rate_allow(pauses: list[float], burst: int) -> None:
    """Whatever the moments at which evictions are tried."""
    clock = SimulatedClock()
    limiters, taken = ObjectLimiters(clock), 0
    for seconds in pauses:
        clock.tick(seconds)
        taken += limiters.take([pace(6, 60, burst)]) == 0

    assert taken <= burst + sum(pauses) * 0.1 + 1e-6


def test_the_process_waits_for_its_turn() -> None:
    """evictQPS 10, evictBurst 2: two at once, then every 100 ms."""
    clock = SimulatedClock()
    rate = EvictionRate(clock, 10, 2)

    assert [rate.take(), rate.take()] == [0, 0]
    assert rate.take() == pytest.approx(0.1)
    clock.tick(0.1)
    assert rate.take() == 0
