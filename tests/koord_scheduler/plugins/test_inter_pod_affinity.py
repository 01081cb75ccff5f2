"""Pods near to others, and apart from them."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.cluster.facts import ClusterNamespace, ClusterPod
from koord.cluster.hypothetical import HypotheticalCluster
from koord.cluster.predicates import pod_affinity
from koord.cluster.view import View
from koord.component.plugins.args import args_type_of
from koord_scheduler.framework.nodes.adapters import filter_vector, normalized, score_vector
from koord_scheduler.framework.status import CycleInput, CycleState
from koord_scheduler.framework.types import NodeInfo
from koord_scheduler.plugin import Action, ClusterEvent, Code, QueueingHint, Status
from koord_scheduler.plugin.testing import assert_forms_agree
from koord_scheduler_plugins.inter_pod_affinity import InterPodAffinity, InterPodAffinityArgs
from tests.support.clusters import Cluster, Json, named, near, node, pod, read_node, read_pod, term
from tests.support.oracles import filters as plainrules
from tests.support.oracles import scores as plainscores
from tests.support.random_clusters import PREFERRED, clusters, pods
from tests.support.scheduler.framework import Kit
from tests.support.scheduler.framework import named as with_name

HOSTNAME = "kubernetes.io/hostname"
DB, WEB = {"app": "db"}, {"app": "web"}
AFFINITY = "node(s) didn't match pod affinity rules"
ANTI_AFFINITY = "node(s) didn't match pod anti-affinity rules"
EXISTING = "node(s) didn't satisfy existing pods anti-affinity rules"


@pytest.fixture(autouse=True, scope="module", params=[0, 8], ids=["many terms", "few terms"])
def few_terms(request: pytest.FixtureRequest) -> Iterator[None]:
    """The terms up to which questions are asked one by one: by either way the same comes out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pod_affinity, "_FEW_TERMS", request.param)
        yield


def make(**args: Any) -> Any:
    return with_name(InterPodAffinity(InterPodAffinityArgs(**args), None), "InterPodAffinity")


def like(*terms: Json) -> Json:
    return {"affinity": near("podAffinity", *terms)}


def unlike(*terms: Json) -> Json:
    return {"affinity": near("podAntiAffinity", *terms)}


def prefer(kind: str, weight: int, wanted: Json) -> Json:
    return {"affinity": {kind: {PREFERRED: [{"weight": weight, "podAffinityTerm": wanted}]}}}


def cluster(*running: Json, **nodes: str) -> Cluster:
    """Nodes by their zones, "": none."""
    made = [node(name, {"zone": zone} if zone else {}) for name, zone in nodes.items()]
    teams = [named("red", {"team": "red"}), named("blue", {"team": "blue"})]
    return Cluster(nodes=made, pods=list(running), namespaces=teams)


async def searched(incoming: Json, view: View) -> Any:
    points = {"InterPodAffinity": make()}
    search = await Kit().search(preFilter=points, filter=points)
    return search.search(CycleState(), read_pod(incoming), view)


def names(view: View, mask: Any) -> str:
    return " ".join(sorted(view.node(row).name for row in np.flatnonzero(mask).tolist()))


ZONES = {"a": "z1", "b": "z1", "c": "z2", "bare": ""}
ON_A = pod("db", "a", DB)
SELECTOR = {"namespaceSelector": {"matchLabels": {"team": "red"}}}
TEAM = {"team": "red"}


@pytest.mark.parametrize(
    ("running", "incoming", "feasible"),
    [
        # affinity: in the domain of a pod that is meant
        ([ON_A], like(term("zone", DB)), "a b"),
        ([ON_A], like(term(HOSTNAME, DB)), "a"),
        ([ON_A], like(term("zone", DB), term(HOSTNAME, DB)), "a"),
        ([ON_A], like(term("zone", WEB)), ""),
        ([ON_A, pod("w", "c", WEB)], like(term("zone", DB), term("zone", WEB)), ""),
        ([ON_A], like(term("rack", DB)), ""),
        # the first of a group: to any node that has the label
        ([ON_A], {**like(term("zone", WEB)), "labels": WEB}, "a b c"),
        ([ON_A, pod("w", "c", WEB)], {**like(term("zone", WEB)), "labels": WEB}, "c"),
        ([pod("w", "bare", WEB)], {**like(term("zone", WEB)), "labels": WEB}, "a b c"),
        # namespaces
        ([pod("db", "a", DB, namespace="red")], like(term("zone", DB)), ""),
        ([pod("db", "a", DB, namespace="red")], like(term("zone", DB, namespaces=["red"])), "a b"),
        ([pod("db", "a", DB, namespace="red")], like(term("zone", DB, **SELECTOR)), "a b"),
        ([pod("db", "a", DB, namespace="blue")], like(term("zone", DB, **SELECTOR)), ""),
        ([pod("db", "a", DB, namespace="x")], like(term("zone", DB, namespaceSelector={})), "a b"),
        ([ON_A], like(term("zone", DB, **SELECTOR)), ""),
        # anti-affinity: not in such a domain; without the label it is in none
        ([ON_A], unlike(term("zone", DB)), "bare c"),
        ([ON_A], unlike(term(HOSTNAME, DB)), "b bare c"),
        ([ON_A, pod("w", "c", WEB)], unlike(term("zone", DB), term(HOSTNAME, WEB)), "bare"),
        ([ON_A], unlike(term("rack", DB)), "a b bare c"),
        ([ON_A], unlike(term("zone", None)), "a b bare c"),
        # existing pods' anti-affinity
        ([pod("db", "a", DB, **unlike(term("zone", WEB)))], {"labels": WEB}, "bare c"),
        ([pod("db", "a", DB, **unlike(term(HOSTNAME, WEB)))], {"labels": WEB}, "b bare c"),
        ([pod("db", "a", DB, **unlike(term("zone", WEB)))], {"labels": DB}, "a b bare c"),
        ([pod("db", "a", DB, **unlike(term("rack", WEB)))], {"labels": WEB}, "a b bare c"),
        ([pod("db", "a", DB, namespace="red", **unlike(term("zone", WEB)))],
         {"labels": WEB}, "a b bare c"),
        # preferred terms forbid nothing
        ([ON_A], prefer("podAntiAffinity", 100, term("zone", DB)), "a b bare c"),
    ],
)  # fmt: skip
async def test_which_nodes_are_feasible(running: Any, incoming: Json, feasible: str) -> None:
    """By the domains of other pods."""
    view = cluster(*running, **ZONES).snapshot().view()
    found = await searched(pod("incoming", "", **incoming), view)
    assert names(view, found.feasible) == feasible


@pytest.mark.parametrize(
    ("running", "incoming", "words", "code"),
    [
        ([ON_A], like(term("zone", WEB)), f"2 {AFFINITY}", Code.UNSCHEDULABLE_AND_UNRESOLVABLE),
        ([ON_A], unlike(term("zone", DB)), f"2 {ANTI_AFFINITY}", Code.UNSCHEDULABLE),
        (
            [pod("db", "a", DB, **unlike(term("zone", WEB)))],
            {"labels": WEB},
            f"2 {EXISTING}",
            Code.UNSCHEDULABLE,
        ),
        # the first rule that forbids a node is the one that is named
        (
            [pod("db", "a", DB, **unlike(term(HOSTNAME, WEB)))],
            {"labels": WEB, **unlike(term("zone", DB))},
            f"2 {ANTI_AFFINITY}",
            Code.UNSCHEDULABLE,
        ),
    ],
)
async def test_the_words_of_a_rejection(
    running: Any, incoming: Json, words: str, code: Code
) -> None:
    """Affinity cannot be helped by preemption, anti-affinity can."""
    view = cluster(*running, a="z1", b="z1").snapshot().view()
    found = await searched(pod("incoming", "", **incoming), view)
    assert found.diagnosis.message() == f"0/2 nodes are available: {words}."
    assert found.diagnosis.node_statuses.having(code).all()


def test_pods_that_no_rule_is_about_are_skipped() -> None:
    """Also where others have anti-affinity, unless it means them."""
    other = pod("db", "a", DB, **unlike(term("zone", DB)))
    view, plugin = cluster(other, **ZONES).snapshot().view(), make()
    asked = read_pod(pod("incoming", "", WEB))
    assert plugin.pre_filter(CycleState(), asked, view) == Status.skip()
    assert plugin.pre_score(CycleState(), asked, view, np.ones(4, np.bool_)) == Status.skip()


def scored(plugin: Any, asked: ClusterPod, view: View, feasible: Any = None) -> Any:
    """Normalized scores by node; None: skipped."""
    state = CycleState()
    feasible = np.ones(len(view), np.bool_) if feasible is None else feasible
    if plugin.pre_score(state, asked, view, feasible) is not None:
        return None
    rows = np.flatnonzero(feasible)
    raw = score_vector(plugin, CycleInput(state, asked, view), feasible)[rows]
    found = normalized(plugin, CycleInput(state, asked, view), rows, raw)
    each = zip(rows.tolist(), found.tolist(), strict=True)
    return {view.node(row).name: score for row, score in each}


NEAR_DB, FAR_DB = term("zone", DB), term(HOSTNAME, DB)


@pytest.mark.parametrize(
    ("running", "incoming", "args", "scores"),
    [
        ([ON_A], prefer("podAffinity", 5, NEAR_DB), {}, (100, 100, 0, 0)),
        ([ON_A], prefer("podAntiAffinity", 5, NEAR_DB), {}, (0, 0, 100, 100)),
        ([ON_A], prefer("podAffinity", 5, FAR_DB), {}, (100, 0, 0, 0)),
        ([ON_A, pod("e", "c", DB), pod("f", "c", DB)], prefer("podAffinity", 5, NEAR_DB), {},
         (50, 50, 100, 0)),
        ([ON_A], prefer("podAffinity", 5, term("zone", WEB)), {}, None),
        # terms of existing pods, also the required ones
        ([pod("w", "a", WEB, **prefer("podAffinity", 5, NEAR_DB))], {"labels": DB}, {},
         (100, 100, 0, 0)),
        ([pod("w", "a", WEB, **prefer("podAntiAffinity", 5, NEAR_DB))], {"labels": DB}, {},
         (0, 0, 100, 100)),
        ([pod("w", "c", WEB, **like(NEAR_DB))], {"labels": DB}, {}, (0, 0, 100, 0)),
        ([pod("w", "c", WEB, **like(NEAR_DB))], {"labels": DB},
         {"hard_pod_affinity_weight": 0}, None),
        ([pod("w", "c", WEB, **like(NEAR_DB)),
          pod("v", "a", WEB, **prefer("podAffinity", 4, FAR_DB))], {"labels": DB},
         {"hard_pod_affinity_weight": 1}, (100, 0, 25, 0)),
        # ignored, unless the pod prefers something itself
        ([pod("w", "a", WEB, **prefer("podAffinity", 5, NEAR_DB))], {"labels": DB},
         {"ignore_preferred_terms_of_existing_pods": True}, None),
        ([pod("w", "a", WEB, **prefer("podAffinity", 5, NEAR_DB))],
         {"labels": DB, **prefer("podAffinity", 1, term("zone", WEB))},
         {"ignore_preferred_terms_of_existing_pods": True}, (100, 100, 0, 0)),
        # not in the domain's namespace
        ([pod("db", "a", DB, namespace="red")], prefer("podAffinity", 5, NEAR_DB), {}, None),
    ],
)  # fmt: skip
def test_scores(running: Any, incoming: Json, args: Any, scores: Any) -> None:
    """Nodes a, b, c and the one without a zone."""
    view = cluster(*running, **ZONES).snapshot().view()
    found = scored(make(**args), read_pod(pod("incoming", "", **incoming)), view)
    assert found == (None if scores is None else dict(zip(ZONES, scores, strict=True)))


@given(clusters(), pods("incoming"), st.sampled_from([0, 1, 7]), st.booleans(), st.data())
def test_scores_are_those_of_the_plain_rules(
    cluster: Cluster, incoming: Json, hard: int, ignore: bool, data: st.DataObject
) -> None:
    """On random small clusters, of any feasible nodes."""
    view = cluster.snapshot().view()
    chosen = [obj for obj in cluster.nodes if data.draw(st.booleans())]
    feasible = np.zeros(len(view), np.bool_)
    feasible[[view.row(plainscores.name(obj)) or 0 for obj in chosen]] = True
    plugin = make(hard_pod_affinity_weight=hard, ignore_preferred_terms_of_existing_pods=ignore)
    found = scored(plugin, read_pod(incoming), view, feasible)
    expected = plainscores.neighbours(incoming, chosen, cluster, hard=hard, ignore=ignore)
    assert (found or dict.fromkeys(expected, 0)) == expected


@given(clusters(), pods("incoming"))
def test_both_forms_agree_with_each_other_and_with_the_plain_rules(
    cluster: Cluster, incoming: Json
) -> None:
    """Of each node also which rule it is that forbids it."""
    view, asked, plugin, state = cluster.snapshot().view(), read_pod(incoming), make(), CycleState()
    if len(view):
        assert_forms_agree(plugin, asked, view)
    skipped = plugin.pre_filter(state, asked, view) is not None
    found = None if skipped else filter_vector(plugin, CycleInput(state, asked, view))
    for obj in cluster.nodes:
        row = view.row(plainscores.name(obj))
        assert row is not None
        number = 0 if found is None else int(found.numbers[row])
        assert (number == 1) == (not plainrules.near(incoming, obj, cluster))
        assert (number > 1) == (number != 1 and not plainrules.apart(incoming, obj, cluster))


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
    found = filter_vector(plugin, CycleInput(imagined, asked, what_if.view()))
    if plugin.pre_filter(fresh, asked, what_if.view()) is None:
        expected = filter_vector(plugin, CycleInput(fresh, asked, what_if.view()))
        assert found.numbers.tolist() == expected.numbers.tolist()
    else:
        assert not found.numbers.any()
    unchanged = filter_vector(plugin, CycleInput(state, asked, view))
    assert unchanged.numbers.tolist() == before.numbers.tolist()


@pytest.mark.parametrize(
    ("args", "fault"),
    [
        (None, ""),
        ({"hardPodAffinityWeight": 0}, ""),
        ({"hardPodAffinityWeight": 100, "ignorePreferredTermsOfExistingPods": True}, ""),
        ({"hardPodAffinityWeight": -1}, "hardPodAffinityWeight"),
        ({"hardPodAffinityWeight": 101}, "hardPodAffinityWeight"),
        ({"hardPodAffinityWeight": "x"}, "hardPodAffinityWeight"),
        ({"other": 1}, "other"),
    ],
)
def test_arguments(args: Any, fault: str) -> None:
    """Faults name the field."""
    kind = args_type_of(InterPodAffinity)
    assert kind is not None
    found, faults = kind.read(args, ())
    assert (found is None) == bool(fault)
    assert [fault in str(one) for one in faults] == ([True] if fault else [])


def on(name: str, labels: Any, **more: Any) -> ClusterPod:
    return read_pod(pod(name, "n", labels, **more))


BOTH = {"affinity": {**near("podAffinity", NEAR_DB), **near("podAntiAffinity", term("zone", WEB))}}
OPPOSED = unlike(term("zone", {"app": "me"}))


@pytest.mark.parametrize(
    ("spec", "old", "new", "hint"),
    [
        (like(NEAR_DB), None, on("a", DB), "queue"),
        (like(NEAR_DB), None, on("a", WEB), "skip"),
        (like(NEAR_DB), None, on("a", DB, namespace="red"), "skip"),
        (like(term("zone", DB, **SELECTOR)), None, on("a", DB, namespace="red"), "queue"),
        (like(NEAR_DB), on("a", WEB), on("a", DB), "queue"),
        (like(NEAR_DB), on("a", DB), on("a", {**DB, "x": "y"}), "skip"),
        (like(NEAR_DB, term("zone", WEB)), None, on("a", DB), "skip"),
        (like(NEAR_DB), on("a", DB), None, "skip"),
        (like(term("zone", {"app": "me"})), on("a", {"app": "me"}), None, "queue"),
        (BOTH, on("a", WEB), None, "queue"),
        (BOTH, on("a", WEB), on("a", {}), "queue"),
        (BOTH, on("a", WEB), on("a", {**WEB, "x": "y"}), "skip"),
        (BOTH, None, on("a", WEB), "skip"),
        ({}, on("a", WEB, **OPPOSED), None, "queue"),
        ({}, on("a", WEB, **OPPOSED), on("a", DB, **OPPOSED), "skip"),
        ({}, on("a", WEB), None, "skip"),
        ({}, on("incoming", WEB), on("incoming", DB), "queue"),
    ],
)
def test_a_pod_helps_that_comes_near_or_goes_away(spec: Any, old: Any, new: Any, hint: str) -> None:
    """As far as required terms of either mean the other."""
    pods_changed, *_ = make().events_to_register()
    asked = read_pod(pod("incoming", "", {"app": "me"}, **spec))
    assert pods_changed.hint(asked, old, new) is QueueingHint(hint)


@pytest.mark.parametrize(
    ("spec", "old", "new", "hint"),
    [
        (like(NEAR_DB), None, {"zone": "a"}, "queue"),
        (like(NEAR_DB), None, {}, "skip"),
        (like(NEAR_DB), {}, {"zone": "a"}, "queue"),
        (like(NEAR_DB), {"zone": "a"}, {"zone": "a"}, "skip"),
        (unlike(NEAR_DB), {"zone": "a"}, {"zone": "b"}, "queue"),
        ({}, None, {}, "queue"),
    ],
)
def test_a_node_helps_that_is_in_a_domain(spec: Any, old: Any, new: Any, hint: str) -> None:
    """A new one also where it is other pods that exclude this one."""
    _, nodes_changed, _ = make().events_to_register()
    asked = read_pod(pod("incoming", "", {"app": "me"}, **spec))
    before, after = (None if one is None else read_node(node("n", one)) for one in (old, new))
    assert nodes_changed.hint(asked, before, after) is QueueingHint(hint)


@pytest.mark.parametrize(
    ("spec", "name", "old", "new", "hint"),
    [
        (like(term("zone", DB, **SELECTOR)), "x", {}, TEAM, "queue"),
        (like(term("zone", DB, **SELECTOR)), "x", None, TEAM, "queue"),
        (like(term("zone", DB, **SELECTOR)), "x", None, {}, "skip"),
        (unlike(term("zone", DB, **SELECTOR)), "x", TEAM, {}, "queue"),
        (unlike(term("zone", DB, **SELECTOR)), "x", TEAM, {**TEAM, "x": "y"}, "skip"),
        (like(NEAR_DB), "x", {}, TEAM, "skip"),
        ({}, "default", {}, TEAM, "queue"),
        ({}, "default", TEAM, TEAM, "skip"),
        ({}, "default", TEAM, None, "skip"),
    ],
)
def test_a_namespace_helps_that_terms_select_otherwise(
    spec: Any, name: str, old: Any, new: Any, hint: str
) -> None:
    """Those of the pod, or, of its own namespace, those of pods that may exclude it."""
    *_, changed = make().events_to_register()
    asked = read_pod(pod("incoming", "", {"app": "me"}, **spec))
    before, after = (None if one is None else ClusterNamespace(name, one) for one in (old, new))
    assert changed.hint(asked, before, after) is QueueingHint(hint)
    assert changed.event.covers(ClusterEvent("Namespace", Action.UPDATE))
