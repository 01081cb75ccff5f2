"""Which reservation a pod is to have, and how nodes rank (worked examples 24 to 27 and 49)."""

from itertools import permutations

import pytest

from koord_scheduler_plugins.reservation.consumers import AllocatePolicy, policies_conflict
from koord_scheduler_plugins.reservation.rooms import (
    node_scores,
    nominate,
    preferred_node,
    score_reservation,
)
from tests.support.reservations import GI, info

ORDER = "scheduling.koordinator.sh/reservation-order"
POD = {"cpu": 2000, "memory": 4 * GI}


def sized(cpu: int, memory: int, name: str = "r", **more):
    return info(name, {"cpu": str(cpu), "memory": f"{memory}Gi"}, **more)


@pytest.mark.parametrize(
    ("reserved", "requests", "score"),
    [
        (sized(4, 8), POD, 50),
        (sized(2, 4, used={"cpu": 2000, "memory": 3 * GI}, allocateOnce=False), POD, 0),
        (sized(2, 4), POD, 100),
        (sized(4, 8), {}, 0),
    ],
)
def test_scores(reserved, requests, score):
    assert score_reservation(requests, reserved) == score


def test_a_score_of_huge_amounts_is_exact():
    """Defect D15: milli-units times 100 overflow 64 bits in Go."""
    huge = info(status={"allocatable": {"memory": "512Ti"}})

    assert score_reservation({"memory": 256 << 40}, huge) == 50


def test_what_would_be_preempted_is_not_used():
    used = sized(2, 4, used=POD, allocateOnce=False)

    assert score_reservation(POD, used, POD) == 100


def test_the_highest_score_is_nominated():
    """Example 26."""
    large, small = sized(4, 8, "large"), sized(2, 4, "small")

    found = nominate([large, small], lambda one: score_reservation(POD, one))

    assert found is small


FIRST, SECOND = "2026-07-24T00:00:00Z", "2026-07-24T00:00:01Z"
RANKED = [
    ("e", {"labels": {ORDER: "-1"}}, 1),
    ("d", {"labels": {ORDER: "7"}}, 9),
    ("c", {"created": SECOND}, 5),
    ("b", {"created": FIRST}, 4),
    ("a", {"created": SECOND}, 4),
    ("f", {"created": SECOND}, 4),
]
"""Reservations with their scores, the first one first."""


@pytest.mark.parametrize("first", range(len(RANKED) - 1))
def test_ties_are_decided_by_order_score_creation_and_uid(first):
    """Defect D9 mended: whatever order they come in, the choice is the same."""
    scores = {name: score for name, _, score in RANKED}
    made = [info(name, **more) for name, more, _ in RANKED[first:]]

    for some in permutations(made):
        assert nominate(some, lambda one: scores[one.name]) is made[0]


def test_one_that_is_given_away_is_not_nominated():
    taken = info("taken", used={"pods": 1})
    shared = info("shared", used={"pods": 1}, allocateOnce=False)

    assert nominate([taken], lambda _: 1) is None
    assert nominate([taken, shared], lambda _: 1) is shared


def test_the_node_with_the_smallest_order_is_preferred():
    """Example 49."""
    nodes = {
        "n1": [info("a", labels={ORDER: "5"})],
        "n2": [info("b", labels={ORDER: "3"}), info("c")],
        "n3": [info("d")],
    }

    assert preferred_node(nodes) == "n2"
    assert preferred_node({"n3": nodes["n3"], "n4": []}) is None
    assert node_scores(["n1", "n2", "n3"], {"n1": 50}, "n2") == {"n1": 5, "n2": 100, "n3": 0}
    assert node_scores(["n1"], {}, None) == {"n1": 0}


def test_only_default_does_not_share_a_node():
    conflicts = {
        (one.value, other.value)
        for one in AllocatePolicy
        for other in AllocatePolicy
        if policies_conflict(one, other)
    }

    assert conflicts == {
        ("", "Aligned"),
        ("", "Restricted"),
        ("Aligned", ""),
        ("Restricted", ""),
    }
