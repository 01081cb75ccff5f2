"""Counts that are kept from view to view are those of the pods that are there."""

from collections import Counter
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.labelselector import Requirement
from koord.cluster import pod_counts, selectors
from koord.cluster.facts import (
    AffinityTerm,
    ClusterNamespace,
    ClusterNode,
    ClusterPod,
    LabelSet,
    PodSpec,
    PreferredAffinityTerm,
    selects,
)
from koord.cluster.hypothetical import HypotheticalCluster
from koord.cluster.pod_counts import AffinityTermKind
from koord.cluster.state import Snapshot
from koord.cluster.view import View

NODES, NAMESPACES = ("n1", "n2", "n3", "n4"), ("default", "shop")


def wants(**labels: str) -> tuple[Requirement, ...]:
    return tuple(Requirement(key, "In", (value,)) for key, value in labels.items())


WEB = AffinityTerm("zone", wants(app="web"), ("default",))
TERMS = (
    WEB,
    AffinityTerm("host", wants(app="web", tier="front"), ("default", "shop")),
    AffinityTerm("host", (Requirement("tier", "Exists"),), ("shop",)),
    AffinityTerm("zone", (Requirement("app", "NotIn", ("web",)),), (), wants(team="red")),
    AffinityTerm("zone", (), ("default",)),
    AffinityTerm("zone", None, ("default",)),
)
LABEL_SETS = tuple(
    LabelSet(namespace, MappingProxyType(labels))
    for namespace in NAMESPACES
    for labels in ({"app": "web"}, {"app": "web", "tier": "front"}, {"app": "db"}, {})
)
SPECS = (
    PodSpec(),
    PodSpec(anti_affinity=(WEB,)),
    PodSpec(affinity=(TERMS[1],), anti_affinity=(TERMS[3], WEB)),
    PodSpec(
        preferred_affinity=(PreferredAffinityTerm(7, WEB), PreferredAffinityTerm(2, WEB)),
        preferred_anti_affinity=(PreferredAffinityTerm(100, TERMS[2]),),
    ),
)


def make_pod(name: str, node: str, labels: int, spec: int, state: str = "") -> ClusterPod:
    return ClusterPod(
        name=name,
        uid=name,
        label_set=LABEL_SETS[labels],
        spec=SPECS[spec],
        node=node,
        phase="Succeeded" if state == "finished" else "Running",
        deleting=state == "deleting",
    )


def make_node(name: str, keys: frozenset[str] = frozenset(("zone", "host"))) -> ClusterNode:
    return ClusterNode(name=name, labels=dict.fromkeys(keys, name))


def means(view: View, term: AffinityTerm, label_set: LabelSet) -> bool:
    labels = view.namespace_labels(label_set.namespace)
    near = label_set.namespace in term.namespaces or selects(term.namespace_selector, labels)
    return near and selects(term.selector, label_set.labels)


def placed(view: View) -> list[tuple[int, ClusterPod]]:
    rows = range(len(view))
    return [(row, pod) for row in rows for pod in view.pods(row) if not pod.finished]


def counted(view: View, terms: tuple[AffinityTerm, ...], *, deleting: bool) -> list[int]:
    """Node by node, pod by pod."""
    found = Counter(
        row
        for row, pod in placed(view)
        if (deleting or not pod.deleting)
        and all(means(view, term, pod.label_set) for term in terms)
    )
    return [found[row] for row in range(len(view))]


def expected_term_counts(
    view: View, label_set: LabelSet
) -> dict[tuple[AffinityTermKind, str, int], int]:
    """Node by node, pod by pod, term by term, over keys that some node has."""
    keys = {key for row in range(len(view)) for key in view.node(row).labels}
    found: Counter[tuple[AffinityTermKind, str, int]] = Counter()
    for row, pod in placed(view):
        spec = pod.spec
        terms = [(AffinityTermKind.AFFINITY, term, 1) for term in spec.affinity]
        terms += [(AffinityTermKind.ANTI_AFFINITY, term, 1) for term in spec.anti_affinity]
        terms += [
            (AffinityTermKind.PREFERRED_AFFINITY, e.term, e.weight) for e in spec.preferred_affinity
        ]
        terms += [
            (AffinityTermKind.PREFERRED_ANTI_AFFINITY, e.term, e.weight)
            for e in spec.preferred_anti_affinity
        ]
        for kind, term, weight in terms:
            if term.topology_key in keys and means(view, term, label_set):
                found[kind, term.topology_key, row] += weight
    return dict(found)


def check(view: View, question: Any) -> None:
    terms, deleting, label_set = question
    found = view.matching_pods(*terms, deleting=deleting)
    assert found.tolist() == counted(view, terms, deleting=deleting)
    assert not found.flags.writeable

    def weights(pods: LabelSet) -> dict[str, int]:
        weighed: Counter[str] = Counter()
        for number, term in enumerate(terms, 1):
            if means(view, term, pods):
                weighed[term.topology_key] += number
        return weighed

    weighed = view.weighted_pods(None, weights)
    for key in {term.topology_key for term in terms}:
        wanted = Counter[int]()
        for row, pod in placed(view):
            wanted[row] += weights(pod.label_set).get(key, 0)
        column = weighed[key].tolist() if key in weighed else [0] * len(view)
        assert column == [wanted[row] for row in range(len(view))]
    term_counts = {
        (*key, row): count
        for key, counts in view.existing_terms(label_set).items()
        for row, count in enumerate(counts.tolist())
        if count
    }
    assert term_counts == expected_term_counts(view, label_set)


names, nodes = st.sampled_from([f"p{at}" for at in range(6)]), st.sampled_from(NODES)
labels, specs = st.integers(0, len(LABEL_SETS) - 1), st.integers(0, len(SPECS) - 1)
states = st.sampled_from(["", "", "deleting", "finished"])
pods = st.tuples(st.just("pod"), st.builds(make_pod, names, nodes, labels, specs, states))
questions = st.tuples(
    st.lists(st.sampled_from(TERMS), min_size=1, max_size=2).map(tuple),
    st.booleans(),
    st.sampled_from(LABEL_SETS),
)
events = st.one_of(
    pods,
    pods,
    st.tuples(st.just("no pod"), names),
    st.tuples(st.just("node"), nodes),
    st.tuples(st.just("no node"), nodes),
    st.tuples(st.just("labels"), nodes, st.frozensets(st.sampled_from(["zone", "host"]))),
    st.tuples(st.just("namespace"), st.sampled_from(NAMESPACES), st.sampled_from(["red", "blue"])),
    st.tuples(st.just("usage"), nodes),
    st.tuples(st.just("ask"), questions),
    st.tuples(st.just("imagine"), st.lists(pods, max_size=3), names, questions),
    st.tuples(st.just("ask earlier"), questions),
)


def happen(snapshot: Snapshot, event: Any) -> None:
    match event:
        case "pod", pod:
            snapshot.put_pod(pod)
        case "no pod", name:
            for namespace in NAMESPACES:
                snapshot.remove_pod(f"{namespace}/{name}", name)
        case "node", name:
            snapshot.put_node(make_node(name))
        case "labels", name, keys:
            snapshot.put_node(make_node(name, keys))
        case "no node", name:
            snapshot.remove_node(name)
        case "usage", name:
            snapshot.set_usage(name, (1.0,))
        case "namespace", name, team:
            snapshot.put_namespace(ClusterNamespace(name, {"team": team}))


def imagine(view: View, added: list[Any], removed: str) -> View:
    what_if = HypotheticalCluster(view)
    for row in range(len(view)):
        for pod in view.pods(row):
            if pod.name == removed:
                what_if.remove(pod.key, view.node(row).name)
    for _, pod in added:
        target = view.row(pod.node)
        there = () if target is None else what_if.view().pods(target)
        if target is not None and pod.key not in {one.key for one in there}:
            what_if.add(pod, pod.node)
    return what_if.view()


@given(st.lists(events, max_size=30), st.sampled_from([0, 2000, 10_000]), st.sampled_from([1, 16]))
def test_whatever_happens_and_whichever_view_is_asked(
    history: list[Any], most: int, terms: int
) -> None:
    """Also what-ifs, earlier views, and after more questions, or with more terms, than are kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pod_counts, "MAX_BYTES", most)
        patch.setattr(pod_counts, "MAX_CACHED_TERMS", terms)
        patch.setattr(pod_counts, "_FEW_ROWS", 1)
        patch.setattr(selectors, "_FEW_LABEL_SETS", terms)
        snapshot = Snapshot(("cpu",))
        for name in NODES[:2]:
            snapshot.put_node(make_node(name))
        earlier = snapshot.view()
        for event in history:
            match event:
                case "ask", question:
                    earlier = snapshot.view()
                    check(earlier, question)
                case "ask earlier", question:
                    check(earlier, question)
                case "imagine", added, removed, question:
                    view = snapshot.view()
                    check(imagine(view, added, removed), question)
                    check(view, question)
                case _:
                    happen(snapshot, event)
        for number in range(len(LABEL_SETS)):
            check(snapshot.view(), ((TERMS[number % len(TERMS)],), True, LABEL_SETS[number]))


def test_what_was_read_stays_as_it_was() -> None:
    """A reader's column is not the one that the next pod is counted in."""
    snapshot = Snapshot()
    snapshot.put_node(make_node("n1"))
    before = snapshot.view().matching_pods(WEB)
    term_counts = snapshot.view().existing_terms(LABEL_SETS[0])
    snapshot.put_pod(make_pod("a", "n1", 0, 1))
    assert snapshot.view().matching_pods(WEB).tolist() == [1]
    assert snapshot.view().existing_terms(LABEL_SETS[0])[
        AffinityTermKind.ANTI_AFFINITY, "zone"
    ].tolist() == [1]
    assert before.tolist() == [0]
    assert not term_counts
    with pytest.raises(ValueError, match="read-only"):
        before[0] = 7


def test_nothing_is_kept_of_what_is_gone() -> None:
    """A pod's labels and spec live no longer than it does, however many come and go."""
    snapshot = Snapshot()
    snapshot.put_node(make_node("n1"))
    snapshot.view().matching_pods(WEB)
    for number in range(100):
        label_set = LabelSet("default", MappingProxyType({"app": "web", "pod": str(number)}))
        pod = ClusterPod(
            name="a", uid=str(number), label_set=label_set, spec=PodSpec(anti_affinity=(WEB,)),
            node="n1",
        )  # fmt: skip
        snapshot.put_pod(pod)
        assert snapshot.view().matching_pods(WEB).tolist() == [1]
        snapshot.view().existing_terms(LABEL_SETS[0])
    kept = snapshot._pod_counts
    assert len(kept._groups_by_labels) == len(kept._specs_with_terms) == len(kept._term_counts) == 1
    assert len(kept._queries[(WEB,), True].groups) == 1
    assert len(kept._terms.candidates(LABEL_SETS[0])) == 1


def test_what_is_kept_is_bounded_in_bytes() -> None:
    """However many questions a tenant's pods ask, and however large their terms are."""
    snapshot = Snapshot()
    snapshot.put_node(make_node("n1"))
    view = snapshot.view()
    values = tuple(f"value-{number}" for number in range(8000))
    for number in range(50):
        large = AffinityTerm("zone", (Requirement("app", "In", (*values, str(number))),), ("shop",))
        view.matching_pods(large)
        view.matching_pods(WEB, *(AffinityTerm(str(each), (), ()) for each in range(1000)))
    assert len(snapshot._pod_counts._queries) * 100 * len(values) <= pod_counts.MAX_BYTES


def test_what_was_interrupted_is_counted_again() -> None:
    """A plugin that is ended amid a question leaves no wrong counts."""
    snapshot = Snapshot()
    snapshot.put_node(make_node("n1"))
    snapshot.view().matching_pods(WEB)
    snapshot.put_pod(make_pod("a", "n1", 0, 0))
    kept = snapshot._pod_counts
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept, "_recount", interrupt)
        with pytest.raises(KeyboardInterrupt):
            snapshot.view().matching_pods(WEB)
    assert snapshot.view().matching_pods(WEB).tolist() == [1]


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_row_of_a_what_if_has_a_generation_of_its_own() -> None:
    """Two what-ifs of one view do not take each other's rows for their own."""
    snapshot = Snapshot()
    for name in NODES:
        snapshot.put_node(make_node(name))
    view = snapshot.view()
    first, second = HypotheticalCluster(view), HypotheticalCluster(view)
    first.add(make_pod("a", "n1", 0, 0), "n1")
    second.add(make_pod("b", "n1", 0, 0), "n1")
    rows = [each.generation for each in (view, first.view(), second.view())]
    changed = view.row("n1")
    assert len({int(row[changed]) for row in rows}) == 3
    others = np.arange(len(view)) != changed
    assert (rows[0][others] == rows[1][others]).all()
    first.remove("default/a", "n1")
    assert len({int(row[changed]) for row in (*rows, first.view().generation)}) == 4
