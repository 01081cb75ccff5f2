"""Objects by kind: what is put is found where decisions look for it, and forgotten when gone."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from koord.cluster.facts import Owner, Workload
from koord.cluster.kinds import (
    BUDGET,
    DEPLOYMENT,
    NODE,
    NODE_METRIC,
    POD,
    PRIORITY_CLASS,
    REPLICA_SET,
)
from koord.cluster.state import ClusterState
from tests.support.clusters import Json, named, node, pod, read, read_node, read_pod


def owned(obj: Json, kind: str, name: str, uid: str) -> Json:
    owner = {"kind": kind, "name": name, "uid": uid, "controller": True}
    return {**obj, "metadata": {**obj["metadata"], "ownerReferences": [owner]}}


def workload(name: str, replicas: int | None) -> Json:
    spec = {} if replicas is None else {"replicas": replicas}
    return {"metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"}, "spec": spec}


def test_pods_are_found_by_node_and_by_workload() -> None:
    """The Deployment of a ReplicaSet is the workload, with the pods of all its ReplicaSets."""
    state = ClusterState()
    state.put(NODE, read_node(node("n1")))
    state.put(DEPLOYMENT, read(DEPLOYMENT, workload("web", 3)))
    for name in ("web-1", "web-2"):
        obj = owned(workload(name, None), "Deployment", "web", "uid-web")
        state.put(REPLICA_SET, read(REPLICA_SET, obj))
    one = read_pod(owned(pod("a", "n1"), "ReplicaSet", "web-1", "uid-web-1"))
    other = read_pod(owned(pod("b"), "ReplicaSet", "web-2", "uid-web-2"))
    bare = read_pod(pod("c", "n1"))
    for each in (one, other, bare):
        state.put(POD, each)

    found = state.workloads.of(one)
    assert found is not None
    assert (found.kind, found.key, found.replicas) == ("Deployment", "default/web", 3)
    assert {each.name for each in state.workloads.pods(found)} == {"a", "b"}
    assert [each.name for each in state.workloads.siblings(one)] == ["a"]
    assert state.workloads.of(bare) is None
    assert [each.name for each in state.pods_of_node("n1")] == ["a", "c"]
    assert state.pods_of_node("gone") == ()

    state.remove(POD, "default/a", "another uid")
    assert state.pod("default/a") is one, "it was made anew in between"
    state.remove(POD, "default/a", one.uid)
    state.remove(DEPLOYMENT, "default/web")
    assert state.workloads.of(other) is not None, "its ReplicaSet is left"
    assert [each.name for each in state.pods_of_node("n1")] == ["c"]


def test_a_pod_that_changes_its_owner_counts_to_the_new_one() -> None:
    state = ClusterState()
    before = read_pod(owned(pod("a"), "ReplicaSet", "r", "uid-r"))
    after = read_pod(owned(pod("a"), "ReplicaSet", "s", "uid-s"))
    state.put(POD, before)
    state.put(POD, after)
    assert list(state.workloads.siblings(before)) == []
    assert list(state.workloads.siblings(after)) == [after]


def test_all_kinds_have_keys_and_are_forgotten_by_them() -> None:
    state = ClusterState()
    for name in ("n1", "n2"):
        state.put(NODE, read_node(node(name)))
        state.put(POD, read_pod(pod(f"on-{name}", name)))
    state.put(NODE_METRIC, read(NODE_METRIC, named("n1", {})))
    state.put(PRIORITY_CLASS, read(PRIORITY_CLASS, {"metadata": {"name": "high"}, "value": 9}))
    state.put(BUDGET, read(BUDGET, {"metadata": {"name": "b", "namespace": "shop"}}))
    assert state.priority_classes["high"].value == 9
    assert list(state.budgets) == ["shop/b"]

    for kind in state.kinds:
        for key in set(state.keys(kind)) - {"n1", "default/on-n1"}:
            state.remove(kind, key)

    assert [each.name for each in state.nodes()] == ["n1"]
    assert state.pod("default/on-n2") is None
    assert list(state.reports) == ["n1"]
    assert not state.priority_classes
    assert not state.budgets


@given(
    st.lists(
        st.tuples(
            st.integers(0, 4),  # pod
            st.sampled_from(["a", "b"]),  # its ReplicaSet
            st.sampled_from(["ready", "waits", "ends", "ended", "gone"]),
        )
    )
)
def test_unavailable_pods_are_those_that_do_not_serve(changes: list[tuple[int, str, str]]) -> None:
    """Of all ReplicaSets of a Deployment, whatever has changed in whatever order."""
    state = ClusterState()
    owner = Owner("Deployment", "web", "uid-web", controller=True)
    for name in ("a", "b"):
        state.workloads.put(
            Workload(kind="ReplicaSet", namespace="default", name=name, uid=f"uid-{name}",
                     replicas=3, controller=owner)
        )  # fmt: skip
    deployment = Workload(
        kind="Deployment", namespace="default", name="web", uid="uid-web", replicas=6
    )
    state.workloads.put(deployment)
    for number, owner_name, what in changes:
        one = read_pod(pod(f"p{number}"))
        if what == "gone":
            state.remove(POD, one.key)
            continue
        owners = (Owner("ReplicaSet", owner_name, f"uid-{owner_name}", controller=True),)
        phase = "Failed" if what == "ended" else "Running"
        facts = {"ready": what != "waits", "deleting": what == "ends", "phase": phase}
        state.put(POD, structs.replace(one, owners=owners, **facts))
    pods = state.workloads.pods(deployment)
    wanted = {one.key for one in pods if not one.ready or one.deleting or one.finished}

    for one in pods:
        assert {each.key for each in state.workloads.unavailable(one)} == wanted
    assert state.workloads.unavailable(read_pod(pod("bare"))) == []
