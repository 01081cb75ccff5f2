"""CPU shares, weight and quota."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.host.cgroups.cgroupfiles import (
    milli_to_quota,
    milli_to_shares,
    shares_to_weight,
    weight_to_shares,
)


@pytest.mark.parametrize(
    ("shares", "weight"),
    [
        (2, 1),
        (102, 4),
        (512, 20),
        (1000, 39),
        (1024, 39),
        (2048, 79),
        (50000, 1908),
        (262144, 10000),
    ],
)
def test_shares_to_weight(shares, weight):
    """The formula of runc, whose results containers already have."""
    assert shares_to_weight(shares) == weight


@pytest.mark.parametrize(
    ("weight", "shares"),
    [
        (1, 2),
        (2, 28),
        (20, 500),
        (39, 998),
        (79, 2046),
        (100, 2597),
        (1908, 49997),
        (10000, 262144),
    ],
)
def test_weight_to_shares(weight, shares):
    """The way back loses what the division cut off."""
    assert weight_to_shares(weight) == shares


@pytest.mark.parametrize(
    ("milli", "shares", "quota"),
    [
        (-1, 2, -1),
        (0, 2, -1),
        (1, 2, 1000),
        (5, 5, 1000),
        (10, 10, 1000),
        (100, 102, 10_000),
        (500, 512, 50_000),
        (1500, 1536, 150_000),
        (300_000, 262_144, 30_000_000),
    ],
)
def test_requests_and_limits(milli, shares, quota):
    """The kubelet's conversions of a request to shares and of a limit to a quota."""
    assert milli_to_shares(milli) == shares
    assert milli_to_quota(milli) == quota


@pytest.mark.parametrize(
    ("convert", "high"), [(shares_to_weight, 262_144), (weight_to_shares, 10_000)]
)
def test_values_the_kernel_refuses_are_refused(convert, high):
    """Out of range is an error, not clamped: it is a mistake."""
    for value in (-1, 0, high + 1):
        with pytest.raises(ValueError, match="wanted"):
            convert(value)


@given(st.integers(1, 10_000))
def test_weights_survive_the_round_trip_but_for_rounding(weight):
    """Comparing weights shows whether shares are in force; comparing shares would not."""
    assert weight - 1 <= shares_to_weight(weight_to_shares(weight)) <= weight
