"""Pods imagined on many nodes at once, against what-ifs pod by pod."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from koord.cluster.columns import CHUNK
from koord.cluster.facts import ClusterPod
from koord.cluster.hypothetical import PodOverlay
from koord.cluster.predicates.nodes import has_free_ports
from koord.cluster.state import Snapshot
from koord.cluster.view import View
from tests.support.clusters import Cluster, Json, node, pod, read_node, read_pod

NAMES = ("a", "b", "c", "d")


def rival(name: str, cpu: str = "1", **spec: Any) -> ClusterPod:
    return read_pod(pod(name, "", {"of": name}, {"cpu": cpu, "example.com/x": "1"}, **spec))


def plainly(view: View, pods: dict[str, list[ClusterPod]]) -> View:
    what_if = view.what_if()
    for name, each in pods.items():
        row = view.row(name)
        if row is None:
            continue
        there = {one.key for one in view.pods(row)}
        for one in each:
            if one.key not in there:
                what_if.add(one, name)
    return what_if.view()


def assert_same(found: View, wanted: View) -> None:
    assert np.array_equal(found.requested, wanted.requested)
    assert np.array_equal(found.nonzero_requested, wanted.nonzero_requested)
    for row in range(len(wanted)):
        for column in wanted.resources.values():
            assert found.requested_of(row, column) == wanted.requested[row, column]
        assert found.pods(row) == wanted.pods(row)
    assert np.array_equal(found.placed.row, wanted.placed.row)
    assert np.array_equal(found.placed.priority, wanted.placed.priority)
    port = read_pod(pod("port", ports=[{"containerPort": 1, "hostPort": 80}]))
    assert np.array_equal(has_free_ports(port, found), has_free_ports(port, wanted))


def ports(number: int) -> list[Json]:
    return [{"containerPort": 1, "hostPort": number}]


PODS = {
    "p": rival("p"),
    "q": rival("q", "2", ports=ports(80)),
    "r": rival("r", "3", priority=7),
    "s": rival("s", "0"),
}
EVENTS = st.one_of(
    st.tuples(st.just("rivals"), st.dictionaries(st.sampled_from("pqrs"), st.sampled_from(NAMES))),
    st.tuples(st.just("node"), st.sampled_from(NAMES)),
    st.tuples(st.just("wide node"), st.sampled_from(NAMES)),
    st.tuples(st.just("no node"), st.sampled_from(NAMES)),
    st.tuples(st.just("pod"), st.tuples(st.sampled_from("pqrtu"), st.sampled_from(NAMES))),
    st.tuples(st.just("no pod"), st.sampled_from("pqrtu")),
)


@given(st.lists(EVENTS, max_size=25))
def test_a_view_with_a_crowd_is_the_what_if_of_each_moment(events: list[tuple[str, Any]]) -> None:
    """Whatever has changed meanwhile; a crowd that was made anew says the same."""
    snapshot = Cluster([node(name) for name in NAMES]).snapshot()
    rivals: dict[str, list[ClusterPod]] = {}
    crowd = PodOverlay(rivals)
    for kind, what in events:
        if kind == "rivals":
            rivals = {}
            for name, where in what.items():
                rivals.setdefault(where, []).append(PODS[name])
            crowd.put(rivals)
        else:
            change(snapshot, kind, what)
        view = snapshot.view()
        wanted = plainly(view, rivals)
        found = crowd.on(view)
        assert crowd.on(view) is found
        assert sorted(crowd.rows(view)) == sorted(
            row for name in rivals if (row := view.row(name)) is not None
        )
        assert_same(found, wanted)
        assert_same(PodOverlay(rivals).on(view), wanted)
        assert wanted.altered <= found.altered == set(crowd.rows(view).tolist())
        others = [row for row in range(len(view)) if row not in found.altered]
        assert np.array_equal(found.generation[others], view.generation[others])


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
    """So results that are kept for them stay right; a row that changes gets another one."""
    names = [f"n{at}" for at in range(CHUNK + 3)]
    snapshot = Cluster([node(name) for name in names]).snapshot()
    crowd = PodOverlay({"n0": [PODS["p"]], names[-1]: [PODS["q"]]})
    first = crowd.on(snapshot.view()).generation.copy()
    snapshot.put_pod(read_pod(pod("new", "n0", requests={"cpu": "1"})))
    second = crowd.on(snapshot.view()).generation.copy()
    assert np.flatnonzero(first != second).tolist() == [0]
    crowd.put({"n0": [PODS["p"]], "n1": [PODS["r"]]})
    third = crowd.on(snapshot.view()).generation
    assert np.flatnonzero(second != third).tolist() == [1, len(names) - 1]
    assert third[-1] == snapshot.view().generation[-1]


def test_a_view_with_a_crowd_can_be_the_base_of_a_what_if() -> None:
    """As any view; it stays as it is."""
    snapshot = Cluster([node(name) for name in NAMES]).snapshot()
    found = PodOverlay({"a": [PODS["p"]]}).on(snapshot.view())
    what_if = found.what_if()
    what_if.remove("default/p", "a")
    what_if.add(PODS["r"], "b")
    assert_same(what_if.view(), plainly(snapshot.view(), {"b": [PODS["r"]]}))
    assert_same(found, plainly(snapshot.view(), {"a": [PODS["p"]]}))
