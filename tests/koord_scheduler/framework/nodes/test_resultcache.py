"""Results that are kept for equal pods are those that would be computed."""

from collections.abc import Hashable, Iterator
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.cluster import columns
from koord.cluster.columns import BlockMaxima, Mask
from koord.cluster.facts import ClusterPod
from koord.cluster.state import Snapshot
from koord.cluster.view import View
from koord_scheduler.framework.calls import ExtensionPointError
from koord_scheduler.framework.interfaces import (
    FilterPlugin,
    Plugin,
    ScorePlugin,
    VectorFilterPlugin,
    VectorNormalizeScorePlugin,
    VectorScorePlugin,
)
from koord_scheduler.framework.nodes import resultcache
from koord_scheduler.framework.nodes.adapters import filter_nodes, score_nodes
from koord_scheduler.framework.nodes.filtering import NodeScoring
from koord_scheduler.framework.nodes.resultcache import ResultCache
from koord_scheduler.framework.nodes.search import NodeSearch
from koord_scheduler.framework.status import (
    FEASIBLE,
    Code,
    CycleInput,
    CycleState,
    NodeStatuses,
    Scores,
    Status,
    Verdicts,
    default_normalize,
)
from koord_scheduler.framework.types import ChangedRows, NodeInfo
from tests.support.clusters import node, pod, read_node, read_pod
from tests.support.scheduler.framework import FreeCpu, Kit, free_cpu, make_pod, named

STATE = CycleState()


@pytest.fixture(scope="module", autouse=True)
def small_blocks() -> Iterator[None]:
    """Scores of a few nodes are in several blocks, of which the last one is not full."""
    with patch.object(columns, "_BLOCK", 4), patch.object(resultcache, "_MANY_SCORES", 10):
        yield


class Both(FreeCpu):
    """Free cpu, which depends on nothing but the row; counts what it computes."""

    def __init__(self, key: Hashable = ()) -> None:
        self.key = key
        self.nodes = self.columns = 0
        self.fails = False

    def filter_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        return self.key

    def score_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        return self.key

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        self.nodes += 1
        if self.fails:
            raise RuntimeError("broken")
        return super().filter(state, pod, node)

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mask | Verdicts:
        self.columns += 1
        return super().filter_all(state, pod, nodes)


class Plain(FilterPlugin, ScorePlugin):
    """Only the plain forms of the same; its reason has the figure, so that there are many."""

    filter_reuse_key = Both.filter_reuse_key
    score_reuse_key = Both.score_reuse_key
    key: Hashable = ()

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        if node.free("cpu") >= 2000:
            return None
        return Status.unschedulable(f"only {node.free('cpu')}")

    score = FreeCpu.score


class Vector(VectorFilterPlugin, VectorScorePlugin):
    """Only the vector forms of the same."""

    filter_reuse_key = Both.filter_reuse_key
    score_reuse_key = Both.score_reuse_key
    filter_all = FreeCpu.filter_all
    score_all = FreeCpu.score_all
    key: Hashable = ()


class Noted(Both):
    """Free cpu, and a figure of each node that is the plugin's own; it notes what has changed."""

    def __init__(self) -> None:
        super().__init__()
        self.filter_changes, self.score_changes = ChangedRows(), ChangedRows()
        self.figures: dict[str, int] = {}

    def learn(self, view: View, row: int, figure: int) -> None:
        """Take another figure of a node: with 4 or more it is rejected."""
        name = view.node(row).name
        before = self.figures.get(name, 0)
        self.figures[name] = figure
        if (before < 4) != (figure < 4):
            self.filter_changes.note(row)
        if before != figure:
            self.score_changes.note(row)

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        self.nodes += 1
        return Status.unschedulable("figure") if self.figures.get(node.name, 0) >= 4 else None

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mask | Verdicts:
        self.columns += 1
        return Verdicts.of(self._column(nodes) < 4, Status.unschedulable("figure"))

    def score(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
        return min(super().score(state, pod, node), 90) + self.figures.get(node.name, 0)

    def score_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Scores:
        scores: Scores = np.minimum(super().score_all(state, pod, nodes), 90) + self._column(nodes)
        return scores

    def _column(self, nodes: View) -> Scores:
        names = (nodes.node(row).name for row in range(len(nodes)))
        return np.array([self.figures.get(name, 0) for name in names], np.int64)


class NotedPlain(FilterPlugin, ScorePlugin):
    """The same without the vector forms."""

    filter_reuse_key = Both.filter_reuse_key
    score_reuse_key = Both.score_reuse_key
    key: Hashable = ()

    def __init__(self, other: Noted) -> None:
        self._other = other
        self.filter_changes, self.score_changes = other.filter_changes, other.score_changes

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        return self._other.filter(state, pod, node)

    def score(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
        return self._other.score(state, pod, node)


class NotedVector(VectorFilterPlugin, VectorScorePlugin):
    """The same without the plain forms."""

    filter_reuse_key = Both.filter_reuse_key
    score_reuse_key = Both.score_reuse_key
    key: Hashable = ()

    def __init__(self, other: Noted) -> None:
        self._other = other
        self.filter_changes, self.score_changes = other.filter_changes, other.score_changes

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mask | Verdicts:
        return self._other.filter_all(state, pod, nodes)

    def score_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Scores:
        return self._other.score_all(state, pod, nodes)


def snapshot(count: int = 30) -> Snapshot:
    made = Snapshot()
    for at in range(count):
        made.put_node(read_node(node(f"n{at}")))
    return made


def load(made: Snapshot, at: int, cpu: int, name: str = "load") -> None:
    made.put_pod(read_pod(pod(f"{name}-{at}", f"n{at}", requests={"cpu": str(cpu)})))


def test_only_rows_that_changed_are_looked_at_again() -> None:
    """By the plain form while they are few."""
    made, plugin, cached = snapshot(), named(Both(), "B"), ResultCache()
    web = make_pod(requests={"cpu": "2"})
    rows = np.ones(30, np.bool_)
    cached.of(web).filter(plugin, CycleInput(STATE, web, made.view()), rows)
    assert (plugin.columns, plugin.nodes) == (1, 0)
    load(made, 7, 3)
    found = cached.of(web).filter(plugin, CycleInput(STATE, web, made.view()), rows)
    assert (plugin.columns, plugin.nodes) == (1, 1)
    assert np.flatnonzero(found.numbers).tolist() == [7]
    for at in range(20):
        load(made, at, 1, "more")
    cached.of(web).filter(plugin, CycleInput(STATE, web, made.view()), rows)
    assert (plugin.columns, plugin.nodes) == (2, 1)


async def test_only_the_plugin_that_has_noted_a_row_is_asked_about_it() -> None:
    """By its plain form; about all nodes at once where it has noted many."""
    made, other, noted = snapshot(), Both(), Noted()
    chosen = {"other": other, "noted": noted}
    profile = await Kit().profile(filter=chosen, score=chosen)
    search, scoring = NodeSearch(profile, profile.services.nominator), NodeScoring(profile)
    web = make_pod(requests={"cpu": "2"})
    search.cached(web)

    def totals() -> list[int]:
        found = search.search(CycleState(), web, made.view())
        return scoring.scores(found.cycle, found.feasible, found.cached).totals.tolist()

    assert totals() == [190] * 30
    noted.learn(made.view(), 7, 3)
    noted.learn(made.view(), 9, 4)
    assert totals() == [190] * 7 + [193] + [190] * 21  # 9 is rejected
    assert [(one.columns, one.nodes) for one in (other, noted)] == [(1, 0), (1, 1)]
    for row in range(30):
        noted.learn(made.view(), row, 4 if row < 20 else 3)
    assert totals() == [193] * 10
    assert [(one.columns, one.nodes) for one in (other, noted)] == [(1, 0), (2, 1)]


async def test_what_was_noted_about_a_rejected_node_counts_once_it_is_feasible() -> None:
    """Its score was not asked for meanwhile. Rows beyond the last node are no rows."""
    view, gate, noted = snapshot().view(), Noted(), Noted()
    profile = await Kit().profile(filter={"gate": gate, "noted": noted}, score={"noted": noted})
    search, scoring = NodeSearch(profile, profile.services.nominator), NodeScoring(profile)
    web = make_pod(requests={"cpu": "2"})
    search.cached(web)

    def totals() -> list[int]:
        found = search.search(CycleState(), web, view)
        return scoring.scores(found.cycle, found.feasible, found.cached).totals.tolist()

    assert totals() == [90] * 30
    gate.learn(view, 7, 4)
    assert totals() == [90] * 29
    noted.learn(view, 7, 3)
    noted.filter_changes.note(99)
    noted.score_changes.note(99)
    assert totals() == [90] * 29
    gate.learn(view, 7, 0)
    assert totals() == [90] * 7 + [93] + [90] * 22


@pytest.mark.parametrize("key", [None, "other"])
def test_another_key_or_none_computes_everything(key: Any) -> None:
    """What a plugin says beside its rows has changed."""
    made, plugin, cached = snapshot(), named(Both(), "B"), ResultCache()
    web, rows = make_pod(), np.ones(30, np.bool_)
    cached.of(web).filter(plugin, CycleInput(STATE, web, made.view()), rows)
    plugin.key = key
    cached.of(web).filter(plugin, CycleInput(STATE, web, made.view()), rows)
    assert plugin.columns == 2


def test_pods_that_differ_share_nothing() -> None:
    """Name and uid aside; the oldest kind is forgotten."""
    cached = ResultCache(max_classes=2)
    # equal pods share labels and spec because one decoder has read them
    web, again, other = make_pod("web"), make_pod("again"), make_pod(requests={"cpu": "1"})
    assert cached.of(web) is cached.of(again)
    first = cached.of(web)
    assert cached.of(other) is not first
    assert cached.of(make_pod(priority=5)) is not first
    assert cached.of(web) is not first


def test_in_cycles_results_are_kept_from_the_second_pod_on() -> None:
    """Pods that all differ cost no keeping, and take no place from those that do not."""
    cached = ResultCache(max_classes=2)
    web = make_pod("web")
    assert cached.again(web) is None
    second = cached.again(make_pod("again"))
    assert second is cached.again(web) is cached.of(web)
    others = [make_pod(requests={"cpu": str(cpu)}) for cpu in range(1, 9)]
    assert [cached.again(each) for each in others] == [None] * 8
    assert cached.again(web) is second
    assert cached.again(others[0]) is None  # too long ago
    assert cached.again(others[7]) is not None


Change = tuple[str, int, int]


@given(
    changes=st.lists(
        st.tuples(
            st.sampled_from(["load", "gone", "node", "fewer", "note", "notes"]),
            st.integers(0, 9),
            st.integers(0, 4),
        ),
        max_size=12,
    ),
    asked=st.lists(st.lists(st.booleans(), min_size=10, max_size=10), min_size=1, max_size=4),
)
def test_kept_results_are_as_if_computed_anew(
    changes: list[Change], asked: list[list[bool]]
) -> None:
    """Whatever changes between two cycles, for all forms of plugins."""
    made, cached = snapshot(10), ResultCache()
    web = make_pod(requests={"cpu": "2"})
    noted: Noted = named(Noted(), "N")
    plugins: list[Plugin] = [
        named(Both(), "B"), named(Plain(), "P"), named(Vector(), "V"),
        noted, named(NotedPlain(noted), "NP"), named(NotedVector(noted), "NV"),
    ]  # fmt: skip
    for step in range(len(changes) + 1):
        view = made.view()
        rows = np.array(asked[step % len(asked)][: len(view)] + [True] * (len(view) - 10))
        for plugin in plugins:
            _same(plugin, web, view, rows, cached)
        if step < len(changes):
            _apply(made, changes[step], noted)


class Strict(Both):
    """Needs more free cpu; rejects for another reason."""

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        return None if node.free("cpu") >= 3000 else Status.unresolvable("strict")

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mask | Verdicts:
        return Verdicts.of(free_cpu(nodes) >= 3000, Status.unresolvable("strict"))


class Normalizes(Both, VectorNormalizeScorePlugin):
    """The best node has 100."""

    def normalize_scores(self, state: CycleState, pod: ClusterPod, scores: Scores) -> Scores:
        return default_normalize(scores)


class Scales(Normalizes):
    """The same; of its scores only those that have changed are scaled again."""

    scales_to_highest = True
    raw: int | None = None  # the score of each node; None: what is free there

    def score(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
        return super().score(state, pod, node) if self.raw is None else self.raw


class NotedScales(Noted, Normalizes):
    """Scales scores with figures that another plugin learns of."""

    scales_to_highest = True

    def __init__(self, other: Noted) -> None:
        super().__init__()
        self.figures = other.figures
        self.filter_changes, self.score_changes = other.filter_changes, other.score_changes


@given(
    changes=st.lists(
        st.tuples(
            st.sampled_from(["load", "gone", "node", "fewer", "key", "many", "note", "notes"]),
            st.integers(0, 29),
            st.integers(0, 4),
        ),
        max_size=10,
    ),
    order=st.one_of(
        st.permutations(
            ["both", "strict", "plain", "vector", "without", "normalizes", "scales", "noted"]
        ),
        st.permutations(["both", "strict", "noted"]),  # all are taken together
        st.permutations(["both", "scales"]),  # feasible nodes stay the same
        st.permutations(["noted", "noted-scales"]),
    ),
    turns=st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=5),
)
async def test_a_cycle_with_kept_results_is_one_without(
    changes: list[Change], order: list[str], turns: list[int]
) -> None:
    """Feasible nodes, the first rejection of each other node, the scores, and the node chosen.

    Of pods of two kinds, whose results are of different moments; turns: which of them come.
    """
    earlier: list[tuple[NodeStatuses, list[int]]] = []
    plugins: dict[str, Plugin] = {
        "both": Both(), "strict": Strict(), "plain": Plain(), "vector": Vector(),
        "without": Both(None), "normalizes": Normalizes(), "scales": Scales(),
    }  # fmt: skip
    noted = plugins["noted"] = Noted()
    plugins["noted-scales"] = NotedScales(noted)
    chosen = {name: plugins[name] for name in order}
    made = snapshot(30)
    profile = await Kit().profile(filter=chosen, score=chosen, weights={"both": 3, "strict": 2})
    search, scoring = NodeSearch(profile, profile.services.nominator), NodeScoring(profile)
    kinds = make_pod(requests={"cpu": "2"}), make_pod(requests={"cpu": "1"})
    steps = enumerate([*changes, ("load", 5, 3)])
    for change, web in (
        (change, kinds[at])
        for step, change in steps
        for at in (0, 1)
        if turns[step % len(turns)] >> at & 1
    ):
        view = made.view()
        found = search.search(CycleState(), web, view)
        anew = search.filter(CycleState(), web, view, np.ones(len(view), np.bool_))
        for row in range(len(view)):
            status = anew.status(row)
            assert bool(found.feasible[row]) == (status is None)
            statuses = found.statuses or found.diagnosis.node_statuses
            if statuses is not None:
                assert statuses.status(row) == status
        if found.feasible.any():
            assert found.statuses is not None
            assert np.array_equal(found.feasible, found.statuses.numbers == FEASIBLE)
            earlier.append((found.statuses, found.statuses.numbers.tolist()))
            cached = scoring.scores(found.cycle, found.feasible, search.cached(web))
            fresh = scoring.scores(found.cycle, found.feasible)
            for seed in range(5):
                assert cached.choose(Random(seed)) == fresh.choose(Random(seed))
            assert cached.totals.tolist() == fresh.totals.tolist()
            for name, column in fresh.columns.items():
                assert cached.columns[name].tolist() == column.tolist()
        if change[0] == "key":
            plugins["strict"].key = change[1]  # type: ignore[attr-defined]
        elif change[0] == "many":
            for at in range(20):
                load(made, at, change[2], "many")
        else:
            _apply(made, change, noted)
    for statuses, numbers in earlier:  # of a cycle that may still be looked at
        assert statuses.numbers.tolist() == numbers


@given(
    values=st.lists(st.integers(0, 3), min_size=1, max_size=50),
    changes=st.lists(st.tuples(st.integers(0, 49), st.integers(0, 4)), max_size=20),
    seed=st.integers(0, 99),
)
def test_the_highest_value_is_drawn_as_from_all(
    values: list[int], changes: list[tuple[int, int]], seed: int
) -> None:
    """With the same seed the same place, whatever has changed, one after the other."""
    found = np.array(values, np.int64)
    maxima = BlockMaxima(found)
    for at, value in [(0, values[0]), *changes]:
        found[at % len(found)] = value
        maxima.renew(at % len(found))
        best = np.flatnonzero(found == found.max())
        assert maxima.draw(Random(seed)) == best[Random(seed).randrange(len(best))]


async def test_kept_results_of_a_cycle_that_failed_are_computed_anew() -> None:
    """A plugin that raises for a row leaves nothing half done."""
    made, plugin = snapshot(), Both()
    profile = await Kit().profile(filter={"A": Both(), "B": plugin}, score={"A": Both()})
    search = NodeSearch(profile, profile.services.nominator)
    web = make_pod(requests={"cpu": "2"})
    search.cached(web)
    assert search.search(CycleState(), web, made.view()).status.ok
    load(made, 7, 3)
    plugin.fails = True
    assert search.search(CycleState(), web, made.view()).status.code is Code.ERROR
    plugin.fails = False
    found = search.search(CycleState(), web, made.view())
    assert np.flatnonzero(~found.feasible).tolist() == [7]


async def test_scores_are_scaled_again_when_the_highest_is_another_one() -> None:
    """One that is below 0 fails, and nothing is kept then."""
    made, plugin = snapshot(), Scales()
    profile = await Kit().profile(filter={"B": Both()}, score={"A": plugin})
    search, scoring = NodeSearch(profile, profile.services.nominator), NodeScoring(profile)
    web = make_pod(requests={"cpu": "2"})

    def totals() -> list[int]:
        found = search.search(CycleState(), web, made.view())
        return scoring.scores(found.cycle, found.feasible, search.cached(web)).totals.tolist()

    assert set(totals()) == set(totals()) == {100}  # kept from the second one on
    for row, raw, wanted in ((7, 200, 50), (8, 400, 25), (8, 100, 50), (7, 100, 100), (7, 0, 100)):
        plugin.raw = raw
        load(made, row, 0, name=f"{row}-{raw}")
        found = totals()
        assert found[0] == wanted, (row, raw)
        assert found[row] == raw * wanted // 100
    plugin.raw = -1
    load(made, 9, 1)
    with pytest.raises(ExtensionPointError, match="invalid score -1"):
        totals()
    assert set(totals()[10:]) == {100}


def _same(plugin: Any, web: ClusterPod, view: View, rows: Mask, cached: ResultCache) -> None:
    found, wanted = (
        look(plugin, CycleInput(STATE, web, view), rows)
        for look in (cached.of(web).filter, filter_nodes)
    )
    assert [_status(found, row) for row in np.flatnonzero(rows)] == [
        _status(wanted, row) for row in np.flatnonzero(rows)
    ]
    scores: list[Scores] = [
        look(plugin, CycleInput(STATE, web, view), rows)
        for look in (cached.of(web).score, score_nodes)
    ]
    assert scores[0][rows].tolist() == scores[1][rows].tolist()


def _status(verdicts: Verdicts, row: int) -> Status | None:
    number = int(verdicts.numbers[row])
    return verdicts.rejections[number - 1] if number else None


def _apply(made: Snapshot, change: Change, noted: Noted) -> None:
    what, at, cpu = change
    view = made.view()
    if what in ("note", "notes"):
        for row in range(at, len(view) if what == "notes" else min(at + 1, len(view))):
            noted.learn(view, row, cpu + row % 2)
        return
    if what == "load":
        load(made, at, cpu)
    elif what == "gone":
        made.remove_pod(f"default/load-{at}", f"uid-default-load-{at}")
    elif what == "node":
        made.put_node(read_node(node(f"n{at}", None, {"cpu": str(cpu), "pods": "10"})))
    else:
        made.remove_node(f"n{at}")
