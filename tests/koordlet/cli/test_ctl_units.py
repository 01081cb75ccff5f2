"""Amounts as people read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.cli.ctl import units

AMOUNTS = st.floats(0, 1e20)


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (units.cores, None, "-"),
        (units.cores, 0, "0.00"),
        (units.cores, 0.0449, "0.04"),
        (units.cores, 9.996, "10.0"),
        (units.cores, 99.96, "100"),
        (units.size, None, "-"),
        (units.size, 0, "0"),
        (units.size, 999, "999"),
        (units.size, 1000, "1.0Ki"),
        (units.size, 3.8 * 2**30, "3.8Gi"),
        (units.size, 999.6 * 2**20, "1.0Gi"),
        (units.size, 9.96 * 2**20, "10Mi"),
        (units.rate, 35_000, "35k"),
        (units.rate, 1_240_000, "1.2M"),
        (units.rate, float("nan"), "-"),
        (units.percent, 0.04, "0"),
        (units.percent, 0.46, "0.5"),
        (units.percent, 99.6, "100"),
        (units.share, 0.125, "12"),
        (units.share, None, "-"),
        (units.number, 12345.678, "1.235e+04"),
        (units.number, None, "-"),
        (units.span, 42.9, "42s"),
        (units.span, 312, "5m 12s"),
        (units.span, 3 * 3600, "3h 0m"),
        (units.span, 12 * 86400 + 7 * 3600, "12d 7h"),
    ],
)
def test_amounts(write, value, text):
    """Absent is a dash, never 0; three digits are enough."""
    assert write(value) == text


@given(AMOUNTS)
def test_columns_stay_narrow(value):
    """Whatever is measured, a table keeps its shape."""
    assert len(units.size(value)) <= 5
    assert len(units.rate(value)) <= 4


@pytest.mark.parametrize(
    ("unit", "text"), [("cores", "2.00"), ("bytes", "2"), ("percent", "2.0"), ("furlongs", "2")]
)
def test_every_unit_can_be_written(unit, text):
    """An unknown one, too."""
    assert units.formatter(unit)(2.0) == text
