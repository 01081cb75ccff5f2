"""Services and the pods that they select; terms and label sets that are found by a label."""

from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.labelselector import Requirement
from koord.cluster.facts import AffinityTerm, LabelSet, selects
from koord.cluster.kinds import REPLICA_SET, REPLICATION_CONTROLLER, SERVICE
from koord.cluster.placement import ServiceTable
from koord.cluster.selectors import LabelSetIndex, TermIndex
from tests.support.clusters import named, pod, read, read_pod

NAMES, KEYS, VALUES = ("default", "shop"), ("app", "tier", "zone"), ("a", "b", "c")


def service(name: str, selector: dict[str, str] | None, namespace: str = "default") -> Any:
    obj = named(name, {})
    obj["metadata"]["namespace"] = namespace
    return read(SERVICE, {**obj, "spec": {"selector": selector}})


def test_services_that_select_a_pod() -> None:
    """In its namespace, with all of its labels; one without a selector selects none."""
    table = ServiceTable()
    for one in (
        service("web", {"app": "web"}),
        service("both", {"app": "web", "tier": "front"}),
        service("other", {"app": "db"}),
        service("elsewhere", {"app": "web"}, "shop"),
        service("none", None),
        service("empty", {}),
    ):
        table.put(one)
    asked = read_pod(pod("p", labels={"app": "web", "tier": "front"}))
    assert [one.name for one in table.selecting(asked)] == ["both", "web"]

    table.put(service("web", {"app": "db"}))
    table.remove("default/both")
    assert table.selecting(asked) == []


@pytest.mark.parametrize(
    ("kind", "selector", "found"),
    [
        (REPLICA_SET, {"matchLabels": {"app": "a"}}, (Requirement("app", "In", ("a",)),)),
        (REPLICATION_CONTROLLER, {"app": "a"}, (Requirement("app", "In", ("a",)),)),
        (REPLICA_SET, {}, ()),
        (REPLICA_SET, None, None),
        (REPLICATION_CONTROLLER, None, None),
    ],
)
def test_selectors_of_workloads(kind: Any, selector: Any, found: Any) -> None:
    """Those of a ReplicationController are labels."""
    assert read(kind, {**named("w", {}), "spec": {"selector": selector}}).selector == found


label_sets = st.builds(
    LabelSet,
    st.sampled_from(NAMES),
    st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES)).map(MappingProxyType),
)
requirements = st.builds(
    Requirement,
    st.sampled_from(KEYS),
    st.sampled_from(["In", "NotIn"]),
    st.lists(st.sampled_from(VALUES), min_size=1).map(tuple),
) | st.builds(Requirement, st.sampled_from(KEYS), st.sampled_from(["Exists", "DoesNotExist"]))
terms = st.builds(
    AffinityTerm,
    st.just("zone"),
    st.none() | st.lists(requirements, max_size=3).map(tuple),
    st.lists(st.sampled_from(NAMES), max_size=2).map(tuple),
    st.none() | st.just(()),
)


def means(term: AffinityTerm, one: LabelSet) -> bool:
    near = one.namespace in term.namespaces or term.namespace_selector is not None
    return near and selects(term.selector, one.labels)


@given(st.lists(terms, max_size=6), st.lists(label_sets, max_size=6), st.data())
def test_what_belongs_together_is_found(
    given_terms: list[AffinityTerm], sets: list[LabelSet], data: st.DataObject
) -> None:
    """From both sides, each once, after some have gone again."""
    by_label: TermIndex[int] = TermIndex()
    index = LabelSetIndex()
    for number, term in enumerate(given_terms):
        by_label.put(term, number)
        list(index.candidates(term))
    for one in sets:
        index.add(one)
    gone = data.draw(st.sets(st.integers(0, len(given_terms) - 1))) if given_terms else set()
    for number in gone:
        by_label.drop(given_terms[number], number)
    left = [one for one in sets if data.draw(st.booleans())]
    for one in sets:
        if one not in left:
            index.discard(one)

    for number, term in enumerate(given_terms):
        found = list(index.candidates(term))
        assert len(found) == len(set(found))
        assert {one for one in left if means(term, one)} <= set(found) <= set(left)
        for one in sets:
            candidates = by_label.candidates(one)
            assert len(candidates) == len(set(candidates))
            assert number not in gone or number not in candidates
            assert not means(term, one) or number in gone or number in candidates
