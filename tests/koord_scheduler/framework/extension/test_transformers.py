"""Transformers change what the other plugins see of the pod and of the nodes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from koord.cluster.columns import Mask
from koord.cluster.facts import ClusterPod
from koord.cluster.hypothetical import HypotheticalCluster
from koord.cluster.view import View
from koord_scheduler.framework.binding import PodBinding
from koord_scheduler.framework.calls import ExtensionPointError
from koord_scheduler.framework.extension.transformers import (
    FilterTransformer,
    PostFilterTransformer,
    PreFilterTransformer,
    ScoreTransformer,
    Transformed,
)
from koord_scheduler.framework.interfaces import PostFilterPlugin, PreFilterPlugin
from koord_scheduler.framework.nodes.filtering import NodeScoring
from koord_scheduler.framework.nodes.search import NodeSearch
from koord_scheduler.framework.status import (
    Code,
    CycleInput,
    CycleState,
    NodeStatuses,
    PostFilterResult,
    PreFilterResult,
    Status,
    Suggestion,
    SuggestionType,
    Verdicts,
    suggest,
)
from koord_scheduler.framework.types import NodeInfo
from tests.support.scheduler.framework import FreeCpu, Kit, PlainFilter, make_pod, make_view

Answer = Transformed | Status | None


class Before(PreFilterPlugin, PreFilterTransformer, FilterTransformer, FreeCpu):
    """A plugin of PreFilter and Filter whose transformers answer as a test says."""

    def __init__(self, **answers: Callable[[ClusterPod, View], Answer]) -> None:
        self.answers = answers
        self.seen: list[tuple[str, str]] = []

    def pre_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> None:
        self._note("pre_filter", pod)

    def before_pre_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> Answer:
        return self._answer("before_pre_filter", pod, nodes)

    def after_pre_filter(
        self, state: CycleState, pod: ClusterPod, nodes: View, result: PreFilterResult | None
    ) -> Answer:
        return self._answer("after_pre_filter", pod, nodes)

    def before_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> Answer:
        return self._answer("before_filter", pod, nodes)

    def _answer(self, point: str, pod: ClusterPod, nodes: View) -> Answer:
        self._note(point, pod)
        answer = self.answers.get(point)
        return None if answer is None else answer(pod, nodes)

    def _note(self, point: str, pod: ClusterPod) -> None:
        self.seen.append((point, pod.labels.get("seen", "")))


def labelled(pod: ClusterPod, value: str) -> ClusterPod:
    """The pod with another label."""
    return replace(pod, label_set=replace(pod.label_set, labels={"seen": value}))


async def searching(plugin: Before) -> NodeSearch:
    kit = Kit()
    points: dict[str, Any] = {"preFilter": {"Before": plugin}, "filter": {"Before": plugin}}
    return await kit.search(**points)


async def test_each_sees_what_those_before_it_have_changed() -> None:
    plugin = Before(
        before_pre_filter=lambda pod, nodes: Transformed(pod=labelled(pod, "1")),
        after_pre_filter=lambda pod, nodes: Transformed(pod=labelled(pod, "2")),
        before_filter=lambda pod, nodes: Transformed(pod=labelled(pod, "3")),
    )
    found = (await searching(plugin)).search(CycleState(), make_pod(), make_view(a="4"))
    assert plugin.seen == [
        ("before_pre_filter", ""),
        ("pre_filter", "1"),
        ("after_pre_filter", "1"),
        ("before_filter", "2"),
    ]
    assert found.cycle.pod.labels == {"seen": "3"}


async def test_room_that_is_given_back_counts_in_this_cycle_only() -> None:
    """As of a reservation: the pod that holds it is not there for its owner."""
    holder = make_pod("holder", requests={"cpu": "4"})
    what_if = HypotheticalCluster(make_view(a="4"))
    what_if.add(holder, "a")
    full = what_if.view()

    def give_back(pod: ClusterPod, nodes: View) -> Answer:
        if not pod.name.startswith("owner"):
            return None
        restored = HypotheticalCluster(nodes)
        restored.remove(holder.key, "a")
        return Transformed(nodes=restored.view())

    search = await searching(Before(before_pre_filter=give_back))
    for name, status in (("other", False), ("owner", True), ("another", False), ("owner2", True)):
        pod = make_pod(name, requests={"cpu": "1"})
        assert search.search(CycleState(), pod, full).status.ok is status, name


async def test_results_are_reused_for_nodes_that_are_kept_from_cycle_to_cycle() -> None:
    nodes, asked = make_view(a="4", b="4"), list[str]()
    kept = HypotheticalCluster(nodes)

    class Counting(Before):
        def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
            asked.append(node.name)
            return super().filter(state, pod, node)

        def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mask | Verdicts:
            asked.append("all")
            return super().filter_all(state, pod, nodes)

        def filter_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> int:
            return 1

    stable = Counting(before_pre_filter=lambda pod, _: Transformed(nodes=kept.view(), stable=True))
    search = await searching(stable)
    for name in ("one", "two", "three", "four"):
        search.search(CycleState(), make_pod(name), nodes)
    before = len(asked)
    search.search(CycleState(), make_pod("five"), nodes)
    assert len(asked) == before
    kept.add(make_pod("other", requests={"cpu": "4"}), "a")
    found = search.search(CycleState(), make_pod("six", requests={"cpu": "1"}), nodes)
    assert found.feasible.tolist() == [False, True]
    passing = Counting(before_pre_filter=lambda pod, _: Transformed(nodes=kept.view()))
    search = await searching(passing)
    for name in ("one", "two", "three", "four"):
        search.search(CycleState(), make_pod(name), nodes)
    before = len(asked)
    search.search(CycleState(), make_pod("five"), nodes)
    assert len(asked) > before


@pytest.mark.parametrize("point", ["before_pre_filter", "after_pre_filter", "before_filter"])
async def test_a_rejection_ends_the_cycle_and_names_its_plugin(point: str) -> None:
    plugin = Before(**{point: lambda pod, nodes: Status.unresolvable("not today")})
    found = (await searching(plugin)).search(CycleState(), make_pod(), make_view(a="4", b="4"))
    assert found.status.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE
    assert found.diagnosis.message() == "0/2 nodes are available: not today."
    assert found.diagnosis.unschedulable_plugins == {"Before"}
    assert not found.feasible.any()


async def test_what_is_no_answer_is_an_error_of_the_plugin() -> None:
    plugin = Before(before_filter=lambda pod, nodes: "yes")  # type: ignore[arg-type,return-value]
    found = (await searching(plugin)).search(CycleState(), make_pod(), make_view(a="4"))
    assert found.status.code is Code.ERROR
    assert 'plugin "Before"' in found.status.message


async def test_a_transformer_that_is_not_enabled_at_its_point_is_not_called() -> None:
    kit, plugin = Kit(), Before(before_filter=lambda pod, nodes: Status.unresolvable("no"))
    search = await kit.search(preFilter={"Before": plugin})
    assert search.search(CycleState(), make_pod(), make_view(a="4")).status.ok


class Narrow(ScoreTransformer, FreeCpu):
    def __init__(self, feasible: object) -> None:
        self.feasible = feasible

    def before_score(
        self, state: CycleState, pod: ClusterPod, nodes: View, feasible: Mask
    ) -> Answer:
        return Transformed(feasible=self.feasible)  # type: ignore[arg-type]


async def scored(plugin: ScoreTransformer) -> list[int]:
    profile = await Kit().profile(score={"Narrow": plugin})
    nodes = make_view(a="4", b="4", c="4")
    cycle = CycleInput(CycleState(), make_pod(), nodes)
    table = NodeScoring(profile).scores(cycle, np.ones(3, np.bool_))
    return table.rows.tolist()


async def test_before_score_can_leave_nodes_out() -> None:
    assert await scored(Narrow(np.array([True, False, True]))) == [0, 2]


@pytest.mark.parametrize("mask", [np.zeros(3, np.bool_), np.ones(2, np.bool_), "all"])
async def test_before_score_must_leave_one(mask: object) -> None:
    with pytest.raises(ExtensionPointError, match="with a feasible node"):
        await scored(Narrow(mask))


class Preempts(PostFilterPlugin, PostFilterTransformer):
    def __init__(self) -> None:
        self.learned: list[str] = []

    async def post_filter(
        self, state: CycleState, pod: ClusterPod, nodes: View, statuses: NodeStatuses
    ) -> PostFilterResult | Status | None:
        first = suggest(state, Suggestion(SuggestionType.EVICT_WORKLOAD_SELF, "it is too large"))
        again = suggest(state, Suggestion(SuggestionType.DELETE_CONFLICT_PVC, "no"))
        assert (first, again) == (True, False)
        return Status.unschedulable("no victims")

    def after_post_filter(
        self, state: CycleState, pod: ClusterPod, statuses: NodeStatuses, result: PostFilterResult
    ) -> None:
        self.learned.append(result.status.message)
        raise ValueError("it does not matter")


async def test_a_suggestion_is_shown_and_post_filter_transformers_learn_of_it() -> None:
    plugin = Preempts()
    profile = await Kit().profile(postFilter={"Preempts": plugin})
    nodes = make_view(a="4")
    statuses = NodeStatuses(np.ones(1, np.int32), (Status.unschedulable("full"),))
    result = await PodBinding(profile).post_filter(CycleState(), make_pod(), nodes, statuses)
    text = "no victims, Suggestion: {type: EvictWorkloadSelf, message: it is too large}"
    assert result.status.message == text
    assert plugin.learned == [text]


async def test_kept_results_are_of_the_nodes_as_they_are() -> None:
    """A filter that is kept by equal pods is asked anew where the nodes are altered."""
    plain = PlainFilter({})
    kit = Kit()
    alter = Before(
        before_filter=lambda pod, nodes: Transformed(nodes=HypotheticalCluster(nodes).view())
    )
    search = await kit.search(filter={"Before": alter, "Plain": plain})
    for _ in range(2):
        search.search(CycleState(), make_pod(), make_view(a="4"))
    assert plain.asked == ["a", "a"]
