"""Annotations that load-aware scheduling heeds."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.annotations import (
    AggregationType,
    UsageThresholds,
    estimation_seconds,
    scaling_factors,
    usage_thresholds,
)
from koord.util.errors import InvalidObject

P95 = {"usageThresholds": {"cpu": 80}, "usageAggregationType": "p95"}


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ({}, UsageThresholds()),
        (None, UsageThresholds()),
        ({"usageThresholds": {"memory": 60}}, UsageThresholds({"memory": 60})),
        ({"prodUsageThresholds": {"cpu": 120}}, UsageThresholds(prod={"cpu": 120})),
        ({"usageThresholds": {"cpu": -1, "memory": 60}}, UsageThresholds()),
        (
            {"aggregatedUsage": P95},
            UsageThresholds(aggregated={"cpu": 80}, aggregation=AggregationType.P95),
        ),
        (
            {"aggregatedUsage": {**P95, "usageAggregatedDuration": "5m"}},
            UsageThresholds(
                aggregated={"cpu": 80}, aggregation=AggregationType.P95, duration=300.0
            ),
        ),
        (
            {"aggregatedUsage": {**P95, "usageAggregationType": "p42"}},
            UsageThresholds(aggregated={"cpu": 80}),
        ),
    ],
)
def test_thresholds_of_a_node(value: Any, found: UsageThresholds) -> None:
    """A negative threshold voids its part only."""
    assert usage_thresholds(json.dumps(value)) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"usageThresholds": {"cpu": "65"}}',
        '{"usageThresholds": {"cpu": 65.5}}',
        '{"aggregatedUsage": {"usageAggregatedDuration": "long"}}',
    ],
)
def test_malformed_thresholds_are_refused(text: str) -> None:
    """Whole."""
    with pytest.raises(InvalidObject):
        usage_thresholds(text)


@pytest.mark.parametrize("text", ['{"cpu": 0}', '{"cpu": -5}', '{"cpu": 10001}', "[1]", "x"])
def test_scaling_factors_have_bounds(text: str) -> None:
    """Whoever writes pods could blow up or hide a load otherwise."""
    with pytest.raises(InvalidObject):
        scaling_factors(text)


def test_scaling_factors_of_a_pod() -> None:
    """Above 100 percent, too."""
    assert scaling_factors('{"cpu": 110, "memory": 1}') == {"cpu": 110, "memory": 1}
    assert scaling_factors("null") == {}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("60", 60), ("+5", 5), ("0", 0), ("-1", None), ("1.5", None), ("", None), ("9" * 99, None)],
)
def test_seconds_of_estimation(text: str, seconds: int | None) -> None:
    """Anything but a whole number counts as not set."""
    assert estimation_seconds(text) == seconds


@given(st.text(max_size=40) | st.dictionaries(st.text(max_size=3), st.integers()).map(json.dumps))
def test_no_text_crashes_them(text: str) -> None:
    """InvalidObject is all that is raised."""
    for read in (usage_thresholds, scaling_factors, estimation_seconds):
        try:
            read(text)
        except InvalidObject:
            continue


def test_aggregation_types_are_those_of_reports() -> None:
    """As NodeMetric spells them."""
    assert {*AggregationType} == {"", "avg", "p50", "p90", "p95", "p99"}
