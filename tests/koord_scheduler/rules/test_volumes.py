"""Pods with claims or disks, as views come and go."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from koord.cluster.columns import CHUNK
from koord.cluster.hypothetical import HypotheticalCluster
from koord.cluster.kinds import NODE, POD
from koord.cluster.view import View
from koord_scheduler.rules.volumes import VolumePods
from tests.support.scheduler.volumes import Storage


def plainly(view: View) -> tuple[dict[int, set[int]], dict[str, dict[int, int]]]:
    """The same, computed anew."""
    rows: dict[int, set[int]] = {}
    users: dict[str, dict[int, int]] = {}
    for row in range(len(view)):
        for pod in view.pods(row):
            if pod.finished or not (pod.claims or pod.spec.disks):
                continue
            rows.setdefault(row, set()).add(id(pod))
            for name in pod.claims:
                found = users.setdefault(f"{pod.namespace}/{name}", {})
                found[row] = found.get(row, 0) + 1
    return rows, users


def check(pods: VolumePods, view: View) -> None:
    pods.follow(view)
    rows, users = plainly(view)
    assert {row: set(map(id, found)) for row, found in pods.rows.items()} == rows
    for name in "abc":
        assert pods.users(f"default/{name}") == users.get(f"default/{name}", {})


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("pod"), st.integers(0, 4), st.sampled_from("abc"), st.integers(0, 3)),
        st.tuples(st.just("status"), st.integers(0, 4), st.just(""), st.integers(0, 1)),
        st.tuples(st.just("gone"), st.integers(0, 4), st.just(""), st.just(0)),
        st.tuples(st.just("node"), st.integers(0, 3), st.just(""), st.just(0)),
        st.tuples(st.just("down"), st.integers(0, 3), st.just(""), st.just(0)),
        st.tuples(st.just("what if"), st.integers(0, 4), st.sampled_from("abc"), st.just(0)),
    ),
    max_size=25,
)


@given(_STEPS)
def test_they_are_as_if_computed_anew(steps: list[tuple[str, int, str, int]]) -> None:
    """Whatever comes between two views, a what-if too."""
    storage, pods = Storage(), VolumePods()
    state = storage.cluster.state
    for what, number, claim, node in steps:
        if what == "pod":
            storage.pod(f"p{number}", claim, node=f"n{node}")
        elif what == "status":
            there = state.get(POD, f"default/p{number}")
            if there is not None:
                state.put(POD, replace(there, phase=("Running", "Succeeded")[node]))
        elif what == "gone":
            state.remove(POD, f"default/p{number}")
        elif what == "node":
            storage.node(f"n{number}")
        elif what == "down":
            state.remove(NODE, f"n{number}")
        elif len(storage.view()):
            what_if = HypotheticalCluster(storage.view())
            what_if.add(storage.wanted(claim, name="imagined"), storage.view().node(0).name)
            check(pods, what_if.view())
        check(pods, storage.view())


def test_only_rows_that_changed_are_looked_at() -> None:
    """Beyond one chunk, and when the last chunk goes."""
    storage, pods = Storage(), VolumePods()
    for at in range(CHUNK + 1):
        storage.node(f"n{at}")
    storage.pod("a", "data", node="n0")
    storage.pod("z", "data", node=f"n{CHUNK}")
    pods.follow(storage.view())
    assert pods.users("default/data") == {0: 1, CHUNK: 1}
    assert pods.follow(storage.view()) == []
    storage.pod("b", "data", node="n3")
    assert pods.follow(storage.view()) == [3]
    storage.cluster.state.remove(NODE, f"n{CHUNK}")
    assert CHUNK in pods.follow(storage.view())
    assert pods.users("default/data") == {0: 1, 3: 1}


def test_pods_without_volumes_cost_nothing() -> None:
    """The column of those that have some stays the very same one."""
    storage, pods = Storage(), VolumePods()
    storage.node("n0")
    storage.pod("a", "data", node="n0")
    before = storage.view().volume_pods
    pods.follow(storage.view())
    storage.pod("b", node="n0")
    assert storage.view().volume_pods is before
    assert pods.follow(storage.view()) == []
