"""Compare the plain form of a plugin with its vector form, and measure what both cost."""

from collections.abc import Callable, Iterator, Mapping
from time import perf_counter

import numpy as np

from koord.cluster.columns import Mask
from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
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
from koord_scheduler.framework.nodes.adapters import (
    Rows,
    filter_rows,
    filter_vector,
    normalized,
    score_nodes,
    score_rows,
    score_vector,
)
from koord_scheduler.framework.status import (
    SUCCESS,
    CycleInput,
    CycleState,
    NodeScore,
    Scores,
    Status,
    Verdicts,
)


def assert_forms_agree(plugin: Plugin, pod: ClusterPod, nodes: View) -> None:
    """Fail, with each node on which they do not, unless the forms of a plugin agree.

    PreFilter and PreScore are called before, if the plugin has them; with Skip there is nothing to
    agree on.

    Raises:
        AssertionError: they do not agree.
        TypeError: the plugin has both forms of nothing.
    """
    found = disagreements(plugin, pod, nodes)
    if found:
        raise AssertionError("\n".join(found))


def disagreements(plugin: Plugin, pod: ClusterPod, nodes: View) -> list[str]:
    """Where the forms of a plugin do not agree, one sentence for each node; empty: they agree.

    Raises:
        TypeError: the plugin has both forms of nothing.
    """
    filters = isinstance(plugin, FilterPlugin) and isinstance(plugin, VectorFilterPlugin)
    scores = isinstance(plugin, ScorePlugin) and isinstance(plugin, VectorScorePlugin)
    if not filters and not scores:
        raise TypeError(f"{plugin!r:.80}: wanted both forms of Filter or of Score, found neither")
    if not hasattr(plugin, "name"):
        plugin.name = type(plugin).__name__
    state, every = CycleState(), np.ones(len(nodes), np.bool_)
    if isinstance(plugin, PreFilterPlugin) and _skips(plugin.pre_filter(state, pod, nodes)):
        filters = False
    found: list[str] = []
    cycle = CycleInput(state, pod, nodes)
    if filters:
        found += _in_filter(plugin, cycle, every)
    if scores:
        found += _in_score(plugin, cycle, every)
    return found


def _in_filter(plugin: Plugin, cycle: CycleInput, every: Mask) -> Iterator[str]:
    assert isinstance(plugin, FilterPlugin)  # noqa: S101 - asked before
    assert isinstance(plugin, VectorFilterPlugin)  # noqa: S101 - as above
    plain = filter_rows(plugin, cycle, every)
    vector, nodes = filter_vector(plugin, cycle), cycle.nodes
    for row in range(len(nodes)):
        one, other = _status(plain, row), _status(vector, row)
        if one != other:
            said = f"filter says {_text(one)}, filter_all {_text(other)}"
            yield f"node {nodes.node(row).name}: {said}"


def _in_score(plugin: Plugin, cycle: CycleInput, every: Mask) -> Iterator[str]:
    assert isinstance(plugin, ScorePlugin)  # noqa: S101 - asked before
    assert isinstance(plugin, VectorScorePlugin)  # noqa: S101 - as above
    if isinstance(plugin, PreScorePlugin) and _skips(
        plugin.pre_score(cycle.state, cycle.pod, cycle.nodes, every)
    ):
        return
    plain = score_rows(plugin, cycle, every)
    vector, nodes = score_vector(plugin, cycle, every), cycle.nodes
    yield from _different(nodes, plain, vector, "score", "score_all")
    if isinstance(plugin, NormalizeScorePlugin) and isinstance(plugin, VectorNormalizeScorePlugin):
        rows = np.arange(len(nodes))
        yield from _different(
            nodes,
            normalized(_PlainOnly(plugin), cycle, rows, vector),
            normalized(plugin, cycle, rows, vector),
            "normalize_score",
            "normalize_scores",
        )


def _different(nodes: View, one: Scores, other: Scores, name: str, second: str) -> Iterator[str]:
    rows: Rows = np.flatnonzero(one != other)
    for row in rows.tolist():
        yield f"node {nodes.node(row).name}: {name} says {one[row]}, {second} {other[row]}"


class _PlainOnly(Scoring, NormalizeScorePlugin):
    """The plain form of a plugin's NormalizeScore, without its vector form."""

    def __init__(self, plugin: NormalizeScorePlugin) -> None:
        self.name = plugin.name
        self._plugin = plugin

    def normalize_score(
        self, state: CycleState, pod: ClusterPod, scores: list[NodeScore]
    ) -> Status | None:
        return self._plugin.normalize_score(state, pod, scores)


def _skips(answer: object) -> bool:
    return isinstance(answer, Status) and not answer.ok


def _status(verdicts: Verdicts, row: int) -> Status:
    number = int(verdicts.numbers[row])
    return verdicts.rejections[number - 1] if number else SUCCESS


def _text(status: Status) -> str:
    return f"{status.code.title} ({status.message})" if status.message else status.code.title


ROUNDS, LONG = 30, 0.05  # rounds of one measurement, which ends after so many seconds


def costs(plugin: Plugin, pod: ClusterPod, nodes: View) -> Mapping[str, float]:
    """Microseconds for all nodes of each method that the plugin has: the median of some rounds.

    By "pre_filter", "filter", "filter_all", "pre_score", "score", "score_all", "normalize" (which
    has the scores of the vector form, if there is one). The plain forms are called for each node.
    """
    state, every, found = CycleState(), np.ones(len(nodes), np.bool_), dict[str, float]()
    cycle = CycleInput(state, pod, nodes)
    if isinstance(plugin, PreFilterPlugin):
        found["pre_filter"] = _microseconds(lambda: plugin.pre_filter(state, pod, nodes))
    if isinstance(plugin, FilterPlugin):
        found["filter"] = _microseconds(lambda: filter_rows(plugin, cycle, every))
    if isinstance(plugin, VectorFilterPlugin):
        found["filter_all"] = _microseconds(lambda: filter_vector(plugin, cycle))
    if isinstance(plugin, PreScorePlugin):
        found["pre_score"] = _microseconds(lambda: plugin.pre_score(state, pod, nodes, every))
    if isinstance(plugin, ScorePlugin):
        found["score"] = _microseconds(lambda: score_rows(plugin, cycle, every))
    if isinstance(plugin, VectorScorePlugin):
        vector: VectorScorePlugin = plugin
        found["score_all"] = _microseconds(lambda: score_vector(vector, cycle, every))
    if isinstance(plugin, Scoring) and isinstance(
        plugin, NormalizeScorePlugin | VectorNormalizeScorePlugin
    ):
        raw, rows = score_nodes(plugin, cycle, every), np.arange(len(nodes))
        found["normalize"] = _microseconds(lambda: normalized(plugin, cycle, rows, raw))
    return found


def _microseconds(work: Callable[[], object]) -> float:
    took: list[float] = []
    while len(took) < ROUNDS and sum(took) < LONG:
        began = perf_counter()
        work()
        took.append(perf_counter() - began)
    return float(np.median(took)) * 1e6
