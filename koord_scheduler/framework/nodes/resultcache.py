"""Result cache: results of plugins per equivalence class of pods.

All that a profile keeps from one cycle for the next stands here. Only rows of nodes that have
changed since are computed again.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from koord.cluster.columns import Mask
from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord.cluster.workloads import controller_of
from koord_scheduler.framework.cyclestate import CycleInput, CycleState, StateData
from koord_scheduler.framework.interfaces import (
    Filtering,
    FilterPlugin,
    ScorePlugin,
    Scoring,
    VectorFilterPlugin,
    VectorScorePlugin,
)
from koord_scheduler.framework.nodes.adapters import (
    FEW_ROWS,
    filter_nodes,
    filter_results,
    filter_rows,
    score_nodes,
    score_rows,
)
from koord_scheduler.framework.nodes.fused import FusedFilters, FusedScores
from koord_scheduler.framework.status import (
    PreFilterOutcome,
    PreFilterResult,
    Scores,
    Status,
    Verdicts,
)

A = TypeVar("A")
R = TypeVar("R")


MAX_CLASSES = 16  # of pods whose results are kept; 60 KB each for every plugin, at 5,000 nodes


class ResultCache:
    """Results of the plugins of one profile, for the latest equivalence classes of pods.

    A profile has one, and what a class has says whether it is still right: keys of the plugins,
    and generations of the rows.
    """

    def __init__(self, max_classes: int = MAX_CLASSES) -> None:
        self._most = max_classes
        self._kinds: OrderedDict[Hashable, EquivalenceClass] = OrderedDict()
        self._once: OrderedDict[Hashable, None] = OrderedDict()  # kinds with one pod up to now

    def of(self, pod: ClusterPod) -> "EquivalenceClass":
        """Return the cached results for pods that are equal to this one."""
        return self._of(_equivalence_class(pod))

    def again(self, pod: ClusterPod) -> "EquivalenceClass | None":
        """The same from the second pod on; None for the first one.

        Where all pods differ, to keep anything would only cost.
        """
        kind = _equivalence_class(pod)
        if kind not in self._kinds and kind not in self._once:
            self._once[kind] = None
            if len(self._once) > self._most:
                self._once.popitem(last=False)
            return None
        self._once.pop(kind, None)
        return self._of(kind)

    def _of(self, kind: Hashable) -> "EquivalenceClass":
        found = self._kinds.get(kind)
        if found is None:
            found = self._kinds[kind] = EquivalenceClass()
            if len(self._kinds) > self._most:
                self._kinds.popitem(last=False)
        self._kinds.move_to_end(kind)
        return found


class PreResultCache(Generic[A, R]):
    """Answers A of the plugins of one extension point, for one kind of pods, and their result R.

    They are right while the keys that the plugins give stay the same; None keeps nothing.
    """

    def __init__(self) -> None:
        self._keys: list[Hashable | None] = []  # of the plugins, by their place
        self._answers: dict[int, tuple[A, Mapping[str, StateData]]] = {}  # by place
        self._result: R | None = None
        self._written: dict[str, StateData] | None = None  # by all plugins; made when it is needed

    def result(self, keys: list[Hashable | None], state: CycleState) -> R | None:
        """Return the result of all plugins for these keys; their values are written into the state.

        None: there is no result yet; ask each plugin for its answer.
        """
        if keys == self._keys:
            if self._result is None:
                return None
            if self._written is None:
                self._written = {}
                for place in range(len(keys)):
                    self._written.update(self._answers[place][1])
            state.take(self._written)
            return self._result
        self._answers = {
            place: answer
            for place, answer in self._answers.items()
            if place < len(keys) and keys[place] == self._keys[place]
        }
        self._keys, self._result, self._written = keys, None, None
        return None

    def answer(self, place: int, state: CycleState, prepare: Callable[[], A]) -> A:
        """Return the cached answer of a plugin, or ask it now; raises the errors of prepare."""
        known = self._answers.get(place)
        if known is not None:
            answer, written = known
            state.take(written)
            return answer
        if self._keys[place] is None:
            return prepare()
        writes = state.writes
        answer = prepare()
        self._answers[place] = answer, state.written_since(writes)
        return answer

    def keep(self, result: R) -> None:
        """Keep what has come of all plugins, if each of them has a key."""
        if len(self._answers) == len(self._keys):
            self._result = result


PluginPreFilterResult = PreFilterResult | Status

PreFilterCache = PreResultCache[PluginPreFilterResult, tuple[PreFilterOutcome, frozenset[str]]]
"""Cache for equal pods: the plugins' answers, the outcome, and the plugins that skip Filter."""


class EquivalenceClass:
    """Results of plugins for one kind of pods."""

    def __init__(self) -> None:
        self.pre_filtered: PreFilterCache = PreResultCache()
        self.pre_scored: PreResultCache[bool, frozenset[str]] = PreResultCache()
        self.fused_filters = FusedFilters()
        self.fused_scores = FusedScores()
        self._verdicts: dict[str, _Column] = {}  # by plugin
        self._scores: dict[str, _Column] = {}

    @cached_property
    def with_nominated(self) -> "EquivalenceClass":
        """Results on the nodes as they are with the pods that are nominated to them."""
        return EquivalenceClass()

    def filter(self, plugin: Filtering, cycle: CycleInput, rows: Mask) -> Verdicts | Mask:
        """Verdicts about at least these nodes of one plugin; raises as filter_nodes does."""
        key = plugin.filter_reuse_key(cycle.state, cycle.pod, cycle.nodes)
        column = self._verdicts.pop(plugin.name, None)  # gone, if the plugin fails
        if key is None:
            return filter_results(plugin, cycle, rows)
        missing = _missing(column, key, cycle.nodes, rows)
        forms = isinstance(plugin, FilterPlugin), isinstance(plugin, VectorFilterPlugin)
        if column is None or missing is None or _wants_all(missing, *forms):
            return self._keep_verdicts(plugin, cycle, rows, key)
        if missing.any():
            assert isinstance(plugin, FilterPlugin)  # noqa: S101 - see _wants_all
            _merge(column, filter_rows(plugin, cycle, missing), missing)
        _renew(column, cycle.nodes, missing)
        self._verdicts[plugin.name] = column
        return Verdicts(column.values, tuple(column.rejections))

    def score(self, plugin: Scoring, cycle: CycleInput, rows: Mask) -> Scores:
        """Scores of at least these nodes of one plugin; raises as score_nodes does."""
        key = plugin.score_reuse_key(cycle.state, cycle.pod, cycle.nodes)
        column = self._scores.pop(plugin.name, None)
        if key is None:
            return score_nodes(plugin, cycle, rows)
        missing = _missing(column, key, cycle.nodes, rows)
        forms = isinstance(plugin, ScorePlugin), isinstance(plugin, VectorScorePlugin)
        if column is None or missing is None or _wants_all(missing, *forms):
            return self._keep_scores(plugin, cycle, rows, key)
        if missing.any():
            assert isinstance(plugin, ScorePlugin)  # noqa: S101 - see _wants_all
            scores = score_rows(plugin, cycle, missing)
            column.values[missing] = scores[missing]
        _renew(column, cycle.nodes, missing)
        self._scores[plugin.name] = column
        cached: Scores = column.values
        return cached

    def _keep_verdicts(
        self,
        plugin: Filtering,
        cycle: CycleInput,
        rows: Mask,
        key: Hashable,
    ) -> Verdicts:
        found = filter_nodes(plugin, cycle, rows)
        known = _cached_verdicts(plugin, VectorFilterPlugin, rows)
        column = _Column(key, cycle.nodes.generation, known, np.zeros(len(cycle.nodes), np.int32))
        _merge(column, found, known)
        self._verdicts[plugin.name] = column
        return Verdicts(column.values, tuple(column.rejections))

    def _keep_scores(
        self,
        plugin: Scoring,
        cycle: CycleInput,
        rows: Mask,
        key: Hashable,
    ) -> Scores:
        found = score_nodes(plugin, cycle, rows)
        known = rows.copy()  # of the others a vector form may return anything
        self._scores[plugin.name] = _Column(key, cycle.nodes.generation, known, found)
        return found


@dataclass(slots=True)
class _Column:
    """A result of a plugin for a kind of pods."""

    key: Hashable
    generation: NDArray[np.int64]  # of the rows when they were computed
    known: Mask  # rows that were computed
    values: NDArray[Any]
    rejections: dict[Status, int] = field(default_factory=dict)  # with their numbers; of Filter


def _equivalence_class(pod: ClusterPod) -> Hashable:
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


def _cached_verdicts(plugin: object, vector: type, rows: Mask) -> Mask:
    return np.ones(len(rows), np.bool_) if isinstance(plugin, vector) else rows.copy()


def _merge(column: _Column, found: Verdicts, rows: Mask) -> None:
    """Write verdicts into some rows of a column; equal rejections have one number."""
    known = column.rejections
    numbers = [0, *(known.setdefault(each, len(known) + 1) for each in found.rejections)]
    column.values[rows] = np.array(numbers, np.int32)[found.numbers[rows]]
