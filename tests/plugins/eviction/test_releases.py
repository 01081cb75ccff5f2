"""The amounts that victims must release: Koordinator's worked examples, to the last unit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet_plugins.eviction.settings import (
    Band,
    Satisfaction,
    SatisfactionBand,
    allocatable_batch_cpu,
    is_covered,
    missing_requests,
    requested_cpu_release,
    requested_memory_release,
    satisfaction_release,
    used_percent,
    used_release,
)

G, GIB = 10**9, 2**30


@pytest.mark.parametrize(
    ("cores", "used", "threshold", "lower", "percent", "milli"),
    [
        (100, 81, 80, 78, 81, 3000),
        (100, 81, 78, 76, 81, 5000),
        (64, 60.7, 90, 85, 94, 5760),
        (96, 76.8, 80, 70, 80, 9600),
        (100, 11, 80, 70, 11, 0),
    ],
)
def test_cpu_in_use(cores, used, threshold, lower, percent, milli):
    """From the threshold on, in whole percent, down to the lower mark."""
    used_milli = int(used * 1000)
    assert used_percent(used_milli, cores * 1000) == percent
    assert used_release(used_milli, cores * 1000, Band(threshold, lower)) == milli


@pytest.mark.parametrize(
    ("used", "threshold", "lower", "release"),
    [
        (115 * G, 80, 78, 20_400_000_000),
        (115 * G, 82, 80, 18_000_000_000),
        (115 * G, 82, 74, 25_200_000_000),
        (100 * G, 80, 78, 6_000_000_000),
        (96 * G, 80, 78, 2_400_000_000),
        (80 * G, 80, 78, 0),
    ],
)
def test_memory_in_use(used, threshold, lower, release):
    """Of 120 G."""
    assert used_release(used, 120 * G, Band(threshold, lower)) == release


@pytest.mark.parametrize(
    ("asked", "allocatable", "band", "release"),
    [
        (85_000, 100_000, Band(80, 70), 15_000),
        (85_000, 100_000, Band(0, 0), 85_000),
        (85_000, 0, Band(80, 70), 85_000),
        (80_000, 100_000, Band(80, 70), 0),
        (0, 0, Band(80, 70), 0),
    ],
)
def test_cpu_asked_for(asked, allocatable, band, release):
    """Above the threshold; all of it when the node has none of that resource."""
    assert requested_cpu_release(asked, allocatable, band) == release


@pytest.mark.parametrize(
    ("asked", "allocatable", "band", "release"),
    [
        (85 * GIB, 100 * GIB, Band(80, 70), 16_106_127_360),
        (50 * GIB, 100 * GIB, Band(45, 40), 10_737_418_239),
        (50 * GIB, 100 * GIB, Band(0, 0), 53_687_091_200),
        (50 * GIB, 0, Band(80, 70), 53_687_091_200),
        (50 * GIB, 100 * GIB, Band(80, 70), 0),
    ],
)
def test_memory_asked_for(asked, allocatable, band, release):
    """The floats round as they do in Koordinator."""
    assert requested_memory_release(asked, allocatable, band) == release


@pytest.mark.parametrize(
    ("request_", "limit", "band", "missing"),
    [
        (50_000, 10_000, (30, 40), 10_000),
        (50_000, 14_000, (30, 40), 6_000),
        (50_000, 13_000, (30, 40), 7_000),
        (50_000, 11_000, (30, 40), 9_000),
        (50_000, 15_000, (30, 40), 5_000),  # at the lower mark
        (40_000, 20_000, (30, 40), 0),
        (30_000, 10_000, (60, 80), 14_000),
        (0, 10_000, (30, 40), 0),
    ],
)
def test_missing_requests(request_, limit, band, missing):
    """What would have to go for the rest to get its share."""
    assert missing_requests(request_, limit, SatisfactionBand(*band, usage=90)) == missing


@pytest.mark.parametrize(
    ("mean", "now", "usage", "release"),
    [
        ((10_000, 9_500), (14_000, 13_000), 90, 6_000),
        ((13_000, 12_000), (11_000, 10_000), 90, 7_000),
        ((10_000, 9_500), (10_000, 5_000), 90, 0),
        ((8_000, 7_000), (8_000, 7_000), 50, 12_000),
        ((1, 500), (1, 500), 50, 19_999),
        ((-1, 500), (-1, 500), 50, 0),
        ((999, 0), (999, 0), 90, 19_001),  # below a core they are always taken to want more
        ((14_000, 13_500), (25_000, 24_900), 90, 0),  # it is over
    ],
)
def test_the_mean_and_now_must_agree(mean, now, usage, release):
    """Requests of 50 cores, 30 and 40 percent; of both the smaller amount."""
    cpu = [Satisfaction(50_000, *each) for each in (mean, now)]
    assert satisfaction_release(*cpu, SatisfactionBand(30, 40, usage)) == release


@pytest.mark.parametrize(("found", "limit"), [(None, -1), (-5, -1), (0, 1), (8000, 8000)])
def test_allocatable_batch_cpu(found, limit):
    """A node without any satisfies no request; a node without the resource gives no response."""
    assert allocatable_batch_cpu(found) == limit


@pytest.mark.parametrize(
    ("count", "interval", "window", "covered"),
    [(1, 1.0, 1.0, True), (19, 1.0, 60.0, False), (20, 1.0, 60.0, True), (0, 1.0, 60.0, False)],
)
def test_a_window_needs_a_third_of_its_samples(count, interval, window, covered):
    """Of the series that has the fewest."""
    assert is_covered({"usage": 60, "request": count}, interval, window) is covered


@given(st.integers(0, 2**50), st.integers(1, 2**50), st.integers(0, 100), st.integers(-2, 100))
def test_what_is_under_way_ends_at_the_lower_mark(used, capacity, threshold, gap):
    """Never a negative amount, and nothing once usage is down at the lower mark."""
    lower = threshold - abs(gap)
    band = Band(threshold, lower)
    release = used_release(used, capacity, band)
    going_on = used_release(used, capacity, band.while_under_way())
    assert 0 <= release <= going_on
    if used_percent(used, capacity) <= lower:
        assert going_on == 0
