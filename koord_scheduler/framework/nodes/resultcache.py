"""Result cache: results of plugins per equivalence class of pods, several plugins in one column.

All that a profile keeps from one cycle for the next stands here. Only rows of nodes that have
changed since are computed again.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from typing import Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from koord.cluster.columns import BlockMaxima, FrozenColumn, Mask, read_only
from koord.cluster.facts import ClusterPod
from koord.cluster.placement import controller_of
from koord.cluster.view import View
from koord_scheduler.config.profiles import Point
from koord_scheduler.framework.calls import Loaded, PluginCalls, SequentialCalls
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
    Rows,
    ScaledScores,
    checked_range,
    filter_node,
    filter_nodes,
    filter_result,
    filter_results,
    filter_rows,
    is_normalizing,
    score_node,
    score_nodes,
    score_rows,
    score_vector,
)
from koord_scheduler.framework.status import (
    CycleInput,
    CycleState,
    Numbers,
    PreFilterOutcome,
    PreFilterResult,
    Scores,
    StateData,
    Status,
    Verdicts,
)
from koord_scheduler.framework.types import NodeInfo, NotedRows, readers_of

_NEW = object()  # in the place of a key: nothing is known
_MANY_SCORES = 8192  # whose maxima by block cost less than a look at all of them
_MAX_STATUSES = 4096  # of one kind of pods; then all is computed anew


class FusedFilters:
    """First rejections of nodes by all plugins that have both forms and a key."""

    def __init__(self) -> None:
        self._asked: Sequence[Loaded] | None = None
        self._both: list[tuple[int, Loaded]] = []  # of these those with both forms, with places
        self._joined: list[tuple[int, Loaded]] = []  # of these those with a key
        self._names: frozenset[str] = frozenset()  # of the joined ones
        self._ask_row: SequentialCalls[[CycleState, ClusterPod, NodeInfo], Status | None] | None = (
            None
        )
        self._generations: FrozenColumn | None = None  # of the rows that are known
        self._keys: list[Hashable | None] = []  # of both
        self._columns: dict[str, Numbers | None] = {}  # None: it rejects no node
        self._first: Numbers = np.zeros(0, np.int32)
        self._feasible: Mask | None = None  # None: it is to be made of the first rejections
        self._numbers: dict[Status, int] = {}
        self._places: list[int] = []

    def look(
        self,
        calls: PluginCalls,
        plugins: Sequence[Loaded],
        cycle: CycleInput,
    ) -> Verdicts:
        """First rejections of all rows by the plugins that are taken together.

        Their numbers are never written.

        Raises:
            ExtensionPointError: a plugin has failed; nothing is kept then.
        """
        generations, self._generations = self._generations, None
        if plugins != self._asked:
            self._ask(calls, plugins)
            generations = None
        keys = self._ask_keys.ask(cycle.state, cycle.pod, cycle.nodes)
        noted, changed = _take(self._noted, self._keys), _changed(generations, cycle.nodes)
        stale: Sequence[tuple[int, Loaded]] = ()
        is_other = keys != self._keys
        if (
            changed is None
            or len(self._numbers) > _MAX_STATUSES
            or (is_other and _others(keys, self._keys))
        ):
            self._join(keys, len(cycle.nodes))
            noted, changed, is_other = [], (), True
        if is_other:
            known = zip(self._both, keys, self._keys, strict=True)
            stale = [one for one, key, before in known if key != before]
        for place, loaded in stale:
            self._compute(calls, place, loaded, cycle)
        if len(stale) < len(self._joined):
            for row in changed:
                self._look_again(calls, cycle, row)
            for at, row in noted:
                if row not in changed and row < len(cycle.nodes):
                    self._ask_one(calls, cycle, *self._both[at], row)
        if stale:
            self._fold(len(cycle.nodes))
        self._keys, self._generations = keys, cycle.nodes.generations
        return Verdicts(read_only(self._first), tuple(self._numbers))

    def _ask(self, calls: PluginCalls, plugins: Sequence[Loaded]) -> None:
        """Use these plugins from now on."""
        every = list(enumerate(plugins))
        both = [one for one in every if _has_both_filters(cast(Hashable, type(one[1].plugin)))]
        asks = [cast(Filtering, one.plugin).filter_reuse_key for _, one in both]
        self._both, self._asked = both, plugins
        self._ask_keys = SequentialCalls(calls, Point.FILTER, [one for _, one in both], asks)
        self._noted = readers_of(cast(Filtering, one.plugin).filter_changes for _, one in both)
        self._keys = [None] * len(both)

    def _join(self, keys: Sequence[Hashable | None], nodes: int) -> None:
        """Begin anew with the plugins that have a key."""
        self._joined = [one for one, key in zip(self._both, keys, strict=True) if key is not None]
        self._names = frozenset(one.name for _, one in self._joined)
        self._ask_row = None
        self._keys = [_NEW if key is not None else None for key in keys]
        self._columns, self._numbers, self._places = {}, {}, []
        self._first, self._feasible = np.zeros(nodes, np.int32), None

    @property
    def plugins(self) -> Collection[str]:
        """Names of the plugins that were taken together the last time."""
        return self._names

    @property
    def feasible(self) -> Mask:
        """Rows that none of them rejects; the same mask, which is never written, while it is so."""
        if self._feasible is None:
            self._feasible = read_only(self._first == 0)
        return self._feasible

    @property
    def places(self) -> Sequence[int]:
        """Return, for each rejection, the place of its plugin among all that were asked about."""
        return self._places

    def _compute(
        self,
        calls: PluginCalls,
        place: int,
        loaded: Loaded,
        cycle: CycleInput,
    ) -> None:
        plugin = cast(VectorFilterPlugin, loaded.plugin)
        found = calls.call(loaded, Point.FILTER, cycle.state, filter_result, plugin, cycle)
        numbers: Numbers | None = None
        if isinstance(found, Verdicts):
            if found.numbers.any():
                table = [0, *(self._number(each, place) for each in found.rejections)]
                numbers = np.array(table, np.int32)[found.numbers]
        elif not found.all():
            number = self._number(plugin.rejection.of(loaded.name), place)
            numbers = np.where(found, np.int32(0), np.int32(number))
        self._columns[loaded.name] = numbers

    def _look_again(self, calls: PluginCalls, cycle: CycleInput, row: int) -> None:
        """Ask all plugins about a row that has changed."""
        first = 0
        if self._ask_row is None:
            plugins = [one for _, one in self._joined]
            works = [partial(filter_node, cast(FilterPlugin, one.plugin)) for one in plugins]
            self._ask_row = SequentialCalls(calls, Point.FILTER, plugins, works)
        statuses = self._ask_row.call(
            cycle.state, cycle.state, cycle.pod, NodeInfo(cycle.nodes, row)
        )
        for (place, loaded), status in zip(self._joined, statuses, strict=True):
            if status is None and self._columns[loaded.name] is None:
                continue  # it rejects no node at all, as most plugins
            number = self._note(place, loaded, row, status)
            first = first or number
        self._take_first(row, first)

    def _ask_one(
        self, calls: PluginCalls, cycle: CycleInput, place: int, loaded: Loaded, row: int
    ) -> None:
        """Ask one plugin about a row of which it has noted a change."""
        plugin, node = cast(FilterPlugin, loaded.plugin), NodeInfo(cycle.nodes, row)
        state, pod, call = cycle.state, cycle.pod, calls.call
        status = call(loaded, Point.FILTER, state, filter_node, plugin, state, pod, node)
        self._note(place, loaded, row, status)
        columns = (self._columns[one.name] for _, one in self._joined)
        numbers = (column.item(row) for column in columns if column is not None)
        self._take_first(row, next(filter(None, numbers), 0))

    def _note(self, place: int, loaded: Loaded, row: int, status: Status | None) -> int:
        """Write the verdict of one plugin about a row; return its number."""
        number = 0 if status is None else self._number(status, place)
        column = self._columns[loaded.name]
        if column is None and number:
            column = self._columns[loaded.name] = np.zeros(len(self._first), np.int32)
        if column is not None:
            column[row] = number
        return number

    def _take_first(self, row: int, first: int) -> None:
        before = self._first.item(row)
        if before == first:
            return
        if bool(before) != bool(first):
            self._feasible = None
        if not self._first.flags.writeable:  # the last look has lent it
            self._first = self._first.copy()
        self._first[row] = first

    def _fold(self, nodes: int) -> None:
        """Compute the first rejection of each row."""
        self._first, self._feasible = np.zeros(nodes, np.int32), None
        for _, loaded in reversed(self._joined):
            column = self._columns[loaded.name]
            if column is not None:
                np.copyto(self._first, column, where=column != 0)

    def _number(self, status: Status, place: int) -> int:
        found = self._numbers.get(status)
        if found is None:
            found = self._numbers[status] = len(self._numbers) + 1
            self._places.append(place)
        return found


class FusedScores:
    """Sums of weighted scores of all plugins that have both forms and a key, and normalize none."""

    def __init__(self) -> None:
        self._asked: Sequence[tuple[Loaded, int]] | None = None
        self._both: list[tuple[Loaded, int]] = []  # of these those with both forms
        self._joined: list[tuple[Loaded, int]] = []  # of these those with a key
        self._ask_row: SequentialCalls[[CycleState, ClusterPod, NodeInfo], int] | None = None
        self._generations: FrozenColumn | None = None  # of the rows that are known
        self._keys: list[Hashable | None] = []  # of both
        self._columns: dict[str, Scores] = {}
        self._sum: Scores = np.zeros(0, np.int64)
        self._known: Mask = np.zeros(0, np.bool_)  # rows of which all that is right
        self._feasible: Mask | None = None  # of the last look; None: the totals are to be made
        self._rows: Rows = np.zeros(0, np.intp)  # those that are feasible
        self._totals: Scores = np.zeros(0, np.int64)  # their sums
        self._maxima: BlockMaxima | None = None  # of the totals, while only a few of them change

    def look(
        self,
        calls: PluginCalls,
        plugins: Sequence[tuple[Loaded, int]],
        cycle: CycleInput,
        feasible: Mask,
    ) -> tuple[Rows, Scores, BlockMaxima | None]:
        """The feasible rows, and their sums of the plugins that are taken together.

        They are right until the next look, and not to be changed. Of the sums also the maxima;
        None: they are not known. plugins: with their weights.
        feasible: never written; where it is the mask of the last look, only the rows that have
        changed since are looked at.

        Raises:
            ExtensionPointError: a plugin has failed; nothing is kept then.
        """
        generations, self._generations = self._generations, None
        if plugins != self._asked:
            self._ask(calls, plugins)
            generations = None
        is_same, self._feasible = feasible is self._feasible, None
        keys = self._ask_keys.ask(cycle.state, cycle.pod, cycle.nodes)
        noted, changed = _take(self._noted, self._keys), _changed(generations, cycle.nodes)
        stale: Sequence[tuple[Loaded, int]] = ()
        is_other = keys != self._keys
        if changed is None or (is_other and _others(keys, self._keys)):
            self._join(keys, len(cycle.nodes))
            noted, changed, is_other, is_same, self._known = [], (), True, False, feasible
        if is_other:
            before = zip(self._both, keys, self._keys, strict=True)
            stale = [one for one, key, last in before if key != last]
            self._known = self._known & feasible
        if changed:
            self._known = self._known.copy()
            self._known[changed] = False
        if is_same:  # all of its rows were known
            missing = [row for row in changed if feasible[row]]
        else:
            missing = (feasible > self._known).nonzero()[0].tolist()
        if len(missing) > FEW_ROWS:
            stale, self._known, noted, missing = self._joined, feasible, [], []
        for loaded, weight in stale:
            self._compute(calls, loaded, weight, cycle, feasible)
        if missing:
            self._known = self._known.copy()
            for row in missing:
                self._look_again(calls, cycle, row)
        renewed = list(missing)
        for at, row in noted:
            if row not in missing and row < len(feasible) and self._known[row]:
                renewed += self._ask_one(calls, cycle, *self._both[at], row, feasible)
        if is_same and not stale:
            places = [int(self._rows.searchsorted(row)) for row in renewed]
            for row, place in zip(renewed, places, strict=True):
                self._totals[place] = self._sum[row]
            if self._maxima is not None:
                for place in places:
                    self._maxima.renew(place)
            elif len(self._totals) > _MANY_SCORES:
                self._maxima = BlockMaxima(self._totals)
        else:
            (self._rows,) = feasible.nonzero()
            self._totals, self._maxima = self._sum[self._rows], None
        self._keys, self._generations = keys, cycle.nodes.generations
        self._feasible = feasible
        return self._rows, self._totals, self._maxima

    def _ask(self, calls: PluginCalls, plugins: Sequence[tuple[Loaded, int]]) -> None:
        """Use these plugins from now on."""
        both = [one for one in plugins if _has_both_scores(cast(Hashable, type(one[0].plugin)))]
        asks = [cast(Scoring, one.plugin).score_reuse_key for one, _ in both]
        self._both, self._asked = both, plugins
        self._ask_keys = SequentialCalls(calls, Point.SCORE, [one for one, _ in both], asks)
        self._noted = readers_of(cast(Scoring, one.plugin).score_changes for one, _ in both)
        self._keys = [None] * len(both)

    def _join(self, keys: Sequence[Hashable | None], nodes: int) -> None:
        """Begin anew with the plugins that have a key."""
        self._joined = [one for one, key in zip(self._both, keys, strict=True) if key is not None]
        self._ask_row = None
        self._keys = [_NEW if key is not None else None for key in keys]
        self._columns, self._sum = {}, np.zeros(nodes, np.int64)

    @property
    def columns(self) -> Mapping[str, Scores]:
        """Scores of the plugins that were taken together the last time, without their weights."""
        return self._columns

    def _compute(
        self,
        calls: PluginCalls,
        loaded: Loaded,
        weight: int,
        cycle: CycleInput,
        feasible: Mask,
    ) -> None:
        def scored() -> Scores:
            plugin = cast(VectorScorePlugin, loaded.plugin)
            found = score_vector(plugin, cycle, feasible)
            checked_range(plugin, found, feasible)
            return found

        found = calls.call(loaded, Point.SCORE, cycle.state, scored)
        before = self._columns.get(loaded.name)
        gained = found if before is None else found - before
        self._sum += gained if weight == 1 else gained * weight
        self._columns[loaded.name] = found

    def _ask_one(
        self,
        calls: PluginCalls,
        cycle: CycleInput,
        loaded: Loaded,
        weight: int,
        row: int,
        feasible: Mask,
    ) -> list[int]:
        """Ask a plugin about a known row of which it has noted a change; return it if feasible."""
        if not feasible[row]:
            self._known = self._known.copy()
            self._known[row] = False
            return []
        plugin, node = cast(ScorePlugin, loaded.plugin), NodeInfo(cycle.nodes, row)
        state, pod, call = cycle.state, cycle.pod, calls.call
        score = call(loaded, Point.SCORE, state, score_node, plugin, state, pod, node)
        column = self._columns[loaded.name]
        self._sum[row] += (score - column[row]) * weight
        column[row] = score
        return [row]

    def _look_again(self, calls: PluginCalls, cycle: CycleInput, row: int) -> None:
        """Ask all plugins about a row that has changed."""
        total = 0
        if self._ask_row is None:
            plugins = [one for one, _ in self._joined]
            works = [partial(score_node, cast(ScorePlugin, one.plugin)) for one in plugins]
            self._ask_row = SequentialCalls(calls, Point.SCORE, plugins, works)
        scores = self._ask_row.call(cycle.state, cycle.state, cycle.pod, NodeInfo(cycle.nodes, row))
        for (loaded, weight), score in zip(self._joined, scores, strict=True):
            self._columns[loaded.name][row] = score
            total += score * weight
        self._sum[row] = total
        self._known[row] = True


@lru_cache(maxsize=1024)  # types: the base classes are abstract, which makes the question slow
def _has_both_filters(plugin: Any) -> bool:
    return issubclass(plugin, FilterPlugin) and issubclass(plugin, VectorFilterPlugin)


@lru_cache(maxsize=1024)
def _has_both_scores(plugin: Any) -> bool:
    """Whether plugins have both forms of Score, and do not normalize them."""
    both = issubclass(plugin, ScorePlugin) and issubclass(plugin, VectorScorePlugin)
    return both and not is_normalizing(plugin)


def _others(keys: Sequence[Hashable | None], before: Sequence[Hashable | None]) -> bool:
    """Whether other plugins than before have a key."""
    if len(keys) != len(before):
        return True
    return any((key is None) != (last is None) for key, last in zip(keys, before, strict=True))


def _take(noted: Mapping[int, NotedRows], keys: list[Hashable | None]) -> list[tuple[int, int]]:
    """Return what plugins with a key have noted since the last look: their places, and rows.

    keys: those of the last look. One that has noted too many rows loses its key there: then it is
    asked about all nodes anew, and no other plugin is.
    """
    found = []
    for place, each in noted.items():
        rows = each.take()
        if keys[place] is not None and (rows is None or len(rows) > FEW_ROWS):
            keys[place] = _NEW
        elif keys[place] is not None and rows:
            found += [(place, row) for row in rows]
    return found


def _changed(before: FrozenColumn | None, nodes: View) -> Sequence[int] | None:
    """The rows that have changed since; None: too many to be asked about one by one."""
    if before is None or len(before) != len(nodes):
        return None
    rows = nodes.generations.other_rows(before)
    return rows if len(rows) <= FEW_ROWS else None


A = TypeVar("A")
R = TypeVar("R")


MAX_CLASSES = 16  # of pods whose results are kept; 60 KB each for every plugin, at 5,000 nodes


class ResultCache:
    """Results of the plugins of one profile, for the latest equivalence classes of pods.

    A profile has one, and what a class has says whether it is still right: keys of the plugins,
    and generations of the rows.
    """

    def __init__(self, max_classes: int = MAX_CLASSES) -> None:
        self.start = 0  # where the next search among nodes begins that does not need all of them
        self._most = max_classes
        self._kinds: OrderedDict[Hashable, EquivalenceClass] = OrderedDict()
        self._once: OrderedDict[Hashable, None] = OrderedDict()  # kinds with one pod up to now

    def of(self, pod: ClusterPod, part: Hashable = None) -> "EquivalenceClass":
        """Return the cached results for pods that are equal to this one; part: see again."""
        return self._of(_equivalence_class(pod, part))

    def again(self, pod: ClusterPod, part: Hashable = None) -> "EquivalenceClass | None":
        """The same from the second pod on; None for the first one.

        Where all pods differ, to keep anything would only cost. part: of the profile, whose plugins
        are called for the pod; None: all.
        """
        kind = _equivalence_class(pod, part)
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
        self.scaled_scores: defaultdict[str, ScaledScores] = defaultdict(ScaledScores)  # by plugin

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
        noted = NotedRows(plugin.filter_changes)
        found = filter_nodes(plugin, cycle, rows)
        known = _cached_verdicts(plugin, VectorFilterPlugin, rows)
        numbers = np.zeros(len(cycle.nodes), np.int32)
        column = _Column(key, noted, cycle.nodes.generations, known, numbers)
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
        noted = NotedRows(plugin.score_changes)
        found = score_nodes(plugin, cycle, rows)
        known = rows.copy()  # of the others a vector form may return anything
        generations = cycle.nodes.generations
        self._scores[plugin.name] = _Column(key, noted, generations, known, found)
        return found


@dataclass(slots=True)
class _Column:
    """A result of a plugin for a kind of pods."""

    key: Hashable
    noted: NotedRows  # by the plugin, since they were computed
    generations: FrozenColumn  # of the rows when they were computed
    known: Mask  # rows that were computed
    values: NDArray[Any]
    rejections: dict[Status, int] = field(default_factory=dict)  # with their numbers; of Filter


def _equivalence_class(pod: ClusterPod, part: Hashable = None) -> Hashable:
    """Pods of one kind differ in what no plugin's result for a node may depend on."""
    owner = controller_of(pod.owners)
    controller = "" if owner is None else owner.uid
    facts = pod.priority, pod.scheduler_name, pod.claims, pod.annotations, controller
    return pod.label_set, pod.spec, part, *facts


def _missing(column: _Column | None, key: Hashable, nodes: View, rows: Mask) -> Mask | None:
    """Rows that are asked about and not known any more; None: nothing of the column is right."""
    if column is None or column.key != key or len(column.generations) != len(nodes):
        return None
    noted = column.noted.take()
    if noted is None:
        return None
    column.known[nodes.generations.other_rows(column.generations)] = False
    column.known[[row for row in noted if row < len(nodes)]] = False
    missing: Mask = rows & ~column.known
    return missing


def _wants_all(missing: Mask, has_plain: bool, has_vector: bool) -> bool:
    """Whether computing all rows anew is cheaper than the missing ones, or the only way."""
    count = int(np.count_nonzero(missing))
    return count > 0 and (not has_plain or (has_vector and count > FEW_ROWS))


def _renew(column: _Column, nodes: View, computed: Mask) -> None:
    column.known |= computed
    column.generations = nodes.generations


def _cached_verdicts(plugin: object, vector: type, rows: Mask) -> Mask:
    return np.ones(len(rows), np.bool_) if isinstance(plugin, vector) else rows.copy()


def _merge(column: _Column, found: Verdicts, rows: Mask) -> None:
    """Write verdicts into some rows of a column; equal rejections have one number."""
    known = column.rejections
    numbers = [0, *(known.setdefault(each, len(known) + 1) for each in found.rejections)]
    column.values[rows] = np.array(numbers, np.int32)[found.numbers[rows]]
