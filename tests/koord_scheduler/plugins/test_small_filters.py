"""Gates, the node that a pod names, and taints."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.cluster.view import View
from koord_scheduler.framework.status import CycleState
from koord_scheduler.plugin import Code, QueueingHint
from koord_scheduler.plugin.testing import assert_forms_agree
from koord_scheduler_plugins.node_constraints import NodeName, TaintToleration
from koord_scheduler_plugins.queueing import SchedulingGates
from tests.support.clusters import Cluster, Json, node, read_node
from tests.support.scheduler.framework import Kit, make_pod

QUEUE, SKIP = QueueingHint.QUEUE, QueueingHint.SKIP


def test_a_pod_with_gates_is_not_tried() -> None:
    plugin = SchedulingGates(None, _no_handle())
    assert plugin.pre_enqueue(make_pod()) is None
    status = plugin.pre_enqueue(make_pod(schedulingGates=[{"name": "a"}, {"name": "b"}]))
    assert status is not None
    assert status.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE
    assert status.message == "waiting for scheduling gates: [a b]"


def test_a_change_of_the_gated_pod_itself_helps() -> None:
    (event,) = SchedulingGates(None, _no_handle()).events_to_register()
    assert event.hint is not None
    pod, other = make_pod(), make_pod("other")
    assert event.hint(pod, pod, pod) is QUEUE
    assert event.hint(pod, other, other) is SKIP


def view(*taints: list[Json]) -> View:
    nodes = [node(f"n{at}", taints=each) for at, each in enumerate(taints)]
    return Cluster(nodes=nodes).snapshot().view()


@pytest.mark.parametrize(("wanted", "feasible"), [("", 2), ("n1", 1), ("gone", 0)])
async def test_a_pod_goes_to_the_node_that_it_names(wanted: str, feasible: int) -> None:
    search = await Kit().search(filter={"NodeName": NodeName(None, _no_handle())})
    found = search.search(CycleState(), make_pod(node=wanted), view([], []))
    assert found.feasible.sum() == feasible
    if not feasible:
        reason = "2 node(s) didn't match the requested node name."
        assert found.diagnosis.message() == f"0/2 nodes are available: {reason}"


@pytest.mark.parametrize("wanted", ["", "n1", "gone"])
def test_forms_of_node_name_agree(wanted: str) -> None:
    plugin = NodeName(None, _no_handle())
    assert_forms_agree(plugin, make_pod(node=wanted), view([], []))
    assert plugin.filter_all(CycleState(), make_pod(), view([], [])).all()


def test_only_the_named_node_helps() -> None:
    (event,) = NodeName(None, _no_handle()).events_to_register()
    assert event.hint is not None
    pod = make_pod(node="n1")
    assert event.hint(pod, None, read_node(node("n1"))) is QUEUE
    assert event.hint(pod, None, read_node(node("n2"))) is SKIP


def taint(effect: str, key: str = "k", value: str = "v") -> Json:
    return {"key": key, "value": value, "effect": effect}


def toleration(**fields: str) -> Json:
    return {"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule", **fields}


@pytest.mark.parametrize(
    ("taints", "tolerations", "passes"),
    [
        ([taint("NoSchedule")], [], False),
        ([taint("NoExecute")], [], False),
        ([taint("PreferNoSchedule")], [], True),
        ([taint("NoSchedule")], [toleration()], True),
        ([taint("NoSchedule")], [toleration(value="w")], False),
        ([taint("NoSchedule")], [toleration(operator="Exists", value="")], True),
        ([taint("NoSchedule")], [toleration(effect="")], True),
        ([taint("NoSchedule")], [toleration(effect="NoExecute")], False),
        ([taint("NoSchedule")], [{"operator": "Exists"}], True),
        ([taint("NoSchedule"), taint("NoSchedule", "l")], [toleration()], False),
    ],
)
async def test_pods_go_where_they_tolerate_all_taints(
    taints: list[Json], tolerations: list[Json], passes: bool
) -> None:
    search = await Kit().search(filter={"TaintToleration": TaintToleration(None, _no_handle())})
    found = search.search(CycleState(), make_pod(tolerations=tolerations), view(taints))
    assert bool(found.feasible[0]) == passes
    if not passes:
        message = "0/1 nodes are available: 1 node(s) had untolerated taint(s)."
        assert found.diagnosis.message() == message
        assert found.diagnosis.node_statuses is not None
        status = found.diagnosis.node_statuses.status(0)
        assert status is not None
        assert status.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE


SOFT = taint("PreferNoSchedule")


@pytest.mark.parametrize(
    ("taints", "tolerations", "scores"),
    [
        ([[], [SOFT]], [toleration(effect="PreferNoSchedule")], None),
        ([[], [taint("NoSchedule")]], [], None),
        ([[SOFT], []], [], [0, 100]),
        ([[SOFT], [SOFT, taint("PreferNoSchedule", "l")], []], [], [50, 0, 100]),
        ([[SOFT], [taint("PreferNoSchedule", "l")]], [toleration(effect="")], [100, 0]),
        ([[SOFT], [SOFT]], [], [0, 0]),
    ],
)
def test_taints_that_cost_score(
    taints: list[list[Json]], tolerations: list[Json], scores: list[int] | None
) -> None:
    """None: all nodes are alike, so that it is skipped."""
    plugin, pod, nodes = TaintToleration(None, _no_handle()), make_pod(), view(*taints)
    pod = make_pod(tolerations=tolerations)
    state = CycleState()
    status = plugin.pre_score(state, pod, nodes, np.ones(len(nodes), np.bool_))
    if scores is None:
        assert status is not None
        assert status.code is Code.SKIP
        return
    assert status is None
    found = plugin.normalize_scores(state, pod, plugin.score_all(state, pod, nodes))
    assert found.tolist() == scores


EFFECTS = st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"])
TAINTS = st.lists(st.builds(taint, EFFECTS, st.sampled_from("kl"), st.sampled_from("vw")))
TOLERATIONS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "key": st.sampled_from(["", "k", "l"]),
            "operator": st.sampled_from(["", "Equal", "Exists"]),
            "value": st.sampled_from("vw"),
            "effect": st.one_of(st.just(""), EFFECTS),
        },
    ),
    max_size=3,
)


@given(st.lists(TAINTS, max_size=5), TOLERATIONS)
def test_forms_of_taint_toleration_agree(taints: list[list[Json]], tolerated: list[Json]) -> None:
    plugin = TaintToleration(None, _no_handle())
    assert_forms_agree(plugin, make_pod(tolerations=tolerated), view(*taints))


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        (None, [], QUEUE),
        (None, [taint("NoSchedule")], SKIP),
        ([taint("NoSchedule")], [], QUEUE),
        ([taint("NoSchedule")], [SOFT], QUEUE),
        ([SOFT], [], SKIP),
        ([], [taint("NoExecute")], SKIP),
    ],
)
def test_a_node_helps_that_loses_its_taints(old: Any, new: Any, hint: QueueingHint) -> None:
    event, own = TaintToleration(None, _no_handle()).events_to_register()
    assert event.hint is not None
    before = None if old is None else read_node(node("n", taints=old))
    assert event.hint(make_pod(), before, read_node(node("n", taints=new))) is hint
    assert own.hint is not None
    assert own.hint(make_pod(), make_pod(), make_pod()) is QUEUE


def _no_handle() -> Any:
    return None
