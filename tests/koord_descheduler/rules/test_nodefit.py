"""Where a pod fits without itself: NodeFit of Kubernetes' descheduler, with all rules."""

from typing import Any

import pytest

from koord.api.labelselector import LabelSelector, Requirement
from koord.cluster.hypothetical import without_pod
from koord.cluster.view import View
from koord_descheduler.rules.nodefit import NodeFit, nodes_matching, nodes_named
from tests.support.clusters import (
    Cluster,
    expression,
    near,
    node,
    node_affinity,
    pod,
    read_pod,
    term,
)

ZONE = "topology.kubernetes.io/zone"
WEB = {"app": "web"}


def view(pods: list[Any], *nodes: Any) -> View:
    return (
        Cluster(nodes=list(nodes) or [node("a"), node("b"), node("c")], pods=pods).snapshot().view()
    )


def elsewhere(found: View, key: str, at: str = "a") -> tuple[tuple[str, ...], str]:
    [moved] = [one for one in found.pods(found.row(at) or 0) if one.key == key]
    fitting = NodeFit().elsewhere(moved, found, nodes_matching(found, None))
    return fitting.names(found), fitting.reason


def test_its_own_node_is_not_elsewhere():
    assert elsewhere(view([pod("p", "a")]), "default/p") == (("b", "c"), "")


def test_alone_there_is_nowhere_to_go():
    assert elsewhere(view([pod("p", "a")], node("a")), "default/p") == (
        (),
        "there is no other node",
    )


def test_the_reason_counts_the_nodes_by_rule():
    """The first rule that forbids a node counts."""
    nodes = [
        node("a"),
        node("b", unschedulable=True),
        node("c", taints=[{"key": "k", "effect": "NoSchedule"}]),
        node("d", allocatable={"cpu": "1", "memory": "8Gi", "pods": "10"}),
        node("e", allocatable={"cpu": "1", "memory": "8Gi", "pods": "10"}),
    ]
    found = view([pod("p", "a", requests={"cpu": "2"})], *nodes)

    assert elsewhere(found, "default/p") == (
        (),
        "none of 4 nodes fits: 1 unschedulable, 1 a taint that it does not tolerate, "
        "2 too little room",
    )


def test_a_pod_does_not_exclude_itself():
    """Its own anti-affinity means pods like it; in its zone there is no other one."""
    rule = near("podAntiAffinity", term(ZONE, WEB))
    nodes = [node("a", {ZONE: "z"}), node("b", {ZONE: "z"}), node("c", {ZONE: "y"})]
    alone = [pod("p", "a", WEB, affinity=rule)]

    assert elsewhere(view(alone, *nodes), "default/p") == (("b", "c"), "")
    with_other = [*alone, pod("q", "c", WEB)]
    assert elsewhere(view(with_other, *nodes), "default/p") == (("b",), "")


def test_a_pod_does_not_count_in_its_own_spread():
    """Two zones with two pods each: without itself its zone has one, so it may only go there."""
    spread = {"topologyKey": ZONE, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule",
              "labelSelector": {"matchLabels": WEB}}  # fmt: skip
    nodes = [node("a", {ZONE: "z"}), node("b", {ZONE: "z"}), node("c", {ZONE: "y"})]
    pods = [
        pod("p", "a", WEB, topologySpreadConstraints=[spread]),
        pod("q", "a", WEB),
        pod("r", "c", WEB),
        pod("s", "c", WEB),
    ]

    assert elsewhere(view(pods, *nodes), "default/p") == (("b",), "")


def test_on_its_own_node_it_takes_no_room():
    """PodFitsAnyNode: a node that is full with the pod itself fits."""
    found = view([pod("p", "a", requests={"cpu": "4"})], node("a"))
    moved = found.pods(0)[0]
    every = nodes_matching(found, None)

    assert NodeFit().anywhere(moved, found, every).names(found) == ("a",)
    assert not NodeFit().elsewhere(moved, found, every).any


def test_equal_pods_share_an_answer_until_the_view_changes():
    cluster = Cluster(nodes=[node("a"), node("b", allocatable={"cpu": "1", "pods": "2"})])
    cluster.pods = [pod(name, "a", requests={"cpu": "1"}) for name in ("p", "q")]
    snapshot = cluster.snapshot()
    before, node_fit = snapshot.view(), NodeFit()
    one, other = before.pods(before.row("a") or 0)
    every = nodes_matching(before, None)

    assert (
        node_fit.elsewhere(one, before, every).fit is node_fit.elsewhere(other, before, every).fit
    )
    snapshot.put_pod(read_pod(pod("r", "b", requests={"cpu": "1"})))
    assert not node_fit.elsewhere(one, snapshot.view(), every).any


def test_pods_in_other_namespaces_share_nothing():
    """A term of another pod may mean the one and not the other."""
    rule = near("podAntiAffinity", term("kubernetes.io/hostname", WEB))
    pods = [pod("p", "a", WEB), pod("p", "a", WEB, namespace="shop"), pod("x", "b", affinity=rule)]
    found = view(pods, node("a"), node("b"))
    mine, theirs = found.pods(found.row("a") or 0)
    node_fit, every = NodeFit(), nodes_matching(found, None)

    assert not node_fit.elsewhere(mine, found, every).any
    assert node_fit.elsewhere(theirs, found, every).any


@pytest.mark.parametrize(
    ("selector", "wanted"),
    [
        (None, {"a", "b"}),
        (LabelSelector(), {"a", "b"}),
        (LabelSelector({"pool": "x"}), {"a"}),
        (LabelSelector(match_expressions=(Requirement("pool", "DoesNotExist"),)), {"b"}),
        (LabelSelector(match_expressions=(Requirement("pool", "NotIn", ("x",)),)), {"b"}),
    ],
)
def test_nodes_that_count_are_ready_and_selected(selector: LabelSelector | None, wanted: set[str]):
    broken = node("broken")
    broken["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    found = view([], node("a", {"pool": "x"}), node("b"), broken)
    mask = nodes_matching(found, selector)

    assert {found.node(row).name for row in range(len(found)) if mask[row]} == wanted


def test_nodes_of_a_cycle():
    found = view([], node("a"), node("b"))

    assert nodes_named(found, ["b", "gone"]).sum() == 1


def test_without_a_pod_that_is_not_there_the_view_stays():
    found = view([pod("p", "a")])

    assert without_pod(read_pod(pod("q", "a")), found) is found
    assert without_pod(read_pod(pod("q", "gone")), found) is found
    assert (
        len(without_pod(found.pods(found.row("a") or 0)[0], found).pods(found.row("a") or 0)) == 0
    )


def test_node_affinity_forbids():
    rule = node_affinity({"matchExpressions": [expression("disk", "In", "ssd")]})
    found = view([pod("p", "a", affinity=rule)], node("a"), node("b"), node("c", {"disk": "ssd"}))

    assert elsewhere(found, "default/p") == (("c",), "")
