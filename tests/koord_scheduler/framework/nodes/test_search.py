"""PreFilter and Filter of all plugins together."""

import time
from typing import Any

import numpy as np
import pytest

from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord_scheduler.framework.calls import TimeLimits
from koord_scheduler.framework.interfaces import (
    FilterPlugin,
    PreFilterPlugin,
)
from koord_scheduler.framework.nodes.search import NodeSearch, SearchResult
from koord_scheduler.framework.status import Code, CycleState, PreFilterResult, Status
from koord_scheduler.framework.types import NodeInfo
from tests.support.scheduler.framework import (
    CountsPods,
    FreeCpu,
    Kit,
    PlainFilter,
    VectorFilter,
    make_pod,
    make_view,
    numbered_view,
)

VIEW = make_view(a="1", b="2", c="4", d="8")
NO, NEVER = Status.unschedulable("no"), Status.unresolvable("never")


class Pre(PreFilterPlugin, FilterPlugin):
    """Answers PreFilter as a test says; its Filter rejects everything."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.called = 0

    def pre_filter(
        self, state: CycleState, pod: ClusterPod, nodes: View
    ) -> PreFilterResult | Status | None:
        self.called += 1
        answer: PreFilterResult | Status | None = self.answer
        return answer

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        return NO


def only(*names: str) -> PreFilterResult:
    return PreFilterResult(frozenset(names))


def names(found: SearchResult, view: View = VIEW) -> list[str]:
    return [view.node(int(row)).name for row in np.flatnonzero(found.feasible)]


def look(search: NodeSearch, view: View = VIEW, pod: ClusterPod | None = None) -> SearchResult:
    return search.search(CycleState(), pod or make_pod(), view)


async def test_without_nodes_no_plugin_is_called() -> None:
    """The failure is UnschedulableAndUnresolvable."""
    pre = Pre(None)
    found = look(await Kit().search(preFilter={"P": pre}), make_view())
    assert found.status == Status.unresolvable("no nodes available to schedule pods")
    assert found.diagnosis.message() == "no nodes available to schedule pods"
    assert pre.called == 0


@pytest.mark.parametrize(
    ("answers", "wanted", "called"),
    [
        ([None, None], ["a", "b", "c", "d"], 2),
        ([only("a", "b"), None], ["a", "b"], 2),
        ([only("a", "b"), only("b", "c")], ["b"], 2),
        ([only("b", "gone")], ["b"], 1),
        ([Status.skip(), only("c")], ["c"], 2),
    ],
)
async def test_pre_filter_results_are_intersected(
    answers: list[Any], wanted: list[str], called: int
) -> None:
    """All nodes is neutral; a name that no node has is none."""
    plugins = {f"P{at}": Pre(answer) for at, answer in enumerate(answers)}
    found = look(await Kit().search(preFilter=plugins))
    assert names(found) == wanted
    assert sum(plugin.called for plugin in plugins.values()) == called


@pytest.mark.parametrize(
    ("answers", "called", "code", "message"),
    [
        ([NO, None], 2, Code.UNSCHEDULABLE, "no."),
        ([NO, Status.unschedulable("later")], 2, Code.UNSCHEDULABLE, "later."),
        ([NEVER, None], 1, Code.UNSCHEDULABLE_AND_UNRESOLVABLE, "never."),
        ([NO, NEVER], 2, Code.UNSCHEDULABLE_AND_UNRESOLVABLE, "never."),
        (
            [only("a"), only("b"), None],
            2,
            Code.UNSCHEDULABLE_AND_UNRESOLVABLE,
            "node(s) didn't satisfy plugin(s) [P0 P1] simultaneously.",
        ),
        (
            [None, only()],
            2,
            Code.UNSCHEDULABLE_AND_UNRESOLVABLE,
            "node(s) didn't satisfy plugin P1.",
        ),
    ],
)
async def test_rejections_of_pre_filter(
    answers: list[Any], called: int, code: Code, message: str
) -> None:
    """Unschedulable lets the others speak, the last one counts; the rest ends it at once."""
    plugins = {f"P{at}": Pre(answer) for at, answer in enumerate(answers)}
    found = look(await Kit().search(preFilter=plugins))
    assert found.status.code is code
    assert found.diagnosis.message() == f"0/4 nodes are available: {message}"
    assert sum(plugin.called for plugin in plugins.values()) == called
    assert found.diagnosis.node_statuses is not None
    assert found.diagnosis.node_statuses.having(code).all()


@pytest.mark.parametrize("answer", [Status.failed("broken"), Status.pending("wait"), 7, True])
async def test_any_other_answer_of_pre_filter_is_an_error(answer: Any) -> None:
    """Of the cycle, and it names the plugin."""
    found = look(await Kit().search(preFilter={"P": Pre(answer)}))
    assert found.status.code is Code.ERROR
    assert found.status.plugin == "P"
    assert 'running PreFilter plugin "P"' in found.status.message


async def test_a_plugin_that_skips_is_not_asked_in_filter() -> None:
    """Only in this cycle."""
    pre = Pre(Status.skip())
    search = await Kit().search(preFilter={"P": pre}, filter={"P": pre})
    assert names(look(search)) == ["a", "b", "c", "d"]
    pre.answer = None
    assert names(look(search)) == []


async def test_the_first_rejection_of_a_node_counts() -> None:
    """A later plugin is not asked about it, in whichever form each is."""
    first = PlainFilter({"a": NO, "b": NEVER})
    second = VectorFilter(np.array([False, False, False, True]))
    second.rejection = Status.unschedulable("masked")
    third = PlainFilter({})
    found = look(await Kit().search(filter={"A": first, "B": second, "C": third}))
    assert names(found) == ["d"]
    assert third.asked == ["d"]

    third.answers = {"d": Status.pending("soon")}
    search = await Kit().search(filter={"A": first, "B": second, "C": third})
    found = look(search)
    assert found.status.code is Code.UNSCHEDULABLE
    assert found.diagnosis.message() == (
        "0/4 nodes are available: 1 masked, 1 never, 1 no, 1 soon."
    )
    assert found.diagnosis.unschedulable_plugins == {"A", "B"}
    assert found.diagnosis.pending_plugins == {"C"}


async def test_nodes_outside_of_what_pre_filter_names_are_unresolvable() -> None:
    """And counted; plugins that named nodes are asked when something happens."""
    plugin = Pre(only("a"))
    found = look(await Kit().search(preFilter={"P": plugin}, filter={"P": plugin}))
    assert found.diagnosis.message() == (
        "0/4 nodes are available: 1 no, 3 node(s) didn't satisfy plugin(s) [P]."
    )
    assert found.diagnosis.unschedulable_plugins == {"P"}
    statuses = found.diagnosis.node_statuses
    assert statuses is not None
    assert statuses.having(Code.UNSCHEDULABLE).tolist() == [True, False, False, False]


class Bad(PlainFilter):
    """Raises, or exits, or holds the loop."""

    def __init__(self, act: Any) -> None:
        super().__init__({})
        self.act = act

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        status: Status | None = self.act()
        return status


def _exit() -> None:
    raise SystemExit(3)


def _block() -> None:
    time.sleep(60)


def _raise() -> None:
    raise KeyError("weight")


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (_raise, "'weight'"),
        (_exit, "found a call of sys.exit"),
        (_block, "wanted an end within 0.25 s"),
        (lambda: Status.failed("broken"), "broken"),
        (lambda: Status.skip(), "found Skip, which is wrong here"),
        (lambda: "yes", "wanted a Status or None"),
    ],
)
async def test_a_plugin_that_misbehaves_fails_only_this_cycle(act: Any, message: str) -> None:
    """The next cycle runs as if it were the first."""
    bad = Bad(act)
    limits = TimeLimits(step=0.25)
    kit = Kit()
    search = await kit.search(filter={"A": bad}, limits=limits)
    found = look(search)
    assert found.status.code is Code.ERROR
    assert found.status.plugin == "A"
    assert found.status.message.startswith('running Filter plugin "A": ')
    assert message in found.status.message
    bad.act = lambda: None
    assert look(search).status.ok
    count = kit.sample(
        "scheduler_plugin_evaluation_total", plugin="A", extension_point="Filter", profile="p"
    )
    assert count == 2


async def test_a_plugin_cannot_change_what_others_see() -> None:
    """Columns are read-only; the rows that it is asked about are its own copy."""

    class Changes(VectorFilter):
        def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Any:
            nodes.allocatable[:] = 0
            return np.ones(len(nodes), np.bool_)

    found = look(await Kit().search(filter={"A": Changes(None)}))
    assert found.status.code is Code.ERROR
    assert "read-only" in found.status.message
    assert VIEW.allocatable[:, VIEW.resources["cpu"]].tolist() == [1000, 2000, 4000, 8000]


async def test_durations_are_recorded_by_point_and_of_measured_cycles_by_plugin() -> None:
    """With kube-scheduler's names."""
    kit = Kit()
    search = await kit.search(filter={"A": FreeCpu()})
    state = CycleState()
    search.search(state, make_pod(), VIEW)
    plugin = {"plugin": "A", "extension_point": "Filter", "status": "Success"}
    assert kit.sample("scheduler_plugin_execution_duration_seconds_count", **plugin) is None
    state.measured = True
    search.search(state, make_pod(), VIEW)
    assert kit.sample("scheduler_plugin_execution_duration_seconds_count", **plugin) == 1
    point = {"extension_point": "Filter", "status": "Success", "profile": "p"}
    name = "scheduler_framework_extension_point_duration_seconds_count"
    assert kit.sample(name, **point) == 2


@pytest.mark.parametrize(("priority", "feasible"), [(4, False), (5, False), (6, True)])
async def test_a_node_must_also_pass_with_the_pods_nominated_to_it(
    priority: int, feasible: bool
) -> None:
    """Those of equal or higher priority; the state of the cycle itself is not touched."""
    kit = Kit()
    search = await kit.search(preFilter={"P": CountsPods()}, filter={"P": CountsPods()})
    for at in range(2):
        kit.services.nominator.nominate(make_pod(f"nominated-{at}", priority=5), "b")
    found = look(search, pod=make_pod(priority=priority))
    assert ("b" in names(found)) is feasible
    assert names(found)[0] == "a"
    assert names(look(search, pod=make_pod(priority=6))) == ["a", "b", "c", "d"]


async def test_vector_plugins_see_the_nominated_pods_too() -> None:
    """Room that they need is not there for others."""
    kit = Kit()
    search = await kit.search(filter={"F": FreeCpu()})
    kit.services.nominator.nominate(make_pod("nominated", requests={"cpu": "7"}), "d")
    found = look(search, pod=make_pod(requests={"cpu": "3"}))
    assert names(found) == ["c"]


async def test_the_node_that_a_pod_is_nominated_to_is_tried_alone() -> None:
    """If it passes, no other is looked at; if not, all are."""
    kit = Kit()
    plain = PlainFilter({})
    search = await kit.search(filter={"A": plain})
    kit.services.nominator.nominate(make_pod(), "c")
    assert names(look(search)) == ["c"]
    assert plain.asked == ["c"]
    plain.answers = {"c": NO}
    assert names(look(search)) == ["a", "b", "d"]


async def test_with_a_percentage_the_search_stops_when_it_has_enough() -> None:
    """And begins where it ended the last time."""
    view = numbered_view(400)
    plain = PlainFilter({f"n{at}": NO for at in range(50)})
    search = await Kit().search(filter={"A": plain}, score={"S": FreeCpu()}, percentage=30)
    first = look(search, view)
    assert names(first, view) == [f"n{at}" for at in range(50, 170)]
    assert len(plain.asked) < 400
    second = look(search, view)
    assert names(second, view) == [f"n{at}" for at in range(170, 290)]
    third = look(search, view)
    wanted = [*range(50, 60), *range(290, 400)]
    assert names(third, view) == [f"n{at}" for at in wanted]


async def test_without_scores_one_node_is_enough() -> None:
    """As in Kubernetes."""
    found = look(await Kit().search(filter={"A": PlainFilter({"a": NO})}, score={}))
    assert names(found) == ["b"]
