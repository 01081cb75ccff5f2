"""Hypothetical clusters: pods are added, removed and moved, and the cluster goes on."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.cluster.columns import CHUNK
from koord.cluster.facts import ClusterPod
from koord.cluster.hypothetical import HypotheticalCluster
from koord.cluster.predicates.nodes import has_free_ports
from koord.cluster.state import Snapshot
from koord.cluster.view import View
from tests.support.clusters import Cluster, Json, node, pod, read_node, read_pod

NAMES = ("a", "b", "c", "d")
NONE: st.SearchStrategy[set[ClusterPod]] = st.just(set())


def incoming(name: str, cpu: str = "1", **spec: Any) -> ClusterPod:
    return read_pod(pod(name, "", {"of": name}, {"cpu": cpu, "example.com/x": "1"}, **spec))


def rival_on(name: str, where: str) -> ClusterPod:
    return read_pod(pod(name, where, {"of": name}, {"cpu": "1"}, priority=3))


def plainly(
    view: View, pods: dict[str, list[ClusterPod]], gone: Iterable[tuple[str, str]] = ()
) -> View:
    """A new hypothetical cluster with expected pods by node, and without pods by key and node."""
    found = HypotheticalCluster(view)
    for key, name in gone:
        row = view.row(name)
        if row is not None and key in {one.key for one in view.pods(row)}:
            found.remove(key, name)
    for name, each in pods.items():
        row = view.row(name)
        if row is None:
            continue
        there = {one.key for one in found.view().pods(row)}
        for one in each:
            if one.key not in there:
                found.add(one, name)
    return found.view()


def assert_same(found: View, wanted: View) -> None:
    assert np.array_equal(found.requested, wanted.requested)
    assert np.array_equal(found.nonzero_requested, wanted.nonzero_requested)
    for row in range(len(wanted)):
        for column in wanted.resources.values():
            amounts = found.allocatable_of(row, column), found.requested_of(row, column)
            assert amounts == (wanted.allocatable[row, column], wanted.requested[row, column])
            assert found.uses_of(row, (column,)) == [amounts]
        assert found.pods(row) == wanted.pods(row)
    assert np.array_equal(found.placed.row, wanted.placed.row)
    assert np.array_equal(found.placed.priority, wanted.placed.priority)
    port = read_pod(pod("port", ports=[{"containerPort": 1, "hostPort": 80}]))
    assert np.array_equal(has_free_ports(port, found), has_free_ports(port, wanted))


def ports(number: int) -> list[Json]:
    return [{"containerPort": 1, "hostPort": number}]


PODS = {
    "p": incoming("p"),
    "q": incoming("q", "2", ports=ports(80)),
    "r": incoming("r", "3", priority=7),
    "s": incoming("s", "0"),
}
EVENTS = st.one_of(
    st.tuples(
        st.just("nominated"), st.dictionaries(st.sampled_from("pqrs"), st.sampled_from(NAMES))
    ),
    st.tuples(st.just("node"), st.sampled_from(NAMES)),
    st.tuples(st.just("wide node"), st.sampled_from(NAMES)),
    st.tuples(st.just("no node"), st.sampled_from(NAMES)),
    st.tuples(st.just("pod"), st.tuples(st.sampled_from("pqrtu"), st.sampled_from(NAMES))),
    st.tuples(st.just("no pod"), st.sampled_from("pqrtu")),
)


@given(st.lists(EVENTS, max_size=25))
def test_expected_pods_follow_the_cluster(events: list[tuple[str, Any]]) -> None:
    """Whatever has changed meanwhile; the same changes made to a new view say the same."""
    snapshot = Cluster([node(name) for name in NAMES]).snapshot()
    expected: dict[str, list[ClusterPod]] = {}
    cluster = HypotheticalCluster(snapshot.view())
    for kind, what in events:
        if kind == "nominated":
            expected = {}
            for name, where in what.items():
                expected.setdefault(where, []).append(PODS[name])
            cluster.expect(expected)
        else:
            change(snapshot, kind, what)
        view = snapshot.view()
        wanted = plainly(view, expected)
        cluster.rebase(view)
        found = cluster.view()
        assert cluster.view() is found
        assert_same(found, wanted)
        assert found.altered == wanted.altered == set(cluster.rows.tolist())
        for row in range(len(view)):
            before = {one.key for one in view.pods(row)}
            assert [*cluster.added(row)] == [x for x in found.pods(row) if x.key not in before]
        others = [row for row in range(len(view)) if row not in found.altered]
        assert np.array_equal(found.generation[others], view.generation[others])
        assert all(found.generation[row] < 0 for row in found.altered)


@given(st.data())
def test_removed_pods_are_removed_from_later_views(data: st.DataObject) -> None:
    """Removed pods stay away and all that they took is free, however the rest changes."""
    snapshot = Cluster([node(name) for name in NAMES]).snapshot()
    for name in "pqrtu":
        change(snapshot, "pod", (name, data.draw(st.sampled_from(NAMES))))
    snapshot.put_pod(rival_on("s", "a"))
    cluster = HypotheticalCluster(snapshot.view())
    view, gone = snapshot.view(), list[tuple[str, str]]()
    for row in range(len(view)):
        for one in data.draw(st.sets(st.sampled_from(view.pods(row))) if view.pods(row) else NONE):
            gone.append((one.key, view.node(row).name))
            assert cluster.remove(*gone[-1]) is one
    for kind, what in data.draw(st.lists(EVENTS, max_size=10)):
        if kind != "nominated":
            change(snapshot, kind, what)
    cluster.rebase(snapshot.view())
    assert_same(cluster.view(), plainly(snapshot.view(), {}, gone))


def test_a_pod_moves_from_node_to_node() -> None:
    """It may come from outside or go there; twice on a node it cannot be."""
    view = Cluster([node(name) for name in NAMES], [pod("p", "a")]).snapshot().view()
    cluster = HypotheticalCluster(view)
    cluster.move(view.pods(0)[0], 1)
    cluster.move(PODS["q"], 2)
    assert [[one.name for one in cluster.view().pods(row)] for row in range(3)] == [
        [],
        ["p"],
        ["q"],
    ]
    with pytest.raises(ValueError, match="default/q is on node c already"):
        cluster.move(PODS["q"], 2)
    cluster = HypotheticalCluster(view)
    cluster.move(view.pods(0)[0], None)
    assert not cluster.view().requested.any()


def test_room_counts_all_changes_and_frees_what_the_pod_has() -> None:
    """On its own node a pod finds the room that it takes, also among huge requests."""
    amounts = {"cpu": "4", "pods": "10"}
    huge = pod("huge", "a", requests={"example.com/x": str(2**50 - 1)})
    nodes = [node("a", None, {**amounts, "example.com/x": "2"}), node("b", None, amounts)]
    view = Cluster(nodes, [pod("p", "a", requests={"cpu": "3"}), huge]).snapshot().view()
    mine, cluster = view.pods(0)[0], HypotheticalCluster(view)
    assert cluster.has_room(mine).tolist() == [True, True]
    cluster.add(incoming("q", "2"), "a")
    assert cluster.has_room(mine).tolist() == [False, True]
    cluster.add(incoming("r", "2"), "b")
    assert cluster.has_room(mine).tolist() == [False, False]
    cluster.remove("default/q", "a")
    assert cluster.has_room(mine).tolist() == [True, False]
    taking = read_pod(pod("taking", requests={"example.com/x": "1"}))
    assert cluster.has_room(taking).tolist() == [False, False]
    cluster.remove("default/huge", "a")
    assert cluster.has_room(taking).tolist() == [True, False]


def test_an_added_pod_excludes_others_by_its_anti_affinity() -> None:
    """Also those of which none was excluded before."""
    host = "kubernetes.io/hostname"
    view = Cluster([node(name, {host: name}) for name in "ab"]).snapshot().view()
    term = {"labelSelector": {"matchLabels": {"of": "q"}}, "topologyKey": host}
    anti = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    excluding = read_pod(pod("excluding", affinity=anti))
    cluster = HypotheticalCluster(view)
    assert cluster.fits(incoming("q", "0")).tolist() == [False, False]  # example.com/x is nowhere
    requesting = read_pod(pod("q", labels={"of": "q"}))
    assert cluster.fits(requesting).tolist() == [True, True]
    cluster.add(excluding, "a")
    assert cluster.fits(requesting).tolist() == [False, True]
    cluster.remove("default/excluding", "a")
    cluster.expect({"b": [excluding]})
    assert cluster.fits(requesting).tolist() == [True, False]


def change(snapshot: Snapshot, kind: str, what: Any) -> None:
    if kind == "node":
        snapshot.put_node(read_node(node(what)))
    elif kind == "wide node":
        amounts = {"cpu": "4", "pods": "10", "example.com/x": "2"}
        snapshot.put_node(read_node(node(what, None, amounts)))
    elif kind == "no node":
        snapshot.remove_node(what)
    elif kind == "pod":
        snapshot.put_pod(read_pod(pod(what[0], what[1], {"of": what[0]}, {"cpu": "1"})))
    else:
        snapshot.remove_pod(f"default/{what}", f"uid-default-{what}")


def test_rows_that_stay_the_same_keep_their_generation() -> None:
    """So results that are cached for them stay right; a row that changes gets another one."""
    names = [f"n{at}" for at in range(CHUNK + 3)]
    snapshot = Cluster([node(name) for name in names]).snapshot()
    cluster = HypotheticalCluster(snapshot.view())
    cluster.expect({"n0": [PODS["p"]], names[-1]: [PODS["q"]]})
    first = cluster.view().generation.copy()
    snapshot.put_pod(read_pod(pod("new", "n0", requests={"cpu": "1"})))
    cluster.rebase(snapshot.view())
    second = cluster.view().generation.copy()
    assert np.flatnonzero(first != second).tolist() == [0]
    cluster.expect({"n0": [PODS["p"]], "n1": [PODS["r"]]})
    third = cluster.view().generation
    assert np.flatnonzero(second != third).tolist() == [1, len(names) - 1]
    assert third[-1] == snapshot.view().generation[-1]


def test_a_view_of_one_can_be_the_base_of_another() -> None:
    """As any view; it stays as it is."""
    snapshot = Cluster([node(name) for name in NAMES]).snapshot()
    first = HypotheticalCluster(snapshot.view())
    first.expect({"a": [PODS["p"]]})
    found = first.view()
    second = HypotheticalCluster(found)
    second.remove("default/p", "a")
    second.add(PODS["r"], "b")
    assert_same(second.view(), plainly(snapshot.view(), {"b": [PODS["r"]]}))
    assert_same(found, plainly(snapshot.view(), {"a": [PODS["p"]]}))
    assert second.view().altered == {0, 1}


def test_a_removed_pod_can_be_there_again() -> None:
    there = pod("p", "a", {}, {"cpu": "3"})
    full = Cluster([node("a")], [there]).snapshot().view()
    found = HypotheticalCluster(full)
    found.remove("default/p", "a")
    assert found.view().pods(0) == ()
    found.restore("default/p", "a")
    found.restore("default/p", "a")
    found.restore("default/p", "nowhere")
    assert_same(found.view(), full)


@given(
    st.lists(st.tuples(st.sampled_from("pqrs"), st.sampled_from(NAMES)), max_size=8),
    st.sets(st.integers(0, 8)),
)
def test_a_view_that_is_read_late_shows_the_pods_of_its_moment(
    changes: list[tuple[str, str]], viewed: set[int]
) -> None:
    """Whichever views were taken before it, and whatever has changed after it."""
    base = Cluster([node(name) for name in NAMES]).snapshot().view()
    hypothetical, there = HypotheticalCluster(base), dict[str, str]()
    taken: list[tuple[View, dict[str, str]]] = []
    for number, (name, where) in enumerate(changes):
        if there.get(name) == where:
            hypothetical.remove(PODS[name].key, there.pop(name))
        elif name not in there:
            hypothetical.add(PODS[name], where)
            there[name] = where
        if number in viewed:
            taken.append((hypothetical.view(), dict(there)))

    for view, pods in taken:
        assert len(view.placed.row) == len(pods)
        for row in range(len(view)):
            here = {PODS[name] for name, where in pods.items() if where == view.node(row).name}
            assert set(view.pods(row)) == here
            for resource in ("cpu", "memory"):
                wanted = sum(dict(one.spec.requests).get(resource, 0) for one in here)
                assert view.requested[row, view.resources[resource]] == wanted


def test_what_if_changes_without_affinity_terms_have_the_terms_of_the_cluster() -> None:
    """So what plugins keep by them holds; a pod with terms that comes or goes ends that."""
    far = {"labelSelector": {"matchLabels": {"x": "y"}}, "topologyKey": "kubernetes.io/hostname"}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [far]}}
    shy = pod("shy", "a", {"x": "y"}, {"cpu": "1"}, affinity=affinity)
    snapshot = Cluster([node("a"), node("b")], [shy, pod("plain", "a")]).snapshot()
    view = snapshot.view()
    found = HypotheticalCluster(view)
    found.remove("default/plain", "a")
    found.add(PODS["p"], "b")
    assert found.view().existing_terms_key() == view.existing_terms_key()
    second = HypotheticalCluster(found.view())
    second.remove("default/shy", "a")
    assert second.view().existing_terms_key() is None
    third = HypotheticalCluster(second.view())
    third.add(PODS["q"], "b")
    assert third.view().existing_terms_key() is None
    snapshot.remove_pod("default/shy", "uid-default-shy")
    found.rebase(snapshot.view())
    assert found.view().existing_terms_key() != view.existing_terms_key()
    assert found.view().existing_terms_key() == snapshot.view().existing_terms_key()


@pytest.mark.parametrize(
    ("old", "new"), [("1", "2"), ("1", "9e14"), ("9e14", "1"), ("9e14", "8e14")]
)
def test_a_pod_that_requests_otherwise_keeps_its_place_among_those_of_its_node(
    old: str, new: str
) -> None:
    """What has changed between two views is the pod alone, and no pod after it."""
    names = "abc"
    pods = [pod(name, "n", {"of": name}, {"example.com/x": "1"}) for name in names]
    first = pod("r", "n", {}, {"example.com/x": old}, ports=ports(80))
    nodes = [node("n", allocatable={"pods": "9", "example.com/x": "8e14"})]
    changed = Cluster(nodes, [first, *pods]).snapshot()
    other = pod("r", "n", {}, {"example.com/x": new}, ports=ports(81))
    changed.put_pod(read_pod(other))
    fresh = Cluster(nodes, [other, *pods]).snapshot()
    assert [one.name for one in changed.view().pods(0)] == ["r", *names]
    assert_same(changed.view(), fresh.view())
