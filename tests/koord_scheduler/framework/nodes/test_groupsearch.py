"""Plans for groups, against brute force on small clusters."""

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.cluster.facts import ClusterPod
from koord_scheduler.framework.groupplan import FeasibleNodes, GroupPlan, NoGroupPlan
from koord_scheduler.framework.nodes import groupsearch
from tests.support.clusters import Json, pod, read_pod
from tests.support.scheduler.smallclusters import (
    SmallClusters,
    apart,
    configuration,
    is_planned_rightly,
    member,
    pod_affinity,
    running,
    small,
    spread,
)


@pytest.fixture(scope="module")
def world() -> Iterator[SmallClusters]:
    with running() as found:
        yield found


@pytest.fixture
def sampling() -> Iterator[SmallClusters]:
    """A profile in which few nodes are enough for a pod."""
    with running(configuration(percentageOfNodesToScore=1)) as found:
        yield found


members = st.builds(
    lambda name, cpu, app, rule, about, key, skew: member(
        name,
        cpu,
        app,
        **(
            {"affinity": {**pod_affinity(about, key)}}
            if rule == "together"
            else {"affinity": {**apart(about, key)}}
            if rule == "apart"
            else {"topologySpreadConstraints": [spread(about, key, skew)]}
            if rule == "spread"
            else {}
        ),
    ),
    st.just(""),
    st.integers(1, 3),
    st.sampled_from("xy"),
    st.sampled_from(["", "", "together", "apart", "spread"]),
    st.sampled_from("xy"),
    st.sampled_from(["zone", "kubernetes.io/hostname"]),
    st.integers(1, 2),
)


def numbered(templates: Sequence[Json]) -> list[ClusterPod]:
    """Pods p0, p1, ... made by these templates."""
    made = []
    for at, template in enumerate(templates):
        meta = {**template["metadata"], "name": f"p{at}", "uid": f"uid-p{at}"}
        made.append(read_pod({**template, "metadata": meta}))
    return made


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from("ab")), min_size=1, max_size=3),
    st.lists(members, min_size=1, max_size=4),
    st.lists(members, max_size=2),
)
def test_a_plan_is_found_whenever_there_is_one(world, rooms, templates, running):
    """With affinity, spread and requests, whatever the order in which the pods must be placed."""
    nodes = [small(f"n{at}", cpu, zone) for at, (cpu, zone) in enumerate(rooms)]
    there = [pod(f"r{at}", "n0", one["metadata"]["labels"]) for at, one in enumerate(running)]
    world.become(nodes, there)
    pods = numbered(templates)

    found = world.plan(pods)

    if isinstance(found, GroupPlan):
        assert world.holds(pods, found)
    else:
        assert not found.cut
        assert not world.exists(pods)


def test_a_gang_in_quotas_is_planned_whenever_it_can_be_placed(world):
    """Of the 1,000 clusters of the benchmark the first ones."""
    wrong = [seed for seed in range(60) if not is_planned_rightly(world, seed)]

    assert not wrong


def test_a_plan_looks_at_all_nodes_where_a_sample_is_enough_for_a_pod(sampling):
    """The only node for both is the last one of all."""
    sampling.become([small(f"n{at:03}", 4 if at == 299 else 2, "a") for at in range(300)])
    pods = numbered(
        [member("", 1, "x"), member("", 3, affinity=pod_affinity("x", "kubernetes.io/hostname"))]
    )

    found = sampling.plan(pods)

    assert isinstance(found, GroupPlan)
    assert set(found.nodes.values()) == {"n299"}


def test_many_equal_pods_that_do_not_fit_end_the_search_soon(world):
    """Without room for all, no choice of nodes would have made more."""
    world.become([small(f"n{at}", 4, "a") for at in range(20)])
    pods = numbered([member("", 1)] * 81)

    found = world.plan(pods)

    assert isinstance(found, NoGroupPlan)
    assert (found.placed, found.cut) == (80, False)
    assert "20 Insufficient cpu" in found.status.message


@pytest.mark.parametrize("given", [None, 5])
def test_a_search_that_takes_too_long_is_cut_and_says_so(world, monkeypatch, given):
    monkeypatch.setattr(groupsearch, "MAX_DEAD_ENDS", 5 if given is None else 10**9)
    world.become([small(f"n{at}", 5, "a") for at in range(4)])
    pods = numbered([member("", cpu) for cpu in (2, 2, 2, 3, 3, 3, 4, 4)])

    found = world.handle.groups().plan(pods, world.state.view(), dead_ends=given)

    assert isinstance(found, NoGroupPlan)
    assert found.cut


def test_pods_need_not_be_placed_in_their_order(world):
    """The first one wants to be near the second."""
    world.become([small("a", 1, "x"), small("b", 2, "x")])
    pods = numbered(
        [
            member("", 1, "m", affinity=pod_affinity("n", "kubernetes.io/hostname")),
            member("", 1, "n"),
        ]
    )

    found = world.plan(pods)

    assert isinstance(found, GroupPlan)
    assert list(found.nodes) == ["default/p1", "default/p0"]
    assert set(found.nodes.values()) == {"b"}


def _by_name_backwards(pod: ClusterPod, feasible: FeasibleNodes) -> Sequence[str]:
    return sorted(feasible.best_first(), reverse=True)


def test_the_order_of_nodes_can_be_given(world):
    world.become([small(name, 2, "x") for name in "abc"])

    found = world.plan(numbered([member("", 1)] * 3), _by_name_backwards)

    assert isinstance(found, GroupPlan)
    assert found.nodes == {"default/p0": "c", "default/p1": "c", "default/p2": "b"}


def test_nodes_that_the_order_leaves_out_are_not_taken(world):
    world.become([small("a", 1, "x"), small("b", 2, "x"), small("c", 2, "x")])

    def only_b(pod: ClusterPod, feasible: FeasibleNodes) -> Sequence[str]:
        return ["b"] if feasible.mask[feasible.nodes.row("b")] else []

    assert isinstance(world.plan(numbered([member("", 1)] * 2), only_b), GroupPlan)
    found = world.plan(numbered([member("", 1)] * 3), only_b)

    assert isinstance(found, NoGroupPlan)
    assert (found.pod.name, found.placed) == ("p2", 2)
    assert found.status.message == (
        "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) were not chosen for the group."
    )


def test_a_pod_that_prefilter_rejects_is_named(world):
    world.become([small("a", 2, "x")])
    pods = numbered([member("", 1), member("", 1, affinity=pod_affinity("nobody", "zone"))])

    found = world.plan(pods)

    assert isinstance(found, NoGroupPlan)
    assert (found.pod.name, found.placed) == ("p1", 1)
