"""The best of the feasible nodes: PreScore, Score, NormalizeScore, weights.

Source: Kubernetes, pkg/scheduler/framework/runtime/framework.go (RunScorePlugins).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import cast

import numpy as np

from koord.cluster.columns import Mask
from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord_scheduler.config.points import Point
from koord_scheduler.framework.answers import StatusFailed, status_of
from koord_scheduler.framework.calls import Loaded
from koord_scheduler.framework.cyclestate import CycleState
from koord_scheduler.framework.extension.transformers import Subject, Transformers
from koord_scheduler.framework.interfaces import PreScorePlugin, Scoring
from koord_scheduler.framework.nodes.forms import Rows, normalized, score_nodes
from koord_scheduler.framework.nodes.kept import KindResults
from koord_scheduler.framework.profiles.profile import ProfilePlugins
from koord_scheduler.framework.results import Scores
from koord_scheduler.framework.status import Code


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """Scores of the feasible nodes; each column has shape (feasible nodes,)."""

    rows: Rows
    totals: Scores
    make_columns: Callable[[], Mapping[str, Scores]]

    @property
    def columns(self) -> Mapping[str, Scores]:
        """By plugin: normalized, times its weight. To be asked for before the next cycle."""
        return self.make_columns()

    def choose(self, draw: Random) -> int:
        """The row with the highest total; one of them, if there are several."""
        best = np.flatnonzero(self.totals == self.totals.max())
        return int(self.rows[best[draw.randrange(len(best))]])


class NodeScoring:
    """Scores nodes by the plugins of one profile."""

    def __init__(self, plugins: ProfilePlugins) -> None:
        self._calls = plugins.calls
        self._transformers = Transformers(plugins)
        self._pre_scores = plugins.at(Point.PRE_SCORE)
        self._scores = plugins.at(Point.SCORE)
        self._weights = {one.name: one.weight or 1 for one in plugins.settings.enabled(Point.SCORE)}

    def scores(
        self,
        state: CycleState,
        pod: ClusterPod,
        nodes: View,
        feasible: Mask,
        kept: KindResults | None = None,
    ) -> ScoreTable:
        """Return the scores of the feasible nodes, of which there is at least one.

        kept: results of earlier cycles; None: everything is computed.

        Raises:
            PointFailed: a plugin has failed, or a transformer has ended the cycle.
        """
        feasible = feasible.copy()
        feasible.flags.writeable = False
        with self._calls.limits:
            subject = Subject(pod, nodes)
            seen, feasible = self._transformers.before_score(state, subject, feasible)
            kept = None if seen.is_altered or seen.pod is not pod else kept
            return self._score(state, seen.pod, seen.nodes, feasible, kept)

    def _score(
        self,
        state: CycleState,
        pod: ClusterPod,
        nodes: View,
        feasible: Mask,
        kept: KindResults | None,
    ) -> ScoreTable:
        with self._calls.timed(Point.PRE_SCORE.label):
            self._pre_score(state, pod, nodes, feasible)
        rows = np.flatnonzero(feasible)
        active = [one for one in self._scores if one.name not in state.skipped_scores]
        columns: dict[str, Scores] = {}
        together: Mapping[str, Scores] = {}
        with self._calls.timed(Point.SCORE.label):
            if kept is None:
                totals = np.zeros(len(rows), np.int64)
            else:
                weighted = [(one, self._weights[one.name]) for one in active]
                sums = kept.summed.look(self._calls, weighted, state, pod, nodes, feasible)
                totals, together = sums[rows], kept.summed.columns
            for loaded in active:
                if loaded.name not in together:
                    found = self._weighted(loaded, state, pod, nodes, feasible, rows, kept)
                    columns[loaded.name] = found
                    totals += found

        def make_columns() -> Mapping[str, Scores]:
            of_sum = {name: column[rows] * self._weights[name] for name, column in together.items()}
            found = {**columns, **of_sum}
            return {one.name: found[one.name] for one in active}

        return ScoreTable(rows, totals, make_columns)

    def _pre_score(self, state: CycleState, pod: ClusterPod, nodes: View, feasible: Mask) -> None:
        skipped = set()
        for loaded in self._pre_scores:
            plugin = cast(PreScorePlugin, loaded.plugin)
            work = partial(_skips, plugin, state, pod, nodes, feasible)
            if self._calls.call(loaded, Point.PRE_SCORE, state, work):
                skipped.add(loaded.name)
        state.skipped_scores = frozenset(skipped)

    def _weighted(
        self,
        loaded: Loaded,
        state: CycleState,
        pod: ClusterPod,
        nodes: View,
        feasible: Mask,
        rows: Rows,
        kept: KindResults | None,
    ) -> Scores:
        plugin = cast(Scoring, loaded.plugin)
        look = score_nodes if kept is None else kept.score

        def scored() -> Scores:
            raw = look(plugin, state, pod, nodes, feasible)
            if len(rows) < len(raw):
                raw = raw[rows]
            return normalized(plugin, state, pod, nodes, rows, raw)

        found = self._calls.call(loaded, Point.SCORE, state, scored)
        weight = self._weights[loaded.name]
        return found if weight == 1 else found * weight


def _skips(
    plugin: PreScorePlugin, state: CycleState, pod: ClusterPod, nodes: View, feasible: Mask
) -> bool:
    """Call PreScore; return whether the plugin's Score is to be skipped."""
    status = status_of(plugin.pre_score(state, pod, nodes, feasible), plugin.name, Code.SKIP)
    if not status.ok and status.code is not Code.SKIP:
        raise StatusFailed(plugin.name, status)
    return not status.ok
