"""Adapters: call either form of a plugin as the vector form, and check what it returns."""

from collections.abc import Collection, Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koord.cluster.columns import FrozenColumn, Mask
from koord.cluster.facts import ClusterPod
from koord.component.plugins.registry import PluginError
from koord_scheduler.framework.interfaces import (
    Filtering,
    FilterPlugin,
    NormalizeScorePlugin,
    Plugin,
    ScorePlugin,
    Scoring,
    VectorFilterPlugin,
    VectorNormalizeScorePlugin,
    VectorScorePlugin,
)
from koord_scheduler.framework.status import (
    MAX_NODE_SCORE,
    MIN_NODE_SCORE,
    CycleInput,
    CycleState,
    NodeScore,
    PluginStatusError,
    Scores,
    Status,
    Verdicts,
    default_normalize,
    status_of,
)
from koord_scheduler.framework.types import NodeInfo, NotedRows

Rows = NDArray[np.intp]
"""Rows of nodes, ascending."""
FEW_ROWS = 16  # that the plain form does sooner than the vector form does all

_BEYOND = 2.0**62  # a score that no whole number of 64 bits can hold


def filter_result(
    plugin: VectorFilterPlugin, cycle: CycleInput, rows: Mask | None = None
) -> Verdicts | Mask:
    """Return what the vector form says about all nodes: where there is one reason, only a mask.

    rows: the only ones that matter; None: all do.

    Raises:
        PluginError: it returned what is neither.
    """
    if rows is None:
        found = plugin.filter_all(cycle.state, cycle.pod, cycle.nodes)
    else:
        found = plugin.filter_among(cycle.state, cycle.pod, cycle.nodes, rows)
    if isinstance(found, Verdicts):
        return _checked(plugin, found, len(cycle.nodes))
    mask = _column(plugin, found, len(cycle.nodes), "mask")
    if mask.dtype != np.bool_:
        raise PluginError(
            f"plugin {plugin.name}: wanted a mask of bool, found one of {mask.dtype}", plugin.name
        )
    return mask


def filter_vector(plugin: VectorFilterPlugin, cycle: CycleInput) -> Verdicts:
    """Verdicts about all nodes by the vector form. Raises as filter_result."""
    found = filter_result(plugin, cycle)
    if isinstance(found, Verdicts):
        return found
    return Verdicts.of(found, plugin.rejection.of(plugin.name))


def filter_node(
    plugin: FilterPlugin, state: CycleState, pod: ClusterPod, node: NodeInfo
) -> Status | None:
    """The rejection of one node by the plain form; None: it passes.

    Raises:
        PluginStatusError: it failed.
        PluginError: it returned what is no status.
    """
    answer = plugin.filter(state, pod, node)
    if answer is None:
        return None
    status = status_of(answer, plugin.name)
    if status.rejected:
        return status
    if not status.ok:
        raise PluginStatusError(plugin.name, status)
    return None


def filter_rows(plugin: FilterPlugin, cycle: CycleInput, rows: Mask) -> Verdicts:
    """Verdicts about some nodes by the plain form; the others pass.

    Raises:
        PluginStatusError: it failed for one of them.
        PluginError: it returned what is no status.
    """
    numbers = np.zeros(len(cycle.nodes), np.int32)
    known: dict[Status, int] = {}
    for row in np.flatnonzero(rows).tolist():
        status = filter_node(plugin, cycle.state, cycle.pod, NodeInfo(cycle.nodes, row))
        if status is not None:
            numbers[row] = known.setdefault(status, len(known) + 1)
    return Verdicts(numbers, tuple(known))


def filter_nodes(plugin: Filtering, cycle: CycleInput, rows: Mask) -> Verdicts:
    """Verdicts about at least these nodes, by the vector form if there is one.

    Raises:
        PluginStatusError, PluginError: as filter_vector and filter_rows.
    """
    found = filter_results(plugin, cycle, rows)
    if isinstance(found, Verdicts):
        return found
    return Verdicts.of(found, plugin.rejection.of(plugin.name))


def filter_results(plugin: Filtering, cycle: CycleInput, rows: Mask) -> Verdicts | Mask:
    """Filter as filter_nodes does; return only a mask, where the vector form says no more."""
    if isinstance(plugin, VectorFilterPlugin):
        return filter_result(plugin, cycle, rows)
    assert isinstance(plugin, FilterPlugin)  # noqa: S101 - it has one of the forms
    return filter_rows(plugin, cycle, rows)


def score_vector(plugin: VectorScorePlugin, cycle: CycleInput, rows: Mask) -> Scores:
    """Scores of all nodes by the vector form; only those of the rows mean anything.

    Raises:
        PluginError: it returned what is no column of numbers.
    """
    scores = plugin.score_all(cycle.state, cycle.pod, cycle.nodes)
    found = _column(plugin, scores, len(cycle.nodes), "column")
    if found.dtype.kind in "iu":
        return found.astype(np.int64)
    if found.dtype.kind != "f":
        raise PluginError(
            f"plugin {plugin.name}: wanted a column of numbers, found one of {found.dtype}",
            plugin.name,
        )
    whole = np.zeros(len(cycle.nodes), np.int64)
    whole[rows] = _whole(plugin, found[rows])
    return whole


def score_rows(plugin: ScorePlugin, cycle: CycleInput, rows: Mask) -> Scores:
    """Scores of some nodes by the plain form; 0 of the others.

    Raises:
        PluginError: it returned what is no number.
    """
    scores = np.zeros(len(cycle.nodes), np.int64)
    for row in np.flatnonzero(rows).tolist():
        scores[row] = _score_of(plugin, cycle, row)
    return scores


class ScaledScores:
    """Scores of a plugin that scales them to the highest, for equal pods from cycle to cycle.

    A row that has changed costs only itself, and all are scaled again when the highest is another.
    """

    def __init__(self) -> None:
        self._key: Hashable | None = None  # of what is known; None: nothing is
        self._generations: FrozenColumn | None = None
        self._noted = NotedRows(None)  # by the plugin, since all was computed
        self._feasible: Mask | None = None
        self._raw: Scores = np.zeros(0, np.int64)  # as the plugin gives them, of feasible nodes
        self._scaled: Scores = self._raw
        self._highest = 0

    def look(self, plugin: Scoring, cycle: CycleInput, feasible: Mask, rows: Rows) -> Scores:
        """Normalized scores of the feasible rows; right until the next look, never changed.

        feasible: never written; where it is another one, all is computed.

        Raises:
            PluginError: as score_nodes; or a score is below 0.
        """
        key = plugin.score_reuse_key(cycle.state, cycle.pod, cycle.nodes)
        is_same = key == self._key and feasible is self._feasible
        generations, self._key = cycle.nodes.generations, None  # unless the plugin fails
        changed: Collection[int] | None = None
        noted = self._noted.take()
        if is_same and key is not None and noted is not None:
            changed = generations.other_rows(self._generations)
            changed = {*changed, *noted} if noted else changed
        if changed is None or len(changed) > FEW_ROWS or not isinstance(plugin, ScorePlugin):
            self._noted = NotedRows(plugin.score_changes)
            self._raw = score_nodes(plugin, cycle, feasible)[rows]
            self._scale(plugin)
        else:
            for row in changed:
                if row < len(feasible) and feasible[row]:
                    self._take(plugin, cycle, row, int(rows.searchsorted(row)))
        self._key, self._generations, self._feasible = key, generations, feasible
        return self._scaled

    def _take(self, plugin: ScorePlugin, cycle: CycleInput, row: int, place: int) -> None:
        """Take over the score of a row that has changed."""
        score, before = _score_of(plugin, cycle, row), int(self._raw[place])
        self._raw[place] = score
        if score < MIN_NODE_SCORE:
            raise _out_of_range(plugin, score)
        if score > self._highest:  # as of a reservation that the last pod has filled
            self._highest, self._scaled = score, MAX_NODE_SCORE * self._raw // score
        elif score < before == self._highest:
            self._scale(plugin)
        elif self._highest:
            self._scaled[place] = MAX_NODE_SCORE * score // self._highest

    def _scale(self, plugin: Scoring) -> None:
        if self._raw.min(initial=0) < MIN_NODE_SCORE:
            raise _out_of_range(plugin, int(self._raw.min()))
        self._highest = int(self._raw.max(initial=0))
        self._scaled = default_normalize(self._raw)


def _score_of(plugin: ScorePlugin, cycle: CycleInput, row: int) -> int:
    """The score of one node, not normalized."""
    node = NodeInfo(cycle.nodes, row)
    score = plugin.score(cycle.state, cycle.pod, node)
    try:
        return int(np.int64(int(score)))  # one that is too large for a column overflows here
    except (TypeError, ValueError, OverflowError):
        raise _no_score(plugin, node, score) from None


def score_node(plugin: ScorePlugin, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
    """The score of one node by the plain form of a plugin that does not normalize its scores.

    Raises:
        PluginError: it returned what is no number, or one that is out of range.
    """
    score = plugin.score(state, pod, node)
    try:
        whole = int(score)
    except (TypeError, ValueError, OverflowError):
        raise _no_score(plugin, node, score) from None
    if not MIN_NODE_SCORE <= whole <= MAX_NODE_SCORE:
        raise _out_of_range(plugin, whole)
    return whole


def checked_range(plugin: Plugin, scores: Scores, rows: Mask) -> None:
    """Check scores of some nodes, of a plugin that does not normalize them.

    Raises:
        PluginError: one is out of range.
    """
    if len(scores) and not MIN_NODE_SCORE <= scores.min() <= scores.max() <= MAX_NODE_SCORE:
        wrong = ((scores < MIN_NODE_SCORE) | (scores > MAX_NODE_SCORE)) & rows
        if wrong.any():
            raise _out_of_range(plugin, int(scores[wrong][0]))


def is_normalizing(plugin: type[Plugin]) -> bool:
    """Whether plugins normalize their scores, in whichever form."""
    return issubclass(plugin, VectorNormalizeScorePlugin | NormalizeScorePlugin)


def is_scaling(plugin: Plugin) -> bool:
    """Whether a plugin's scores are only scaled to the highest."""
    return isinstance(plugin, VectorNormalizeScorePlugin) and plugin.scales_to_highest


def score_nodes(plugin: Scoring, cycle: CycleInput, rows: Mask) -> Scores:
    """Scores of at least these nodes, by the vector form if there is one.

    Raises:
        PluginError: as score_vector and score_rows.
    """
    if isinstance(plugin, VectorScorePlugin):
        return score_vector(plugin, cycle, rows)
    assert isinstance(plugin, ScorePlugin)  # noqa: S101 - it has one of the forms
    return score_rows(plugin, cycle, rows)


def normalized(plugin: Scoring, cycle: CycleInput, rows: Rows, scores: Scores) -> Scores:
    """Scores of feasible nodes as the plugin normalizes them; as they are, if it does not.

    rows and scores have shape (feasible nodes,); the plugin gets copies.

    Raises:
        PluginStatusError: the plain form returned anything but Success.
        PluginError: they are not what they should be, or out of range.
    """
    if isinstance(plugin, VectorNormalizeScorePlugin):
        found = _column(
            plugin,
            plugin.normalize_scores(cycle.state, cycle.pod, scores.copy()),
            len(rows),
            "column",
        )
        scores = found.astype(np.int64) if found.dtype.kind in "iu" else _whole(plugin, found)
    elif isinstance(plugin, NormalizeScorePlugin):
        scores = _normalized_by_node(plugin, cycle, rows, scores)
    if len(scores) and not MIN_NODE_SCORE <= scores.min() <= scores.max() <= MAX_NODE_SCORE:
        wrong = (scores < MIN_NODE_SCORE) | (scores > MAX_NODE_SCORE)
        raise _out_of_range(plugin, int(scores[wrong][0]))
    return scores


def _normalized_by_node(
    plugin: NormalizeScorePlugin,
    cycle: CycleInput,
    rows: Rows,
    scores: Scores,
) -> Scores:
    given = [
        NodeScore(cycle.nodes.node(row).name, score)
        for row, score in zip(rows.tolist(), scores.tolist(), strict=True)
    ]
    changed = list(given)
    status = status_of(plugin.normalize_score(cycle.state, cycle.pod, changed), plugin.name)
    if not status.ok:
        raise PluginStatusError(plugin.name, status)
    if {id(one) for one in changed} != {id(one) for one in given}:
        raise PluginError(
            f"plugin {plugin.name}: wanted the scores of the list changed, found others in it",
            plugin.name,
        )
    try:
        return np.fromiter((int(one.score) for one in given), np.int64, len(given))
    except (TypeError, ValueError, OverflowError) as err:
        raise PluginError(
            f"plugin {plugin.name}: wanted whole numbers as scores: {err}", plugin.name
        ) from None


def _no_score(plugin: Plugin, node: NodeInfo, found: object) -> PluginError:
    return PluginError(
        f"plugin {plugin.name}: wanted a whole number as the score of node {node.name}, found "
        f"{found!r:.80}",
        plugin.name,
    )


def _out_of_range(plugin: Plugin, score: int) -> PluginError:
    return PluginError(
        f"plugin {plugin.name!r} returns an invalid score {score}, it should in the range of "
        f"[{MIN_NODE_SCORE}, {MAX_NODE_SCORE}] after normalizing",
        plugin.name,
    )


def _column(plugin: Plugin, found: object, length: int, wanted: str) -> NDArray[Any]:
    if isinstance(found, np.ndarray) and found.shape == (length,):
        return found
    shape = f"shape {found.shape}" if isinstance(found, np.ndarray) else f"{found!r:.80}"
    raise PluginError(
        f"plugin {plugin.name}: wanted a {wanted} of shape ({length},), found {shape}", plugin.name
    )


def _whole(plugin: Plugin, found: NDArray[Any]) -> Scores:
    if found.dtype.kind == "f" and np.isfinite(found).all() and (np.abs(found) < _BEYOND).all():
        return found.astype(np.int64)
    bad = found[~np.isfinite(found)] if found.dtype.kind == "f" else found
    raise PluginError(
        f"plugin {plugin.name}: wanted scores that are numbers, found {bad[:3].tolist()}",
        plugin.name,
    )


def _checked(plugin: Plugin, found: Verdicts, length: int) -> Verdicts:
    numbers = _column(plugin, found.numbers, length, "column of numbers")
    highest = len(found.rejections)
    if numbers.dtype.kind not in "iu" or (
        length and not 0 <= numbers.min() <= numbers.max() <= highest
    ):
        raise PluginError(
            f"plugin {plugin.name}: wanted numbers from 0 to {highest}, the rejections, found "
            "others",
            plugin.name,
        )
    rejections = tuple(status_of(one, plugin.name) for one in found.rejections)
    if not all(one.rejected for one in rejections):
        raise PluginError(
            f"plugin {plugin.name}: wanted rejections, found other statuses", plugin.name
        )
    return Verdicts(numbers.astype(np.int32), rejections)
