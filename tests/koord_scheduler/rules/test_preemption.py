"""Who has to leave a node, and which node it costs least to take."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.cluster.facts import ClusterPod, DisruptionBudget
from koord.controlplane.testing import make_budget, make_pod
from koord_scheduler.rules.preemption import (
    Candidate,
    LowerPriorityPods,
    by_namespace,
    candidates_wanted,
    choose,
    find_victims,
    importance,
    may_preempt,
    violated_budgets,
)
from tests.support.clusters import Cluster, finished, node, pod

ROOM = 10  # cores of the node of these tests


def running(
    name: str, priority: int | None = 0, cpu: int = 1, started: float | None = None, **facts: str
) -> ClusterPod:
    """A pod on the node; started in seconds after some moment."""
    status = {} if started is None else {"startTime": f"2026-01-01T00:{int(started):02}:00Z"}
    return make_pod(
        name, node="n", cpu=cpu, priority=priority, labels={"app": name, **facts}, status=status
    )


class Room:
    """A node with so many cores: the plain rule of room, pod by pod."""

    def __init__(self, wanted: ClusterPod, on_node: list[ClusterPod]) -> None:
        self.wanted = wanted
        self.pods = {one.key: one for one in on_node}

    def remove(self, pods: Sequence[ClusterPod]) -> None:
        for one in pods:
            del self.pods[one.key]

    def add(self, pods: Sequence[ClusterPod]) -> None:
        for one in pods:
            assert one.key not in self.pods
            self.pods[one.key] = one

    def fits(self) -> bool:
        there = [one for one in self.pods.values() if not one.finished]
        enemies = any(one.labels.get("enemy") for one in there)
        return sum(map(cores, there)) + cores(self.wanted) <= ROOM and not enemies


def cores(pod: ClusterPod) -> int:
    return dict(pod.spec.requests).get("cpu", 0) // 1000


def names(pods: list[ClusterPod] | tuple[ClusterPod, ...]) -> str:
    return " ".join(one.name for one in pods)


def victims_of(
    wanted: ClusterPod, on_node: list[ClusterPod], *budgets: DisruptionBudget
) -> tuple[str, int] | None:
    found = find_victims(wanted, on_node, Room(wanted, on_node), by_namespace(budgets))
    return None if found is None else (names(found[0]), found[1])


@pytest.mark.parametrize(
    ("on_node", "wanted"),
    [
        ([running("a", 1, 6), running("b", 2, 4)], "a"),
        ([running("a", 1, 2), running("b", 2, 8)], "b"),
        ([running("a", 1, 5, 1), running("b", 1, 5, 2)], "b"),
        ([running("a", 1, 5, 1), running("b", 1, 5)], "b"),
        ([running("a", None, 5), running("b", -1, 5)], "b"),
        ([running("a", 1, 3), running("b", 2, 3), running("c", 3, 4)], "b a"),
        ([running("a", 1, 5), running("high", 20, 5)], "a"),
        ([running("a", 1, 4), running("high", 20, 6)], None),
        ([running("a", 10, 10)], None),
    ],
)
def test_the_less_important_pods_leave(on_node: list[ClusterPod], wanted: str | None) -> None:
    """The lower priority, then the later start; those of equal or higher priority never do."""
    found = victims_of(make_pod("new", cpu=5, priority=10), on_node)
    assert (found[0] if found else None) == wanted


def test_a_pod_that_no_budget_lets_go_stays_where_others_can_go() -> None:
    """Whatever their priority; where none can, it goes, and is counted."""
    new = make_pod("new", cpu=5, priority=10)
    on_node = [running("a", 1, 5), running("b", 2, 5)]
    assert victims_of(new, on_node, make_budget("pdb", {"app": "a"}, allowed=0)) == ("b", 0)
    assert victims_of(new, on_node, make_budget("pdb", {"app": "a"}, allowed=1)) == ("a", 0)
    both = [make_budget(name, {"app": name}, allowed=0) for name in "ab"]
    assert victims_of(new, on_node, *both) == ("a", 1)


def test_what_forbids_a_pod_beside_another_one_counts_too() -> None:
    """Victims are those that Filter minds, not only those that take room."""
    on_node = [running("a", 5, 1, enemy="yes"), running("b", 1, 1)]
    new = make_pod("new", cpu=1, priority=10)
    assert victims_of(new, on_node) == ("a", 0)
    full = [*on_node, running("c", 1, 8)]
    found = find_victims(new, full, Room(new, full), {}, {"cpu": 1000, "pods": 1})
    assert found is not None
    assert names(found[0]) == "a"


@pytest.mark.parametrize(
    ("budget", "wanted"),
    [
        (DisruptionBudget("default", "b", (), 1), {"default/c", "default/b"}),
        (DisruptionBudget("default", "b", (), -3), {"default/a", "default/b", "default/c"}),
        (DisruptionBudget("default", "b", (), 1, frozenset({"a"})), {"default/c"}),
        (DisruptionBudget("default", "b", None, 0), set()),
        (DisruptionBudget("other", "b", (), 0), set()),
    ],
)
def test_pods_beyond_what_a_budget_allows_violate_it(
    budget: DisruptionBudget, wanted: set[str]
) -> None:
    """In the order given; one whose eviction is counted already takes nothing from it."""
    pods = [running("a"), running("b"), running("c")]
    assert violated_budgets(pods, by_namespace([budget])) == wanted


def test_a_pod_violates_when_one_of_its_budgets_does_not_allow_it() -> None:
    """Each budget counts all of its pods."""
    wide, narrow = DisruptionBudget("default", "wide", (), 1), make_budget("n", {"app": "a"})
    assert violated_budgets([running("a"), running("b")], by_namespace([wide, narrow])) == {
        "default/b"
    }


def candidate(name: str, *victims: ClusterPod, violations: int = 0) -> Candidate:
    return Candidate(name, tuple(sorted(victims, key=importance)), violations)


@pytest.mark.parametrize(
    ("candidates", "wanted"),
    [
        ([candidate("a", running("p", 1), violations=1), candidate("b", running("q", 9))], "b"),
        ([candidate("a", running("p", 2)), candidate("b", running("q", 1), running("r", 1))], "b"),
        (
            [
                candidate("a", running("p", 2), running("q", 1)),
                candidate("b", running("r", 2), running("s", 0)),
            ],
            "b",
        ),
        (
            [
                candidate("a", running("p", -1), running("q", -1)),
                candidate("b", running("r", -1)),
            ],
            "b",
        ),
        ([candidate("a", running("p", 1, 1, 3)), candidate("b", running("q", 1, 1, 4))], "b"),
        (
            [
                candidate("a", running("p", 2, 1, 3), running("q", 1, 1, 50)),
                candidate("b", running("r", 2, 1, 4), running("s", 1, 1, 2)),
            ],
            "b",
        ),
        ([candidate("a", running("p", 1, 1, 3)), candidate("b", running("q", 1))], "b"),
        ([candidate("a", running("p")), candidate("b", running("q"))], "a"),
    ],
)
def test_the_candidate_that_costs_least(candidates: list[Candidate], wanted: str) -> None:
    """Violations, highest priority, sum of priorities, count, latest start; then the first."""
    chosen = choose(candidates)
    assert chosen is not None
    assert chosen.node == wanted
    if wanted == "b":
        assert choose(candidates[::-1]) == chosen
    assert choose([]) is None


@pytest.mark.parametrize(
    ("nodes", "percentage", "absolute", "wanted"),
    [(5000, 10, 100, 500), (200, 10, 100, 100), (50, 10, 100, 50), (9, 10, 0, 0), (9, 99, 0, 8)],
)
def test_candidates_that_are_enough(
    nodes: int, percentage: int, absolute: int, wanted: int
) -> None:
    """The larger one of both bounds, and never more than there are nodes."""
    assert candidates_wanted(nodes, percentage, absolute) == wanted


PRIORITIES = st.sampled_from((None, -10, 0, 1, 2, 5, 10))
PODS = st.lists(
    st.tuples(PRIORITIES, st.integers(0, 6), st.integers(0, 3), st.sampled_from("xyz")),
    max_size=7,
).map(
    lambda rows: [
        running(f"p{at}", priority, cpu, started, group=group)
        for at, (priority, cpu, started, group) in enumerate(rows)
    ]
)
BUDGETS = st.lists(
    st.builds(
        lambda group, allowed: make_budget(f"{group}-{allowed}", {"group": group}, allowed=allowed),
        st.sampled_from("xyz"),
        st.integers(0, 2),
    ),
    max_size=3,
    unique_by=lambda one: one.key,
)


def one_by_one(
    new: ClusterPod, on_node: list[ClusterPod], lower: list[ClusterPod], protected: set[str]
) -> list[ClusterPod]:
    """The plain way: each pod comes back alone, if the preemptor still fits."""
    room = Room(new, [one for one in on_node if one not in lower])
    order = sorted(sorted(lower, key=importance), key=lambda one: one.key not in protected)
    for one in order:
        room.add([one])
        if not room.fits():
            room.remove([one])
    return sorted((one for one in lower if one.key not in room.pods), key=importance)


@given(PODS, BUDGETS, st.sampled_from((-10, 0, 1, 5)), st.integers(1, 10), st.booleans())
def test_victims_are_enough_and_not_one_more(
    on_node: list[ClusterPod], budgets: list[DisruptionBudget], priority: int, cpu: int, known: bool
) -> None:
    """Against the plain sums of a node. known: the sums, or part of them, are given."""
    new = make_pod("new", cpu=cpu, priority=priority)
    lower = [one for one in on_node if (one.priority or 0) < priority]
    staying = sum(map(cores, on_node)) - sum(map(cores, lower))
    short = (sum(map(cores, on_node)) + cpu - ROOM) * 1000
    lacking = {"cpu": short, "memory": 0} if known else {}
    found = find_victims(new, on_node, Room(new, on_node), by_namespace(budgets), lacking)
    if found is None:
        assert staying + cpu > ROOM
        return
    victims, violations = found
    assert all(may_preempt(new, one) and one in lower for one in victims)
    assert victims == sorted(victims, key=importance)
    left = sum(map(cores, on_node)) - sum(map(cores, victims))
    assert left + cpu <= ROOM
    for one in victims:
        assert left + cores(one) + cpu > ROOM
    protected = violated_budgets(sorted(lower, key=importance), by_namespace(budgets))
    assert violations == sum(one.key in protected for one in victims)
    plain = one_by_one(new, on_node, lower, protected)  # which of equals is first is all the same
    assert {one.key for one in victims} == {one.key for one in plain}
    others = [one for one in lower if one.key not in protected]
    if sum(map(cores, on_node)) - sum(map(cores, others)) + cpu <= ROOM:
        assert violations == 0


@given(
    st.lists(
        st.tuples(st.integers(0, 3), PRIORITIES, st.integers(0, 9), st.booleans()), max_size=12
    ),
    st.sampled_from((-10, 0, 3)),
    st.integers(1, 12),
)
def test_columns_say_what_the_lower_pods_of_each_node_take(
    rows: list[tuple[int, int | None, int, bool]], priority: int, wanted: int
) -> None:
    """Against sums pod by pod; finished pods take nothing."""
    found = Cluster([node(f"n{at}", None, {"cpu": "8", "pods": "4"}) for at in range(4)])
    for at, (where, of, cpu, done) in enumerate(rows):
        obj = pod(f"p{at}", f"n{where}", requests={"cpu": str(cpu)}, priority=of)
        found.pods.append(finished(obj) if done else obj)
    view = found.snapshot().view()
    lower = LowerPriorityPods(make_pod("new", priority=priority), view)
    for row in range(4):
        there = [one for one in view.pods(row) if not one.finished]
        mine = [one for one in there if (one.priority or 0) < priority]
        assert lower.count[row] == lower.amount("pods")[row] == len(mine)
        assert lower.amount("cpu")[row] == sum(map(cores, mine)) * 1000
        rest = sum(map(cores, there)) - sum(map(cores, mine))
        assert lower.short_of("cpu", wanted * 1000)[row] == (8 - rest < wanted)
        assert lower.short_of("pods", 1)[row] == (4 - (len(there) - len(mine)) < 1)
    assert not lower.amount("memory").any()
    assert lower.amount("cpu") is lower.amount("cpu")
    assert np.array_equal(lower.short_of("example.com/none", 1), np.ones(4, np.bool_))


def test_a_pod_that_has_not_started_is_the_least_important() -> None:
    """Of those with its priority."""
    assert importance(running("p", 1)) == (-1, math.inf)
    assert importance(running("p", 2)) < importance(running("q", 1, 1, 1))
