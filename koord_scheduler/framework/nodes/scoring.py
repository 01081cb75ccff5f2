"""The best of the feasible nodes: PreScore, Score, NormalizeScore, weights.

Source: Kubernetes, pkg/scheduler/framework/runtime/framework.go (RunScorePlugins).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import cast

import numpy as np

from koord.cluster.columns import Mask, read_only
from koord_scheduler.config.profiles import Point
from koord_scheduler.framework.calls import Loaded, SequentialCalls
from koord_scheduler.framework.cyclestate import CycleInput
from koord_scheduler.framework.extension.transformers import Transformers
from koord_scheduler.framework.interfaces import PreScorePlugin, Scoring
from koord_scheduler.framework.nodes.adapters import Rows, normalized, score_nodes
from koord_scheduler.framework.nodes.resultcache import (
    BlockMaxima,
    EquivalenceClass,
    PreResultCache,
)
from koord_scheduler.framework.profile import ProfilePlugins
from koord_scheduler.framework.status import Code, PluginStatusError, Scores, status_of


class ScoreTable:
    """Scores of the feasible nodes; each column has shape (feasible nodes,).

    Valid until the next cycle begins; the totals, once asked for, for ever.
    """

    def __init__(
        self,
        rows: Rows,
        totals: Scores,
        make_columns: Callable[[], Mapping[str, Scores]],
        maxima: BlockMaxima | None = None,
    ) -> None:
        """maxima: of the totals, which are the cache's then; None: the totals are its own."""
        self.rows = rows
        self._totals = totals
        self._make_columns = make_columns
        self._maxima = maxima

    @property
    def totals(self) -> Scores:
        """Sums of the columns. A caller that changes them changes what is chosen."""
        if self._maxima is not None:
            self._totals, self._maxima = self._totals.copy(), None
        return self._totals

    @property
    def columns(self) -> Mapping[str, Scores]:
        """Scores by plugin, normalized, times its weight."""
        return self._make_columns()

    def choose(self, draw: Random) -> int:
        """The row with the highest total; one of them, if there are several."""
        if self._maxima is not None:
            return int(self.rows[self._maxima.draw(draw)])
        totals = self._totals
        (best,) = (totals == totals[totals.argmax()]).nonzero()  # faster than max()
        return int(self.rows[best[draw.randrange(len(best))]])


class NodeScoring:
    """Scores nodes by the plugins of one profile."""

    def __init__(self, plugins: ProfilePlugins) -> None:
        self._calls = plugins.calls
        self._transformers = Transformers(plugins)
        self._pre_scores = plugins.at(Point.PRE_SCORE)
        ask = [cast(PreScorePlugin, one.plugin).pre_score_reuse_key for one in self._pre_scores]
        self._keys = SequentialCalls(plugins.calls, Point.PRE_SCORE, self._pre_scores, ask)
        weights = {one.name: one.weight or 1 for one in plugins.settings.enabled(Point.SCORE)}
        self._scores = tuple((one, weights[one.name]) for one in plugins.at(Point.SCORE))
        self._choosy = [  # those that may have nothing to say about a pod
            one
            for one, _ in self._scores
            if cast(type[Scoring], type(one.plugin)).scores_pod is not Scoring.scores_pod
        ]
        self._skipped: frozenset[str] = frozenset()
        self._active = self._scores

    def scores(
        self,
        cycle: CycleInput,
        feasible: Mask,
        cached: EquivalenceClass | None = None,
    ) -> ScoreTable:
        """Return the scores of the feasible nodes, of which there is at least one.

        cached: results of earlier cycles; None: everything is computed.

        Raises:
            ExtensionPointError: a plugin has failed, or a transformer has ended the cycle.
        """
        if feasible.flags.writeable:
            feasible = read_only(feasible.copy())
        with self._calls.limits:
            seen, feasible = self._transformers.before_score(cycle, feasible)
            cached = None if seen.is_altered or seen.pod is not cycle.pod else cached
            return self._score(seen, feasible, cached)

    def _score(
        self,
        cycle: CycleInput,
        feasible: Mask,
        cached: EquivalenceClass | None,
    ) -> ScoreTable:
        with self._calls.timed(Point.PRE_SCORE.label):
            kept_answers = None if cached is None else cached.pre_scored
            self._pre_score(cycle, feasible, kept_answers)
        active = self._active_in(cycle)
        columns: dict[str, Scores] = {}
        fused: Mapping[str, Scores] = {}
        maxima: BlockMaxima | None = None
        with self._calls.timed(Point.SCORE.label):
            if cached is None:
                (rows,) = feasible.nonzero()
                totals = np.zeros(len(rows), np.int64)
            else:
                look = cached.fused_scores.look
                rows, totals, maxima = look(self._calls, active, cycle, feasible)
                fused = cached.fused_scores.columns
                if maxima is None or len(fused) < len(active):
                    totals, maxima = totals.copy(), None
            for loaded, weight in active:
                if loaded.name not in fused:
                    found = self._weighted(loaded, weight, cycle, feasible, rows, cached)
                    columns[loaded.name] = found
                    totals += found

        def make_columns() -> Mapping[str, Scores]:
            return {
                one.name: fused[one.name][rows] * weight if one.name in fused else columns[one.name]
                for one, weight in active
            }

        return ScoreTable(rows, totals, make_columns, maxima)

    def _active_in(self, cycle: CycleInput) -> Sequence[tuple[Loaded, int]]:
        """The plugins that score in a cycle, with their weights."""
        state = cycle.state
        idle = [
            one.name
            for one in self._choosy
            if one.name not in state.skipped_scores
            and not self._calls.ask(
                one, Point.SCORE, cast(Scoring, one.plugin).scores_pod, state, cycle.pod
            )
        ]
        if idle:
            state.skipped_scores = state.skipped_scores.union(idle)
        if state.skipped_scores != self._skipped:
            self._skipped = state.skipped_scores
            self._active = tuple(one for one in self._scores if one[0].name not in self._skipped)
        return self._active

    def _pre_score(
        self,
        cycle: CycleInput,
        feasible: Mask,
        cached: PreResultCache[bool, frozenset[str]] | None,
    ) -> None:
        """Call PreScore of all plugins; note in the state which of them skip Score."""
        state = cycle.state
        if cached is not None:
            known = cached.result(self._keys.ask(cycle.pod, cycle.nodes), state)
            if known is not None:
                state.skipped_scores = known
                return
        skipped = set()
        for place, loaded in enumerate(self._pre_scores):
            plugin = cast(PreScorePlugin, loaded.plugin)
            work = partial(_skips, plugin, cycle, feasible)
            prepare = partial(self._calls.call, loaded, Point.PRE_SCORE, state, work)
            if prepare() if cached is None else cached.answer(place, state, prepare):
                skipped.add(loaded.name)
        state.skipped_scores = frozenset(skipped)
        if cached is not None:
            cached.keep(state.skipped_scores)

    def _weighted(
        self,
        loaded: Loaded,
        weight: int,
        cycle: CycleInput,
        feasible: Mask,
        rows: Rows,
        cached: EquivalenceClass | None,
    ) -> Scores:
        plugin = cast(Scoring, loaded.plugin)
        look = score_nodes if cached is None else cached.score

        def scored() -> Scores:
            raw = look(plugin, cycle, feasible)
            if len(rows) < len(raw):
                raw = raw[rows]
            return normalized(plugin, cycle, rows, raw)

        found = self._calls.call(loaded, Point.SCORE, cycle.state, scored)
        return found if weight == 1 else found * weight


def _skips(plugin: PreScorePlugin, cycle: CycleInput, feasible: Mask) -> bool:
    """Call PreScore; return whether the plugin's Score is to be skipped."""
    status = status_of(
        plugin.pre_score(cycle.state, cycle.pod, cycle.nodes, feasible), plugin.name, Code.SKIP
    )
    if not status.ok and status.code is not Code.SKIP:
        raise PluginStatusError(plugin.name, status)
    return not status.ok
