"""Which reservations match a pod: owners, rules, and the index."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.labelselector import Requirement
from koord.api.reservation import AFFINITY, EXACT_MATCH, IGNORED
from koord_scheduler.plugin import NodeTerm
from koord_scheduler_plugins.reservation.consumers import reservation_info
from koord_scheduler_plugins.reservation.matches import ByNode
from koord_scheduler_plugins.reservation.matching import (
    ConflictingTerms,
    Match,
    MatchOptions,
    NodeDiagnosis,
    Verdict,
    match,
    read_demands,
    specific_nodes,
)
from koord_scheduler_plugins.reservation.objects import read_reservation
from koord_scheduler_plugins.reservation.owners import owners_match
from koord_scheduler_plugins.reservation.tracker import ReservationIndex
from tests.support.reservations import info, pod, reservation, reservation_json

TAINT = {"key": "k", "value": "v", "effect": "NoSchedule"}


def verdict(
    affinity: Any = None,
    *,
    labels: dict[str, str] | None = None,
    options: MatchOptions | None = None,
    **reserved: Any,
) -> Match:
    annotations = {} if affinity is None else {AFFINITY: json.dumps(affinity)}
    one = pod(labels=labels, annotations=annotations)
    return match(one, read_demands(one), info(**reserved), {"zone": "a"}, options or MatchOptions())


def test_an_owner_matches():
    assert verdict().verdict is Verdict.MATCHED


def test_another_pod_does_not():
    assert verdict(labels={"app": "db"}).verdict is Verdict.NOT_OWNER


def test_a_pod_that_ignores_reservations_matches_all():
    assert verdict(labels={IGNORED: "true"}).verdict is Verdict.IGNORED


@pytest.mark.parametrize(
    ("owner", "is_owner"),
    [
        ({"object": {"uid": "uid-default-p"}}, True),
        ({"object": {"uid": "uid-default-p", "name": "q"}}, False),
        ({"object": {"namespace": "default", "name": "p", "kind": "Pod"}}, True),
        ({"object": {"name": "p", "apiVersion": "v1"}}, True),
        ({"object": {"name": "p", "apiVersion": "v2"}}, False),
        ({"controller": {"uid": "u", "kind": "ReplicaSet", "name": "web"}}, True),
        ({"controller": {"uid": "u", "namespace": "other"}}, False),
        ({"controller": {"kind": "ReplicaSet", "name": "web", "controller": True}}, True),
        ({"controller": {"kind": "ReplicaSet", "name": "web", "controller": False}}, False),
        ({"controller": {"uid": "another"}}, False),
        ({"controller": {"namespace": "default"}}, True),
        ({"labelSelector": {"matchLabels": {"app": "web"}}}, True),
        (
            {
                "labelSelector": {
                    "matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]
                }
            },
            False,
        ),
        ({"controller": {"uid": "u"}, "labelSelector": {"matchLabels": {"app": "x"}}}, False),
    ],
)
def test_all_parts_of_an_owner_must_match(owner, is_owner):
    references = [
        {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "name": "web",
            "uid": "u",
            "controller": True,
        }
    ]
    one = pod(ownerReferences=references)
    found = reservation(owners=[owner])
    index = ReservationIndex()
    index.put(found)

    assert found.spec is not None
    assert owners_match(found.spec.owners, one) is is_owner
    assert not is_owner or index.candidates(one) == ["uid-r"]


@pytest.mark.parametrize(
    ("affinity", "wanted"),
    [
        ({}, Verdict.MATCHED),
        ({"name": "r"}, Verdict.MATCHED),
        ({"name": "other"}, Verdict.NAME_UNMATCHED),
        ({"reservationSelector": {"team": "x"}}, Verdict.MATCHED),
        ({"reservationSelector": {"team": "y"}}, Verdict.AFFINITY_UNMATCHED),
        ({"name": "r", "reservationSelector": {"team": "y"}}, Verdict.MATCHED),
    ],
)
def test_affinity(affinity, wanted):
    one = pod(annotations={AFFINITY: json.dumps(affinity)})

    found = match(one, read_demands(one), info(labels={"team": "x"}), {})

    assert found.verdict is wanted


def term(key: str, operator: str, *values: str, what: str = "matchExpressions") -> dict[str, Any]:
    return {what: [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("terms", "matches", "without_node_labels"),
    [
        ([term("zone", "In", "a")], True, False),
        ([term("zone", "In", "b")], False, False),
        ([term("zone", "In", "b"), term("size", "Gt", "3")], True, True),
        ([term("metadata.name", "In", "r", what="matchFields")], True, True),
        ([term("metadata.name", "NotIn", "r", what="matchFields")], False, False),
        ([{}], False, False),
        ([], False, False),
    ],
)
def test_terms_see_the_labels_of_node_and_reservation(terms, matches, without_node_labels):
    wanted = {"requiredDuringSchedulingIgnoredDuringExecution": {"reservationSelectorTerms": terms}}
    one = pod(annotations={AFFINITY: json.dumps(wanted)})
    reserved = info(labels={"size": "4"})

    for options, result in (
        (MatchOptions(), matches),
        (MatchOptions(omit_node_labels=True), without_node_labels),
    ):
        found = match(one, read_demands(one), reserved, {"zone": "a", "size": "1"}, options)
        assert found.verdict.matches is result


@pytest.mark.parametrize(
    ("reserved", "affinity", "found"),
    [
        ({"unschedulable": True}, None, Match(Verdict.UNSCHEDULABLE)),
        (
            {"unschedulable": True},
            {
                "tolerations": [
                    {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"},
                ]
            },
            Match(Verdict.MATCHED),
        ),
        ({"unschedulable": True}, {"name": "r"}, Match(Verdict.MATCHED, bypasses=True)),
        ({"taints": [TAINT]}, {"name": "r"}, Match(Verdict.MATCHED, bypasses=True)),
        (
            {"taints": [TAINT]},
            {"tolerations": [{"key": "k", "value": "v", "effect": "NoSchedule"}]},
            Match(Verdict.MATCHED),
        ),
        ({"taints": [{**TAINT, "effect": "PreferNoSchedule"}]}, None, Match(Verdict.MATCHED)),
    ],
)
def test_unschedulable_and_taints(reserved, affinity, found):
    assert verdict(affinity, **reserved) == found


def test_taints_repel_pods_without_affinity_too():
    """Defect D5 mended, with a switch for Koordinator's way."""
    spared = MatchOptions(spare_without_affinity=True)

    assert verdict(taints=[TAINT]).verdict is Verdict.TAINTED
    assert verdict(taints=[TAINT], options=spared).verdict is Verdict.MATCHED
    assert verdict({}, taints=[TAINT], options=spared).verdict is Verdict.TAINTED


@pytest.mark.parametrize("annotations", [{}, {AFFINITY: '{"name":"r"}'}])
def test_a_reservation_that_is_being_deleted_matches_nobody(annotations):
    item = reservation_json()
    item["metadata"]["deletionTimestamp"] = "2026-07-24T00:00:00Z"
    one = pod(annotations=annotations)

    found = match(one, read_demands(one), reservation_info(read_reservation(item), {}), {})

    assert found.verdict is Verdict.UNSCHEDULABLE


@pytest.mark.parametrize(
    ("names", "requests", "reserved", "matches"),
    [
        (["cpu"], {"cpu": "4"}, {"cpu": "4"}, True),
        (["cpu"], {"cpu": "3"}, {"cpu": "4"}, False),
        (["memory"], {"cpu": "4"}, {"cpu": "4", "memory": "1Gi"}, False),
        ([], {"cpu": "3"}, {"cpu": "4"}, True),
        (["cpu", "memory"], {"memory": "1Gi"}, {"memory": "2Gi"}, False),  # example 47, mended
        (["cpu", "memory"], {"memory": "1Gi"}, {"memory": "1Gi"}, True),
    ],
)
def test_an_exact_match_is_one_of_all_names(names, requests, reserved, matches):
    one = pod(requests=requests, annotations={EXACT_MATCH: json.dumps({"resourceNames": names})})

    found = match(one, read_demands(one), info(requests=reserved), {})

    assert found.verdict is (Verdict.MATCHED if matches else Verdict.NOT_EXACT)


def names(*values: tuple[str, ...]) -> NodeTerm:
    return NodeTerm((), tuple(Requirement("metadata.name", "In", one) for one in values))


def test_nodes_that_terms_name():
    """Examples 33 and 34."""
    assert specific_nodes([names(("a", "b"), ("b", "c")), names(("d",))]) == {"b", "d"}
    assert specific_nodes([names(("a",)), NodeTerm((Requirement("x", "Exists"),))]) is None
    assert specific_nodes(None) is None
    with pytest.raises(ConflictingTerms, match="pod affinity terms conflict"):
        specific_nodes([names(("a",), ("b",))])


def test_a_diagnosis_counts_each_reservation_once():
    found = NodeDiagnosis()
    for each in (Verdict.MATCHED, Verdict.NOT_OWNER, Verdict.UNSCHEDULABLE, Verdict.NOT_EXACT):
        found.add(Match(each), named=False)
    found.add(verdict(taints=[TAINT]), named=False)

    assert (found.owner_matched, found.unschedulable, found.not_exact) == (4, 1, 1)
    assert (found.tainted, found.left) == ({"{k: v}": 1}, 1)


TEXTS = st.sampled_from(["a", "b", "c"])
LABELS = st.dictionaries(TEXTS, TEXTS, max_size=3)


@st.composite
def owners(draw: st.DrawFn) -> dict[str, Any]:
    found: dict[str, Any] = {}
    parts = draw(st.sets(st.sampled_from(["object", "controller", "labelSelector"]), min_size=1))
    for part in parts - {"labelSelector"}:
        keys = draw(st.sets(st.sampled_from(["uid", "name", "namespace"]), min_size=1))
        found[part] = {key: "default" if key == "namespace" else draw(TEXTS) for key in keys}
    if "labelSelector" in parts:
        operators = st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"])
        expressions = []
        for key, operator in draw(st.lists(st.tuples(TEXTS, operators), max_size=2)):
            values = draw(st.lists(TEXTS, min_size=1)) if operator.endswith("In") else []
            expressions.append({"key": key, "operator": operator, "values": values})
        found["labelSelector"] = {"matchLabels": draw(LABELS), "matchExpressions": expressions}
    return found


@st.composite
def pods(draw: st.DrawFn) -> Any:
    references = [
        {"apiVersion": "v1", "kind": "K", "name": draw(TEXTS), "uid": draw(TEXTS)}
        for _ in range(draw(st.integers(0, 2)))
    ]
    return pod(draw(TEXTS), labels=draw(LABELS), ownerReferences=references, uid=draw(TEXTS))


@given(
    st.lists(st.lists(owners(), min_size=1, max_size=3), max_size=8),
    st.lists(pods(), min_size=1, max_size=4),
    st.sets(st.integers(0, 7)),
)
def test_the_index_finds_all_that_a_scan_finds(groups, some, removed):
    index = ReservationIndex()
    known = {}
    for at, each in enumerate(groups):
        found = reservation(f"r{at}", owners=each)
        index.put(found)
        index.put(found)  # twice is once
        known[found.uid] = found
    for at in removed:
        index.remove(f"uid-r{at}")
        known.pop(f"uid-r{at}", None)

    for one in some:
        scanned = {
            uid
            for uid, each in known.items()
            if each.spec is not None and owners_match(each.spec.owners, one)
        }
        candidates = index.candidates(one)
        assert scanned <= set(candidates) <= set(known)
        assert len(candidates) == len(set(candidates))


@pytest.mark.parametrize(
    "expression",
    [
        {"key": "app", "operator": "Exists"},
        {"key": "app", "operator": "In", "values": [*"abcdefgh", "web"]},
        {"key": "other", "operator": "DoesNotExist"},
    ],
)
def test_owners_without_one_value_are_found(expression):
    index = ReservationIndex()
    index.put(reservation(owners=[{"labelSelector": {"matchExpressions": [expression]}}]))

    assert index.candidates(pod()) == ["uid-r"]


def test_a_pod_sees_few_of_many_reservations():
    """The point of the index: 1,000 reservations of others are not looked at."""
    index = ReservationIndex()
    for at in range(1000):
        both = {"tenant": "one", "app": f"app{at}"}
        index.put(reservation(f"r{at}", owners=[{"labelSelector": {"matchLabels": both}}]))

    found = index.candidates(pod(labels={"tenant": "one", "app": "app7"}))

    assert "uid-r7" in found
    assert len(found) <= 2


@given(
    st.lists(
        st.dictionaries(st.integers(0, 200).map(str), st.integers(0, 2), min_size=1, max_size=40),
        max_size=12,
    )
)
def test_reservations_by_node_are_as_a_dict_that_is_changed(
    changes: list[dict[str, int]],
) -> None:
    """0: a node has none any more. What was there before a change stays as it was."""
    infos = [(), (info("a"),), (info("a"), info("b"))]
    found, wanted, before = ByNode(), dict[str, object](), list[tuple[ByNode, object]]()
    for each in changes:
        before.append((found, dict(wanted)))
        found = found.with_changes({name: infos[kind] for name, kind in each.items()})
        wanted.update((name, infos[kind]) for name, kind in each.items())
        wanted = {name: one for name, one in wanted.items() if one}
    for mapping, same in (*before, (found, wanted)):
        assert dict(mapping) == same
        assert len(mapping) == len(dict(mapping))
        names = {str(number) for number in range(201)}
        assert {name for name in names if name in mapping} == set(mapping)
        assert all(mapping.get(name) == dict(mapping).get(name) for name in names)
