"""Scores of all plugins together."""

from random import Random
from typing import Any

import numpy as np
import pytest

from koord.cluster.columns import Mask
from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord_scheduler.framework.calls import ExtensionPointError
from koord_scheduler.framework.interfaces import PreScorePlugin, VectorNormalizeScorePlugin
from koord_scheduler.framework.nodes.filtering import NodeScoring, ScoreTable
from koord_scheduler.framework.nodes.resultcache import EquivalenceClass
from koord_scheduler.framework.status import (
    Code,
    CycleInput,
    CycleState,
    Scores,
    Status,
    default_normalize,
)
from tests.support.scheduler.framework import Kit, PlainScore, VectorScore, make_pod, make_view

VIEW = make_view(a="1", b="2", c="4")
ALL = np.ones(3, np.bool_)


class Pre(VectorScore, PreScorePlugin):
    """Answers PreScore as a test says."""

    def __init__(self, before: Any, scores: Any) -> None:
        super().__init__(scores)
        self.before = before

    def pre_score(
        self, state: CycleState, pod: ClusterPod, nodes: View, feasible: Mask
    ) -> Status | None:
        answer: Status | None = self.before(feasible) if callable(self.before) else self.before
        return answer


class Normalized(VectorScore, VectorNormalizeScorePlugin):
    """Scales its scores."""

    def normalize_scores(self, state: CycleState, pod: ClusterPod, scores: Scores) -> Scores:
        return default_normalize(scores, reverse=True)


class Choosy(VectorScore):
    """Scores only when a test says so."""

    scores = True

    def scores_pod(self, state: CycleState, pod: ClusterPod) -> bool:
        return self.scores

    def score_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Scores:
        assert self.scores
        return np.full(len(nodes), 7)


async def scores(
    points: dict[str, Any], feasible: Mask = ALL, weights: dict[str, int] | None = None
) -> ScoreTable:
    profile = await Kit().profile(weights=weights, **points)
    return NodeScoring(profile).scores(CycleInput(CycleState(), make_pod(), VIEW), feasible)


async def test_totals_are_weighted_sums_of_normalized_scores() -> None:
    """A weight of 0 counts as 1; normalizing sees the feasible nodes only."""
    plugins = {
        "A": VectorScore(np.array([10, 20, 30])),
        "B": PlainScore({"a": 1, "b": 2, "c": 3}),
        "C": Normalized(np.array([71, 1000, 100])),
    }
    table = await scores({"score": plugins}, np.array([True, False, True]), {"A": 3, "B": 0})
    assert table.rows.tolist() == [0, 2]
    assert {name: column.tolist() for name, column in table.columns.items()} == {
        "A": [30, 90],
        "B": [1, 3],
        "C": [29, 0],
    }
    assert table.totals.tolist() == [60, 93]
    assert table.choose(Random(1)) == 2


async def test_pre_score_can_skip_the_same_plugins_score() -> None:
    """In this cycle; what is skipped is not in the table."""
    skips, other = Pre(Status.skip(), None), VectorScore(np.array([1, 2, 3]))
    table = await scores({"preScore": {"A": skips}, "score": {"A": skips, "B": other}})
    assert list(table.columns) == ["B"]


async def test_a_plugin_that_does_not_score_a_pod_is_skipped() -> None:
    """Without PreScore, too; whether it does is asked in each cycle."""
    choosy, other = Choosy(None), VectorScore(np.array([1, 2, 3]))
    profile = await Kit().profile(score={"A": choosy, "B": other})
    scoring, cache = NodeScoring(profile), EquivalenceClass()
    for choosy.scores, wanted in ((False, ["B"]), (True, ["A", "B"]), (False, ["B"])):
        cycle = CycleInput(CycleState(), make_pod(), VIEW)
        table = scoring.scores(cycle, ALL, cache)
        assert list(table.columns) == wanted
        assert table.totals.tolist() == ([8, 9, 10] if choosy.scores else [1, 2, 3])


@pytest.mark.parametrize("answer", [Status.unschedulable("no"), Status.failed("no"), "no"])
async def test_any_other_answer_of_pre_score_is_an_error(answer: Any) -> None:
    """A rejection, too: it is too late for one."""
    plugin = Pre(answer, np.array([1, 2, 3]))
    with pytest.raises(ExtensionPointError) as caught:
        await scores({"preScore": {"A": plugin}})
    assert caught.value.status.code is Code.ERROR
    assert 'running PreScore plugin "A"' in caught.value.status.message


async def test_pre_score_cannot_change_which_nodes_are_feasible() -> None:
    """It fails instead."""

    def change(feasible: Mask) -> None:
        feasible[0] = False

    with pytest.raises(ExtensionPointError, match="read-only"):
        await scores({"preScore": {"A": Pre(change, None)}})


@pytest.mark.parametrize(
    "column", [[0, -1, 0], [0, 101, 0], [0.0, float("nan"), 0.0], [0, 0], [[0], [0], [0]]]
)
async def test_a_score_that_is_none_fails_the_cycle_with_the_plugins_name(column: Any) -> None:
    """And no node is chosen by it."""
    with pytest.raises(
        ExtensionPointError, match=r'running Score plugin "A": plugin .?A'
    ) as caught:
        await scores({"score": {"A": VectorScore(np.array(column))}})
    assert caught.value.status.plugin == "A"


async def test_ties_are_drawn_from_a_seeded_source() -> None:
    """The same seed gives the same nodes; all that are tied have their turn."""
    table = await scores({"score": {"A": VectorScore(np.array([7, 3, 7]))}})
    drawn = [[table.choose(draw) for _ in range(20)] for draw in (Random(5), Random(5))]
    assert drawn[0] == drawn[1]
    assert set(drawn[0]) == {0, 2}


async def test_without_score_plugins_all_nodes_are_tied() -> None:
    """Every total is 0."""
    table = await scores({})
    assert table.totals.tolist() == [0, 0, 0]
