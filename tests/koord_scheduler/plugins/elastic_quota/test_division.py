"""Division of one resource among siblings (worked examples 1 to 14 and 34 of the specification)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_scheduler_plugins.elastic_quota.runtime import divide, largest_remainder, scaled_mins

AMOUNTS = st.one_of(st.integers(0, 50), st.integers(0, 2**63 - 1))
CHILDREN = st.lists(st.tuples(AMOUNTS, AMOUNTS, AMOUNTS, st.booleans()), max_size=12)


@pytest.mark.parametrize(
    ("total", "children", "wanted"),
    [  # each child: weight, request limited by max, base, whether it lends
        pytest.param(
            100,
            [(40, 5, 10, True), (60, 20, 15, True), (50, 40, 20, True), (80, 70, 15, True)],
            [5, 20, 35, 40],
            id="1",
        ),
        pytest.param(
            100,
            [(40, 5, 10, True), (60, 20, 15, True), (50, 40, 20, True), (0, 70, 15, True)],
            [5, 20, 40, 15],
            id="2",
        ),
        pytest.param(
            100,
            [(40, 5, 10, True), (60, 20, 15, True), (50, 40, 20, True), (0, 70, 45, True)],
            [5, 20, 30, 45],
            id="3",
        ),
        pytest.param(
            81,
            [(1, 100, 8, True)] * 8 + [(1, 100, 7, True)] * 2 + [(0, 0, 3, True)],
            [9, 9, 9, 8, 8, 8, 8, 8, 7, 7, 0],
            id="4",
        ),
        pytest.param(100, [(1, 120, 60, True), (1, 0, 40, False)], [60, 40], id="5"),
        pytest.param(50, [(40, 30, 10, True), (40, 30, 0, True)], [30, 20], id="6"),
        pytest.param(50, [(1, 35, 10, True), (1, 35, 10, True)], [25, 25], id="7"),
        pytest.param(50, [(30, 30, 0, True), (30, 30, 0, True)], [25, 25], id="8"),
        pytest.param(50, [(40, 40, 40, True), (40, 40, 5, True)], [40, 10], id="9"),
        pytest.param(100, [(1, 0, 60, True), (1, 90, 50, True)], [0, 90], id="10"),
        pytest.param(100, [(1, 30, 60, True), (1, 90, 50, True)], [30, 70], id="11"),
        pytest.param(100, [(1, 60, 60, True), (1, 90, 50, True)], [60, 50], id="12"),
        pytest.param(120, [(1, 80, 50, True), (1, 100, 50, True)], [60, 60], id="13"),
        pytest.param(10, [(0, 9, 1, True), (0, 9, 2, True), (0, 9, 3, True)], [1, 2, 3], id="14"),
    ],
)
def test_worked_examples(total, children, wanted):
    weights, requests, bases, lends = zip(*children, strict=True)

    assert divide(total, bases, requests, weights, lends) == wanted


@pytest.mark.parametrize(("total", "wanted"), [(200, 50), (100, 25), (50, 0)])
def test_mins_that_are_not_scaled_are_served_first(total, wanted):
    """Example 34."""
    assert scaled_mins(total, [50, 50, 50], [False, True, True]) == [50, wanted, wanted]


@given(st.integers(0, 2**63), st.lists(st.integers(1, 2**63), min_size=1, max_size=12))
def test_shares_sum_up_and_are_less_than_a_unit_off(amount, weights):
    shares = largest_remainder(amount, weights)

    assert sum(shares) == amount
    whole = sum(weights)
    assert all(
        abs(share * whole - weight * amount) < whole
        for share, weight in zip(shares, weights, strict=True)
    )


@given(AMOUNTS, CHILDREN)
def test_nothing_is_left_while_anyone_with_a_weight_wants_more(total, children):
    """And nobody has more than the larger one of base and request."""
    bases, requests, weights, lends = (
        map(list, zip(*children, strict=True)) if children else [[]] * 4
    )
    runtimes = divide(total, bases, requests, weights, lends)

    for base, request, lending, runtime in zip(bases, requests, lends, runtimes, strict=True):
        assert min(base, request) <= runtime <= max(base, request)
        assert lending <= (runtime <= request)
    wanting = any(
        weight and runtime < request
        for weight, runtime, request in zip(weights, runtimes, requests, strict=True)
    )
    if wanting:
        assert sum(runtimes) >= total
    started = sum(
        request if request <= base and lending else base
        for base, request, lending in zip(bases, requests, lends, strict=True)
    )
    assert sum(runtimes) <= max(total, started)


@given(AMOUNTS, st.lists(AMOUNTS, max_size=12))
def test_scaled_mins_never_exceed_what_there_is(total, mins):
    scaled = scaled_mins(total, mins)

    assert sum(scaled) <= total
    assert all(new <= old for new, old in zip(scaled, mins, strict=True))
    assert sum(mins) > total or scaled == mins
