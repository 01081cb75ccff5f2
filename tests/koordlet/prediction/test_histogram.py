"""The decaying histogram: Koordinator's worked examples, and what must hold for any samples."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.prediction.models import (
    CPU_BUCKETS,
    MEMORY_BUCKETS,
    DecayingHistogram,
    HistogramSnapshot,
)

from .conftest import GIB, HOUR, MIB, unix

T = unix("2026-07-01T03:00:00+00:00")
DAY = 24 * HOUR


def cpu(*samples):
    """A histogram of (cores, Unix seconds)."""
    return filled(DecayingHistogram(CPU_BUCKETS, 12 * HOUR), samples)


def memory(*samples):
    return filled(DecayingHistogram(MEMORY_BUCKETS, DAY), samples)


def filled(histogram, samples):
    for value, at in samples:
        histogram.add(value, at)
    return histogram


def milli(histogram, *shares):
    return [int(histogram.percentile(share) * 1000) for share in shares]


def test_without_samples_everything_is_zero():
    assert cpu().percentile(0.95) == 0.0
    assert cpu().is_empty()


@pytest.mark.parametrize(("cores", "wanted"), [(1.0, 1035), (0.0, 25), (5000.0, 1060437)])
def test_one_value_gives_the_start_of_the_next_bucket(cores, wanted):
    assert milli(cpu((cores, T)), 0.6, 0.95, 1.0) == [wanted] * 3
    assert milli(cpu(*[(cores, T)] * 7), 0.6, 0.95, 1.0) == [wanted] * 3


def test_percentiles_of_many_values():
    histogram = cpu(*((tenth / 10, T) for tenth in range(1, 101)))
    assert milli(histogram, 0.6, 0.9, 0.95, 0.98, 1.0) == [6137, 9306, 9796, 10311, 10311]


def test_an_old_sample_counts_half_after_a_half_life():
    histogram = cpu((4.0, T), *[(0.5, T + 12 * HOUR)] * 20)
    assert milli(histogram, 0.95, 0.98) == [539, 4217]


@pytest.mark.parametrize(
    ("size", "wanted"),
    [(0, 5242880), (128 * MIB, 135477939), (256 * MIB, 286623669), (GIB, 1097586419)],
)
def test_memory(size, wanted):
    assert int(memory((size, T)).percentile(0.98)) == wanted


def test_the_last_buckets():
    assert CPU_BUCKETS.start(157) == pytest.approx(1060.4379)
    assert MEMORY_BUCKETS.start(204) == pytest.approx(2.2039e12, rel=1e-4)
    assert CPU_BUCKETS.index(1.0) == 22
    assert CPU_BUCKETS.index(math.inf) == 157


@pytest.mark.parametrize(
    ("make", "first", "reference", "weight"),
    [
        (cpu, "2026-07-01T03:00:00Z", "2026-07-01T00:00:00Z", 1.189207),
        (cpu, "2026-07-01T06:00:00Z", "2026-07-01T12:00:00Z", 0.707107),
        (cpu, "2026-07-01T07:00:00Z", "2026-07-01T12:00:00Z", 0.749154),
        (memory, "2026-07-01T15:00:00Z", "2026-07-02T00:00:00Z", 0.771105),
    ],
)
def test_the_reference_is_the_nearest_multiple_of_the_half_life(make, first, reference, weight):
    found = make((1.0, unix(first))).snapshot()
    assert found.reference == unix(reference)
    assert found.total == pytest.approx(weight, rel=1e-6)


def test_after_a_hundred_half_lives_the_reference_moves_and_old_samples_are_gone():
    histogram = cpu((4.0, T), (1.0, T + 101 * 12 * HOUR))
    assert milli(histogram, 1.0) == [1035]
    assert histogram.snapshot().reference == unix("2026-07-01T00:00:00Z") + 101 * 12 * HOUR


def test_a_clock_that_was_far_ahead_does_not_silence_later_samples():
    histogram = cpu((4.0, T + 3650 * DAY), (1.0, T))
    assert milli(histogram, 0.95) == [1035]


cores = st.floats(0, 2000, allow_nan=False)
offsets = st.floats(0, 400 * DAY)


@given(st.lists(st.tuples(cores, offsets), min_size=1), st.floats(0, 1))
def test_a_percentile_is_between_the_samples_and_a_bucket_above(samples, share):
    latest = max(offset for _, offset in samples)
    kept = [value for value, offset in samples if latest - offset < 100 * HOUR]
    result = cpu(*sorted(((value, T + at) for value, at in samples), key=lambda one: one[1]))
    found = result.percentile(share)
    top = min(max(value for value, _ in samples), CPU_BUCKETS.start(157))
    assert 0.025 <= found <= max(top * 1.05 + 0.025, 0.025) * (1 + 1e-9)
    assert result.percentile(1.0) >= min(max(kept), CPU_BUCKETS.start(157)) * (1 - 1e-9)


@given(st.lists(st.tuples(cores, offsets), max_size=20))
def test_a_restored_histogram_is_the_same(samples):
    histogram = cpu(*((value, T + at) for value, at in samples))
    again = DecayingHistogram(CPU_BUCKETS, 12 * HOUR)
    again.restore(histogram.snapshot())
    assert again.snapshot() == histogram.snapshot()
    assert [again.percentile(share / 10) for share in range(11)] == [
        histogram.percentile(share / 10) for share in range(11)
    ]


def test_buckets_with_next_to_no_weight_do_not_count():
    histogram = DecayingHistogram(CPU_BUCKETS, 12 * HOUR)
    histogram.restore(HistogramSnapshot(T, {22: 2.0, 40: 0.00004}, 2.00004))
    assert milli(histogram, 1.0) == [1035]
