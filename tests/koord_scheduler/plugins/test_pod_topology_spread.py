"""Pods spread over domains."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.cluster.facts import ClusterPod
from koord.cluster.hypothetical import HypotheticalCluster
from koord.cluster.kinds import REPLICA_SET, SERVICE
from koord.cluster.view import View
from koord.component.plugins.args import args_type_of
from koord_scheduler.framework.handle import Handle
from koord_scheduler.framework.nodes.adapters import filter_vector, normalized, score_vector
from koord_scheduler.framework.status import CycleInput, CycleState
from koord_scheduler.framework.types import NodeInfo
from koord_scheduler.plugin import Code, QueueingHint, Status
from koord_scheduler.plugin.testing import assert_forms_agree
from koord_scheduler_plugins.pod_topology_spread import PodTopologySpread, PodTopologySpreadArgs
from tests.support.clusters import (
    Cluster,
    Json,
    deleting,
    node,
    node_affinity,
    pod,
    read,
    read_node,
    read_pod,
)
from tests.support.oracles import filters as plainrules
from tests.support.oracles import scores as plainscores
from tests.support.random_clusters import clusters, pods
from tests.support.scheduler.framework import Kit, make_pod, named

HOSTNAME, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
FOO = {"foo": "bar"}
MISMATCH = "node(s) didn't match pod topology spread constraints"


def make(args: PodTopologySpreadArgs | None = None, kit: Kit | None = None) -> Any:
    services = (kit or Kit()).services
    handle = Handle(profile="p", services=services, filters=_no_filters)
    return named(PodTopologySpread(args or PodTopologySpreadArgs(), handle), "PodTopologySpread")


def constraint(key: str = "zone", skew: int = 1, when: str = "DoNotSchedule", **more: Any) -> Json:
    return {
        "topologyKey": key,
        "maxSkew": skew,
        "whenUnsatisfiable": when,
        "labelSelector": {"matchLabels": FOO},
        **more,
    }


def soft(key: str = "zone", skew: int = 1, **more: Any) -> Json:
    return constraint(key, skew, "ScheduleAnyway", **more)


def zones(*counts: int, **nodes: str) -> Cluster:
    """Nodes by their zones, "": none; counts are the pods of each, in order."""
    made = [node(name, {"zone": zone} if zone else {}) for name, zone in nodes.items()]
    running = [
        pod(f"{name}-{at}", name, dict(FOO))
        for name, count in zip(nodes, counts, strict=True)
        for at in range(count)
    ]
    return Cluster(nodes=made, pods=running)


def requesting(*constraints: Json, labels: Any = FOO, **spec: Any) -> Json:
    return pod("incoming", "", labels, topologySpreadConstraints=list(constraints), **spec)


async def searched(plugin: Any, incoming: Json, view: View) -> Any:
    points = {"PodTopologySpread": plugin}
    search = await Kit().search(preFilter=points, filter=points)
    return search.search(CycleState(), read_pod(incoming), view)


def names(view: View, mask: Any) -> set[str]:
    return {view.node(row).name for row in np.flatnonzero(mask).tolist()}


TWO_ZONES = {"a": "z1", "b": "z1", "x": "z2", "y": "z2"}


@pytest.mark.parametrize(
    ("cluster", "incoming", "feasible"),
    [
        # Kubernetes' documentation: zones A with 2 and 1 pods, B with one and none
        (zones(2, 1, 1, 0, **TWO_ZONES), requesting(constraint()), "x y"),
        (zones(2, 1, 1, 0, **TWO_ZONES), requesting(constraint(HOSTNAME)), "y"),
        (zones(2, 1, 1, 0, **TWO_ZONES), requesting(constraint(), constraint(HOSTNAME)), "y"),
        (zones(1, 1, 2, a="z1", b="z1", x="z2"), requesting(constraint(skew=1)), "a b x"),
        # conflicting constraints
        (
            zones(2, 1, 2, a="z1", b="z1", x="z2"),
            requesting(constraint(), constraint(HOSTNAME)),
            "",
        ),
        (zones(2, 1, 1, 0, **TWO_ZONES), requesting(constraint(skew=2)), "x y"),
        (zones(2, 1, 1, 0, **TWO_ZONES), requesting(constraint(skew=3)), "a b x y"),
        # a pod that its own selector does not match
        (zones(2, 1, 1, 0, **TWO_ZONES), requesting(constraint(), labels={}), "x y"),
        (zones(1, 1, 1, 0, **TWO_ZONES), requesting(constraint(), labels={}), "a b x y"),
        # fewer domains than minDomains: the emptiest has 0
        (zones(1, 0, 1, 0, **TWO_ZONES), requesting(constraint(minDomains=3)), ""),
        (zones(1, 0, 1, 0, **TWO_ZONES), requesting(constraint(minDomains=2)), "a b x y"),
        (
            zones(1, 0, 1, 0, **TWO_ZONES),
            requesting(constraint(minDomains=3, maxSkew=2)),
            "a b x y",
        ),
        # a selector of everything, and none at all
        (zones(2, 1, 0, 0, **TWO_ZONES), requesting(constraint(labelSelector={})), "a b x y"),
        (zones(2, 1, 0, 0, **TWO_ZONES), requesting(constraint(labelSelector=None)), "a b x y"),
        # nodes without the label
        (zones(0, 1, 5, a="z1", x="z2", bare=""), requesting(constraint()), "a"),
        (zones(0, 5, a="z1", bare=""), requesting(constraint()), "a"),
    ],
)
async def test_the_skew_decides(cluster: Cluster, incoming: Json, feasible: str) -> None:
    """Only nodes where the pod exceeds none of its constraints."""
    view = cluster.snapshot().view()
    found = await searched(make(), incoming, view)
    assert names(view, found.feasible) == set(feasible.split())


@pytest.mark.parametrize(
    ("policy", "feasible"),
    [("Honor", "a b"), ("Ignore", "")],
)
async def test_nodes_that_the_node_affinity_excludes(policy: str, feasible: str) -> None:
    """With Honor the empty zone of the excluded node does not count."""
    cluster = zones(2, 2, 0, a="z1", b="z2", c="z3")
    wanted = {"key": "zone", "operator": "NotIn", "values": ["z3"]}
    spec = {"affinity": node_affinity({"matchExpressions": [wanted]})}
    one = constraint(nodeAffinityPolicy=policy)
    view = cluster.snapshot().view()
    found = await searched(make(), requesting(one, **spec), view)
    assert names(view, found.feasible) - {"c"} == set(feasible.split())


@pytest.mark.parametrize(
    ("policy", "tolerates", "feasible"),
    [("Honor", False, "a b"), ("Honor", True, ""), ("Ignore", False, ""), (None, False, "")],
)
async def test_nodes_with_taints(policy: str | None, tolerates: bool, feasible: str) -> None:
    """By default they count, as the taint is no matter of this plugin."""
    cluster = zones(2, 2, 0, a="z1", b="z2", c="z3")
    cluster.nodes[2]["spec"]["taints"] = [{"key": "k", "effect": "NoSchedule"}]
    more = {"nodeTaintsPolicy": policy} if policy else {}
    tolerations = [{"key": "k", "operator": "Exists"}] if tolerates else []
    view = cluster.snapshot().view()
    incoming = requesting(constraint(**more), tolerations=tolerations)
    found = await searched(make(), incoming, view)
    assert names(view, found.feasible) - {"c"} == set(feasible.split())


async def test_pods_of_another_revision_do_not_count_with_match_label_keys() -> None:
    """A rollout spreads on its own."""
    cluster = zones(3, 0, a="z1", b="z2")
    for one in cluster.pods:
        one["metadata"]["labels"] = {**FOO, "pod-template-hash": "old"}
    view = cluster.snapshot().view()
    labels = {**FOO, "pod-template-hash": "new"}
    one = constraint(matchLabelKeys=["pod-template-hash", "other"])
    found = await searched(make(), requesting(one, labels=labels), view)
    assert names(view, found.feasible) == {"a", "b"}
    assert names(view, (await searched(make(), requesting(constraint()), view)).feasible) == {"b"}


@pytest.mark.parametrize(
    ("constraints", "words"),
    [
        ([constraint(minDomains=2)], f"1 {MISMATCH} (missing required label), 2 {MISMATCH}."),
        ([constraint("rack")], f"3 {MISMATCH} (missing required label)."),
        # the first constraint that a node does not meet is the one that is named
        ([constraint(), constraint("rack")], f"3 {MISMATCH} (missing required label)."),
        (
            [constraint(HOSTNAME, minDomains=9), constraint()],
            f"1 {MISMATCH} (missing required label), 2 {MISMATCH}.",
        ),
    ],
)
async def test_the_words_of_a_rejection(constraints: list[Json], words: str) -> None:
    """Preemption helps where pods are too many, not where a label is missing."""
    view = zones(1, 1, 1, a="z1", b="z1", bare="").snapshot().view()
    found = await searched(make(), requesting(*constraints), view)
    assert found.diagnosis.message() == f"0/3 nodes are available: {words}"
    statuses = found.diagnosis.node_statuses
    missing = sum("missing" in statuses.status(row).message for row in range(3))
    assert np.count_nonzero(statuses.having(Code.UNSCHEDULABLE_AND_UNRESOLVABLE)) == missing
    assert np.count_nonzero(statuses.having(Code.UNSCHEDULABLE)) == 3 - missing


async def test_a_pod_without_constraints_is_skipped() -> None:
    """In Filter and in Score."""
    plugin, view, state = make(), zones(1, a="z1").snapshot().view(), CycleState()
    assert plugin.pre_filter(state, make_pod(), view) == Status.skip()
    assert plugin.pre_score(state, make_pod(), view, np.ones(1, np.bool_)) == Status.skip()


def scored(plugin: Any, incoming: ClusterPod, view: View, feasible: Any) -> dict[str, int] | None:
    """Normalized scores by node; None: skipped."""
    state = CycleState()
    if plugin.pre_score(state, incoming, view, feasible) is not None:
        return None
    rows = np.flatnonzero(feasible)
    raw = score_vector(plugin, CycleInput(state, incoming, view), feasible)[rows]
    found = normalized(plugin, CycleInput(state, incoming, view), rows, raw)
    each = zip(rows.tolist(), found.tolist(), strict=True)
    return {view.node(row).name: score for row, score in each}


@pytest.mark.parametrize(
    ("cluster", "constraints", "scores"),
    [
        (zones(0, 0, a="z1", b="z2"), [soft()], {"a": 100, "b": 100}),
        # one pod weighs ln 4: scores 3, 1
        (zones(2, 1, a="z1", b="z2"), [soft()], {"a": 33, "b": 100}),
        (zones(2, 1, 0, a="z1", b="z1", c="z2"), [soft()], {"a": 0, "b": 0, "c": 100}),
        # by hostname one pod weighs ln 6: scores 4, 2, 0, 5
        (
            zones(2, 1, 0, 3, a="z1", b="z1", x="z2", y="z2"),
            [soft(HOSTNAME)],
            {"a": 20, "b": 60, "x": 100, "y": 0},
        ),
        # the node without a label is ignored
        (zones(1, 0, 0, a="z1", b="z2", bare=""), [soft()], {"a": 0, "b": 100, "bare": 0}),
        # a skew of 3 makes one pod more weigh less
        (zones(2, 0, a="z1", b="z2"), [soft(skew=3)], {"a": 40, "b": 100}),
        (zones(0, 0, a="", b=""), [soft()], {"a": 0, "b": 0}),
    ],
)
def test_scores(cluster: Cluster, constraints: list[Json], scores: dict[str, int]) -> None:
    """The fewer matching pods in a node's domain, the better."""
    view = cluster.snapshot().view()
    incoming = read_pod(requesting(*constraints))
    assert scored(make(), incoming, view, np.ones(len(view), np.bool_)) == scores


@given(clusters(), pods("incoming"), st.data())
def test_scores_are_those_of_the_plain_rules(
    cluster: Cluster, incoming: Json, data: st.DataObject
) -> None:
    """On random small clusters, of any feasible nodes."""
    view = cluster.snapshot().view()
    chosen = [obj for obj in cluster.nodes if data.draw(st.booleans())]
    feasible = np.zeros(len(view), np.bool_)
    feasible[[view.row(plainscores.name(obj)) or 0 for obj in chosen]] = True
    constraints = [
        one
        for one in incoming["spec"]["topologySpreadConstraints"]
        if one["whenUnsatisfiable"] == "ScheduleAnyway"
    ]
    found = scored(make(), read_pod(incoming), view, feasible)
    if not constraints:
        assert found is None
        return
    expected = plainscores.spread(incoming, constraints, chosen, cluster, every=True)
    assert found == expected


@given(clusters(), pods("incoming"))
def test_both_forms_agree_with_each_other_and_with_the_plain_rules(
    cluster: Cluster, incoming: Json
) -> None:
    """Of each node also which constraint it is that it does not meet."""
    view, asked, plugin, state = cluster.snapshot().view(), read_pod(incoming), make(), CycleState()
    if len(view):
        assert_forms_agree(plugin, asked, view)
    constraints = asked.spec.spread
    if plugin.pre_filter(state, asked, view) is not None:
        assert not constraints
        return
    verdicts = filter_vector(plugin, CycleInput(state, asked, view))
    for obj in cluster.nodes:
        row = view.row(plainscores.name(obj))
        assert row is not None
        number = verdicts.numbers[row]
        assert (number == 0) == plainrules.spread(incoming, obj, cluster)
        if number and verdicts.rejections[number - 1].message != MISMATCH:
            assert any(one.topology_key not in view.node(row).labels for one in constraints)


@given(clusters(), pods("incoming"), pods("other"), st.data())
def test_pods_that_come_and_go_in_a_what_if(
    cluster: Cluster, incoming: Json, other: Json, data: st.DataObject
) -> None:
    """The state that follows them is the one of a cluster that never was another."""
    view, asked, plugin, state = cluster.snapshot().view(), read_pod(incoming), make(), CycleState()
    if not len(view) or plugin.pre_filter(state, asked, view) is not None:
        return
    imagined, what_if = state.clone(), HypotheticalCluster(view)
    for row in range(len(view)):
        for one in view.pods(row):
            if data.draw(st.booleans()):
                what_if.remove(one.key, view.node(row).name)
                plugin.remove_pod(imagined, asked, one, NodeInfo(what_if.view(), row))
    row = data.draw(st.integers(0, len(view) - 1))
    added = read_pod(other)
    what_if.add(added, view.node(row).name)
    plugin.add_pod(imagined, asked, added, NodeInfo(what_if.view(), row))

    fresh, before = CycleState(), filter_vector(plugin, CycleInput(state, asked, view))
    plugin.pre_filter(fresh, asked, what_if.view())
    expected = filter_vector(plugin, CycleInput(fresh, asked, what_if.view()))
    found = filter_vector(plugin, CycleInput(imagined, asked, what_if.view()))
    assert found.numbers.tolist() == expected.numbers.tolist()
    unchanged = filter_vector(plugin, CycleInput(state, asked, view))
    assert unchanged.numbers.tolist() == before.numbers.tolist()


def belonging(kit: Kit) -> ClusterPod:
    """A pod of a ReplicaSet and a service, without constraints."""
    state = kit.services.cluster
    meta = {"name": "web", "namespace": "default", "uid": "u"}
    selector = {"matchLabels": {"pod-template-hash": "1"}}
    state.put(REPLICA_SET, read(REPLICA_SET, {"metadata": meta, "spec": {"selector": selector}}))
    state.put(SERVICE, read(SERVICE, {"metadata": meta, "spec": {"selector": FOO}}))
    labels = {**FOO, "pod-template-hash": "1"}
    obj = pod("incoming", "", labels)
    owner = {"kind": "ReplicaSet", "name": "web", "uid": "u", "controller": True}
    obj["metadata"]["ownerReferences"] = [owner]
    return read_pod(obj)


def test_a_pod_of_a_service_is_spread_by_default() -> None:
    """Over zones with a skew of 5 and nodes with 3; a node without a zone counts, too."""
    kit = Kit()
    incoming = belonging(kit)
    nodes = {"a": "z1", "b": "z2", "bare": ""}
    made = [node(name, {ZONE: zone} if zone else {}) for name, zone in nodes.items()]
    running = [pod(f"p{at}", "a", {**FOO, "pod-template-hash": "1"}) for at in range(3)]
    running += [pod(f"old{at}", "b", {**FOO, "pod-template-hash": "0"}) for at in range(9)]
    view = Cluster(nodes=made, pods=running).snapshot().view()
    state, plugin = CycleState(), make(kit=kit)
    every = np.ones(3, np.bool_)
    assert plugin.pre_filter(state, incoming, view) == Status.skip()
    raw = [constraint_of(key, skew) for key, skew in ((HOSTNAME, 3), (ZONE, 5))]
    whole = Cluster(nodes=made, pods=running)
    labels = {"metadata": {"labels": dict(incoming.labels)}, "spec": {}}
    expected = plainscores.spread(labels, raw, made, whole, every=False)
    assert scored(plugin, incoming, view, every) == expected
    assert expected["a"] < expected["b"]
    kit.services.cluster.remove(SERVICE, "default/web")
    kit.services.cluster.remove(REPLICA_SET, "default/web")
    assert scored(plugin, incoming, view, every) is None


def constraint_of(key: str, skew: int) -> Json:
    selector = {"matchLabels": {**FOO, "pod-template-hash": "1"}}
    return constraint(key, skew, "ScheduleAnyway", labelSelector=selector)


def read_args(value: Any) -> tuple[Any, list[str]]:
    kind = args_type_of(PodTopologySpread)
    assert kind is not None
    found, faults = kind.read(value, ())
    return found, [str(fault) for fault in faults]


async def test_default_constraints_of_a_list() -> None:
    """Also with DoNotSchedule; nodes must have the labels of all that score."""
    kit = Kit()
    incoming = belonging(kit)
    hard = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    other = {"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "ScheduleAnyway"}
    args, faults = read_args({"defaultingType": "List", "defaultConstraints": [hard, other]})
    assert faults == []
    cluster = zones(1, 0, a="z1", b="z2")
    for one in cluster.pods:
        one["metadata"]["labels"] = {**FOO, "pod-template-hash": "1"}
    view = cluster.snapshot().view()
    plugin, state = make(args, kit), CycleState()
    assert plugin.pre_filter(state, incoming, view) is None
    assert names(view, filter_vector(plugin, CycleInput(state, incoming, view)).numbers == 0) == {
        "b"
    }
    assert scored(plugin, incoming, view, np.ones(2, np.bool_)) == {"a": 0, "b": 0}

    own = read_pod(requesting(soft()))
    assert plugin.pre_filter(CycleState(), own, view) == Status.skip()


GOOD = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}


@pytest.mark.parametrize(
    ("args", "fault"),
    [
        (None, ""),
        ({"defaultingType": "System"}, ""),
        ({"defaultingType": "List"}, ""),
        ({"defaultingType": "List", "defaultConstraints": [GOOD]}, ""),
        ({"defaultConstraints": [GOOD]}, "defaultingType"),
        ({"defaultingType": "Other"}, "defaultingType"),
        ({"maxSkew": 1}, "maxSkew"),
        ([{**GOOD, "maxSkew": 0}], "defaultConstraints[0].maxSkew"),
        ([{**GOOD, "topologyKey": ""}], "defaultConstraints[0].topologyKey"),
        ([{**GOOD, "topologyKey": "a b"}], "defaultConstraints[0].topologyKey"),
        ([{**GOOD, "whenUnsatisfiable": "Never"}], "defaultConstraints[0].whenUnsatisfiable"),
        ([{"maxSkew": 1, "topologyKey": "a"}], "defaultConstraints[0].whenUnsatisfiable"),
        ([{**GOOD, "labelSelector": {}}], "defaultConstraints[0].labelSelector"),
        ([{**GOOD, "matchLabelKeys": ["a"]}], "defaultConstraints[0].matchLabelKeys"),
        ([{**GOOD, "minDomains": 2}], "defaultConstraints[0].minDomains"),
        ([{**GOOD, "nodeTaintsPolicy": "No"}], "defaultConstraints[0].nodeTaintsPolicy"),
        ([GOOD, GOOD], "defaultConstraints[1]"),
        ([GOOD, {**GOOD, "whenUnsatisfiable": "DoNotSchedule"}], ""),
    ],
)
def test_arguments(args: Any, fault: str) -> None:
    """Faults name the field."""
    if isinstance(args, list):
        args = {"defaultingType": "List", "defaultConstraints": args}
    found, faults = read_args(args)
    assert (found is None) == bool(fault)
    assert [fault in one for one in faults] == ([True] if fault else [])


def on(name: str, labels: Any, **more: Any) -> ClusterPod:
    return read_pod(pod(name, "n", labels, **more))


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        (None, on("a", FOO), QueueingHint.QUEUE),
        (None, on("a", {}), QueueingHint.SKIP),
        (None, on("a", FOO, namespace="other"), QueueingHint.SKIP),
        (on("a", FOO), None, QueueingHint.QUEUE),
        (on("a", {}), None, QueueingHint.SKIP),
        (on("a", {}), on("a", FOO), QueueingHint.QUEUE),
        (on("a", FOO), on("a", {}), QueueingHint.QUEUE),
        (on("a", FOO), on("a", {**FOO, "x": "y"}), QueueingHint.SKIP),
        (on("incoming", FOO), on("incoming", {}), QueueingHint.QUEUE),
    ],
)
def test_a_pod_helps_that_changes_a_count(
    old: ClusterPod | None, new: ClusterPod | None, hint: QueueingHint
) -> None:
    """Or the pod itself, whose labels the constraint looks at."""
    pods_changed, _ = make().events_to_register()
    assert pods_changed.hint(read_pod(requesting(constraint())), old, new) is hint


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        (None, {"zone": "a"}, QueueingHint.QUEUE),
        (None, {}, QueueingHint.SKIP),
        ({"zone": "a"}, None, QueueingHint.QUEUE),
        ({}, None, QueueingHint.SKIP),
        ({"zone": "a"}, {"zone": "b"}, QueueingHint.QUEUE),
        ({"zone": "a"}, {}, QueueingHint.QUEUE),
        ({"zone": "a"}, {"zone": "a", "x": "y"}, QueueingHint.SKIP),
    ],
)
def test_a_node_helps_that_changes_its_domain(old: Any, new: Any, hint: QueueingHint) -> None:
    """Or comes, or goes."""
    _, nodes_changed = make().events_to_register()
    before, after = (None if one is None else read_node(node("n", one)) for one in (old, new))
    assert nodes_changed.hint(read_pod(requesting(constraint())), before, after) is hint


def test_taints_help_where_they_are_honoured() -> None:
    _, nodes_changed = make().events_to_register()
    before = read_node(node("n", {"zone": "a"}, taints=[{"key": "k", "effect": "NoSchedule"}]))
    after = read_node(node("n", {"zone": "a"}))
    for more, hint in (({"nodeTaintsPolicy": "Honor"}, "queue"), ({}, "skip")):
        asked = read_pod(requesting(constraint(**more)))
        assert nodes_changed.hint(asked, before, after).value == hint


def test_a_pod_that_is_being_deleted_does_not_count() -> None:
    """Neither before nor in a what-if without it."""
    cluster = zones(0, 0, a="z1", b="z2")
    cluster.pods.append(deleting(pod("ends", "a", FOO)))
    view, asked = cluster.snapshot().view(), read_pod(requesting(constraint()))
    plugin, state = make(), CycleState()
    plugin.pre_filter(state, asked, view)
    assert not filter_vector(plugin, CycleInput(state, asked, view)).numbers.any()
    row = view.row("a")
    assert row is not None
    plugin.remove_pod(state, asked, view.pods(row)[0], NodeInfo(view, row))
    assert not filter_vector(plugin, CycleInput(state, asked, view)).numbers.any()


def _no_filters() -> Any:
    raise AssertionError
