"""Plugins are called for a pod where they say that they have something to do, and only there."""

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from koord.cluster.facts import ClusterPod, LabelSet
from koord.cluster.view import View
from koord_scheduler.config.profiles import Point
from koord_scheduler.framework.extension.transformers import (
    FilterTransformer,
    PreFilterTransformer,
    ScoreTransformer,
    Transformed,
)
from koord_scheduler.framework.interfaces import (
    FilterPlugin,
    PermitPlugin,
    Plugin,
    PostBindPlugin,
    PostFilterPlugin,
    PreBindPlugin,
    PreEnqueuePlugin,
    PreFilterPlugin,
    PreScorePlugin,
    ReservePlugin,
    ScorePlugin,
)
from koord_scheduler.framework.profile import MAX_KIND, Enqueueing
from koord_scheduler.framework.status import CycleState, Status
from koord_scheduler.scheduling.failures import ProfileCycle
from tests.support.scheduler.framework import Kit, PlainScore, make_pod, numbered_view
from tests.support.scheduler.loop import Loop

NODES = numbered_view(3)
PAGE = Path(__file__).parents[3] / "docs/writing-scheduler-plugins.md"
POINTS = (
    "preEnqueue",
    "preFilter",
    "filter",
    "postFilter",
    "preScore",
    "score",
    "reserve",
    "permit",
    "preBind",
    "postBind",
)
CYCLE = [
    "pre_enqueue",
    "before_pre_filter",
    "pre_filter",
    "before_filter",
    "filter",
    "before_score",
    "pre_score",
    "score",
    "reserve",
    "permit",
    "pre_bind_pre_flight",
    "pre_bind",
    "post_bind",
]


class Everywhere(
    PreEnqueuePlugin,
    PreFilterPlugin,
    PreFilterTransformer,
    FilterPlugin,
    FilterTransformer,
    PostFilterPlugin,
    PreScorePlugin,
    ScorePlugin,
    ScoreTransformer,
    ReservePlugin,
    PermitPlugin,
    PreBindPlugin,
    PostBindPlugin,
):
    """Writes down where it is called, and for which pod."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.rejects = ""  # where

    def _note(self, where: str) -> Status | None:
        if where not in self.calls:
            self.calls.append(where)
        return Status.unschedulable("no") if where == self.rejects else None

    def pre_enqueue(self, pod: ClusterPod) -> Status | None:
        return self._note("pre_enqueue")

    def before_pre_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> Any:
        return self._note("before_pre_filter")

    def pre_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> Status | None:
        return self._note("pre_filter")

    def before_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> Any:
        return self._note("before_filter")

    def filter(self, state: CycleState, pod: ClusterPod, node: Any) -> Status | None:
        return self._note("filter")

    async def post_filter(self, state: CycleState, pod: ClusterPod, nodes: View, _: Any) -> None:
        self._note("post_filter")

    def before_score(self, state: CycleState, pod: ClusterPod, nodes: View, _: Any) -> Any:
        return self._note("before_score")

    def pre_score(self, state: CycleState, pod: ClusterPod, nodes: View, _: Any) -> Status | None:
        return self._note("pre_score")

    def score(self, state: CycleState, pod: ClusterPod, node: Any) -> int:
        self._note("score")
        return 0

    def reserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        return self._note("reserve")

    def unreserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:
        self._note("unreserve")

    def permit(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        return self._note("permit")

    def pre_bind_pre_flight(self, state: CycleState, pod: ClusterPod, _: str) -> Status | None:
        return self._note("pre_bind_pre_flight")

    async def pre_bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        return self._note("pre_bind")

    async def post_bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:
        self._note("post_bind")


class Choosy(Everywhere):
    """Has to do with pods that have a label, at the points in it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.answer: Any = None  # in place of the label's

    def active_at(self, pod: ClusterPod) -> Collection[str] | None:
        self.asked.append(pod.name)
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is not None:
            return self.answer  # type: ignore[no-any-return]
        points = pod.labels.get("points", "")
        return None if points == "all" else [one for one in points.split("-") if one]


class Labels(
    PreFilterPlugin,
    PreFilterTransformer,
    FilterPlugin,
    FilterTransformer,
    ScorePlugin,
    ScoreTransformer,
):
    """Gives pods the label by which another plugin has to do with them."""

    def __init__(self, where: str) -> None:
        self.where = where

    def _changed(self, where: str, pod: ClusterPod) -> Transformed | None:
        label_set = LabelSet(pod.namespace, {"points": "all"})
        return Transformed(replace(pod, label_set=label_set)) if where == self.where else None

    def before_pre_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> Any:
        return self._changed("before_pre_filter", pod)

    def pre_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> None: ...

    def before_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> Any:
        return self._changed("before_filter", pod)

    def filter(self, state: CycleState, pod: ClusterPod, node: Any) -> None: ...

    def before_score(self, state: CycleState, pod: ClusterPod, nodes: View, _: Any) -> Any:
        return self._changed("before_score", pod)

    def score(self, state: CycleState, pod: ClusterPod, node: Any) -> int:
        return 0


def everywhere(**plugins: Everywhere) -> dict[str, dict[str, Plugin]]:
    """Plugins at all points."""
    return {point: dict(plugins) for point in POINTS}


def after(labels: Labels, choosy: Choosy) -> dict[str, dict[str, Plugin]]:
    """A transformer before a plugin that is at all points."""
    plugins = everywhere(Choosy=choosy)
    for point in ("preFilter", "filter", "score"):
        plugins[point] = {"Labels": labels, **plugins[point]}
    return plugins


async def scheduled(plugins: dict[str, dict[str, Plugin]], **labels: str) -> Loop:
    """A cluster in which a pod was tried."""
    loop = await Loop().build(**plugins)
    for name in ("a", "b"):
        loop.api.add_node(name)
    loop.api.add_pod("web", labels=labels)
    await loop.start()
    await loop.settle()
    return loop


@pytest.mark.parametrize(
    ("points", "called"),
    [
        ("all", CYCLE),
        ("", []),
        ("preFilter-filter", CYCLE[1:5]),
        ("score", ["before_score", "score"]),
        ("preScore", ["pre_score"]),
        ("reserve-preBind", ["reserve", "pre_bind_pre_flight", "pre_bind"]),
    ],
)
async def test_a_plugin_is_called_only_where_it_is_active(points: str, called: list[str]) -> None:
    choosy, always = Choosy(), Everywhere()
    loop = await scheduled(everywhere(Choosy=choosy, Always=always), points=points)

    assert [key for key, _ in loop.api.bindings] == ["default/web"]
    assert choosy.calls == called
    assert always.calls == CYCLE  # it does not say where it is active
    await loop.end()


@pytest.mark.parametrize(("labels", "called"), [({"example.com/crew": "a"}, CYCLE), ({}, [])])
async def test_the_answer_of_the_page(labels: dict[str, str], called: list[str]) -> None:
    example = r"`active_at\(self, pod\)`, for example with `return (.*?)`"
    found = re.search(example, PAGE.read_text())
    assert found is not None
    answer = eval(f"lambda self, pod: {found[1]}")
    crew = type("Crew", (Everywhere,), {"active_at": answer})()
    loop = await scheduled(everywhere(Crew=crew), **labels)

    assert crew.calls == called
    await loop.end()


async def test_one_that_was_not_called_at_reserve_is_not_called_at_unreserve() -> None:
    choosy, always = Choosy(), Everywhere()
    always.rejects = "permit"
    loop = await scheduled(everywhere(Choosy=choosy, Always=always))

    assert loop.api.bindings == []
    assert choosy.calls == []
    assert "unreserve" in always.calls
    await loop.end()


async def test_post_filter_is_called_for_all_pods() -> None:
    choosy, always = Choosy(), Everywhere()
    always.rejects = "filter"
    loop = await scheduled(everywhere(Choosy=choosy, Always=always))

    assert choosy.calls == ["post_filter"]
    await loop.end()


async def test_the_answer_is_kept_for_equal_pods_until_it_is_to_be_reconsidered() -> None:
    choosy = Choosy()
    profile = await Kit().profile(filter={"Choosy": choosy})
    first, second = make_pod("one"), make_pod("two")
    part = profile.for_pod(first)

    assert part is not profile
    assert part.at(Point.FILTER) == ()
    assert profile.for_pod(replace(second, label_set=first.label_set, spec=first.spec)) is part
    assert choosy.asked == ["one"]

    choosy.answer = ["filter"]
    profile.handle.reconsider()

    assert profile.for_pod(first).at(Point.FILTER) == profile.at(Point.FILTER)
    assert choosy.asked == ["one", "one"]


async def test_nothing_is_kept_of_pods_with_long_annotations() -> None:
    """They would be held in memory after the pods have gone."""
    choosy = Choosy()
    profile = await Kit().profile(filter={"Choosy": choosy})
    pod = replace(make_pod("one"), annotations=(("a", "x" * MAX_KIND), ("b", "x")))

    assert profile.for_pod(pod) is profile.for_pod(pod)
    assert choosy.asked == ["one", "one"]


@pytest.mark.parametrize("wrong", [KeyError("gone"), "filter", ["no point"], 3, [[]]])
async def test_one_that_gives_no_proper_answer_is_called_everywhere(wrong: Any) -> None:
    choosy = Choosy()
    choosy.answer = wrong
    profile = await Kit().profile(filter={"Choosy": choosy})

    assert profile.for_pod(make_pod()) is profile


async def test_a_profile_in_which_none_says_it_has_no_parts() -> None:
    profile = await Kit().profile(filter={"Always": Everywhere()})
    cycle = ProfileCycle(profile, profile.services.nominator)

    assert cycle.for_pod(make_pod()) is cycle


async def test_all_nodes_are_looked_at_where_only_idle_plugins_score() -> None:
    """As with all calls: without any plugin that scores, one node would be enough."""
    profile = await Kit().profile(score={"Choosy": Choosy()})
    cycle = ProfileCycle(profile, profile.services.nominator).for_pod(make_pod())

    found = cycle.search.search(CycleState(), make_pod(), NODES)

    assert np.count_nonzero(found.feasible) == len(NODES)


async def test_parts_go_on_where_the_last_search_has_ended() -> None:
    """Of many nodes, of which some are enough, each search takes the next ones."""
    nodes, choosy = numbered_view(300), Choosy()
    score = {"Score": PlainScore({})}
    profile = await Kit().profile(filter={"Choosy": choosy}, score=score, percentage=40)
    whole = ProfileCycle(profile, profile.services.nominator)
    part = whole.for_pod(make_pod())

    first = part.search.search(CycleState(), make_pod(), nodes).feasible
    second = whole.search.search(CycleState(), make_pod(), nodes).feasible

    assert np.count_nonzero(first) == np.count_nonzero(second) == 120
    assert not (first & second).any()


@pytest.mark.parametrize(
    ("where", "missing"),
    [
        ("before_pre_filter", ["pre_enqueue"]),
        ("before_filter", [*CYCLE[:3], "filter"]),  # PreFilter has skipped it
        ("before_score", CYCLE[:5]),
    ],
)
async def test_plugins_are_called_for_a_pod_that_a_transformer_has_changed(
    where: str, missing: list[str]
) -> None:
    choosy = Choosy()
    loop = await scheduled(after(Labels(where), choosy))

    assert choosy.calls == [one for one in CYCLE if one not in missing]
    await loop.end()


async def test_one_that_rejects_the_changed_pod_counts() -> None:
    choosy = Choosy()
    choosy.rejects = "filter"
    loop = await scheduled(after(Labels("before_pre_filter"), choosy))

    assert loop.api.bindings == []
    await loop.end()


async def test_gates_are_those_of_the_pod() -> None:
    choosy = Choosy()
    choosy.rejects = "pre_enqueue"
    profile = await Kit().profile(preEnqueue={"Choosy": choosy})
    gates = Enqueueing([profile])
    pod = replace(make_pod(), scheduler_name="p")
    mine = replace(pod, label_set=LabelSet("default", {"points": "preEnqueue"}))

    assert gates.gate(pod).ok
    assert not gates.gate(mine).ok
