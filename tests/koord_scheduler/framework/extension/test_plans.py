"""Plugins that choose the node: a plan for one, or nodes that are preferred."""

from collections.abc import Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord_scheduler.framework.extension.transformers import FindOneNodePlugin, PreferNodesPlugin
from koord_scheduler.framework.interfaces import PreFilterPlugin
from koord_scheduler.framework.nodes.search import SearchResult
from koord_scheduler.framework.status import Code, CycleState, PreFilterResult, Status
from tests.support.scheduler.framework import Kit, PlainFilter, make_pod, make_view


class Finds(PreFilterPlugin, FindOneNodePlugin):
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def pre_filter(
        self, state: CycleState, pod: ClusterPod, nodes: View
    ) -> PreFilterResult | Status | None:
        return None

    def find_one_node(
        self, state: CycleState, pod: ClusterPod, nodes: View, result: PreFilterResult | None
    ) -> str | Status:
        answer: str | Status = self.answer
        return answer


class Prefers(PreFilterPlugin, PreferNodesPlugin):
    def __init__(self, answer: Any, only: frozenset[str] | None = None) -> None:
        self.answer = answer
        self.only = only

    def pre_filter(
        self, state: CycleState, pod: ClusterPod, nodes: View
    ) -> PreFilterResult | Status | None:
        return None if self.only is None else PreFilterResult(self.only)

    def prefer_nodes(
        self, state: CycleState, pod: ClusterPod, nodes: View, result: PreFilterResult | None
    ) -> Sequence[str] | Status:
        answer: Sequence[str] | Status = self.answer
        return answer


async def feasible(**plugins: PreFilterPlugin) -> SearchResult:
    """The search among nodes a, b and c, of which b is full."""
    plain = PlainFilter({"b": Status.unschedulable("full")})
    search = await Kit().search(preFilter=plugins, filter={"Plain": plain})
    return search.search(CycleState(), make_pod(), make_view(a="4", b="4", c="4"))


def names(found: SearchResult) -> list[str]:
    return [name for name, yes in zip("abc", found.feasible.tolist(), strict=True) if yes]


@pytest.mark.parametrize(
    ("plugin", "wanted"),
    [
        (Finds("c"), ["c"]),
        (Finds("b"), []),
        (Finds(Status.skip()), ["a", "c"]),
        (Prefers(["b", "c", "a"]), ["c"]),
        (Prefers(["b", "gone"]), ["a", "c"]),
        (Prefers([]), ["a", "c"]),
        (Prefers(Status.skip()), ["a", "c"]),
        (Prefers(["a"], only=frozenset("c")), ["c"]),
    ],
)
async def test_nodes_that_are_looked_at(plugin: PreFilterPlugin, wanted: list[str]) -> None:
    assert names(await feasible(Plugin=plugin)) == wanted


async def test_a_plan_goes_before_preferences() -> None:
    assert names(await feasible(Prefers=Prefers(["a"]), Finds=Finds("c"))) == ["c"]


async def test_a_plugin_that_skips_the_pod_has_no_plan_for_it() -> None:
    class Skips(Finds):
        def pre_filter(
            self, state: CycleState, pod: ClusterPod, nodes: View
        ) -> PreFilterResult | Status | None:
            return Status.skip()

    assert names(await feasible(Finds=Skips("c"))) == ["a", "c"]


async def test_a_rejection_ends_the_cycle() -> None:
    found = await feasible(Finds=Finds(Status.unschedulable("the job is not whole")))
    assert found.status.code is Code.UNSCHEDULABLE
    assert found.diagnosis.unschedulable_plugins == {"Finds"}


@pytest.mark.parametrize("plugin", [Finds("gone"), Finds(7), Prefers(7), Prefers([1])])
async def test_what_is_no_answer_is_an_error(plugin: PreFilterPlugin) -> None:
    found = await feasible(Plugin=plugin)
    assert found.status.code is Code.ERROR
    assert "wanted" in found.status.message


async def test_only_the_first_of_several_counts() -> None:
    with capture_logs() as logs:
        found = await feasible(One=Finds("a"), Two=Finds("c"))
    assert names(found) == ["a"]
    assert [each["ignored"] for each in logs if each["event"] == "plugins.ignored"] == [["Two"]]
