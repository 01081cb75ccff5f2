"""The nodes that are feasible for a pod: PreFilter and Filter, on all nodes or on a sample."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import cast

import numpy as np

from koord.cluster.columns import Mask, read_only
from koord.cluster.facts import ClusterPod
from koord.cluster.hypothetical import HypotheticalCluster
from koord.cluster.view import View
from koord_scheduler.config.profiles import Point
from koord_scheduler.framework.calls import ExtensionPointError, Loaded, PluginCalls
from koord_scheduler.framework.extension.transformers import NodeChoices, Transformers
from koord_scheduler.framework.handle import HypotheticalNode
from koord_scheduler.framework.interfaces import Filtering, PreFilterExtensions
from koord_scheduler.framework.nodes.adapters import Rows, filter_results
from koord_scheduler.framework.nodes.filtering import Filters, FilterStatuses, PreFiltering
from koord_scheduler.framework.nodes.resultcache import EquivalenceClass, ResultCache
from koord_scheduler.framework.nominator import NominatedPods, Nominator
from koord_scheduler.framework.profile import ProfilePlugins
from koord_scheduler.framework.status import (
    ABSENT,
    FEASIBLE,
    NO_NODES,
    NO_STATUS,
    SUCCESS,
    CycleInput,
    CycleState,
    Diagnosis,
    NodeStatuses,
    PreFilterOutcome,
    PreFilterResult,
    Status,
    Verdicts,
)

FEW_NOMINATED = 4  # nodes with nominated pods that are imagined one by one


class NominatedFilter:
    """Filter of one profile, with nominated pods counted. Raises ExtensionPointError."""

    def __init__(
        self,
        plugins: ProfilePlugins,
        filters: Filters,
        pre_filtering: PreFiltering,
        nominator: Nominator,
    ) -> None:
        self._calls: PluginCalls = plugins.calls
        self._filters = filters
        self._pre_filtering = pre_filtering
        self._nominator = nominator

    def filter(
        self,
        nominated_pods: HypotheticalCluster | None,
        filter_statuses: FilterStatuses,
        cycle: CycleInput,
        wanted: Mask,
        cached: EquivalenceClass | None,
    ) -> None:
        """Filter; a node must also pass with the pods that are nominated to it.

        Where the nominator says that this suffices, it need not pass without them. wanted is not
        changed.
        """
        if nominated_pods is not None:
            wanted = wanted.copy()
            rows = nominated_pods.rows
            rows = rows[wanted[rows]]
            if len(rows) > FEW_NOMINATED:
                self._reject_with_nominated(
                    nominated_pods, rows, filter_statuses, cycle, wanted, cached
                )
            else:
                for row in rows.tolist():
                    node = self._with_nominated(cycle, row, nominated_pods)
                    status = self._filters.row(node.cycle, row)
                    if not status.ok:
                        filter_statuses.reject(row, status)
                        wanted[row] = False
            if self._nominator.suffices:
                passed = rows[wanted[rows]]
                filter_statuses.numbers[passed] = FEASIBLE
                wanted[passed] = False
            if not wanted.any():
                return
        self._filters.filter(filter_statuses, cycle, wanted, cached)

    def _reject_with_nominated(
        self,
        nominated_pods: HypotheticalCluster,
        rows: Rows,
        filter_statuses: FilterStatuses,
        cycle: CycleInput,
        wanted: Mask,
        cached: EquivalenceClass | None,
    ) -> None:
        """Reject nodes that do not pass with the pods that are nominated to them.

        All those pods are imagined at once for the plugins that look at one node at a time. For
        the others each node is imagined alone.
        """
        with_nominated = CycleInput(cycle.state, cycle.pod, nominated_pods.view())
        mask = np.zeros(len(cycle.nodes), np.bool_)
        mask[rows] = True
        active = self._filters.active(cycle.state)
        wide = [one for one in active if self._looks_beyond(one, cycle, with_nominated)]
        found = FilterStatuses(len(cycle.nodes))
        if wide:
            alive, imagined = mask.copy(), dict[int, HypotheticalNode]()
            for loaded in active:
                if loaded not in wide:
                    plugin = cast(Filtering, loaded.plugin)
                    verdicts = self._calls.call(
                        loaded,
                        Point.FILTER,
                        cycle.state,
                        filter_results,
                        plugin,
                        with_nominated,
                        alive.copy(),
                    )
                    found.take(verdicts, loaded, alive)
                    continue
                for row in np.flatnonzero(alive).tolist():
                    node = imagined.get(row)
                    if node is None:
                        node = self._with_nominated(cycle, row, nominated_pods)
                        imagined[row] = node
                    status = self._filters.row_of(loaded, node.cycle, row)
                    if not status.ok:
                        found.reject(row, status)
                        alive[row] = False
        else:
            results = None if cached is None else cached.with_nominated
            self._filters.filter(found, with_nominated, mask, results)
        rejected = found.numbers > FEASIBLE
        rejected &= mask
        filter_statuses.begin(found.numbers, found.rejections, rejected)
        wanted &= ~rejected

    def _looks_beyond(self, loaded: Loaded, cycle: CycleInput, with_nominated: CycleInput) -> bool:
        """Whether a plugin's verdict about a node may depend on pods of other nodes.

        It counts pods in a state for all nodes, or what it depends on beside the node's row is
        not the same with further pods on other nodes, or not known.
        """
        if isinstance(loaded.plugin, PreFilterExtensions):
            return True
        ask, key_of = self._calls.ask, cast(Filtering, loaded.plugin).filter_reuse_key
        keys = (
            ask(loaded, Point.FILTER, key_of, one.state, one.pod, one.nodes)
            for one in (cycle, with_nominated)
        )
        key = next(keys)
        return key is None or key != next(keys)

    def _with_nominated(
        self,
        cycle: CycleInput,
        row: int,
        nominated_pods: HypotheticalCluster,
    ) -> HypotheticalNode:
        """A node on which the pods that are nominated to it run already; others are as they are."""
        found = HypotheticalNode(self._pre_filtering, cycle.state, cycle.pod, cycle.nodes, row)
        found.add(nominated_pods.added(row))
        return found


MIN_FEASIBLE_NODES_TO_FIND = (
    100  # nodes below which all are looked at, and feasible nodes that are enough
)
_ZONES = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone")


def nodes_to_find(nodes: int, percentage: int | None, *, scored: bool) -> int:
    """How many feasible nodes are enough.

    percentage is percentageOfNodesToScore; None: all nodes, 0: fewer percent, the more nodes there
    are. scored: whether any plugin scores nodes; if not, one is enough.

    Source: Kubernetes, pkg/scheduler/schedule_one.go numFeasibleNodesToFind.
    """
    if not scored:
        return min(nodes, 1)
    if nodes < MIN_FEASIBLE_NODES_TO_FIND or percentage is None or percentage >= 100:
        return nodes
    share = percentage or max(5, 50 - nodes // 125)
    return max(nodes * share // 100, MIN_FEASIBLE_NODES_TO_FIND)


def round_robin(nodes: View) -> Rows:
    """All rows in turns: one node of each zone, then the next one of each.

    Source: Kubernetes, pkg/scheduler/backend/cache/node_tree.go.
    """
    zones = np.zeros(len(nodes), np.intp)
    for key in _ZONES:
        column = nodes.traits.label(key)
        zones = zones * (len(column.index) + 1) + column.codes + 1
    by_zone = np.argsort(zones, kind="stable")
    begins = np.flatnonzero(np.diff(zones[by_zone], prepend=-1))
    sizes = np.diff(np.append(begins, len(nodes)))
    turn = np.empty(len(nodes), np.intp)
    turn[by_zone] = np.arange(len(nodes)) - np.repeat(begins, sizes)
    return np.lexsort((zones, turn))


MIN_BLOCK = 128  # nodes that are looked at together when not all are needed


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The feasible nodes, or why there is none."""

    status: Status  # Success: there are some; a rejection: none; Error: a plugin failed
    cycle: CycleInput  # as plugins have seen it in the end
    feasible: Mask
    diagnosis: Diagnosis
    statuses: NodeStatuses | None = None  # None: Filter was not reached, or a plugin failed
    cached: EquivalenceClass | None = (
        None  # results for equal pods, for Score; None: there are none
    )

    @classmethod
    def of(
        cls,
        cycle: CycleInput,
        statuses: NodeStatuses,
        diagnosis: Diagnosis,
        cached: EquivalenceClass | None = None,
    ) -> "SearchResult":
        """After Filter, by the statuses of the nodes."""
        feasible = statuses.feasible
        if feasible[feasible.argmax()]:  # the first one that is, at once
            return cls(SUCCESS, cycle, feasible, diagnosis, statuses, cached)
        diagnosis.node_statuses = statuses
        for number in np.unique(statuses.numbers).tolist():
            if number != ABSENT:
                diagnosis.note(statuses.statuses[number - 1])
        rejection = Status.unschedulable(diagnosis.message())
        return cls(rejection, cycle, feasible, diagnosis, statuses)

    def without(self, rejections: Mapping[str, Status]) -> "SearchResult":
        """The same with further nodes rejected, by name."""
        assert self.statuses is not None  # noqa: S101 - there are feasible nodes
        numbers, statuses = self.statuses.numbers.copy(), list(self.statuses.statuses)
        places: dict[Status, int] = {}
        for name, status in rejections.items():
            row = self.cycle.nodes.row(name)
            if status not in places:
                statuses.append(status)
                places[status] = len(statuses)
            numbers[row] = places[status]
        found = NodeStatuses(numbers, tuple(statuses), self.statuses.absent)
        return SearchResult.of(self.cycle, found, self.diagnosis, self.cached)


class NodeSearch:
    """Searches nodes by the plugins of one profile, or of a part of it.

    The part is of the pod as it comes. Once a transformer has changed the pod, all plugins count.
    """

    def __init__(
        self,
        plugins: ProfilePlugins,
        nominator: Nominator,
        *,
        choosing: bool = False,
        whole: "NodeSearch | None" = None,
    ) -> None:
        """choosing: what comes after it chooses among nodes, as extenders do.

        whole: that of the whole profile, where plugins are a part of it.
        """
        self._whole = whole
        self._part = None if whole is None else plugins
        # Left out at Filter, though PreFilter does not say so: a changed pod may need them.
        self._unasked = plugins.idle_at(Point.FILTER) - plugins.idle_at(Point.PRE_FILTER)
        self._calls: PluginCalls = plugins.calls
        self._nominator = nominator
        self._pre_filtering = PreFiltering(plugins)
        self._filters = Filters(plugins)
        self._nominated_filter = NominatedFilter(
            plugins, self._filters, self._pre_filtering, nominator
        )
        self._scored = choosing or bool(plugins.at(Point.SCORE, idle=True))
        self._percentage = plugins.settings.percentage_of_nodes_to_score
        self._cached: ResultCache = ResultCache() if whole is None else whole._cached
        self._nominated_pods = NominatedPods(nominator)
        self._transformers = Transformers(plugins)
        self._plans = NodeChoices(plugins)
        plugins.complete(self)

    def cached(self, pod: ClusterPod) -> EquivalenceClass:
        """Return the cached results for pods that are equal to this one, from the first one on.

        In a cycle they are cached from the second one on.
        """
        return self._cached.of(pod, self._part)

    def search(
        self,
        state: CycleState,
        pod: ClusterPod,
        nodes: View,
        *,
        everywhere: bool = False,
        sampled: bool = True,
    ) -> SearchResult:
        """Return the nodes that all plugins allow. Raises nothing that a plugin raises.

        everywhere: nominations and preferred nodes are no reason to look at one node only.
        sampled: as many feasible nodes as the profile asks for are enough.
        """
        cycle, diagnosis = CycleInput(state, pod, nodes), Diagnosis(nodes=len(nodes))
        nothing = _no_nodes(len(nodes))
        if not len(nodes):
            rejection = Status.unresolvable(NO_NODES)
            return SearchResult(rejection, cycle, nothing, diagnosis)
        with self._calls.limits:
            return self._search(cycle, diagnosis, nothing, everywhere, sampled)

    def _search(
        self,
        cycle: CycleInput,
        diagnosis: Diagnosis,
        nothing: Mask,
        everywhere: bool,
        sampled: bool,
    ) -> SearchResult:
        asked, search = cycle.pod, self
        try:
            cycle = self._transformers.before_pre_filter(cycle)
            if self._whole is not None and cycle.pod is not asked:
                search = self._whole
            pod, cached = cycle.pod, search._cached_for(cycle)
            cycle, before = search._before_filter(cycle, diagnosis, everywhere, cached)
            cycle = search._transformers.before_filter(cycle)
            if cycle.is_altered or cycle.pod is not pod:
                if search._whole is not None and cycle.pod is not pod:
                    cycle.state.skipped_filters -= search._unasked
                    search = search._whole
                cached = search._cached_for(cycle)
        except ExtensionPointError as err:
            if err.status.rejected:
                self._rejected_by_pre_filter(diagnosis, err.status)
            return SearchResult(err.status, cycle, nothing, diagnosis)
        try:
            statuses = search._filtered(cycle, before, everywhere, sampled, cached)
        except ExtensionPointError as err:
            return SearchResult(err.status, cycle, nothing, diagnosis)
        return SearchResult.of(cycle, statuses, diagnosis, cached)

    def pre_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> PreFilterOutcome:
        """Call PreFilter of all plugins; note in the state which of them skip Filter."""
        return self._pre_filtering.pre_filter(CycleInput(state, pod, nodes))

    def filter(self, state: CycleState, pod: ClusterPod, nodes: View, wanted: Mask) -> NodeStatuses:
        """Call Filter for some nodes, with nothing cached; the others are absent.

        Raises:
            ExtensionPointError: a plugin has failed.
        """
        filter_statuses = FilterStatuses(len(nodes))
        with self._calls.timed(Point.FILTER.label):
            self._filters.filter(filter_statuses, CycleInput(state, pod, nodes), wanted, None)
        return filter_statuses.statuses()

    def verdicts(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mapping[str, Verdicts]:
        """Return what each Filter plugin says of every node, also of those that another rejects.

        For explanations: a cycle does not ask so much.

        Raises:
            ExtensionPointError: a plugin has failed.
        """
        return self._filters.verdicts(CycleInput(state, pod, nodes))

    def filter_row(self, state: CycleState, pod: ClusterPod, nodes: View, row: int) -> Status:
        """Call Filter for one node: Success or a rejection.

        Raises:
            ExtensionPointError: a plugin has failed.
        """
        return self._filters.row(CycleInput(state, pod, nodes), row)

    def victim_groups(
        self, state: CycleState, pod: ClusterPod, nodes: View, row: int
    ) -> Sequence[Collection[str]]:
        """Keys of pods of a node that hold what lies together, as plugins say; bounded.

        Raises:
            ExtensionPointError: a plugin has failed.
        """
        return self._filters.victim_groups(CycleInput(state, pod, nodes), row)

    def count_pods(self, state: CycleState) -> bool:
        """Whether a plugin counts pods that are added and removed, in a cycle with this state."""
        return self._pre_filtering.count_pods(state)

    def add_pod(
        self, state: CycleState, pod: ClusterPod, added: ClusterPod, nodes: View, row: int
    ) -> None:
        """Make plugins count a pod that the view has on a node, in a what-if's clone of the state.

        Raises:
            ExtensionPointError: a plugin has failed.
        """
        self._pre_filtering.add_pod(state, pod, added, nodes, row)

    def remove_pod(
        self, state: CycleState, pod: ClusterPod, removed: ClusterPod, nodes: View, row: int
    ) -> None:
        """Make plugins stop counting a pod that has left a node of the view; see add_pod.

        Raises:
            ExtensionPointError: a plugin has failed.
        """
        self._pre_filtering.remove_pod(state, pod, removed, nodes, row)

    def _rejected_by_pre_filter(self, diagnosis: Diagnosis, status: Status) -> None:
        numbers = np.full(diagnosis.nodes, ABSENT, np.int32)
        diagnosis.node_statuses = NodeStatuses(numbers, (), status)
        diagnosis.pre_filter_message = status.message
        diagnosis.note(status)

    def _cached_for(self, cycle: CycleInput) -> EquivalenceClass | None:
        return None if cycle.is_altered else self._cached.again(cycle.pod, self._part)

    def _before_filter(
        self,
        cycle: CycleInput,
        diagnosis: Diagnosis,
        everywhere: bool,
        cached: EquivalenceClass | None,
    ) -> tuple[CycleInput, PreFilterOutcome]:
        """PreFilter with what Koordinator has around it.

        Raises:
            ExtensionPointError: a plugin has failed, or rejects the pod.
        """
        answers = None if cached is None else cached.pre_filtered
        before = self._pre_filtering.pre_filter(cycle, answers)
        diagnosis.unschedulable_plugins.update(before.plugins)
        if not before.status.ok:
            raise ExtensionPointError(before.status)
        names = before.node_names
        result = None if names is None else PreFilterResult(names)
        cycle = self._transformers.after_pre_filter(cycle, result)
        only = self._planned(cycle, result, everywhere)
        return cycle, before if only is None else replace(before, node_names=only)

    def _planned(
        self,
        cycle: CycleInput,
        result: PreFilterResult | None,
        everywhere: bool,
    ) -> frozenset[str] | None:
        """The node of a plan, or the first feasible one of those that are preferred."""
        found = self._plans.node(cycle, result)
        if found is None and everywhere:
            return None
        if found is None:
            for name in self._plans.preferred(cycle, result):
                row = cycle.nodes.row(name)
                if row is not None and (result is None or name in result.node_names):
                    status = self._filters.row(cycle, row)
                    if status.ok:
                        return frozenset((name,))
            return None
        return frozenset((found,))

    def _filtered(
        self,
        cycle: CycleInput,
        before: PreFilterOutcome,
        everywhere: bool,
        sampled: bool,
        cached: EquivalenceClass | None,
    ) -> NodeStatuses:
        """Filter on the node that the pod is nominated to, or else on all that PreFilter names."""
        pod, nodes = cycle.pod, cycle.nodes
        wanted, absent = _all_nodes(len(nodes)), NO_STATUS
        if before.node_names is not None:
            wanted = np.zeros(len(nodes), np.bool_)
            wanted[[row for name in before.node_names if (row := nodes.row(name)) is not None]] = (
                True
            )
            absent = Status.unresolvable(
                f"node(s) didn't satisfy plugin(s) [{' '.join(sorted(before.plugins))}]"
            )
        nominated = None if everywhere else self._nominator.node_of(pod.key)
        row = None if nominated is None else nodes.row(nominated)
        with self._calls.timed(Point.FILTER.label):
            if row is not None and wanted[row]:
                filter_statuses, only = FilterStatuses(len(nodes)), np.zeros(len(nodes), np.bool_)
                only[row] = True
                nominated_pods = self._nominated_pods.on_node(pod, nodes.node(row).name, nodes)
                self._nominated_filter.filter(nominated_pods, filter_statuses, cycle, only, cached)
                if filter_statuses.numbers[row] == FEASIBLE:
                    return filter_statuses.statuses(absent)
            filter_statuses = self._search_all(
                self._nominated_pods.of(pod, nodes), cycle, wanted, sampled, cached
            )
            return filter_statuses.statuses(absent)

    def _search_all(
        self,
        nominated_pods: HypotheticalCluster | None,
        cycle: CycleInput,
        wanted: Mask,
        sampled: bool,
        cached: EquivalenceClass | None,
    ) -> FilterStatuses:
        """Filter all of the wanted nodes, or in their order as many as it takes."""
        filter_statuses, count = FilterStatuses(len(cycle.nodes)), int(np.count_nonzero(wanted))
        need = nodes_to_find(count, self._percentage, scored=self._scored) if sampled else count
        if need >= count:
            self._nominated_filter.filter(nominated_pods, filter_statuses, cycle, wanted, cached)
            return filter_statuses
        order = round_robin(cycle.nodes)
        order = order[wanted[order]]
        order = np.roll(order, -(self._cached.start % len(order)))
        size, begin, found = max(need, MIN_BLOCK), 0, 0
        while begin < len(order) and found < need:
            block = np.zeros(len(cycle.nodes), np.bool_)
            block[order[begin : begin + size]] = True
            self._nominated_filter.filter(nominated_pods, filter_statuses, cycle, block, cached)
            begin += size
            found = int(np.count_nonzero(filter_statuses.numbers == FEASIBLE))
        looked_at = filter_statuses.leave_out_beyond(order, need)
        self._cached.start = (self._cached.start + looked_at) % len(cycle.nodes)
        return filter_statuses


@lru_cache(maxsize=4)  # of each cycle the same, but for views that differ in their nodes
def _no_nodes(count: int) -> Mask:
    """A mask of no node, which is never written."""
    return read_only(np.zeros(count, np.bool_))


@lru_cache(maxsize=4)
def _all_nodes(count: int) -> Mask:
    """A mask of all nodes, which is never written."""
    return read_only(np.ones(count, np.bool_))
