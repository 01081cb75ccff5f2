"""The snapshot follows whatever events come, and its views never change."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.labelselector import Requirement
from koord.cluster.columns import CHUNK
from koord.cluster.facts import PODS
from koord.cluster.hypothetical import HypotheticalCluster
from koord.cluster.state import MAX_RESOURCES, Snapshot
from koord.cluster.view import View
from tests.support.clusters import (
    CLAIM,
    Cluster,
    Json,
    claim,
    finished,
    node,
    pod,
    read,
    read_node,
    read_pod,
)

Content = dict[str, tuple[dict[str, int], dict[str, int], list[str]]]


def content(view: View) -> Content:
    """Of each node: allocatable and requested without zeros, and the keys of its pods."""

    def row(table: Any, at: int) -> dict[str, int]:
        return {
            name: int(table[at, column])
            for name, column in view.resources.items()
            if table[at, column]
        }

    return {
        view.node(at).name: (
            row(view.allocatable, at),
            row(view.requested, at),
            sorted(one.key for one in view.pods(at)),
        )
        for at in range(len(view))
    }


def expected(nodes: dict[str, Json], pods: dict[str, Json], learned: set[str]) -> Content:
    """The same of plain objects; learned: the resources that some node has had."""
    found: Content = {}
    for name, obj in nodes.items():
        there = [one for one in map(read_pod, pods.values()) if one.node == name]
        requested: dict[str, int] = {}
        for one in there:
            for resource, amount in () if one.finished else (*one.spec.requests, (PODS, 1)):
                requested[resource] = requested.get(resource, 0) + amount
        allocatable = {key: amount for key, amount in read_node(obj).allocatable if amount}
        visible = {key: amount for key, amount in requested.items() if key in learned}
        found[name] = allocatable, visible, sorted(one.key for one in there)
    return found


NAMES = st.sampled_from(("a", "b", "c"))
AMOUNTS = st.dictionaries(st.sampled_from(("cpu", "memory", "x.io/y")), st.integers(0, 3))
EVENTS = st.one_of(
    st.tuples(st.just("node"), st.builds(node, NAMES, st.just({}), AMOUNTS)),
    st.tuples(st.just("no node"), NAMES),
    st.tuples(
        st.just("pod"),
        st.builds(
            lambda name, at, amounts, priority, done: (finished if done else dict)(
                pod(name, at, {"of": name}, amounts, priority=priority)
            ),
            st.sampled_from("pqrs"),
            st.sampled_from(("a", "b", "c", "")),
            AMOUNTS,
            st.sampled_from((None, 0, -5, 2_000_001_000)),
            st.booleans(),
        ),
    ),
    st.tuples(st.just("no pod"), st.sampled_from("pqrs")),
)


def assert_amounts_of_one_node(view: View) -> None:
    for row in range(len(view)):
        for column in view.resources.values():
            assert view.allocatable_of(row, column) == view.allocatable[row, column]
            assert view.requested_of(row, column) == view.requested[row, column]


@given(st.lists(EVENTS, max_size=30))
def test_the_snapshot_is_what_its_events_say(events: list[tuple[str, Any]]):
    """Any order of events, also about unknown nodes; views of before stay as they were."""
    snapshot = Snapshot()
    nodes: dict[str, Json] = {}
    pods: dict[str, Json] = {}
    seen: list[tuple[View, Content]] = []
    learned = {"cpu", "memory", "pods"}
    for kind, what in events:
        if kind == "node":
            nodes[what["metadata"]["name"]] = what
            learned |= what["status"]["allocatable"].keys()
            snapshot.put_node(read_node(what))
        elif kind == "no node":
            nodes.pop(what, None)
            snapshot.remove_node(what)
        elif kind == "pod":
            pods[what["metadata"]["name"]] = what
            snapshot.put_pod(read_pod(what))
        else:
            pods.pop(what, None)
            snapshot.remove_pod(f"default/{what}", f"uid-default-{what}")
        view = snapshot.view()
        wanted = expected(nodes, pods, learned)
        assert content(view) == wanted
        assert len(view.placed.row) == sum(row[1].get(PODS, 0) for row in wanted.values())
        placed = view.pods_chosen(np.ones(len(view.placed.row), np.bool_))
        assert view.placed.priority.tolist() == [one.priority or 0 for one in placed]
        assert_amounts_of_one_node(view)
        seen.append((view, wanted))

    for view, then in seen:
        assert content(view) == then


def test_a_pod_of_two_lists_is_one():
    """The last one counts; the very same again changes nothing."""
    cluster = Cluster([node("a"), node("b")], [pod("p", "a", requests={"cpu": 1})])
    snapshot = cluster.snapshot()
    view = snapshot.view()
    snapshot.put_pod(read_pod(pod("p", "a", requests={"cpu": 1})))
    assert snapshot.view() is view

    snapshot.put_pod(read_pod(pod("p", "b", requests={"cpu": 2})))

    assert [row[2] for row in content(snapshot.view()).values()] == [[], ["default/p"]]
    assert content(snapshot.view())["b"][1] == {"cpu": 2000, "pods": 1}


def test_a_pod_waits_for_its_node():
    """Before the node is known, and after it was deleted, until one of its name comes."""
    snapshot = Cluster([node("a")], [pod("p", "b", requests={"cpu": 1})]).snapshot()
    assert content(snapshot.view())["a"][2] == []

    snapshot.put_node(read_node(node("b")))
    assert content(snapshot.view())["b"][1] == {"cpu": 1000, "pods": 1}

    snapshot.remove_node("b")
    assert list(content(snapshot.view())) == ["a"]
    assert snapshot.pod("default/p") is not None

    snapshot.put_node(read_node(node("b")))
    assert content(snapshot.view())["b"][1] == {"cpu": 1000, "pods": 1}


def test_a_late_deletion_spares_the_pod_that_took_the_name():
    snapshot = Cluster([node("a")], [pod("p", "a")]).snapshot()

    snapshot.remove_pod("default/p", "uid of the one before")
    assert snapshot.pod("default/p") is not None
    snapshot.remove_pod("default/p", "uid-default-p")
    assert snapshot.pod("default/p") is None
    assert content(snapshot.view())["a"][2] == []


def test_only_changed_rows_have_a_new_generation():
    """No number of before comes again, also when a row moves."""
    snapshot = Cluster([node(name) for name in "abc"]).snapshot()
    before = snapshot.view()
    snapshot.put_pod(read_pod(pod("p", "b")))
    after = snapshot.view()

    changed = [name for row, name in enumerate("abc") if before.generation[row] !=
               after.generation[row]]  # fmt: skip
    assert changed == ["b"]
    snapshot.remove_node("a")
    view = snapshot.view()
    assert view.node(0).name == "c"
    assert view.generation[0] not in (*before.generation, *after.generation)


def test_views_share_what_has_not_changed():
    """A chunk without a changed row is the same memory; so is what is known of labels."""
    names = [f"n{number}" for number in range(3 * CHUNK)]
    snapshot = Cluster([node(name) for name in names]).snapshot()
    before = snapshot.view()
    snapshot.put_pod(read_pod(pod("p", names[0], requests={"cpu": 1})))
    after = snapshot.view()

    old, new = before.placement.amounts.chunks, after.placement.amounts.chunks
    assert [one is other for one, other in zip(old, new, strict=True)] == [False, True, True]
    assert after._allocatable is before._allocatable
    assert after.traits is before.traits
    snapshot.put_node(read_node(node(names[0], {"new": "label"})))
    assert snapshot.view().traits is not before.traits
    assert not before.traits.label("new").present.any()


def test_rows_that_changed_since_one_view_and_another():
    """Whichever is asked about first, and again; added and removed rows are among them."""
    snapshot = Cluster([node(f"n{number}") for number in range(CHUNK + 2)]).snapshot()
    views = [snapshot.view()]
    for row in (3, CHUNK + 1):
        snapshot.put_pod(read_pod(pod(f"p{row}", f"n{row}", requests={"cpu": 1})))
        views.append(snapshot.view())
    snapshot.remove_node(f"n{CHUNK + 1}")
    first, second, third, last = (one.generations for one in (*views, snapshot.view()))
    for _ in range(2):
        assert third.other_rows(first) == [3, CHUNK + 1]
        assert third.other_rows(second) == [CHUNK + 1]
        assert third.other_rows(third) == []
        assert last.other_rows(third) == third.other_rows(last) == [CHUNK + 1]
        assert last.other_rows(None) == list(range(CHUNK + 1))


def test_rows_move_between_chunks():
    """Nodes go from the front until one chunk is left; each keeps what was its own."""
    names = [f"n{number}" for number in range(2 * CHUNK + 3)]
    snapshot = Cluster([node(name) for name in names]).snapshot()
    for number, name in enumerate(names):
        snapshot.put_pod(read_pod(pod(name, name, requests={"cpu": f"{number + 1}m"})))
    whole = snapshot.view()
    for name in names[: CHUNK + 4]:
        snapshot.remove_node(name)

    left = content(snapshot.view())
    assert len(left) == len(snapshot.view().allocatable) == CHUNK - 1
    for number, name in enumerate(names[CHUNK + 4 :], CHUNK + 5):
        assert left[name][1] == {"cpu": number, "pods": 1}
        assert left[name][2] == [f"default/{name}"]
    assert [content(whole)[name][1]["cpu"] for name in names] == [*range(1, len(names) + 1)]
    assert len(whole.placed.row) == len(names)
    assert len(snapshot.view().placed.row) == CHUNK - 1


def test_a_view_cannot_be_written():
    view = Cluster([node("a")], [pod("p", "a")]).snapshot().view()

    traits, placed = view.traits, view.placed
    tables = [
        view.allocatable,
        view.requested,
        view.usage,
        view.generation,
        *view.amounts_of(0)[:1],
    ]
    tables += [traits.ready, traits.unschedulable, traits.schedulable, traits.names.codes]
    tables += [placed.row, placed.spec, placed.label_set, placed.deleting, placed.priority]
    for column in (view.resources["cpu"], view.resources["memory"]):
        tables += [one for one in (view.floats(column), view.lacking(column)) if one is not None]
    for table in tables:
        with pytest.raises(ValueError, match="read-only"):
            table[0] = 1
    mappings = [view.resources, view.traits.rows, view.traits.label("a").index]
    for mapping in (*mappings, view.node(0).labels, view.pods(0)[0].labels):
        with pytest.raises(TypeError):
            mapping["a"] = 1  # type: ignore[index]
    with pytest.raises(TypeError):
        view.specs[0] = None  # type: ignore[index]


def test_usage_is_what_the_caller_has_set():
    """NaN until then, and for the next node of the name; of an unknown node it is dropped."""
    snapshot = Snapshot(usage=("cpu", "memory"))
    snapshot.put_node(read_node(node("a")))
    assert all(map(math.isnan, snapshot.view().usage[0]))

    snapshot.set_usage("a", (1.5, 2e9))
    snapshot.set_usage("unknown", (1.0, 1.0))
    assert list(snapshot.view().usage[0]) == [1.5, 2e9]

    snapshot.remove_node("a")
    snapshot.put_node(read_node(node("a")))
    assert all(map(math.isnan, snapshot.view().usage[0]))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.booleans()), max_size=12))
def test_chosen_pods_are_those_of_the_mask(pods: list[tuple[str, bool, bool]]):
    """Finished pods are on nodes, but not among those that can be chosen."""
    cluster = Cluster([node(name) for name in "abc"])
    for number, (at, ended, chosen) in enumerate(pods):
        obj = pod(f"p{number}", at, {"chosen": str(chosen)})
        cluster.pods.append(finished(obj) if ended else obj)
    view = cluster.snapshot().view()
    wanted = Requirement("chosen", "In", ("True",))
    found = view.pods_chosen(view.pods_selected("default", (wanted,)))

    assert sorted(one.name for one in found) == sorted(
        f"p{number}" for number, (_, ended, chosen) in enumerate(pods) if chosen and not ended
    )


def test_a_what_if_leaves_its_view_alone():
    """Removed and added pods count in the views of the what-if only, each as it was then."""
    cluster = Cluster(
        [node("a"), node("b")],
        [pod("p", "a", requests={"cpu": 1}), pod("q", "a", requests={"cpu": 2})],
    )
    view = cluster.snapshot().view()
    before = content(view)
    what_if = HypotheticalCluster(view)

    moved = what_if.remove("default/p", "a")
    removed = what_if.view()
    what_if.add(moved, "b")

    assert content(removed)["a"][1] == {"cpu": 2000, "pods": 1}
    assert content(removed)["b"] == before["b"]
    assert content(what_if.view())["b"][1] == {"cpu": 1000, "pods": 1}
    assert content(view) == before
    assert content(HypotheticalCluster(what_if.view()).view()) == content(what_if.view())
    assert (view.altered, removed.altered) == (frozenset(), {view.row("a")})
    assert HypotheticalCluster(what_if.view()).view().altered == {0, 1}


def test_a_what_if_takes_a_pod_that_the_cluster_does_not_have():
    """Rules see it as any other."""
    view = Cluster([node("a")]).snapshot().view()
    what_if = HypotheticalCluster(view)
    what_if.add(read_pod(pod("new", labels={"app": "web"})), "a")
    hypothetical = what_if.view()

    assert hypothetical.pods_selected("default", ()).tolist() == [True]
    assert len(view.placed.row) == 0


def test_a_what_if_refuses_what_cannot_be():
    what_if = HypotheticalCluster(Cluster([node("a")], [pod("p", "a")]).snapshot().view())

    with pytest.raises(KeyError):
        what_if.remove("default/other", "a")
    with pytest.raises(KeyError):
        what_if.remove("default/p", "unknown")
    with pytest.raises(KeyError):
        what_if.add(read_pod(pod("q")), "unknown")
    with pytest.raises(ValueError, match="already"):
        what_if.add(read_pod(pod("p")), "a")


def test_kinds_of_resources_are_bounded():
    """Of a node with too many some are left out; all else of it counts, and so do other nodes."""
    snapshot = Cluster([node("a")]).snapshot()
    resources = {f"x.io/{number:03}": "1" for number in range(MAX_RESOURCES)}
    many = read_node(node("b", allocatable={"cpu": "4", **resources}))
    snapshot.put_node(many)

    kept = content(snapshot.view())["b"][0]
    assert kept["cpu"] == content(snapshot.view())["a"][0]["cpu"] == 4000
    assert len(snapshot.view().resources) == MAX_RESOURCES
    assert kept["x.io/000"] == 1
    assert snapshot.left_out(many) == tuple(list(resources)[MAX_RESOURCES - 4 :])


def test_churn_leaves_nothing_behind():
    """Numbers of label sets and specs are used again."""
    snapshot = Cluster([node("a")]).snapshot()
    for number in range(1000):
        snapshot.put_pod(read_pod(pod("p", "a", {"run": str(number)}, {"cpu": number + 1})))
        if number % 2:
            snapshot.remove_node("a")
            snapshot.put_node(read_node(node("a")))
    view = snapshot.view()

    assert len(view.specs) < 5
    assert len(view.placement.label_sets) < 5


def test_claims_change_views_of_later_only():
    snapshot = Cluster([node("a")], claims=[claim("data")]).snapshot()
    before = snapshot.view()
    snapshot.put_claim(read(CLAIM, claim("data", "disk")))
    between = snapshot.view()
    snapshot.remove_claim("default/data")

    assert before.claim("default", "data").volume == ""
    assert between.claim("default", "data").volume == "disk"
    assert snapshot.view().claim("default", "data") is None


@pytest.mark.parametrize(
    ("change", "requested"),
    [
        ({"status": {"phase": "Running", "reason": "Sick"}}, [1000, 500]),
        ({"status": {"phase": "Failed"}}, [1000, 0]),
        ({"spec": {"nodeName": "n", "priority": 7}}, [1000, 0]),
        ({"metadata": {"name": "b", "namespace": "default", "uid": "uid-default-b",
                       "deletionTimestamp": "2026-07-24T06:52:45Z"}}, [1000, 500]),
        ({"metadata": {"name": "b", "namespace": "default", "uid": "uid-default-b",
                       "labels": {"x": "y"}}}, [1000, 500]),
    ],
    ids=["status", "finished", "spec", "deleting", "labels"],
)  # fmt: skip
def test_a_pod_that_changes_on_its_node_is_counted_as_it_is_now(
    change: Json, requested: list[int]
) -> None:
    """As in a snapshot that has never seen it otherwise."""
    before = [pod("a", "n", requests={"cpu": "1"}), pod("b", "n", requests={"cpu": "500m"})]
    after = [before[0], {**before[1], **change}]
    changed, fresh = Snapshot(), Snapshot()
    for snapshot, objects in ((changed, before), (fresh, after)):
        snapshot.put_node(read_node(node("n")))
        for one in objects:
            snapshot.put_pod(read_pod(one))
    generation = int(changed.view().generation[0])
    changed.put_pod(read_pod(after[1]))
    seen, wanted = changed.view(), fresh.view()

    assert seen.generation[0] > generation
    assert content(seen) == content(wanted)
    assert content(seen)["n"][1]["cpu"] == sum(requested)
    assert sorted(seen.pods(0), key=lambda one: one.key)[1] == read_pod(after[1])
    for name in ("deleting", "priority"):
        assert sorted(getattr(seen.placed, name)) == sorted(getattr(wanted.placed, name))
    for key in ("x", "z"):
        selector = (Requirement(key, "In", ("y",)),)
        counts = [int(view.pods_selected("default", selector).sum()) for view in (seen, wanted)]
        assert counts[0] == counts[1]
