"""Thresholds in amounts: the table of spec 06 §5.3, and what exact makes of the same."""

from typing import Any

import numpy as np
import pytest

from koord_descheduler_plugins.low_node_load.args import (
    BASE,
    LowNodeLoadArgs,
    NodePool,
    absolute,
    exact_thresholds,
    filled_in,
    koordinator_thresholds,
)


def pool(**given: Any) -> NodePool:
    return LowNodeLoadArgs(**given).complete().pools()[0]


def amounts(*cpu: int) -> np.ndarray[Any, Any]:
    """Nodes that have, or use, so much CPU in milli-cores and nothing else."""
    return np.array([(one, 0, 0) for one in cpu], np.int64)


def cpu_limits(planner: Any, given: Any, usage: list[int], capacity: list[int]) -> tuple[int, int]:
    """Low and high threshold of the first node."""
    found = planner(
        pool(**given),
        BASE,
        capacity=amounts(*capacity),
        usage=amounts(*usage),
        prod_usage=amounts(*usage),
    )
    return int(found.low[0, 0]), int(found.high[0, 0])


@pytest.mark.parametrize(
    ("percent", "capacity", "expected"),
    [
        (29, 100, 28),
        (29, 96_000, 27_839),
        (58, 96_000, 55_679),
        (35, 4_000, 1_400),
        (55, 40_960, 22_528),
        (120, 1_000, 1_200),
    ],
)
def test_percentages_are_cut_as_in_go(percent: int, capacity: int, expected: int) -> None:
    """Doubles, from left to right, towards zero."""
    found = absolute(np.array([float(percent)]), np.array([[capacity]], np.int64))
    assert found.tolist() == [[expected]]


@pytest.mark.parametrize(
    ("low", "high", "deviation", "mean", "koordinator", "exact"),
    [
        ({"cpu": 45}, {"cpu": 75}, False, 50, (4500, 7500), (4500, 7500)),
        # a high threshold alone counts, and keeps no node from being low
        ({}, {"cpu": 60}, False, 50, (10000, 10000), (6000, 6000)),
        # a low one alone makes no node high
        ({"cpu": 30}, {}, False, 50, (3000, 0), (3000, 10000)),
        ({"cpu": 10}, {"cpu": 15}, True, 50, (4000, 6500), (4000, 6500)),
        ({"cpu": 70}, {"cpu": 50}, True, 63.33, (0, 10000), (0, 10000)),
        # a deviation of 0 is the mean itself
        ({"cpu": 0}, {"cpu": 15}, True, 50, (10000, 10000), (5000, 6500)),
    ],
)
def test_thresholds_of_a_node(
    low: Any, high: Any, deviation: bool, mean: float, koordinator: Any, exact: Any
) -> None:
    """10000m of CPU; the other two nodes make the mean."""
    given = {
        "low_thresholds": low,
        "high_thresholds": high,
        "use_deviation_thresholds": deviation,
    }
    usage, capacity = [round(mean * 100)] * 3, [10_000] * 3
    assert cpu_limits(koordinator_thresholds, given, usage, capacity) == koordinator
    assert cpu_limits(exact_thresholds, given, usage, capacity) == exact


def test_nodes_without_capacity_and_the_mean() -> None:
    """They pull Koordinator's mean down; in exact they count for nothing and have no limit."""
    given = {
        "low_thresholds": {"cpu": 10},
        "high_thresholds": {"cpu": 10},
        "use_deviation_thresholds": True,
    }
    usage, capacity = [5000, 0], [10_000, 0]
    assert cpu_limits(koordinator_thresholds, given, usage, capacity) == (1500, 3500)
    assert cpu_limits(exact_thresholds, given, usage, capacity) == (4000, 6000)


def test_filling_changes_nothing_that_was_given() -> None:
    """memory is added; a second time gives the same."""
    one = pool(low_thresholds={"cpu": 30}, high_thresholds={"gpu": 60})
    low, high, prod_low, prod_high = filled_in(one)

    assert low == {"cpu": 30, "gpu": 100, "memory": 100}
    assert high == {"cpu": 0, "gpu": 100, "memory": 100}
    assert prod_low == prod_high == {"cpu": 100, "gpu": 100, "memory": 100}
    assert one.low_thresholds == {"cpu": 30}
    assert filled_in(one) == (low, high, prod_low, prod_high)
