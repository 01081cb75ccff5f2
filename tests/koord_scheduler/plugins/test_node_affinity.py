"""Nodes by their labels and names: required, preferred, and added to all pods."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.cluster.view import View
from koord_scheduler.framework.status import CycleState
from koord_scheduler.plugin import Code, PreFilterResult, QueueingHint, Status
from koord_scheduler.plugin.testing import assert_forms_agree
from koord_scheduler_plugins.node_constraints import NodeAffinity, NodeAffinityArgs
from tests.support.clusters import Cluster, Json, expression, node, node_affinity, read_node
from tests.support.scheduler.framework import Kit, make_pod
from tests.support.scheduler.resources import read_args

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
NOT_MATCHED = "node(s) didn't match Pod's node affinity/selector"
NOT_ADDED = "node(s) didn't match scheduler-enforced node affinity"


def term(*labels: Json, names: tuple[Json, ...] = ()) -> Json:
    fields = {"matchFields": list(names)} if names else {}
    return {"matchExpressions": list(labels), **fields} if labels else fields


def name(operator: str, value: str) -> Json:
    return expression("metadata.name", operator, value)


def plugin(value: Json | None = None) -> NodeAffinity:
    args, faults = read_args(NodeAffinityArgs, value)
    assert faults == []
    return NodeAffinity(args, None)  # type: ignore[arg-type]


def added(*terms: Json, preferred: list[Json] | None = None) -> Json:
    found: Json = {PREFERRED: preferred} if preferred else {}
    if terms:
        found[REQUIRED] = {"nodeSelectorTerms": list(terms)}
    return {"addedAffinity": found}


def view(*labels: dict[str, str]) -> View:
    return Cluster(nodes=[node(f"n{at}", each) for at, each in enumerate(labels)]).snapshot().view()


ZONE_A = expression("zone", "In", "a")
LABELS = {"zone": "a", "size": "5"}


@pytest.mark.parametrize(
    ("spec", "passes"),
    [
        ({}, True),
        ({"nodeSelector": {"zone": "a"}}, True),
        ({"nodeSelector": {"zone": "b"}}, False),
        ({"nodeSelector": {"zone": "a", "other": "x"}}, False),
        ({"affinity": node_affinity(term(ZONE_A))}, True),
        ({"affinity": node_affinity(term(expression("zone", "NotIn", "a", "b")))}, False),
        ({"affinity": node_affinity(term(expression("other", "NotIn", "a")))}, True),
        ({"affinity": node_affinity(term(expression("zone", "Exists")))}, True),
        ({"affinity": node_affinity(term(expression("zone", "DoesNotExist")))}, False),
        ({"affinity": node_affinity(term(expression("size", "Gt", "4")))}, True),
        ({"affinity": node_affinity(term(expression("size", "Gt", "5")))}, False),
        ({"affinity": node_affinity(term(expression("size", "Lt", "6")))}, True),
        ({"affinity": node_affinity(term(expression("zone", "Gt", "4")))}, False),
        ({"affinity": node_affinity(term(ZONE_A, expression("zone", "Exists")))}, True),
        ({"affinity": node_affinity(term(ZONE_A, expression("other", "Exists")))}, False),
        ({"affinity": node_affinity(term(expression("other", "Exists")), term(ZONE_A))}, True),
        ({"affinity": node_affinity(), "nodeSelector": {"zone": "a"}}, False),
        ({"affinity": node_affinity({}), "nodeSelector": {"zone": "a"}}, False),
        ({"affinity": node_affinity(term(ZONE_A)), "nodeSelector": {"zone": "b"}}, False),
        ({"affinity": node_affinity(term(names=(name("In", "n0"),)))}, True),
        ({"affinity": node_affinity(term(names=(name("In", "n1"),)))}, False),
        ({"affinity": node_affinity(term(names=(name("NotIn", "n0"),)))}, False),
        ({"affinity": node_affinity(term(ZONE_A, names=(name("In", "n1"),)))}, False),
    ],
)
async def test_required_labels_and_names(spec: Json, passes: bool) -> None:
    """PreFilter restricts the nodes where terms name them, so it is asked, too."""
    both = {"NodeAffinity": plugin()}
    search = await _search(both)
    found = search.search(CycleState(), make_pod(**spec), view(LABELS))
    assert bool(found.feasible[0]) == passes
    if not passes:
        assert found.diagnosis.node_statuses is not None
        status = found.diagnosis.node_statuses.status(0)
        assert status is not None
        assert status.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE


async def _search(plugins: dict[str, Any]) -> Any:
    return await Kit().search(preFilter=plugins, filter=plugins)


async def test_words() -> None:
    search = await _search({"NodeAffinity": plugin(added(term(ZONE_A)))})
    pod = make_pod(nodeSelector={"size": "1"})
    found = search.search(CycleState(), pod, view(LABELS, {"zone": "b"}, {}))
    reasons = f"1 {NOT_MATCHED}, 2 {NOT_ADDED}"
    assert found.diagnosis.message() == f"0/3 nodes are available: {reasons}."


@pytest.mark.parametrize(
    ("spec", "answer"),
    [
        ({}, Status.skip()),
        ({"nodeSelector": {"zone": "a"}}, None),
        ({"affinity": node_affinity(term(ZONE_A))}, None),
        ({"affinity": node_affinity(term(names=(name("In", "n0"),)))}, {"n0"}),
        ({"affinity": node_affinity(term(names=(name("In", "n0"),)),
                                    term(ZONE_A, names=(name("In", "n1"),)))}, {"n0", "n1"}),
        ({"affinity": node_affinity(term(names=(name("In", "n0"),)), term(ZONE_A))}, None),
        ({"affinity": node_affinity(term(names=(name("NotIn", "n0"),)))}, None),
        ({"affinity": node_affinity(term(names=(name("In", "n0"), name("In", "n1"))))},
         Status.unresolvable("pod affinity terms conflict")),
    ],
)  # fmt: skip
def test_terms_that_name_nodes(spec: Json, answer: Any) -> None:
    found = plugin().pre_filter(CycleState(), make_pod(**spec), view(LABELS))
    if isinstance(answer, set):
        answer = PreFilterResult(frozenset(answer))
    assert found == answer


def test_what_is_added_is_asked_of_every_pod() -> None:
    found = plugin(added(term(ZONE_A))).pre_filter(CycleState(), make_pod(), view(LABELS))
    assert found is None


def preferring(*terms: tuple[int, Json]) -> Json:
    listed = [{"weight": weight, "preference": each} for weight, each in terms]
    return {"affinity": {"nodeAffinity": {PREFERRED: listed}}}


LARGE = expression("size", "Gt", "3")


@pytest.mark.parametrize(
    ("args", "spec", "scores"),
    [
        (None, {}, None),
        (None, preferring((2, term(ZONE_A))), [100, 0, 100]),
        (None, preferring((2, term(ZONE_A)), (4, term(LARGE))), [100, 66, 33]),
        (None, preferring((2, term(ZONE_A, LARGE))), [100, 0, 0]),
        (None, preferring((2, term(expression("other", "Exists")))), [0, 0, 0]),
        (None, preferring((2, term(ZONE_A)), (4, term(expression("size", "Gt", "many")))),
         [100, 0, 100]),
        (added(preferred=[{"weight": 1, "preference": term(LARGE)}]), {}, [100, 100, 0]),
        (added(preferred=[{"weight": 1, "preference": term(LARGE)}]),
         preferring((3, term(ZONE_A))), [100, 25, 75]),
    ],
)  # fmt: skip
def test_preferred_nodes(args: Json | None, spec: Json, scores: list[int] | None) -> None:
    """None: nothing is preferred, so that it is skipped."""
    one, pod, nodes = plugin(args), make_pod(**spec), view(LABELS, {"size": "4"}, {"zone": "a"})
    state = CycleState()
    status = one.pre_score(state, pod, nodes, np.ones(3, np.bool_))
    if scores is None:
        assert status is not None
        assert status.code is Code.SKIP
        return
    assert status is None
    found = one.normalize_scores(state, pod, one.score_all(state, pod, nodes))
    assert found.tolist() == scores


EXPRESSIONS = st.one_of(
    st.builds(expression, st.sampled_from(("zone", "size")), st.sampled_from(("In", "NotIn")),
              st.sampled_from(("a", "5"))),
    st.builds(expression, st.sampled_from(("zone", "size")),
              st.sampled_from(("Exists", "DoesNotExist"))),
    st.builds(expression, st.sampled_from(("zone", "size")), st.sampled_from(("Gt", "Lt")),
              st.sampled_from(("4", "-1"))),
)  # fmt: skip
FIELDS = st.builds(name, st.sampled_from(("In", "NotIn")), st.sampled_from(("n0", "n1", "n2")))
TERMS = st.builds(
    lambda labels, names: term(*labels, names=tuple(names)),
    st.lists(EXPRESSIONS, max_size=2),
    st.lists(FIELDS, max_size=1),
)
SPECS = st.builds(
    lambda selector, required, preferred: {
        "nodeSelector": selector,
        "affinity": {
            "nodeAffinity": {
                **({} if required is None else {REQUIRED: {"nodeSelectorTerms": required}}),
                PREFERRED: [{"weight": weight, "preference": each} for weight, each in preferred],
            }
        },
    },
    st.dictionaries(st.just("zone"), st.sampled_from("ab"), max_size=1),
    st.one_of(st.none(), st.lists(TERMS, max_size=2)),
    st.lists(st.tuples(st.integers(1, 100), TERMS), max_size=2),
)
NODES = st.lists(
    st.fixed_dictionaries(
        {}, optional={"zone": st.sampled_from("ab"), "size": st.sampled_from(("5", "-3", "x"))}
    ),
    max_size=5,
)
ARGS = [
    None,
    added(term(ZONE_A)),
    added(term(LARGE), term(names=(name("In", "n1"),)),
          preferred=[{"weight": 7, "preference": term(ZONE_A)}]),
]  # fmt: skip


@given(SPECS, NODES, st.sampled_from(ARGS))
def test_both_forms_agree(spec: Json, labels: list[dict[str, str]], args: Json | None) -> None:
    assert_forms_agree(plugin(args), make_pod(**spec), view(*labels))


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        (None, {"zone": "a"}, QueueingHint.QUEUE),
        (None, {"zone": "b"}, QueueingHint.SKIP),
        ({"zone": "b"}, {"zone": "a"}, QueueingHint.QUEUE),
        ({"zone": "a"}, {"zone": "a", "more": "x"}, QueueingHint.SKIP),
        ({"zone": "a"}, {"zone": "b"}, QueueingHint.SKIP),
    ],
)
def test_a_node_helps_that_matches_now(old: Any, new: Any, hint: QueueingHint) -> None:
    (event,) = plugin().events_to_register()
    assert event.hint is not None
    before = None if old is None else read_node(node("n", old))
    pod = make_pod(nodeSelector={"zone": "a"})
    assert event.hint(pod, before, read_node(node("n", new))) is hint


BAD = [
    (added(term(expression("zone", "Near", "a"))), "[0].matchExpressions[0]"),
    (added(term(expression("zone", "In"))), "[0].matchExpressions[0]"),
    (added(term(expression("zone", "Gt", "a"))), "[0].matchExpressions[0]"),
    (added(term(expression("-", "Exists"))), "matchExpressions[0].key"),
    (added(term(names=(expression("metadata.uid", "In", "a"),))), "matchFields[0]"),
    ({"addedAffinity": {REQUIRED: {}}}, "nodeSelectorTerms"),
    (added(preferred=[{"weight": 0, "preference": term(ZONE_A)}]), "[0].weight"),
    (added(preferred=[{"weight": 1}]), "[0].preference"),
    ({"addedAffinity": {"required": {}}}, "addedAffinity.required"),
]


@pytest.mark.parametrize(("value", "place"), BAD, ids=[place for _, place in BAD])
def test_bad_arguments(value: Json, place: str) -> None:
    args, faults = read_args(NodeAffinityArgs, value)
    assert args is None
    assert any(place in fault for fault in faults), faults
