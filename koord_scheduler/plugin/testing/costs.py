"""What the forms of a plugin cost on many nodes, in microseconds of real time."""

from collections.abc import Callable, Mapping
from time import perf_counter

import numpy as np

from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord_scheduler.framework.cyclestate import CycleState
from koord_scheduler.framework.interfaces import (
    FilterPlugin,
    NormalizeScorePlugin,
    Plugin,
    PreFilterPlugin,
    PreScorePlugin,
    ScorePlugin,
    Scoring,
    VectorFilterPlugin,
    VectorNormalizeScorePlugin,
    VectorScorePlugin,
)
from koord_scheduler.framework.nodes.forms import (
    filter_rows,
    filter_vector,
    normalized,
    score_nodes,
    score_rows,
    score_vector,
)

ROUNDS, LONG = 30, 0.05  # rounds of one measurement, which ends after so many seconds


def costs(plugin: Plugin, pod: ClusterPod, nodes: View) -> Mapping[str, float]:
    """Microseconds for all nodes of each method that the plugin has: the median of some rounds.

    By "pre_filter", "filter", "filter_all", "pre_score", "score", "score_all", "normalize" (which
    has the scores of the vector form, if there is one). The plain forms are called for each node.
    """
    state, every, found = CycleState(), np.ones(len(nodes), np.bool_), dict[str, float]()
    if isinstance(plugin, PreFilterPlugin):
        found["pre_filter"] = _microseconds(lambda: plugin.pre_filter(state, pod, nodes))
    if isinstance(plugin, FilterPlugin):
        found["filter"] = _microseconds(lambda: filter_rows(plugin, state, pod, nodes, every))
    if isinstance(plugin, VectorFilterPlugin):
        found["filter_all"] = _microseconds(lambda: filter_vector(plugin, state, pod, nodes))
    if isinstance(plugin, PreScorePlugin):
        found["pre_score"] = _microseconds(lambda: plugin.pre_score(state, pod, nodes, every))
    if isinstance(plugin, ScorePlugin):
        found["score"] = _microseconds(lambda: score_rows(plugin, state, pod, nodes, every))
    if isinstance(plugin, VectorScorePlugin):
        vector: VectorScorePlugin = plugin
        found["score_all"] = _microseconds(lambda: score_vector(vector, state, pod, nodes, every))
    if isinstance(plugin, Scoring) and isinstance(
        plugin, NormalizeScorePlugin | VectorNormalizeScorePlugin
    ):
        raw, rows = score_nodes(plugin, state, pod, nodes, every), np.arange(len(nodes))
        found["normalize"] = _microseconds(lambda: normalized(plugin, state, pod, nodes, rows, raw))
    return found


def _microseconds(work: Callable[[], object]) -> float:
    took: list[float] = []
    while len(took) < ROUNDS and sum(took) < LONG:
        began = perf_counter()
        work()
        took.append(perf_counter() - began)
    return float(np.median(took)) * 1e6
