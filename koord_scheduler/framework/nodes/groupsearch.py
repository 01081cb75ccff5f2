"""Nodes for pods that must be placed together: all are planned before the first one is reserved.

A plan is made on a what-if, so each pod sees those before it: what they take of nodes, quotas and
devices, and what they mean for affinity and spread.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

import numpy as np

from koord.cluster.facts import ClusterPod
from koord.cluster.hypothetical import HypotheticalCluster
from koord.cluster.view import View
from koord.util.timebudget import is_time_over
from koord_scheduler.config.profiles import Point
from koord_scheduler.framework.calls import ExtensionPointError
from koord_scheduler.framework.groupplan import (
    FeasibleNodes,
    GroupPlan,
    NodeOrder,
    NoGroupPlan,
    PlannedReserve,
    PodGroupPlugin,
)
from koord_scheduler.framework.nodes.adapters import Rows
from koord_scheduler.framework.nodes.filtering import NodeScoring
from koord_scheduler.framework.nodes.search import NodeSearch, SearchResult
from koord_scheduler.framework.profile import ProfilePlugins
from koord_scheduler.framework.status import CycleState, NodeStatuses, Scores, Status

MAX_DEAD_ENDS = 2_000  # after which a search is given up: an exhaustive one may take forever
NOT_CHOSEN = Status.unschedulable("node(s) were not chosen for the group")


@dataclass(slots=True)
class _Shape:
    """Pods of the group that any rule treats alike."""

    pods: list[ClusterPod]
    independent: bool  # other pods matter to it only by what they take


class GroupSearch:
    """Plans groups by the plugins of one profile; see GroupPlanner."""

    def __init__(self, plugins: ProfilePlugins, search: NodeSearch, scoring: NodeScoring) -> None:
        self._search = search
        self._scoring = scoring
        self._reserve = PlannedReserve(plugins)
        self._calls = plugins.calls
        self._grouping = [
            (plugins.loaded(name), plugin)
            for name, plugin in plugins.plugins.items()
            if isinstance(plugin, PodGroupPlugin)
        ]
        plugins.complete_groups(self)

    def plan(
        self,
        pods: Sequence[ClusterPod],
        nodes: View,
        order: NodeOrder | None = None,
        *,
        dead_ends: int | None = None,
    ) -> GroupPlan | NoGroupPlan:
        """See GroupPlanner."""
        most = MAX_DEAD_ENDS if dead_ends is None else dead_ends
        parts = self._search, self._scoring, self._reserve
        return _Planning(*parts, pods, nodes, order, most).run()

    def members(self, pod: ClusterPod) -> Sequence[ClusterPod] | Status:
        """See GroupPlanner."""
        for loaded, plugin in self._grouping:
            found = self._calls.ask(loaded, Point.POST_FILTER, plugin.group_members, pod)
            if isinstance(found, Status) or len(found) > 1:
                return found
        return (pod,)

    def plan_members(self, pod: ClusterPod, nodes: View) -> GroupPlan | NoGroupPlan | Status:
        """See GroupPlanner."""
        for loaded, plugin in self._grouping:
            found = self._calls.ask(loaded, Point.POST_FILTER, plugin.group_members, pod)
            if isinstance(found, Status) or len(found) > 1:
                return self._calls.ask(loaded, Point.POST_FILTER, plugin.plan_group, pod, nodes)
        return self.plan((pod,), nodes)


@dataclass(slots=True)
class _Level:
    """A pod that is to be placed next, with the possibilities that are left."""

    choices: Iterator[tuple[int, str]]  # shape and node
    tried: bool = False  # there was one
    placed: tuple[ClusterPod, str, int] | None = None  # by this level: pod, node, shape


@dataclass
class _Planning:
    search: NodeSearch
    scoring: NodeScoring
    reserve: PlannedReserve
    pods: Sequence[ClusterPod]
    nodes: View
    order: NodeOrder | None
    most_dead_ends: int
    _shapes: list[_Shape] = field(init=False)
    _cluster: HypotheticalCluster = field(init=False)
    _counts: dict[tuple[int, str], int] = field(default_factory=dict)  # by shape and node
    _dead: set[frozenset[tuple[tuple[int, str], int]]] = field(default_factory=set)
    _failure: NoGroupPlan | None = None
    _dead_ends: int = 0

    def __post_init__(self) -> None:
        self._shapes = _shapes_of(self.pods)
        self._cluster = HypotheticalCluster(self.nodes)

    def run(self) -> GroupPlan | NoGroupPlan:
        levels = [_Level(self._choices())]
        while True:
            level = levels[-1]
            if level.placed is not None:
                self._take_back(level)
            choice = next(level.choices, None)
            if choice is None:
                levels.pop()
                self._dead.add(frozenset(self._counts.items()))
                self._dead_ends += not level.tried
                if not levels or self._dead_ends >= self.most_dead_ends or is_time_over():
                    return self._no_plan(cut=bool(levels))
                continue
            level.tried = True
            self._place(level, *choice)
            if len(levels) == len(self.pods):
                placed = [one.placed for one in levels if one.placed is not None]
                return GroupPlan({pod.key: node for pod, node, _ in placed})
            if frozenset(self._counts.items()) not in self._dead:
                levels.append(_Level(self._choices()))

    def _choices(self) -> Iterator[tuple[int, str]]:
        """Shapes and nodes to try next, the best node first."""
        for number, shape in enumerate(self._shapes):
            if not shape.pods:
                continue
            names = self._nodes_for(shape.pods[0])
            if shape.independent and self.order is None and self._is_last_shape(number):
                # Wherever it goes, there is room for as many of the others: one try is enough.
                names = islice(names, 1)
            for name in names:
                yield number, name

    def _nodes_for(self, pod: ClusterPod) -> Iterator[str]:
        """Nodes to try for a pod now, of those that are feasible; notes why there is none."""
        view, state = self._cluster.view(), CycleState()
        found = self.search.search(state, pod, view, everywhere=True, sampled=False)
        if not found.status.ok:
            if not found.status.rejected:
                raise ExtensionPointError(found.status)
            self._note(pod, found)
            return
        best_first = partial(self._best_first, state, found, view)
        if self.order is None:
            yield from best_first()
            return
        count = 0
        for name in self.order(pod, FeasibleNodes(view, found.feasible, best_first)):
            count += 1
            yield name
        if not count:
            self._note(pod, _without_any(found))

    def _best_first(self, state: CycleState, found: SearchResult, view: View) -> Iterator[str]:
        """The feasible nodes, the best one first."""
        feasible = found.feasible
        rows, totals = np.flatnonzero(feasible), None
        if len(rows) > 1:
            table = self.scoring.scores(found.cycle, feasible, found.cached)
            rows, totals = table.rows, table.totals.copy()
        return _by_score(view, rows, totals)

    def _place(self, level: _Level, number: int, node: str) -> None:
        pod = self._shapes[number].pods.pop(0)
        self._cluster.add(self.reserve.placed(pod, self._cluster.view(), node), node)
        key = number, node
        self._counts[key] = self._counts.get(key, 0) + 1
        level.placed = pod, node, number

    def _take_back(self, level: _Level) -> None:
        assert level.placed is not None  # noqa: S101 - the caller has looked
        pod, node, number = level.placed
        level.placed = None
        self._cluster.remove(pod.key, node)
        self._shapes[number].pods.insert(0, pod)
        key = number, node
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]

    def _is_last_shape(self, number: int) -> bool:
        return all(not shape.pods for at, shape in enumerate(self._shapes) if at != number)

    def _note(self, pod: ClusterPod, found: SearchResult) -> None:
        placed = sum(self._counts.values())
        if self._failure is None or placed > self._failure.placed:
            self._failure = NoGroupPlan(pod, placed, found.status, found.diagnosis, found.statuses)

    def _no_plan(self, *, cut: bool) -> NoGroupPlan:
        assert self._failure is not None  # noqa: S101 - some pod had no node
        return replace(self._failure, cut=cut)


def _by_score(view: View, rows: Rows, totals: Scores | None) -> Iterator[str]:
    """Names of nodes by their scores. Mostly the first one is enough: the others are not sorted."""
    if totals is None:
        yield from (view.node(row).name for row in rows.tolist())
        return
    best = int(totals.argmax())
    yield view.node(int(rows[best])).name
    for at in np.argsort(-totals, kind="stable").tolist():
        if at != best:
            yield view.node(int(rows[at])).name


def _without_any(found: SearchResult) -> SearchResult:
    """The same with those nodes rejected, too, that are feasible."""
    assert found.statuses is not None  # noqa: S101 - there are feasible nodes
    statuses = found.statuses
    numbers = statuses.numbers.copy()
    numbers[found.feasible] = len(statuses.statuses) + 1
    rejected = NodeStatuses(numbers, (*statuses.statuses, NOT_CHOSEN), statuses.absent)
    return SearchResult.of(found.cycle, rejected, found.diagnosis)


def _shapes_of(pods: Sequence[ClusterPod]) -> list[_Shape]:
    """Equal pods together, in the order of the first of each."""
    shapes: dict[object, _Shape] = {}
    for pod in pods:
        key = (
            id(pod.spec),
            id(pod.label_set),
            pod.priority,
            pod.claims,
            pod.annotations,
            tuple(one.uid for one in pod.owners),
        )
        if key not in shapes:
            spec = pod.spec
            independent = not (spec.has_affinity_terms or spec.spread or spec.soft_spread)
            shapes[key] = _Shape([], independent and not (spec.host_ports or pod.claims))
        shapes[key].pods.append(pod)
    return list(shapes.values())
