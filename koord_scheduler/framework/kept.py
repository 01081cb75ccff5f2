"""Results of plugins that are kept for equal pods: only what has changed is computed again.

A row that has changed has another generation; what a result depends on beside its row is in the key
that the plugin gives. Plugins that have both forms and keys are taken together: the few rows that
have changed since the last cycle are found once for all of them, and each is asked about these.
"""

from collections import OrderedDict
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from koord.cluster.columns import Mask
from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord.cluster.workloads import controller_of
from koord_scheduler.config.points import Point
from koord_scheduler.framework.calls import Loaded, PluginCalls
from koord_scheduler.framework.cyclestate import CycleState
from koord_scheduler.framework.forms import (
    Rows,
    checked_range,
    filter_answer,
    filter_answers,
    filter_node,
    filter_nodes,
    filter_rows,
    is_normalizing,
    score_node,
    score_nodes,
    score_rows,
    score_vector,
)
from koord_scheduler.framework.interfaces import (
    Filtering,
    FilterPlugin,
    ScorePlugin,
    Scoring,
    VectorFilterPlugin,
    VectorScorePlugin,
)
from koord_scheduler.framework.nodeinfo import NodeInfo
from koord_scheduler.framework.results import Numbers, Scores, Verdicts
from koord_scheduler.framework.status import Status

MOST_KINDS = 16  # of pods whose results are kept; 60 KB each for every plugin, at 5,000 nodes
FEW_ROWS = 16  # that the plain form does sooner than the vector form does all
_MOST_STATUSES = 4096  # of one kind of pods; then all is computed anew


class KeptResults:
    """Results of the plugins of one profile, for the kinds of pods that came last."""

    def __init__(self, most_kinds: int = MOST_KINDS) -> None:
        self._most = most_kinds
        self._kinds: OrderedDict[Hashable, KindResults] = OrderedDict()

    def of(self, pod: ClusterPod) -> "KindResults":
        """What is kept for pods that are equal to this one."""
        kind = _kind(pod)
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


class FiltersTogether:
    """First rejections of nodes by all plugins that have both forms and a key."""

    def __init__(self) -> None:
        self._plugins: tuple[str, ...] = ()
        self._generation: NDArray[np.int64] | None = None
        self._keys: dict[str, Hashable] = {}
        self._columns: dict[str, Numbers | None] = {}  # None: it rejects no node
        self._first: Numbers = np.zeros(0, np.int32)
        self._numbers: dict[Status, int] = {}
        self._places: list[int] = []

    def look(
        self,
        calls: PluginCalls,
        plugins: Sequence[Loaded],
        state: CycleState,
        pod: ClusterPod,
        nodes: View,
    ) -> Verdicts:
        """First rejections of all rows by the plugins that are taken together.

        Raises:
            PointFailed: a plugin has failed; nothing is kept then.
        """
        keys: dict[str, Hashable] = {}
        joined: list[tuple[int, Loaded]] = []
        generation, self._generation = self._generation, None
        for place, loaded in enumerate(plugins):
            if _has_both_filters(cast(Hashable, type(loaded.plugin))):
                plugin = cast(Filtering, loaded.plugin)
                key = calls.ask(loaded, Point.FILTER, plugin.filter_reuse_key, state, pod, nodes)
                if key is not None:
                    keys[loaded.name] = key
                    joined.append((place, loaded))
        names = tuple(keys)
        changed = _changed(generation, nodes)
        if changed is None or names != self._plugins or len(self._numbers) > _MOST_STATUSES:
            self._keys, self._columns, self._numbers, self._places = {}, {}, {}, []
            self._plugins, changed = names, ()
            self._first = np.zeros(len(nodes), np.int32)
        stale = [one for one in joined if self._keys.get(one[1].name, self) != keys[one[1].name]]
        for place, loaded in stale:
            self._compute(calls, place, loaded, state, pod, nodes)
        if len(stale) < len(joined):
            for row in changed:
                self._look_again(calls, joined, state, pod, nodes, row)
        if stale:
            self._fold(len(nodes))
        self._keys, self._generation = keys, nodes.generation
        return Verdicts(self._first.copy(), tuple(self._numbers))

    @property
    def plugins(self) -> Collection[str]:
        """Names of the plugins that were taken together the last time."""
        return self._keys.keys()

    @property
    def places(self) -> Sequence[int]:
        """Of each rejection the place of its plugin, among all that were asked about."""
        return self._places

    def _compute(
        self,
        calls: PluginCalls,
        place: int,
        loaded: Loaded,
        state: CycleState,
        pod: ClusterPod,
        nodes: View,
    ) -> None:
        plugin = cast(VectorFilterPlugin, loaded.plugin)
        found = calls.call(loaded, Point.FILTER, state, filter_answer, plugin, state, pod, nodes)
        numbers: Numbers | None = None
        if isinstance(found, Verdicts):
            if found.numbers.any():
                table = [0, *(self._number(each, place) for each in found.rejections)]
                numbers = np.array(table, np.int32)[found.numbers]
        elif not found.all():
            number = self._number(plugin.rejection.of(loaded.name), place)
            numbers = np.where(found, np.int32(0), np.int32(number))
        self._columns[loaded.name] = numbers

    def _look_again(
        self,
        calls: PluginCalls,
        joined: Sequence[tuple[int, Loaded]],
        state: CycleState,
        pod: ClusterPod,
        nodes: View,
        row: int,
    ) -> None:
        """Ask all plugins about a row that has changed."""
        node, first = NodeInfo(nodes, row), 0
        for place, loaded in joined:
            plugin = cast(FilterPlugin, loaded.plugin)
            status = calls.call(loaded, Point.FILTER, state, filter_node, plugin, state, pod, node)
            number = 0 if status is None else self._number(status, place)
            column = self._columns[loaded.name]
            if column is not None:
                column[row] = number
            elif number:
                column = self._columns[loaded.name] = np.zeros(len(nodes), np.int32)
                column[row] = number
            first = first or number
        self._first[row] = first

    def _fold(self, nodes: int) -> None:
        """Have the rejection of each row that comes first."""
        self._first = np.zeros(nodes, np.int32)
        for name in reversed(self._plugins):
            column = self._columns[name]
            if column is not None:
                np.copyto(self._first, column, where=column != 0)

    def _number(self, status: Status, place: int) -> int:
        found = self._numbers.get(status)
        if found is None:
            found = self._numbers[status] = len(self._numbers) + 1
            self._places.append(place)
        return found


class ScoresTogether:
    """Sums of weighted scores of all plugins that have both forms and a key, and normalize none."""

    def __init__(self) -> None:
        self._plugins: tuple[str, ...] = ()
        self._generation: NDArray[np.int64] | None = None
        self._keys: dict[str, Hashable] = {}
        self._columns: dict[str, Scores] = {}
        self._sum: Scores = np.zeros(0, np.int64)
        self._known: Mask = np.zeros(0, np.bool_)  # rows of which all that is right

    def look(
        self,
        calls: PluginCalls,
        plugins: Sequence[tuple[Loaded, int]],
        state: CycleState,
        pod: ClusterPod,
        nodes: View,
        feasible: Mask,
    ) -> Scores:
        """The sums of the plugins that are taken together; right where feasible.

        plugins: with their weights.

        Raises:
            PointFailed: a plugin has failed; nothing is kept then.
        """
        keys: dict[str, Hashable] = {}
        joined: list[tuple[Loaded, int]] = []
        generation, self._generation = self._generation, None
        for loaded, weight in plugins:
            if _has_both_scores(cast(Hashable, type(loaded.plugin))):
                plugin = cast(Scoring, loaded.plugin)
                key = calls.ask(loaded, Point.SCORE, plugin.score_reuse_key, state, pod, nodes)
                if key is not None:
                    keys[loaded.name] = key
                    joined.append((loaded, weight))
        names = tuple(keys)
        changed = _changed(generation, nodes)
        if changed is None or names != self._plugins:
            self._keys, self._columns, self._plugins, changed = {}, {}, names, ()
            self._sum = np.zeros(len(nodes), np.int64)
            self._known = feasible
        stale = [one for one in joined if self._keys.get(one[0].name, self) != keys[one[0].name]]
        if stale:
            self._known = self._known & feasible
        if changed:
            self._known = self._known.copy()
            self._known[changed] = False
        missing = np.flatnonzero(feasible > self._known)
        if len(missing) > FEW_ROWS:
            stale, self._known, missing = joined, feasible, missing[:0]
        for loaded, weight in stale:
            self._compute(calls, loaded, weight, state, pod, nodes, feasible)
        if len(missing):
            self._known = self._known.copy()
            for row in missing.tolist():
                self._look_again(calls, joined, state, pod, nodes, row)
        self._keys, self._generation = keys, nodes.generation
        return self._sum

    @property
    def columns(self) -> Mapping[str, Scores]:
        """Scores of the plugins that were taken together the last time, without their weights."""
        return self._columns

    def _compute(
        self,
        calls: PluginCalls,
        loaded: Loaded,
        weight: int,
        state: CycleState,
        pod: ClusterPod,
        nodes: View,
        feasible: Mask,
    ) -> None:
        def scored() -> Scores:
            plugin = cast(VectorScorePlugin, loaded.plugin)
            found = score_vector(plugin, state, pod, nodes, feasible)
            checked_range(plugin, found, feasible)
            return found

        found = calls.call(loaded, Point.SCORE, state, scored)
        before = self._columns.get(loaded.name)
        gained = found if before is None else found - before
        self._sum += gained if weight == 1 else gained * weight
        self._columns[loaded.name] = found

    def _look_again(
        self,
        calls: PluginCalls,
        joined: Sequence[tuple[Loaded, int]],
        state: CycleState,
        pod: ClusterPod,
        nodes: View,
        row: int,
    ) -> None:
        node, total = NodeInfo(nodes, row), 0
        for loaded, weight in joined:
            plugin = cast(ScorePlugin, loaded.plugin)
            score = calls.call(loaded, Point.SCORE, state, score_node, plugin, state, pod, node)
            self._columns[loaded.name][row] = score
            total += score * weight
        self._sum[row] = total
        self._known[row] = True


@lru_cache(
    maxsize=1024
)  # types of plugins; the base classes are abstract, which makes the question slow
def _has_both_filters(plugin: Any) -> bool:
    return issubclass(plugin, FilterPlugin) and issubclass(plugin, VectorFilterPlugin)


@lru_cache(maxsize=1024)
def _has_both_scores(plugin: Any) -> bool:
    """Whether plugins have both forms of Score, and do not normalize them."""
    both = issubclass(plugin, ScorePlugin) and issubclass(plugin, VectorScorePlugin)
    return both and not is_normalizing(plugin)


def _kind(pod: ClusterPod) -> Hashable:
    """Pods of one kind differ in what no plugin's result for a node may depend on."""
    owner = controller_of(pod.owners)
    controller = "" if owner is None else owner.uid
    facts = pod.priority, pod.scheduler_name, pod.claims, pod.annotations, controller
    return pod.label_set, pod.spec, *facts


def _changed(generation: NDArray[np.int64] | None, nodes: View) -> Sequence[int] | None:
    """The rows that have changed since; None: too many to be asked about one by one."""
    if generation is None or len(generation) != len(nodes):
        return None
    if generation is nodes.generation:
        return ()
    rows: Rows = np.flatnonzero(generation != nodes.generation)
    return rows.tolist() if len(rows) <= FEW_ROWS else None


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
