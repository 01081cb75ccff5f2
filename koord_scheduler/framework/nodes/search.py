"""The nodes that are feasible for a pod: PreFilter and Filter.

Source: Kubernetes, pkg/scheduler/schedule_one.go and framework/runtime/framework.go.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from koord.cluster.columns import Mask, read_only
from koord.cluster.crowd import Crowd
from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord_scheduler.config.points import Point
from koord_scheduler.framework.calls import PluginCalls, PointFailed
from koord_scheduler.framework.cyclestate import CycleState
from koord_scheduler.framework.diagnosis import (
    ABSENT,
    FEASIBLE,
    NO_NODES,
    NO_STATUS,
    Diagnosis,
    NodeStatuses,
)
from koord_scheduler.framework.extension.plans import NodePlans
from koord_scheduler.framework.extension.transformers import Subject, Transformers
from koord_scheduler.framework.nodes.beside import FilterBeside
from koord_scheduler.framework.nodes.filtering import Filters
from koord_scheduler.framework.nodes.kept import KeptResults, KindResults
from koord_scheduler.framework.nodes.prefiltering import PreFiltered, PreFiltering
from koord_scheduler.framework.nodes.rivals import Rivals
from koord_scheduler.framework.nodes.sampling import nodes_to_find, round_robin
from koord_scheduler.framework.nodes.walk import Walk
from koord_scheduler.framework.nominator import Nominator
from koord_scheduler.framework.profiles.profile import ProfilePlugins
from koord_scheduler.framework.results import PreFilterResult, Verdicts
from koord_scheduler.framework.status import SUCCESS, Status

LEAST_BLOCK = 128  # nodes that are looked at together when not all are needed


@dataclass(frozen=True, slots=True)
class Found:
    """The feasible nodes, or why there is none."""

    status: Status  # Success: there are some; a rejection: none; Error: a plugin failed
    subject: Subject  # the pod and the nodes as plugins have seen them in the end
    feasible: Mask
    diagnosis: Diagnosis
    statuses: NodeStatuses | None = None  # None: Filter was not reached, or a plugin failed
    kept: KindResults | None = None  # results for equal pods, for Score; None: there are none

    @classmethod
    def of(
        cls,
        subject: Subject,
        statuses: NodeStatuses,
        diagnosis: Diagnosis,
        kept: KindResults | None = None,
    ) -> "Found":
        """After Filter, by the statuses of the nodes."""
        feasible = statuses.feasible
        if np.count_nonzero(feasible):  # faster than any()
            return cls(SUCCESS, subject, feasible, diagnosis, statuses, kept)
        diagnosis.node_statuses = statuses
        for number in np.unique(statuses.numbers).tolist():
            if number != ABSENT:
                diagnosis.note(statuses.statuses[number - 1])
        rejection = Status.unschedulable(diagnosis.message())
        return cls(rejection, subject, feasible, diagnosis, statuses)

    def without(self, rejections: Mapping[str, Status]) -> "Found":
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
        return Found.of(self.subject, found, self.diagnosis, self.kept)


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
        self._beside = FilterBeside(plugins, self._filters, self._pre_filtering, nominator)
        self._scored = choosing or bool(plugins.at(Point.SCORE))
        self._percentage = plugins.settings.percentage_of_nodes_to_score
        self._kept = KeptResults()
        self._rivals = Rivals(nominator)
        self._start = 0
        self._transformers = Transformers(plugins)
        self._plans = NodePlans(plugins)
        plugins.complete(self)

    def kept(self, pod: ClusterPod) -> KindResults:
        """Results that are kept for pods that are equal to this one, from the first one on.

        In a cycle they are kept from the second one on.
        """
        return self._kept.of(pod)

    def search(
        self, state: CycleState, pod: ClusterPod, nodes: View, *, everywhere: bool = False
    ) -> Found:
        """Return the nodes that all plugins allow. Raises nothing that a plugin raises.

        everywhere: nominations and preferred nodes are no reason to look at one node only.
        """
        diagnosis, nothing = Diagnosis(nodes=len(nodes)), np.zeros(len(nodes), np.bool_)
        if not len(nodes):
            rejection = Status.unresolvable(NO_NODES)
            return Found(rejection, Subject(pod, nodes), nothing, diagnosis)
        with self._calls.limits:
            return self._search(state, pod, nodes, diagnosis, nothing, everywhere)

    def _search(
        self,
        state: CycleState,
        pod: ClusterPod,
        nodes: View,
        diagnosis: Diagnosis,
        nothing: Mask,
        everywhere: bool,
    ) -> Found:
        subject = Subject(pod, nodes)
        try:
            subject = self._transformers.before_pre_filter(state, subject)
            pod, kept = subject.pod, self._kept_for(subject)
            subject, before = self._before_filter(state, subject, diagnosis, everywhere, kept)
            subject = self._transformers.before_filter(state, subject)
            if subject.is_altered or subject.pod is not pod:
                kept = self._kept_for(subject)
        except PointFailed as err:
            if err.status.rejected:
                self._rejected_by_pre_filter(diagnosis, err.status)
            return Found(err.status, subject, nothing, diagnosis)
        try:
            statuses = self._filtered(state, subject, before, everywhere, kept)
        except PointFailed as err:
            return Found(err.status, subject, nothing, diagnosis)
        return Found.of(subject, statuses, diagnosis, kept)

    def pre_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> PreFiltered:
        """Call PreFilter of all plugins; note in the state which of them skip Filter."""
        return self._pre_filtering.pre_filter(state, pod, nodes)

    def filter(
        self,
        state: CycleState,
        pod: ClusterPod,
        nodes: View,
        wanted: Mask,
        kept: KindResults | None = None,
    ) -> NodeStatuses:
        """Call Filter for some nodes; the others are absent.

        kept: results of earlier cycles; None, in a what-if above all: everything is computed.

        Raises:
            PointFailed: a plugin has failed.
        """
        walk = Walk(len(nodes))
        with self._calls.timed(Point.FILTER.label):
            self._filters.walk(walk, state, pod, nodes, wanted, kept)
        return walk.statuses()

    def verdicts(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mapping[str, Verdicts]:
        """Return what each Filter plugin says of every node, also of those that another rejects.

        For explanations: a cycle does not ask so much.

        Raises:
            PointFailed: a plugin has failed.
        """
        return self._filters.verdicts(state, pod, nodes)

    def filter_row(self, state: CycleState, pod: ClusterPod, nodes: View, row: int) -> Status:
        """Call Filter for one node: Success or a rejection.

        Raises:
            PointFailed: a plugin has failed.
        """
        return self._filters.row(state, pod, nodes, row)

    def count_pods(self, state: CycleState) -> bool:
        """Whether a plugin counts pods that are added and removed, in a cycle with this state."""
        return self._pre_filtering.count_pods(state)

    def add_pod(
        self, state: CycleState, pod: ClusterPod, added: ClusterPod, nodes: View, row: int
    ) -> None:
        """Have plugins count a pod that the view has on a node, in a what-if's clone of the state.

        Raises:
            PointFailed: a plugin has failed.
        """
        self._pre_filtering.add_pod(state, pod, added, nodes, row)

    def remove_pod(
        self, state: CycleState, pod: ClusterPod, removed: ClusterPod, nodes: View, row: int
    ) -> None:
        """Have plugins count off a pod that the view does not have on a node any more; as add_pod.

        Raises:
            PointFailed: a plugin has failed.
        """
        self._pre_filtering.remove_pod(state, pod, removed, nodes, row)

    def _rejected_by_pre_filter(self, diagnosis: Diagnosis, status: Status) -> None:
        numbers = np.full(diagnosis.nodes, ABSENT, np.int32)
        diagnosis.node_statuses = NodeStatuses(numbers, (), status)
        diagnosis.pre_filter_message = status.message
        diagnosis.note(status)

    def _kept_for(self, subject: Subject) -> KindResults | None:
        return None if subject.is_altered else self._kept.again(subject.pod)

    def _before_filter(
        self,
        state: CycleState,
        subject: Subject,
        diagnosis: Diagnosis,
        everywhere: bool,
        kept: KindResults | None,
    ) -> tuple[Subject, PreFiltered]:
        """PreFilter with what Koordinator has around it.

        Raises:
            PointFailed: a plugin has failed, or rejects the pod.
        """
        answers = None if kept is None else kept.pre_filtered
        before = self._pre_filtering.pre_filter(state, subject.pod, subject.nodes, answers)
        diagnosis.unschedulable_plugins.update(before.plugins)
        if not before.status.ok:
            raise PointFailed(before.status)
        names = before.node_names
        result = None if names is None else PreFilterResult(names)
        subject = self._transformers.after_pre_filter(state, subject, result)
        only = self._planned(state, subject, result, everywhere)
        return subject, before if only is None else replace(before, node_names=only)

    def _planned(
        self,
        state: CycleState,
        subject: Subject,
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
        subject: Subject,
        before: PreFiltered,
        everywhere: bool,
        kept: KindResults | None,
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
                walk, only = Walk(len(nodes)), np.zeros(len(nodes), np.bool_)
                only[row] = True
                crowd = self._rivals.on_node(pod, nodes.node(row).name)
                self._beside.walk(crowd, walk, state, pod, nodes, only, kept)
                if walk.numbers[row] == FEASIBLE:
                    return walk.statuses(absent)
            walk = self._search_all(self._rivals.of(pod), state, pod, nodes, wanted, kept)
            return walk.statuses(absent)

    def _search_all(
        self,
        crowd: Crowd | None,
        state: CycleState,
        pod: ClusterPod,
        nodes: View,
        wanted: Mask,
        kept: KindResults | None,
    ) -> Walk:
        """Filter all of the wanted nodes, or in their order as many as it takes."""
        walk, count = Walk(len(nodes)), int(np.count_nonzero(wanted))
        need = nodes_to_find(count, self._percentage, scored=self._scored)
        if need >= count:
            self._beside.walk(crowd, walk, state, pod, nodes, wanted, kept)
            return walk
        order = round_robin(nodes)
        order = order[wanted[order]]
        order = np.roll(order, -(self._start % len(order)))
        size, begin, found = max(need, LEAST_BLOCK), 0, 0
        while begin < len(order) and found < need:
            block = np.zeros(len(nodes), np.bool_)
            block[order[begin : begin + size]] = True
            self._beside.walk(crowd, walk, state, pod, nodes, block, kept)
            begin += size
            found = int(np.count_nonzero(walk.numbers == FEASIBLE))
        looked_at = walk.leave_out_beyond(order, need)
        self._start = (self._start + looked_at) % len(nodes)
        return walk


@lru_cache(maxsize=4)  # of each cycle the same, but for views that differ in their nodes
def _all_nodes(count: int) -> Mask:
    """A mask of all nodes, which is never written."""
    return read_only(np.ones(count, np.bool_))
