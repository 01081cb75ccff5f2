"""Results of plugins that are kept for equal pods: only what has changed is computed again.

A row that has changed has another generation; what a result depends on beside its row is in the key
that the plugin gives.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koord.cluster.columns import Mask
from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord.cluster.workloads import controller_of
from koord_scheduler.framework.cyclestate import CycleState
from koord_scheduler.framework.interfaces import (
    Filtering,
    FilterPlugin,
    ScorePlugin,
    Scoring,
    VectorFilterPlugin,
    VectorScorePlugin,
)
from koord_scheduler.framework.nodes.forms import (
    FEW_ROWS,
    filter_answers,
    filter_nodes,
    filter_rows,
    score_nodes,
    score_rows,
)
from koord_scheduler.framework.nodes.prefiltering import KindPreFiltered
from koord_scheduler.framework.nodes.prepared import Prepared
from koord_scheduler.framework.nodes.together import FiltersTogether, ScoresTogether
from koord_scheduler.framework.results import Scores, Verdicts
from koord_scheduler.framework.status import Status

MOST_KINDS = 16  # of pods whose results are kept; 60 KB each for every plugin, at 5,000 nodes


class KeptResults:
    """Results of the plugins of one profile, for the kinds of pods that came last."""

    def __init__(self, most_kinds: int = MOST_KINDS) -> None:
        self._most = most_kinds
        self._kinds: OrderedDict[Hashable, KindResults] = OrderedDict()
        self._once: OrderedDict[Hashable, None] = OrderedDict()  # kinds of which one pod came

    def of(self, pod: ClusterPod) -> "KindResults":
        """What is kept for pods that are equal to this one."""
        return self._of(_kind(pod))

    def again(self, pod: ClusterPod) -> "KindResults | None":
        """The same from the second pod on; None for the first one.

        Where all pods differ, to keep anything would only cost.
        """
        kind = _kind(pod)
        if kind not in self._kinds and kind not in self._once:
            self._once[kind] = None
            if len(self._once) > self._most:
                self._once.popitem(last=False)
            return None
        self._once.pop(kind, None)
        return self._of(kind)

    def _of(self, kind: Hashable) -> "KindResults":
        found = self._kinds.get(kind)
        if found is None:
            found = self._kinds[kind] = KindResults()
            if len(self._kinds) > self._most:
                self._kinds.popitem(last=False)
        self._kinds.move_to_end(kind)
        return found


class KindResults:
    """Results of plugins for one kind of pods."""

    def __init__(self) -> None:
        self.pre_filtered: KindPreFiltered = Prepared()
        self.pre_scored: Prepared[bool, frozenset[str]] = Prepared()
        self.together = FiltersTogether()
        self.summed = ScoresTogether()
        self._verdicts: dict[str, _Column] = {}  # by plugin
        self._scores: dict[str, _Column] = {}

    def filter(
        self, plugin: Filtering, state: CycleState, pod: ClusterPod, nodes: View, rows: Mask
    ) -> Verdicts | Mask:
        """Verdicts about at least these nodes of one plugin; raises as filter_nodes does."""
        key = plugin.filter_reuse_key(state, pod, nodes)
        column = self._verdicts.pop(plugin.name, None)  # gone, if the plugin fails
        if key is None:
            return filter_answers(plugin, state, pod, nodes, rows)
        missing = _missing(column, key, nodes, rows)
        forms = isinstance(plugin, FilterPlugin), isinstance(plugin, VectorFilterPlugin)
        if column is None or missing is None or _wants_all(missing, *forms):
            return self._keep_verdicts(plugin, state, pod, nodes, rows, key)
        if missing.any():
            assert isinstance(plugin, FilterPlugin)  # noqa: S101 - see _wants_all
            _merge(column, filter_rows(plugin, state, pod, nodes, missing), missing)
        _renew(column, nodes, missing)
        self._verdicts[plugin.name] = column
        return Verdicts(column.values, tuple(column.rejections))

    def score(
        self, plugin: Scoring, state: CycleState, pod: ClusterPod, nodes: View, rows: Mask
    ) -> Scores:
        """Scores of at least these nodes of one plugin; raises as score_nodes does."""
        key = plugin.score_reuse_key(state, pod, nodes)
        column = self._scores.pop(plugin.name, None)
        if key is None:
            return score_nodes(plugin, state, pod, nodes, rows)
        missing = _missing(column, key, nodes, rows)
        forms = isinstance(plugin, ScorePlugin), isinstance(plugin, VectorScorePlugin)
        if column is None or missing is None or _wants_all(missing, *forms):
            return self._keep_scores(plugin, state, pod, nodes, rows, key)
        if missing.any():
            assert isinstance(plugin, ScorePlugin)  # noqa: S101 - see _wants_all
            scores = score_rows(plugin, state, pod, nodes, missing)
            column.values[missing] = scores[missing]
        _renew(column, nodes, missing)
        self._scores[plugin.name] = column
        kept: Scores = column.values
        return kept

    def _keep_verdicts(
        self,
        plugin: Filtering,
        state: CycleState,
        pod: ClusterPod,
        nodes: View,
        rows: Mask,
        key: Hashable,
    ) -> Verdicts:
        found = filter_nodes(plugin, state, pod, nodes, rows)
        known = _known(plugin, VectorFilterPlugin, rows)
        column = _Column(key, nodes.generation, known, np.zeros(len(nodes), np.int32))
        _merge(column, found, known)
        self._verdicts[plugin.name] = column
        return Verdicts(column.values, tuple(column.rejections))

    def _keep_scores(
        self,
        plugin: Scoring,
        state: CycleState,
        pod: ClusterPod,
        nodes: View,
        rows: Mask,
        key: Hashable,
    ) -> Scores:
        found = score_nodes(plugin, state, pod, nodes, rows)
        known = rows.copy()  # of the others a vector form may return anything
        self._scores[plugin.name] = _Column(key, nodes.generation, known, found)
        return found


@dataclass(slots=True)
class _Column:
    """A result of a plugin for a kind of pods."""

    key: Hashable
    generation: NDArray[np.int64]  # of the rows when they were computed
    known: Mask  # rows that were computed
    values: NDArray[Any]
    rejections: dict[Status, int] = field(default_factory=dict)  # with their numbers; of Filter


def _kind(pod: ClusterPod) -> Hashable:
    """Pods of one kind differ in what no plugin's result for a node may depend on."""
    owner = controller_of(pod.owners)
    controller = "" if owner is None else owner.uid
    facts = pod.priority, pod.scheduler_name, pod.claims, pod.annotations, controller
    return pod.label_set, pod.spec, *facts


def _missing(column: _Column | None, key: Hashable, nodes: View, rows: Mask) -> Mask | None:
    """Rows that are asked about and not known any more; None: nothing of the column is right."""
    if column is None or column.key != key or len(column.generation) != len(nodes):
        return None
    column.known &= column.generation == nodes.generation
    missing: Mask = rows & ~column.known
    return missing


def _wants_all(missing: Mask, has_plain: bool, has_vector: bool) -> bool:
    """Whether computing all rows anew is cheaper than the missing ones, or the only way."""
    count = int(np.count_nonzero(missing))
    return count > 0 and (not has_plain or (has_vector and count > FEW_ROWS))


def _renew(column: _Column, nodes: View, computed: Mask) -> None:
    column.known |= computed
    column.generation = nodes.generation


def _known(plugin: object, vector: type, rows: Mask) -> Mask:
    return np.ones(len(rows), np.bool_) if isinstance(plugin, vector) else rows.copy()


def _merge(column: _Column, found: Verdicts, rows: Mask) -> None:
    """Write verdicts into some rows of a column; equal rejections have one number."""
    known = column.rejections
    numbers = [0, *(known.setdefault(each, len(known) + 1) for each in found.rejections)]
    column.values[rows] = np.array(numbers, np.int32)[found.numbers[rows]]
