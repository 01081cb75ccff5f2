"""Both forms of a plugin, and what is refused of what plugins return."""

from typing import Any

import numpy as np
import pytest

from koord.cluster.facts import ClusterPod
from koord.component.plugins.registry import PluginError
from koord_scheduler.framework.interfaces import (
    NormalizeScorePlugin,
    Scoring,
    VectorNormalizeScorePlugin,
)
from koord_scheduler.framework.nodes.adapters import (
    PluginStatusError,
    filter_nodes,
    normalized,
    score_nodes,
    status_of,
)
from koord_scheduler.framework.status import (
    Code,
    CycleInput,
    CycleState,
    NodeScore,
    Scores,
    Status,
    Verdicts,
    default_normalize,
)
from tests.support.scheduler.framework import (
    FreeCpu,
    PlainFilter,
    PlainScore,
    VectorFilter,
    VectorScore,
    make_pod,
    make_view,
    named,
)

VIEW = make_view(a="1", b="2", c="4")
POD, STATE = make_pod(), CycleState()
ALL = np.ones(3, np.bool_)
ROWS = np.arange(3)
NO = Status.unschedulable("no")


def test_a_plain_filter_is_asked_only_about_the_nodes_that_matter() -> None:
    """Equal rejections are one; they name the plugin."""
    plugin = named(PlainFilter({"a": NO, "b": NO, "c": NO}), "P")
    found = filter_nodes(plugin, CycleInput(STATE, POD, VIEW), np.array([True, False, True]))
    assert plugin.asked == ["a", "c"]
    assert found.numbers.tolist() == [1, 0, 1]
    assert found.rejections == (Status.unschedulable("no").of("P"),)


def test_a_plain_filter_that_fails_for_a_node_ends_the_cycle() -> None:
    """With its own status."""
    plugin = named(PlainFilter({"b": Status.failed("broken")}), "P")
    with pytest.raises(PluginStatusError) as caught:
        filter_nodes(plugin, CycleInput(STATE, POD, VIEW), ALL)
    assert caught.value.status == Status.failed("broken").of("P")


def test_a_mask_rejects_with_the_plugins_own_reason() -> None:
    """A plugin with one reason needs no more than a mask."""
    plugin = named(VectorFilter(np.array([True, False, True])), "V")
    plugin.rejection = Status.unresolvable("node(s) were unschedulable")
    found = filter_nodes(plugin, CycleInput(STATE, POD, VIEW), ALL)
    assert found.numbers.tolist() == [0, 1, 0]
    assert found.rejections[0].code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (np.ones(2, np.bool_), r"wanted a mask of shape \(3,\), found shape \(2,\)"),
        (np.ones((3, 1), np.bool_), r"found shape \(3, 1\)"),
        (np.ones(3), "wanted a mask of bool, found one of float64"),
        ([True, True, True], r"found \[True"),
        (None, "found None"),
        (Verdicts(np.array([0, 2, 0], np.int32), (NO,)), "wanted numbers from 0 to 1"),
        (Verdicts(np.array([0, -1, 0], np.int32), (NO,)), "wanted numbers from 0 to 1"),
        (Verdicts(np.zeros(3, np.float64), (NO,)), "wanted numbers from 0 to 1"),
        (Verdicts(np.zeros(4, np.int32), (NO,)), r"found shape \(4,\)"),
        (Verdicts(np.zeros(3, np.int32), (Status(),)), "wanted rejections"),
        (Verdicts(np.zeros(3, np.int32), (Status.skip(),)), "found Skip, which is wrong here"),
    ],
)
def test_what_is_no_mask_of_all_nodes_is_refused_by_name(answer: Any, found: str) -> None:
    """The pod's cycle fails, and the message says which plugin it was."""
    with pytest.raises(PluginError, match=f"plugin V: .*{found}"):
        filter_nodes(named(VectorFilter(answer), "V"), CycleInput(STATE, POD, VIEW), ALL)


@pytest.mark.parametrize("score", [None, "much", float("nan"), float("inf"), 2**70, object()])
def test_what_is_no_score_is_refused_by_name_and_node(score: Any) -> None:
    """The plain form."""
    plugin = named(PlainScore({"b": score}), "P")
    with pytest.raises(PluginError, match="plugin P: wanted a whole number as the score of node b"):
        score_nodes(plugin, CycleInput(STATE, POD, VIEW), ALL)


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (np.array([1.0, np.nan, 2.0]), r"wanted scores that are numbers, found \[nan\]"),
        (np.array([1.0, np.inf, 2.0]), "wanted scores that are numbers"),
        (np.array([1.0, 1e30, 2.0]), "wanted scores that are numbers"),
        (np.zeros(2, np.int64), r"wanted a column of shape \(3,\)"),
        (np.zeros(3, np.bool_), "wanted a column of numbers, found one of bool"),
        (np.array(["a", "b", "c"]), "wanted a column of numbers"),
        (7, "found 7"),
    ],
)
def test_what_is_no_column_of_scores_is_refused_by_name(answer: Any, found: str) -> None:
    """The vector form."""
    with pytest.raises(PluginError, match=f"plugin V: .*{found}"):
        score_nodes(named(VectorScore(answer), "V"), CycleInput(STATE, POD, VIEW), ALL)


def test_scores_of_nodes_that_are_not_feasible_do_not_count() -> None:
    """Not even if they are no numbers; fractions are cut off toward zero in both forms."""
    rows = np.array([True, False, True])
    vector = named(VectorScore(np.array([1.9, np.nan, -1.9])), "V")
    plain = named(PlainScore({"a": 1.9, "b": None, "c": -1.9}), "P")
    assert score_nodes(vector, CycleInput(STATE, POD, VIEW), rows)[rows].tolist() == [1, -1]
    assert score_nodes(plain, CycleInput(STATE, POD, VIEW), rows)[rows].tolist() == [1, -1]


@pytest.mark.parametrize(
    ("scores", "reverse", "wanted"),
    [
        ([10, 20, 40], False, [25, 50, 100]),
        ([10, 20, 40], True, [75, 50, 0]),
        ([0, 0], False, [0, 0]),
        ([0, 0], True, [100, 100]),
        ([1, 3], False, [33, 100]),
        ([1, 3], True, [67, 0]),
        ([], False, []),
    ],
)
def test_default_normalize(scores: list[int], reverse: bool, wanted: list[int]) -> None:
    """The examples of Kubernetes' rule."""
    assert default_normalize(np.array(scores, np.int64), reverse=reverse).tolist() == wanted


class PlainNormalize(PlainScore, NormalizeScorePlugin):
    """Does to the list what a test says."""

    def __init__(self, act: Any) -> None:
        super().__init__({})
        self.act = act

    def normalize_score(
        self, state: CycleState, pod: ClusterPod, scores: list[NodeScore]
    ) -> Status | None:
        status: Status | None = self.act(scores)
        return status


class VectorNormalize(VectorScore, VectorNormalizeScorePlugin):
    """Does to the column what a test says."""

    def normalize_scores(self, state: CycleState, pod: ClusterPod, scores: Scores) -> Scores:
        changed: Scores = self.answer(scores)
        return changed


def _double(scores: list[NodeScore]) -> None:
    for one in scores:
        one.score *= 2
    scores.reverse()  # the order of the list means nothing


def test_both_forms_of_normalize_score() -> None:
    """What they get is theirs to change."""
    raw = np.array([5, 50, 1])
    plain: Scoring = named(PlainNormalize(_double), "P")
    vector: Scoring = named(VectorNormalize(lambda scores: np.multiply(scores, 2, scores)), "V")
    for plugin in (plain, vector):
        assert normalized(plugin, CycleInput(STATE, POD, VIEW), ROWS, raw).tolist() == [10, 100, 2]
    assert raw.tolist() == [5, 50, 1]


@pytest.mark.parametrize("score", [-1, 101])
@pytest.mark.parametrize("form", ["none", "plain", "vector"])
def test_a_score_out_of_range_is_refused_by_name(form: str, score: int) -> None:
    """After NormalizeScore, also if the plugin has none."""
    plugin: Scoring = {
        "none": VectorScore(None),
        "plain": PlainNormalize(lambda scores: None),
        "vector": VectorNormalize(lambda scores: scores),
    }[form]
    with pytest.raises(PluginError, match=f"'P' returns an invalid score {score}, .*0, 100"):
        normalized(named(plugin, "P"), CycleInput(STATE, POD, VIEW), ROWS, np.array([3, score, 7]))


@pytest.mark.parametrize(
    ("act", "found"),
    [
        (lambda scores: scores.pop(), "wanted a Status or None"),
        (lambda scores: scores.clear(), "wanted the scores of the list changed"),
        (lambda scores: scores.append(NodeScore("x", 1)), "wanted the scores of the list changed"),
        (lambda scores: setattr(scores[0], "score", float("nan")), "wanted whole numbers"),
        (lambda scores: Status.failed("broken"), "broken"),
        (lambda scores: Status.unschedulable("no"), "no"),
    ],
)
def test_a_normalize_score_that_breaks_its_list_is_refused(act: Any, found: str) -> None:
    """Its cycle fails."""
    with pytest.raises(PluginError, match=found):
        normalized(
            named(PlainNormalize(act), "P"), CycleInput(STATE, POD, VIEW), ROWS, np.array([1, 2, 3])
        )


@pytest.mark.parametrize("column", [np.zeros(2), np.array([1.0, np.nan, 2.0]), [1, 2, 3], None])
def test_a_normalized_column_is_checked_like_any_other(column: Any) -> None:
    """Length, type and numbers."""
    plugin = named(VectorNormalize(lambda scores: column), "V")
    with pytest.raises(PluginError, match="plugin V: wanted"):
        normalized(plugin, CycleInput(STATE, POD, VIEW), ROWS, np.array([1, 2, 3]))


def test_a_code_that_an_extension_point_does_not_have_is_refused() -> None:
    """Skip and Wait are right only at some."""
    assert status_of(Status.skip(), "P", Code.SKIP).plugin == "P"
    with pytest.raises(PluginError, match="plugin P: found Skip, which is wrong here"):
        status_of(Status.skip(), "P")
    with pytest.raises(PluginError, match="wanted a Status or None, found True"):
        status_of(True, "P")


def test_a_plugin_with_both_forms_runs_the_vector_form() -> None:
    """It looks at all nodes in one call."""
    cycle = CycleInput(STATE, make_pod(requests={"cpu": "2"}), VIEW)
    found = filter_nodes(named(FreeCpu(), "F"), cycle, ALL)
    assert found.numbers.tolist() == [1, 0, 0]
