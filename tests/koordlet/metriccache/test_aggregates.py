"""Aggregation rules: Koordinator's worked examples, and where this cache does better."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.util.clock import stamp
from koordlet.metriccache.aggregate import PERCENTILES, percentile_index
from koordlet.metriccache.cache import MetricCache
from koordlet.metriccache.kinds import (
    NODE_CPU_USAGE,
    NODE_MEMORY_USAGE,
    POD_CPU_USAGE,
    Cadence,
    RetentionClass,
    Sample,
)
from koordlet.plugin.testing.scripted import SimulatedClock


@pytest.mark.parametrize(
    ("count", "indexes"),
    [
        (1, (0, 0, 0, 0)),
        (2, (0, 0, 0, 0)),
        (9, (3, 7, 7, 7)),
        (10, (4, 8, 8, 8)),
        (20, (9, 17, 18, 18)),
        (100, (49, 89, 94, 98)),
        (300, (149, 269, 284, 296)),
        (1800, (899, 1619, 1709, 1781)),
    ],
)
def test_percentile_ranks_are_those_of_koordinator(count, indexes):
    """Floor of the rank, minus one, without interpolation."""
    assert tuple(percentile_index(count, percent) for percent in PERCENTILES) == indexes


@given(st.integers(1, 200_000), st.sampled_from(PERCENTILES))
def test_a_percentile_is_always_one_of_the_samples(count, percent):
    """The index stays within the samples whatever their number."""
    assert 0 <= percentile_index(count, percent) < count


def test_nine_values_give_the_worked_example(cache, feed):
    """Mean 400, p50 300, p90, p95 and p99 700 for 0 to 800 in any order."""
    feed(cache, NODE_CPU_USAGE, [800, 100, 200, 600, 700, 0, 500, 400, 300])

    found = cache.aggregate(NODE_CPU_USAGE, (), 300)

    assert found.avg() == 400
    assert [found.percentile(percent) for percent in PERCENTILES] == [300, 700, 700, 700]
    assert (found.count, found.last, found.span) == (9, 300, 8)


@pytest.mark.parametrize("count", [10, 20, 100, 300, 1800])
def test_percentiles_of_a_shuffled_range(cache, feed, count):
    """The value at each percentile is its rank, for the window lengths in use."""
    values = [float(number) for number in range(count)]
    random.Random(count).shuffle(values)
    feed(cache, NODE_CPU_USAGE, values)

    found = cache.aggregate(NODE_CPU_USAGE, (), count)

    for percent in PERCENTILES:
        assert found.percentile(percent) == percentile_index(count, percent)


@pytest.mark.parametrize(("values", "smaller"), [([7.5], 7.5), ([2.0, 1.0], 1.0)])
def test_percentiles_of_one_or_two_values_are_the_smaller(cache, feed, values, smaller):
    """Index 0 for every percentile."""
    feed(cache, NODE_CPU_USAGE, values)

    found = cache.aggregate(NODE_CPU_USAGE, (), 300)

    assert {found.percentile(percent) for percent in PERCENTILES} == {smaller}


def test_no_sample_in_the_window_is_absence_not_zero(cache, feed, clock):
    """Neither an unknown series nor one that went silent gives a number."""
    assert cache.aggregate(NODE_CPU_USAGE, (), 300) is None
    feed(cache, NODE_CPU_USAGE, [1.0])
    clock.tick(10)

    assert cache.aggregate(NODE_CPU_USAGE, (), 5) is None
    assert cache.aggregate_all(NODE_CPU_USAGE, 5) == {}
    assert cache.series(NODE_CPU_USAGE, (), 5) == []


def test_both_ends_of_a_window_belong_to_it(cache, feed, clock):
    """Four seconds of 1 s samples are five samples."""
    feed(cache, NODE_CPU_USAGE, [float(n) for n in range(10)])
    end = clock.boottime()

    points = cache.series(NODE_CPU_USAGE, (), 4, end)

    assert [value for _, value in points] == [5, 6, 7, 8, 9]
    assert cache.aggregate(NODE_CPU_USAGE, (), 4, end).span == 4


def test_a_window_may_end_in_the_past(cache, feed, clock):
    """`end` selects; what came later does not count, not even as last."""
    feed(cache, NODE_CPU_USAGE, [float(n) for n in range(10)])
    end = clock.boottime() - 5

    found = cache.aggregate(NODE_CPU_USAGE, (), 2, end)

    assert (found.last, found.count, found.avg()) == (4, 3, 3)


def test_a_value_weighs_as_long_as_it_stood_for(cache, feed):
    """A sample after 2 s speaks for twice the time of one after 1 s."""
    feed(cache, NODE_CPU_USAGE, [1.0, 1.0, None, 4.0])

    assert cache.aggregate(NODE_CPU_USAGE, (), 300).avg() == pytest.approx((1 + 1 + 2 * 4) / 4)


def test_a_long_gap_counts_for_two_intervals_at_most(cache, feed):
    """One sample after a minute of silence does not outweigh everything else."""
    feed(cache, NODE_CPU_USAGE, [1.0, 1.0, 1.0, *[None] * 60, 4.0])

    assert cache.aggregate(NODE_CPU_USAGE, (), 300).avg() == pytest.approx((3 + 2 * 4) / 5)


def test_suspend_is_a_gap(cache, feed, clock):
    """Boot time counts sleep, so older samples leave the window and weights stay capped."""
    feed(cache, NODE_CPU_USAGE, [1.0, 1.0])
    clock.suspend(1000)
    feed(cache, NODE_CPU_USAGE, [4.0, 1.0])

    assert cache.aggregate(NODE_CPU_USAGE, (), 300).avg() == pytest.approx((2 * 4 + 1) / 3)


@pytest.mark.parametrize("step", [-7200.0, 7200.0])
def test_wall_clock_steps_do_not_disturb_windows(cache, feed, clock, step):
    """Only boot time orders samples; the wall time is carried along as it was."""
    feed(cache, NODE_CPU_USAGE, [1.0, 2.0])
    clock.step_wall(step)
    feed(cache, NODE_CPU_USAGE, [3.0])

    assert cache.aggregate(NODE_CPU_USAGE, (), 300).avg() == 2
    assert cache.newest(NODE_CPU_USAGE).wall == clock.wall()


def test_gaps_are_judged_per_series(cache, clock):
    """The first in the window weighs with the time since that series' own previous sample."""
    steady, holey = ("steady",), ("holey",)
    for tick in range(6):
        clock.tick(1)
        samples = [Sample(POD_CPU_USAGE, float(tick), steady)]
        if tick not in (2, 3):
            samples.append(Sample(POD_CPU_USAGE, float(tick), holey))
        cache.append(stamp(clock), samples)

    found = cache.aggregate_all(POD_CPU_USAGE, 2)  # ticks 3, 4 and 5

    assert found[steady].avg() == pytest.approx((3 + 4 + 5) / 3)
    assert found[holey].avg() == pytest.approx((2 * 4 + 5) / 3)
    assert (found[steady].span, found[holey].span) == (2, 1)
    assert (found[steady].count, found[holey].count) == (3, 2)


def test_the_first_sample_of_a_series_counts_for_one_interval(cache, feed, clock):
    """A series that starts late is averaged over its own life."""
    for tick in range(5):
        clock.tick(1)
        samples = [Sample(POD_CPU_USAGE, 9.0, ("old",))]
        if tick >= 3:
            samples.append(Sample(POD_CPU_USAGE, float(tick), ("new",)))
        cache.append(stamp(clock), samples)

    assert cache.aggregate_all(POD_CPU_USAGE, 300)[("new",)].avg() == 3.5


@pytest.mark.parametrize("value", [3 * 2.0**30, 3.0, 0.1, 1.523, 107374182401.0])
def test_the_mean_of_a_constant_is_that_constant(cache, feed, value):
    """Reports truncate, so 3 Gi must not become 3 Gi minus one byte, with uneven ticks either."""
    uneven = random.Random(1)
    for _ in range(300):
        feed(cache, NODE_MEMORY_USAGE, [value], every=uneven.uniform(0.9, 1.1))

    assert cache.aggregate(NODE_MEMORY_USAGE, (), 250).avg() == value
    assert cache.aggregate_all(NODE_MEMORY_USAGE, 250)[()].avg() == value


@given(
    st.lists(
        st.tuples(st.floats(0.05, 5), st.none() | st.floats(0, 1e12)), min_size=1, max_size=40
    ),
    st.floats(0, 60),
)
def test_one_series_and_the_whole_table_agree_with_the_definition(ticks, seconds):
    """Against a plain reference, for any spacing, any gaps and any window."""
    cache, clock, points = _filled(ticks)
    end = clock.boottime()
    inside = [point for point in points if point[0] >= end - seconds - 0.0005]

    one = cache.aggregate(POD_CPU_USAGE, ("p",), seconds)
    table = cache.aggregate_all(POD_CPU_USAGE, seconds).get(("p",))

    assert (one is None) == (table is None) == (not inside)
    for found in filter(None, (one, table)):
        assert found.points() == inside
        assert found.avg() == pytest.approx(_reference_mean(points, inside), rel=1e-9, abs=1e-9)
        assert (found.count, found.last) == (len(inside), inside[-1][1])


def _filled(ticks):
    clock = SimulatedClock()
    cache = MetricCache(
        None,
        "boot",
        clock,
        intervals=dict.fromkeys(Cadence, 1.0),
        retentions=dict.fromkeys(RetentionClass, 300.0),
    )
    points = []
    for pause, value in ticks:
        clock.tick(pause)
        samples = [Sample(POD_CPU_USAGE, 1.0, ("other",))]
        if value is not None:
            samples.append(Sample(POD_CPU_USAGE, value, ("p",)))
            points.append((clock.boottime(), value))
        cache.append(stamp(clock), samples)
    return cache, clock, points


def _reference_mean(points, inside):
    total = weights = 0.0
    for index, (boot, value) in enumerate(points):
        if (boot, value) in inside:
            weight = min(boot - points[index - 1][0], 2.0) if index else 1.0
            total += value * weight
            weights += weight
    return math.nan if not weights else total / weights
