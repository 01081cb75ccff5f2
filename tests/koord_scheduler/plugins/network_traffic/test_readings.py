"""Scores of traffic: the tutorial's formula, capacity, unknown nodes; both forms agree."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_scheduler_plugins.network_traffic.readings import (
    UNKNOWN,
    Direction,
    Measure,
    MeasureError,
    Reading,
    Traffic,
    TrafficScoring,
)

GIGABIT = 125_000_000.0


def measure(
    *traffic: Traffic | str, scoring: TrafficScoring = TrafficScoring.AUTO, **more: object
) -> Measure:
    """Of nodes n0, n1, ...; a text is an error."""
    readings = {
        f"n{at}": Reading(0.0, error=one) if isinstance(one, str) else Reading(0.0, one)
        for at, one in enumerate(traffic)
    }
    more = {"direction": Direction.SUM, **more}
    return Measure.of(readings, scoring=scoring, **more)  # type: ignore[arg-type]


def normalized(made: Measure, *scores: int) -> list[int]:
    found = made.normalize_all(np.array(scores, np.int64)).tolist()
    highest = max(scores, default=0)
    assert found == [made.normalize(one, highest) for one in scores]
    return found


@pytest.mark.parametrize(
    ("scores", "wanted"),
    [
        ([1_000_000, 1_200_000, 1_400_000], [29, 15, 0]),
        ([5, 0, 10], [50, 100, 0]),
        ([10, 10], [0, 0]),
        ([0, 0, 0], [100, 100, 100]),
        ([7], [0]),
        ([], []),
        ([UNKNOWN, 10, 5], [0, 0, 50]),
        ([UNKNOWN, 0], [0, 100]),
        ([UNKNOWN, UNKNOWN], [0, 0]),
        ([2 * 10**14, 305 * 10**9], [0, 100]),  # counters: the rebooted, busy node wins
        ([10**8, 0], [0, 100]),  # rates of the same nodes
        ([2**61, 2**60, 3], [0, 50, 100]),  # a hundred times that does not fit into 64 bits
    ],
)
def test_the_least_traffic_scores_most(scores: list[int], wanted: list[int]) -> None:
    """The tutorial's integer arithmetic, without its division by zero."""
    assert normalized(measure(), *scores) == wanted


@given(st.lists(st.one_of(st.just(UNKNOWN), st.integers(0, 2**62)), max_size=8), st.booleans())
def test_both_forms_agree_on_any_scores(scores: list[int], by_capacity: bool) -> None:
    """And stay in range."""
    if by_capacity:
        scores = [min(one, 100) for one in scores]
    made = Measure({}, by_capacity=by_capacity)
    assert all(0 <= one <= 100 for one in normalized(made, *scores))


@pytest.mark.parametrize(
    ("megabytes", "wanted"), [([10, 12, 14], [92, 90, 88]), ([0, 125, 250], [100, 0, 0])]
)
def test_capacity_is_what_is_left_of_the_link(megabytes: list[int], wanted: list[int]) -> None:
    """(speed - traffic) * 100 / speed, of the busier direction, since links are full duplex."""
    made = measure(*(Traffic(one * 1e6, one * 5e5, GIGABIT) for one in megabytes))
    assert made.by_capacity
    assert normalized(made, *made.raw.values()) == wanted


def test_one_node_without_a_known_speed_makes_all_relative() -> None:
    """Percent and bytes cannot be compared. With a default speed, or by order, it is capacity."""
    nodes = Traffic(4e6, 1e6, GIGABIT), Traffic(4e6, 0.0, None)
    assert measure(*nodes).raw == {"n0": 5_000_000, "n1": 4_000_000}
    assert measure(*nodes, default_speed=GIGABIT).raw == {"n0": 4, "n1": 4}
    assert measure(*nodes, scoring=TrafficScoring.CAPACITY).raw == {"n0": 4}
    assert measure(*nodes, default_speed=GIGABIT, scoring=TrafficScoring.RELATIVE).raw == {
        "n0": 5_000_000,
        "n1": 4_000_000,
    }


@pytest.mark.parametrize(
    ("direction", "amount"),
    [
        (Direction.RECEIVE, 5),
        (Direction.TRANSMIT, 7),
        (Direction.SUM, 12),
        (Direction.MAX, 7),
    ],
)
def test_the_direction_decides_what_counts(direction: Direction, amount: int) -> None:
    """A node without a figure of it is unknown."""
    assert measure(Traffic(5.9, 7.0), direction=direction).raw == {"n0": amount}
    assert measure(Traffic(), direction=direction).raw == {}


def test_below_a_floor_all_nodes_are_idle() -> None:
    """1 kB/s against 2 kB/s is no reason to prefer a node."""
    made = measure(Traffic(1000.0), Traffic(2000.0), idle_below=125_000)
    assert normalized(made, 1000, 2000, UNKNOWN) == [100, 100, 0]
    assert normalized(made, 125_001, 0) == [0, 100]


def test_an_error_of_a_node_is_one_of_each_pod_that_could_go_there() -> None:
    """In the plain form at Score, in the vector form at NormalizeScore; others are not hurt."""
    made = measure(Traffic(5.0), "no answer", "2 values", "no answer")
    wanted = "error getting node bandwidth measure: "
    assert made.raw["n1"] == made.raw["n3"] != made.raw["n2"]
    assert made.score("n0") == 5
    with pytest.raises(MeasureError, match=f"^{wanted}2 values$"):
        made.score("n2")
    with pytest.raises(MeasureError, match=f"^{wanted}no answer$"):
        made.normalize_all(np.array([5, made.raw["n1"]], np.int64))
    assert made.normalize_all(np.array([5], np.int64)).tolist() == [0]
