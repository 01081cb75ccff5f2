"""Filter and Score results of several plugins, fused into one column for equal pods.

Only rows of nodes that have changed since are computed again.
"""

from collections.abc import Collection, Hashable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, cast

import numpy as np

from koord.cluster.columns import FrozenColumn, Mask, read_only
from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord_scheduler.config.profiles import Point
from koord_scheduler.framework.calls import Loaded, PluginCalls, SequentialCalls
from koord_scheduler.framework.cyclestate import CycleInput, CycleState
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
    checked_range,
    filter_node,
    filter_result,
    is_normalizing,
    score_node,
    score_vector,
)
from koord_scheduler.framework.status import Numbers, Scores, Status, Verdicts
from koord_scheduler.framework.types import NodeInfo

_NEW = object()  # in the place of a key: nothing is known
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

        They are right until the next look.

        Raises:
            ExtensionPointError: a plugin has failed; nothing is kept then.
        """
        generations, self._generations = self._generations, None
        if plugins != self._asked:
            self._ask(calls, plugins)
            generations = None
        keys = self._ask_keys.ask(cycle.state, cycle.pod, cycle.nodes)
        changed = _changed(generations, cycle.nodes)
        stale: Sequence[tuple[int, Loaded]] = ()
        is_other = keys != self._keys
        if (
            changed is None
            or len(self._numbers) > _MAX_STATUSES
            or (is_other and _others(keys, self._keys))
        ):
            self._join(keys, len(cycle.nodes))
            changed, is_other = (), True
        if is_other:
            known = zip(self._both, keys, self._keys, strict=True)
            stale = [one for one, key, before in known if key != before]
        for place, loaded in stale:
            self._compute(calls, place, loaded, cycle)
        if len(stale) < len(self._joined):
            for row in changed:
                self._look_again(calls, cycle, row)
        if stale:
            self._fold(len(cycle.nodes))
        self._keys, self._generations = keys, cycle.nodes.generations
        return Verdicts(self._first, tuple(self._numbers))

    def _ask(self, calls: PluginCalls, plugins: Sequence[Loaded]) -> None:
        """Use these plugins from now on."""
        every = list(enumerate(plugins))
        both = [one for one in every if _has_both_filters(cast(Hashable, type(one[1].plugin)))]
        asks = [cast(Filtering, one.plugin).filter_reuse_key for _, one in both]
        self._both, self._asked = both, plugins
        self._ask_keys = SequentialCalls(calls, Point.FILTER, [one for _, one in both], asks)

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
            number = 0 if status is None else self._number(status, place)
            column = self._columns[loaded.name]
            if column is not None:
                column[row] = number
            elif number:
                column = self._columns[loaded.name] = np.zeros(len(cycle.nodes), np.int32)
                column[row] = number
            first = first or number
        if bool(self._first[row]) != bool(first):
            self._feasible = None
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

    def look(
        self,
        calls: PluginCalls,
        plugins: Sequence[tuple[Loaded, int]],
        cycle: CycleInput,
        feasible: Mask,
    ) -> tuple[Rows, Scores]:
        """The feasible rows, and their sums of the plugins that are taken together.

        They are right until the next look, and not to be changed. plugins: with their weights.
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
        changed = _changed(generations, cycle.nodes)
        stale: Sequence[tuple[Loaded, int]] = ()
        is_other = keys != self._keys
        if changed is None or (is_other and _others(keys, self._keys)):
            self._join(keys, len(cycle.nodes))
            self._known, changed, is_other, is_same = feasible, (), True, False
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
            stale, self._known, missing = self._joined, feasible, []
        for loaded, weight in stale:
            self._compute(calls, loaded, weight, cycle, feasible)
        if missing:
            self._known = self._known.copy()
            for row in missing:
                self._look_again(calls, cycle, row)
        if is_same and not stale:
            for row in missing:
                self._totals[self._rows.searchsorted(row)] = self._sum[row]
        else:
            (self._rows,) = feasible.nonzero()
            self._totals = self._sum[self._rows]
        self._keys, self._generations = keys, cycle.nodes.generations
        self._feasible = feasible
        return self._rows, self._totals

    def _ask(self, calls: PluginCalls, plugins: Sequence[tuple[Loaded, int]]) -> None:
        """Use these plugins from now on."""
        both = [one for one in plugins if _has_both_scores(cast(Hashable, type(one[0].plugin)))]
        asks = [cast(Scoring, one.plugin).score_reuse_key for one, _ in both]
        self._both, self._asked = both, plugins
        self._ask_keys = SequentialCalls(calls, Point.SCORE, [one for one, _ in both], asks)

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


def _others(keys: Sequence[Hashable | None], before: Sequence[Hashable | None]) -> bool:
    """Whether other plugins than before have a key."""
    if len(keys) != len(before):
        return True
    return any((key is None) != (last is None) for key, last in zip(keys, before, strict=True))


def _changed(before: FrozenColumn | None, nodes: View) -> Sequence[int] | None:
    """The rows that have changed since; None: too many to be asked about one by one."""
    if before is None or len(before) != len(nodes):
        return None
    rows = nodes.generations.other_rows(before)
    return rows if len(rows) <= FEW_ROWS else None
