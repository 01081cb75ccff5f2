"""The nodes that are feasible for a pod: PreFilter and Filter, on all nodes or on a sample."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from koord.cluster.columns import Mask, read_only
from koord.cluster.facts import ClusterPod
from koord.cluster.hypothetical import HypotheticalCluster
from koord.cluster.view import View
from koord_scheduler.config.profiles import Point
from koord_scheduler.framework.calls import ExtensionPointError, PluginCalls
from koord_scheduler.framework.cyclestate import CycleState
from koord_scheduler.framework.diagnosis import (
    ABSENT,
    FEASIBLE,
    NO_NODES,
    NO_STATUS,
    Diagnosis,
    NodeStatuses,
)
from koord_scheduler.framework.extension.transformers import CycleInput, NodeChoices, Transformers
from koord_scheduler.framework.nodes.adapters import Rows
from koord_scheduler.framework.nodes.filtering import Filters, FilterStatuses
from koord_scheduler.framework.nodes.nominated import NominatedFilter
from koord_scheduler.framework.nodes.prefiltering import PreFiltering
from koord_scheduler.framework.nodes.resultcache import EquivalenceClass, ResultCache
from koord_scheduler.framework.nominator import NominatedPods, Nominator
from koord_scheduler.framework.profile import ProfilePlugins
from koord_scheduler.framework.status import (
    SUCCESS,
    PreFilterOutcome,
    PreFilterResult,
    Status,
    Verdicts,
)

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
    subject: CycleInput  # the pod and the nodes as plugins have seen them in the end
    feasible: Mask
    diagnosis: Diagnosis
    statuses: NodeStatuses | None = None  # None: Filter was not reached, or a plugin failed
    cached: EquivalenceClass | None = (
        None  # results for equal pods, for Score; None: there are none
    )

    @classmethod
    def of(
        cls,
        subject: CycleInput,
        statuses: NodeStatuses,
        diagnosis: Diagnosis,
        cached: EquivalenceClass | None = None,
    ) -> "SearchResult":
        """After Filter, by the statuses of the nodes."""
        feasible = statuses.feasible
        if np.count_nonzero(feasible):  # faster than any()
            return cls(SUCCESS, subject, feasible, diagnosis, statuses, cached)
        diagnosis.node_statuses = statuses
        for number in np.unique(statuses.numbers).tolist():
            if number != ABSENT:
                diagnosis.note(statuses.statuses[number - 1])
        rejection = Status.unschedulable(diagnosis.message())
        return cls(rejection, subject, feasible, diagnosis, statuses)

    def without(self, rejections: Mapping[str, Status]) -> "SearchResult":
        """The same with further nodes rejected, by name."""
        assert self.statuses is not None  # noqa: S101 - there are feasible nodes
        numbers, statuses = self.statuses.numbers.copy(), list(self.statuses.statuses)
        places: dict[Status, int] = {}
        for name, status in rejections.items():
            row = self.subject.nodes.row(name)
            if status not in places:
                statuses.append(status)
                places[status] = len(statuses)
            numbers[row] = places[status]
        found = NodeStatuses(numbers, tuple(statuses), self.statuses.absent)
        return SearchResult.of(self.subject, found, self.diagnosis, self.cached)


class NodeSearch:
    """Searches nodes by the plugins of one profile."""

    def __init__(
        self, plugins: ProfilePlugins, nominator: Nominator, *, choosing: bool = False
    ) -> None:
        """choosing: what comes after it chooses among nodes, as extenders do."""
        self._calls: PluginCalls = plugins.calls
        self._nominator = nominator
        self._pre_filtering = PreFiltering(plugins)
        self._filters = Filters(plugins)
        self._nominated_filter = NominatedFilter(
            plugins, self._filters, self._pre_filtering, nominator
        )
        self._scored = choosing or bool(plugins.at(Point.SCORE))
        self._percentage = plugins.settings.percentage_of_nodes_to_score
        self._cached = ResultCache()
        self._nominated_pods = NominatedPods(nominator)
        self._start = 0
        self._transformers = Transformers(plugins)
        self._plans = NodeChoices(plugins)
        plugins.complete(self)

    def cached(self, pod: ClusterPod) -> EquivalenceClass:
        """Return the cached results for pods that are equal to this one, from the first one on.

        In a cycle they are cached from the second one on.
        """
        return self._cached.of(pod)

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
        diagnosis, nothing = Diagnosis(nodes=len(nodes)), np.zeros(len(nodes), np.bool_)
        if not len(nodes):
            rejection = Status.unresolvable(NO_NODES)
            return SearchResult(rejection, CycleInput(pod, nodes), nothing, diagnosis)
        with self._calls.limits:
            return self._search(state, pod, nodes, diagnosis, nothing, everywhere, sampled)

    def _search(
        self,
        state: CycleState,
        pod: ClusterPod,
        nodes: View,
        diagnosis: Diagnosis,
        nothing: Mask,
        everywhere: bool,
        sampled: bool,
    ) -> SearchResult:
        subject = CycleInput(pod, nodes)
        try:
            subject = self._transformers.before_pre_filter(state, subject)
            pod, cached = subject.pod, self._cached_for(subject)
            subject, before = self._before_filter(state, subject, diagnosis, everywhere, cached)
            subject = self._transformers.before_filter(state, subject)
            if subject.is_altered or subject.pod is not pod:
                cached = self._cached_for(subject)
        except ExtensionPointError as err:
            if err.status.rejected:
                self._rejected_by_pre_filter(diagnosis, err.status)
            return SearchResult(err.status, subject, nothing, diagnosis)
        try:
            statuses = self._filtered(state, subject, before, everywhere, sampled, cached)
        except ExtensionPointError as err:
            return SearchResult(err.status, subject, nothing, diagnosis)
        return SearchResult.of(subject, statuses, diagnosis, cached)

    def pre_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> PreFilterOutcome:
        """Call PreFilter of all plugins; note in the state which of them skip Filter."""
        return self._pre_filtering.pre_filter(state, pod, nodes)

    def filter(
        self,
        state: CycleState,
        pod: ClusterPod,
        nodes: View,
        wanted: Mask,
        cached: EquivalenceClass | None = None,
    ) -> NodeStatuses:
        """Call Filter for some nodes; the others are absent.

        cached: results of earlier cycles; None, in a what-if above all: everything is computed.

        Raises:
            ExtensionPointError: a plugin has failed.
        """
        filter_statuses = FilterStatuses(len(nodes))
        with self._calls.timed(Point.FILTER.label):
            self._filters.filter(filter_statuses, state, pod, nodes, wanted, cached)
        return filter_statuses.statuses()

    def verdicts(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mapping[str, Verdicts]:
        """Return what each Filter plugin says of every node, also of those that another rejects.

        For explanations: a cycle does not ask so much.

        Raises:
            ExtensionPointError: a plugin has failed.
        """
        return self._filters.verdicts(state, pod, nodes)

    def filter_row(self, state: CycleState, pod: ClusterPod, nodes: View, row: int) -> Status:
        """Call Filter for one node: Success or a rejection.

        Raises:
            ExtensionPointError: a plugin has failed.
        """
        return self._filters.row(state, pod, nodes, row)

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

    def _cached_for(self, subject: CycleInput) -> EquivalenceClass | None:
        return None if subject.is_altered else self._cached.again(subject.pod)

    def _before_filter(
        self,
        state: CycleState,
        subject: CycleInput,
        diagnosis: Diagnosis,
        everywhere: bool,
        cached: EquivalenceClass | None,
    ) -> tuple[CycleInput, PreFilterOutcome]:
        """PreFilter with what Koordinator has around it.

        Raises:
            ExtensionPointError: a plugin has failed, or rejects the pod.
        """
        answers = None if cached is None else cached.pre_filtered
        before = self._pre_filtering.pre_filter(state, subject.pod, subject.nodes, answers)
        diagnosis.unschedulable_plugins.update(before.plugins)
        if not before.status.ok:
            raise ExtensionPointError(before.status)
        names = before.node_names
        result = None if names is None else PreFilterResult(names)
        subject = self._transformers.after_pre_filter(state, subject, result)
        only = self._planned(state, subject, result, everywhere)
        return subject, before if only is None else replace(before, node_names=only)

    def _planned(
        self,
        state: CycleState,
        subject: CycleInput,
        result: PreFilterResult | None,
        everywhere: bool,
    ) -> frozenset[str] | None:
        """The node of a plan, or the first feasible one of those that are preferred."""
        found = self._plans.node(state, subject, result)
        if found is None and everywhere:
            return None
        if found is None:
            for name in self._plans.preferred(state, subject, result):
                row = subject.nodes.row(name)
                if row is not None and (result is None or name in result.node_names):
                    status = self._filters.row(state, subject.pod, subject.nodes, row)
                    if status.ok:
                        return frozenset((name,))
            return None
        return frozenset((found,))

    def _filtered(
        self,
        state: CycleState,
        subject: CycleInput,
        before: PreFilterOutcome,
        everywhere: bool,
        sampled: bool,
        cached: EquivalenceClass | None,
    ) -> NodeStatuses:
        """Filter on the node that the pod is nominated to, or else on all that PreFilter names."""
        pod, nodes = subject.pod, subject.nodes
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
                self._nominated_filter.filter(
                    nominated_pods, filter_statuses, state, pod, nodes, only, cached
                )
                if filter_statuses.numbers[row] == FEASIBLE:
                    return filter_statuses.statuses(absent)
            filter_statuses = self._search_all(
                self._nominated_pods.of(pod, nodes), state, pod, nodes, wanted, sampled, cached
            )
            return filter_statuses.statuses(absent)

    def _search_all(
        self,
        nominated_pods: HypotheticalCluster | None,
        state: CycleState,
        pod: ClusterPod,
        nodes: View,
        wanted: Mask,
        sampled: bool,
        cached: EquivalenceClass | None,
    ) -> FilterStatuses:
        """Filter all of the wanted nodes, or in their order as many as it takes."""
        filter_statuses, count = FilterStatuses(len(nodes)), int(np.count_nonzero(wanted))
        need = nodes_to_find(count, self._percentage, scored=self._scored) if sampled else count
        if need >= count:
            self._nominated_filter.filter(
                nominated_pods, filter_statuses, state, pod, nodes, wanted, cached
            )
            return filter_statuses
        order = round_robin(nodes)
        order = order[wanted[order]]
        order = np.roll(order, -(self._start % len(order)))
        size, begin, found = max(need, MIN_BLOCK), 0, 0
        while begin < len(order) and found < need:
            block = np.zeros(len(nodes), np.bool_)
            block[order[begin : begin + size]] = True
            self._nominated_filter.filter(
                nominated_pods, filter_statuses, state, pod, nodes, block, cached
            )
            begin += size
            found = int(np.count_nonzero(filter_statuses.numbers == FEASIBLE))
        looked_at = filter_statuses.leave_out_beyond(order, need)
        self._start = (self._start + looked_at) % len(nodes)
        return filter_statuses


@lru_cache(maxsize=4)  # of each cycle the same, but for views that differ in their nodes
def _all_nodes(count: int) -> Mask:
    """A mask of all nodes, which is never written."""
    return read_only(np.ones(count, np.bool_))
