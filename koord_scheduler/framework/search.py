"""The nodes that are feasible for a pod: PreFilter and Filter.

Source: Kubernetes, pkg/scheduler/schedule_one.go and framework/runtime/framework.go.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import numpy as np

from koord.cluster.columns import Mask
from koord.cluster.crowd import Crowd
from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord_scheduler.config.points import Point
from koord_scheduler.framework.calls import Loaded, PluginCalls, PointFailed
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
from koord_scheduler.framework.forms import (
    Rows,
    StatusFailed,
    filter_answers,
    filter_nodes,
    filter_rows,
    filter_vector,
    status_of,
)
from koord_scheduler.framework.interfaces import (
    Filtering,
    FilterPlugin,
    PreFilterExtensions,
    PreFilterPlugin,
    VectorFilterPlugin,
)
from koord_scheduler.framework.kept import FEW_ROWS, KeptResults, KindResults
from koord_scheduler.framework.nodeinfo import NodeInfo
from koord_scheduler.framework.nominator import Nominator
from koord_scheduler.framework.profile import ProfilePlugins
from koord_scheduler.framework.results import Numbers, PreFilterResult, Verdicts
from koord_scheduler.framework.rivals import Rivals
from koord_scheduler.framework.sampling import nodes_to_find, round_robin
from koord_scheduler.framework.status import SUCCESS, Code, Status

Look = Callable[[Filtering, CycleState, ClusterPod, View, Mask], Verdicts | Mask]

MANY_NODES = 64  # from which on the plain form is sooner done with FEW_ROWS
FEW_RIVALS = 4  # nodes with nominated pods that are imagined one by one
LEAST_BLOCK = 128  # nodes that are looked at together when not all are needed


@dataclass(frozen=True, slots=True)
class PreFiltered:
    """What PreFilter says of all plugins together."""

    status: Status
    node_names: frozenset[str] | None = None  # None: all nodes
    plugins: tuple[str, ...] = ()  # that named nodes


@dataclass(frozen=True, slots=True)
class Found:
    """The feasible nodes, or why there is none."""

    status: Status  # Success: there are some; a rejection: none; Error: a plugin failed
    subject: Subject  # the pod and the nodes as plugins have seen them in the end
    feasible: Mask
    diagnosis: Diagnosis
    statuses: NodeStatuses | None = None  # None: Filter was not reached, or a plugin failed

    @classmethod
    def of(cls, subject: Subject, statuses: NodeStatuses, diagnosis: Diagnosis) -> "Found":
        """After Filter, by the statuses of the nodes."""
        feasible: Mask = statuses.numbers == FEASIBLE
        if feasible.any():
            return cls(SUCCESS, subject, feasible, diagnosis, statuses)
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
        return Found.of(self.subject, found, self.diagnosis)


class NodeSearch:
    """Searches nodes by the plugins of one profile."""

    def __init__(
        self, plugins: ProfilePlugins, nominator: Nominator, *, choosing: bool = False
    ) -> None:
        """choosing: what comes after it chooses among nodes, as extenders do."""
        self._calls: PluginCalls = plugins.calls
        self._nominator = nominator
        self._pre_filters = plugins.at(Point.PRE_FILTER)
        self._filters = plugins.at(Point.FILTER)
        self._scored = choosing or bool(plugins.at(Point.SCORE))
        self._percentage = plugins.settings.percentage_of_nodes_to_score
        self._kept = KeptResults()
        self._rivals = Rivals(nominator)
        self._kept_beside = KeptResults()  # with the rivals on their nodes
        self._start = 0
        self._transformers = Transformers(plugins)
        self._plans = NodePlans(plugins)
        plugins.complete(self)

    def kept(self, pod: ClusterPod) -> KindResults:
        """Results that are kept for pods that are equal to this one."""
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
            subject, before = self._before_filter(state, subject, diagnosis, everywhere)
            subject = self._transformers.before_filter(state, subject)
        except PointFailed as err:
            if err.status.rejected:
                self._rejected_by_pre_filter(diagnosis, err.status)
            return Found(err.status, subject, nothing, diagnosis)
        try:
            statuses = self._filtered(state, subject, before, everywhere)
        except PointFailed as err:
            return Found(err.status, subject, nothing, diagnosis)
        return Found.of(subject, statuses, diagnosis)

    def pre_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> PreFiltered:
        """Call PreFilter of all plugins; note in the state which of them skip Filter."""
        with self._calls.timed(Point.PRE_FILTER.label) as ended:
            result = self._pre_filter(state, pod, nodes)
            ended(result.status.code)
            return result

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
        walk = _Walk(len(nodes))
        with self._calls.timed(Point.FILTER.label):
            self._filter(walk, state, pod, nodes, wanted, kept)
        return walk.statuses()

    def verdicts(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mapping[str, Verdicts]:
        """Return what each Filter plugin says of every node, also of those that another rejects.

        For explanations: a cycle does not ask so much.

        Raises:
            PointFailed: a plugin has failed.
        """
        found, every = {}, np.ones(len(nodes), np.bool_)
        for loaded in self._filters:
            if loaded.name not in state.skipped_filters:
                plugin = cast(Filtering, loaded.plugin)
                found[loaded.name] = self._calls.call(
                    loaded, Point.FILTER, state, filter_nodes, plugin, state, pod, nodes, every
                )
        return found

    def filter_row(self, state: CycleState, pod: ClusterPod, nodes: View, row: int) -> Status:
        """Call Filter for one node: Success or a rejection.

        Raises:
            PointFailed: a plugin has failed.
        """
        for loaded in self._filters:
            if loaded.name not in state.skipped_filters:
                work = partial(_row_status, loaded, state, pod, nodes, row)
                status = self._calls.call(loaded, Point.FILTER, state, work)
                if not status.ok:
                    return status
        return SUCCESS

    def count_pods(self, state: CycleState) -> bool:
        """Whether a plugin counts pods that are added and removed, in a cycle with this state."""
        return any(
            isinstance(loaded.plugin, PreFilterExtensions)
            and loaded.name not in state.skipped_filters
            for loaded in self._pre_filters
        )

    def add_pod(
        self, state: CycleState, pod: ClusterPod, added: ClusterPod, nodes: View, row: int
    ) -> None:
        """Have plugins count a pod that the view has on a node, in a what-if's clone of the state.

        Raises:
            PointFailed: a plugin has failed.
        """
        self._extend(state, pod, added, NodeInfo(nodes, row), "add_pod")

    def remove_pod(
        self, state: CycleState, pod: ClusterPod, removed: ClusterPod, nodes: View, row: int
    ) -> None:
        """Have plugins count off a pod that the view does not have on a node any more; as add_pod.

        Raises:
            PointFailed: a plugin has failed.
        """
        self._extend(state, pod, removed, NodeInfo(nodes, row), "remove_pod")

    def _pre_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> PreFiltered:
        names: frozenset[str] | None = None
        restricting: list[str] = []
        skipped: set[str] = set()
        rejection: Status | None = None
        for loaded in self._pre_filters:
            plugin = cast(PreFilterPlugin, loaded.plugin)
            try:
                answer = self._calls.call(
                    loaded, Point.PRE_FILTER, state, _pre_filter_of, plugin, state, pod, nodes
                )
            except PointFailed as err:
                return PreFiltered(err.status)
            if isinstance(answer, PreFilterResult):
                restricting.append(loaded.name)
                names = answer.node_names if names is None else names & answer.node_names
                if not names:
                    return PreFiltered(_nowhere(restricting), names, tuple(restricting))
            elif answer.code is Code.SKIP:
                skipped.add(loaded.name)
            elif answer.code is Code.UNSCHEDULABLE:
                rejection = answer
            elif answer.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE:
                return PreFiltered(answer)
            elif not answer.ok:
                failed = PointFailed(answer)
                return PreFiltered(self._calls.failed(loaded, Point.PRE_FILTER, failed))
        state.skipped_filters = frozenset(skipped)
        return PreFiltered(rejection or SUCCESS, names, tuple(restricting))

    def _rejected_by_pre_filter(self, diagnosis: Diagnosis, status: Status) -> None:
        numbers = np.full(diagnosis.nodes, ABSENT, np.int32)
        diagnosis.node_statuses = NodeStatuses(numbers, (), status)
        diagnosis.pre_filter_message = status.message
        diagnosis.note(status)

    def _before_filter(
        self, state: CycleState, subject: Subject, diagnosis: Diagnosis, everywhere: bool
    ) -> tuple[Subject, PreFiltered]:
        """PreFilter with what Koordinator has around it.

        Raises:
            PointFailed: a plugin has failed, or rejects the pod.
        """
        subject = self._transformers.before_pre_filter(state, subject)
        before = self.pre_filter(state, subject.pod, subject.nodes)
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
                    status = self.filter_row(state, subject.pod, subject.nodes, row)
                    if status.ok:
                        return frozenset((name,))
            return None
        return frozenset((found,))

    def _filtered(
        self, state: CycleState, subject: Subject, before: PreFiltered, everywhere: bool
    ) -> NodeStatuses:
        """Filter on the node that the pod is nominated to, or else on all that PreFilter names."""
        pod, nodes = subject.pod, subject.nodes
        wanted, absent = np.ones(len(nodes), np.bool_), NO_STATUS
        if before.node_names is not None:
            wanted[:] = False
            wanted[[row for name in before.node_names if (row := nodes.row(name)) is not None]] = (
                True
            )
            absent = Status.unresolvable(
                f"node(s) didn't satisfy plugin(s) [{' '.join(sorted(before.plugins))}]"
            )
        kept = None if subject.is_altered else self._kept.of(pod)
        nominated = None if everywhere else self._nominator.node_of(pod.key)
        row = None if nominated is None else nodes.row(nominated)
        with self._calls.timed(Point.FILTER.label):
            if row is not None and wanted[row]:
                walk, only = _Walk(len(nodes)), np.zeros(len(nodes), np.bool_)
                only[row] = True
                crowd = self._rivals.on_node(pod, nodes.node(row).name)
                self._filter_beside(crowd, walk, state, pod, nodes, only, kept)
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
    ) -> "_Walk":
        """Filter all of the wanted nodes, or in their order as many as it takes."""
        walk, count = _Walk(len(nodes)), int(np.count_nonzero(wanted))
        need = nodes_to_find(count, self._percentage, scored=self._scored)
        if need >= count:
            self._filter_beside(crowd, walk, state, pod, nodes, wanted, kept)
            return walk
        order = round_robin(nodes)
        order = order[wanted[order]]
        order = np.roll(order, -(self._start % len(order)))
        size, begin, found = max(need, LEAST_BLOCK), 0, 0
        while begin < len(order) and found < need:
            block = np.zeros(len(nodes), np.bool_)
            block[order[begin : begin + size]] = True
            self._filter_beside(crowd, walk, state, pod, nodes, block, kept)
            begin += size
            found = int(np.count_nonzero(walk.numbers == FEASIBLE))
        looked_at = walk.leave_out_beyond(order, need)
        self._start = (self._start + looked_at) % len(nodes)
        return walk

    def _filter_beside(
        self,
        crowd: Crowd | None,
        walk: "_Walk",
        state: CycleState,
        pod: ClusterPod,
        nodes: View,
        wanted: Mask,
        kept: KindResults | None,
    ) -> None:
        """Filter; a node must also pass with the pods that are nominated to it."""
        if crowd is not None:
            rows = crowd.rows(nodes)
            rows = rows[wanted[rows]]
            if len(rows) > FEW_RIVALS:
                self._reject_crowded(crowd, rows, walk, state, pod, nodes, wanted, kept)
            else:
                for row in rows.tolist():
                    beside = self._beside(state, pod, nodes, row, crowd.pods_of(row))
                    status = self.filter_row(beside.state, pod, beside.nodes, row)
                    if not status.ok:
                        walk.reject(row, status)
                        wanted[row] = False
            if not wanted.any():
                return
        self._filter(walk, state, pod, nodes, wanted, kept)

    def _reject_crowded(
        self,
        crowd: Crowd,
        rows: Rows,
        walk: "_Walk",
        state: CycleState,
        pod: ClusterPod,
        nodes: View,
        wanted: Mask,
        kept: KindResults | None,
    ) -> None:
        """Reject nodes that do not pass with the pods that are nominated to them.

        All those pods are imagined at once for the plugins that look at one node at a time. For
        the others each node is imagined alone.
        """
        crowded, mask = crowd.on(nodes), np.zeros(len(nodes), np.bool_)
        mask[rows] = True
        active = [one for one in self._filters if one.name not in state.skipped_filters]
        wide = [one for one in active if self._looks_beyond(one, state, pod, nodes, crowded)]
        found = _Walk(len(nodes))
        if wide:
            alive, imagined = mask.copy(), dict[int, _Beside]()
            for loaded in active:
                if loaded not in wide:
                    plugin = cast(Filtering, loaded.plugin)
                    verdicts = self._calls.call(
                        loaded,
                        Point.FILTER,
                        state,
                        filter_answers,
                        plugin,
                        state,
                        pod,
                        crowded,
                        alive.copy(),
                    )
                    found.take(verdicts, loaded, alive)
                    continue
                for row in np.flatnonzero(alive).tolist():
                    beside = imagined.get(row)
                    if beside is None:
                        beside = self._beside(state, pod, nodes, row, crowd.pods_of(row))
                        imagined[row] = beside
                    work = partial(_row_status, loaded, beside.state, pod, beside.nodes, row)
                    status = self._calls.call(loaded, Point.FILTER, state, work)
                    if not status.ok:
                        found.reject(row, status)
                        alive[row] = False
        else:
            keep = None if kept is None else self._kept_beside.of(pod)
            self._filter(found, state, pod, crowded, mask, keep)
        rejected = found.numbers > FEASIBLE
        rejected &= mask
        walk.begin(found.numbers, found.rejections, rejected)
        wanted &= ~rejected

    def _looks_beyond(
        self, loaded: Loaded, state: CycleState, pod: ClusterPod, nodes: View, crowded: View
    ) -> bool:
        """Whether a plugin's verdict about a node may depend on pods of other nodes.

        It counts pods in a state for all nodes, or what it depends on beside the node's row is
        not the same with further pods on other nodes, or not known.
        """
        if isinstance(loaded.plugin, PreFilterExtensions):
            return True
        ask, key_of = self._calls.ask, cast(Filtering, loaded.plugin).filter_reuse_key
        key = ask(loaded, Point.FILTER, key_of, state, pod, nodes)
        return key is None or key != ask(loaded, Point.FILTER, key_of, state, pod, crowded)

    def _beside(
        self,
        state: CycleState,
        pod: ClusterPod,
        nodes: View,
        row: int,
        rivals: Sequence[ClusterPod],
    ) -> "_Beside":
        """A node on which the pods that are nominated to it run already."""
        name, what_if, imagined = nodes.node(row).name, nodes.what_if(), state.clone()
        for rival in rivals:
            what_if.add(rival, name)
            self.add_pod(imagined, pod, rival, what_if.view(), row)
        return _Beside(what_if.view(), imagined)

    def _filter(
        self,
        walk: "_Walk",
        state: CycleState,
        pod: ClusterPod,
        nodes: View,
        wanted: Mask,
        kept: KindResults | None,
    ) -> None:
        active = [one for one in self._filters if one.name not in state.skipped_filters]
        count = int(np.count_nonzero(wanted))
        if kept is not None and (count > FEW_ROWS or count == len(nodes)):
            self._filter_kept(walk, active, state, pod, nodes, wanted, kept)
            return
        alive = wanted.copy()
        walk.numbers[alive] = FEASIBLE
        one_by_one = count <= FEW_ROWS and len(nodes) > MANY_NODES
        for loaded in active:
            plugin = cast(Filtering, loaded.plugin)
            by_rows = one_by_one and isinstance(plugin, FilterPlugin)
            look = cast(Look, filter_rows if by_rows else filter_answers)
            verdicts = self._calls.call(
                loaded, Point.FILTER, state, look, plugin, state, pod, nodes, alive.copy()
            )
            if walk.take(verdicts, loaded, alive) and not alive.any():
                return

    def _filter_kept(
        self,
        walk: "_Walk",
        active: Sequence[Loaded],
        state: CycleState,
        pod: ClusterPod,
        nodes: View,
        wanted: Mask,
        kept: KindResults,
    ) -> None:
        """Filter with what is kept: first by the plugins that are taken together.

        Of the others, one counts on the nodes that pass so far, or that only a plugin after it
        rejects: so each node has the rejection that comes first.
        """
        first = kept.together.look(self._calls, active, state, pod, nodes)
        before = walk.count
        walk.begin(first.numbers, first.rejections, wanted)
        joined = kept.together.plugins
        if len(joined) == len(active):
            return
        places = [len(active), *[-1] * before, *kept.together.places]  # by number of a status
        for place, loaded in enumerate(active):
            if loaded.name in joined:
                continue
            alive = wanted & (np.array(places)[walk.numbers] > place)
            if not alive.any():
                continue
            plugin = cast(Filtering, loaded.plugin)
            verdicts = self._calls.call(
                loaded, Point.FILTER, state, kept.filter, plugin, state, pod, nodes, alive.copy()
            )
            walk.take(verdicts, loaded, alive)
            places += [place] * (walk.count + 1 - len(places))

    def _extend(
        self, state: CycleState, pod: ClusterPod, other: ClusterPod, node: NodeInfo, way: str
    ) -> None:
        for loaded in self._pre_filters:
            plugin = loaded.plugin
            if isinstance(plugin, PreFilterExtensions) and loaded.name not in state.skipped_filters:
                work = plugin.add_pod if way == "add_pod" else plugin.remove_pod
                answer = self._calls.call(
                    loaded, Point.PRE_FILTER, state, work, state, pod, other, node
                )
                status = status_of(answer, loaded.name)
                if not status.ok:
                    failed = PointFailed(status)
                    raise PointFailed(self._calls.failed(loaded, Point.PRE_FILTER, failed))


@dataclass(frozen=True, slots=True)
class _Beside:
    """One node with the pods that are nominated to it, and the state that counts them."""

    nodes: View
    state: CycleState


class _Walk:
    """Statuses of nodes while Filter goes over them."""

    def __init__(self, nodes: int) -> None:
        self.numbers = np.full(nodes, ABSENT, np.int32)
        self._statuses: list[Status] = []

    @property
    def count(self) -> int:
        """How many statuses there are."""
        return len(self._statuses)

    @property
    def rejections(self) -> Sequence[Status]:
        """The statuses, by number."""
        return self._statuses

    def begin(self, first: Numbers, statuses: Sequence[Status], wanted: Mask) -> None:
        """Take over the first rejections of the nodes that are wanted."""
        before = len(self._statuses)
        numbers = first if not before else np.where(first, first + before, 0)
        np.copyto(self.numbers, numbers, where=wanted, casting="same_kind")
        self._statuses += statuses

    def take(self, verdicts: Verdicts | Mask, loaded: Loaded, alive: Mask) -> bool:
        """Note a plugin's verdicts about nodes that are alive; return whether it rejected some."""
        if not isinstance(verdicts, Verdicts):
            rejected = alive > verdicts
            if not rejected.any():
                return False
            plugin = cast(Filtering, loaded.plugin)
            self.reject(rejected, plugin.rejection.of(loaded.name))
            alive ^= rejected
            return True
        rejected = verdicts.numbers != 0
        rejected &= alive
        if not rejected.any():
            return False
        numbers = verdicts.numbers + len(self._statuses)
        np.copyto(self.numbers, numbers, where=rejected, casting="same_kind")
        self._statuses += verdicts.rejections
        alive ^= rejected
        return True

    def reject(self, row: int | Mask, status: Status) -> None:
        self._statuses.append(status)
        self.numbers[row] = len(self._statuses)

    def leave_out_beyond(self, order: Rows, need: int) -> int:
        """Have only so many feasible nodes, the first in this order.

        Returns the number of nodes up to the last of them; all, if there are not so many.
        """
        places = np.flatnonzero(self.numbers[order] == FEASIBLE)
        if len(places) < need:
            return len(order)
        self.numbers[order[places[need:]]] = ABSENT
        return int(places[need - 1]) + 1

    def statuses(self, absent: Status = NO_STATUS) -> NodeStatuses:
        return NodeStatuses(self.numbers, tuple(self._statuses), absent)


def _pre_filter_of(
    plugin: PreFilterPlugin, state: CycleState, pod: ClusterPod, nodes: View
) -> PreFilterResult | Status:
    answer = plugin.pre_filter(state, pod, nodes)
    if isinstance(answer, PreFilterResult):
        return answer
    return status_of(answer, plugin.name, Code.SKIP)


def _row_status(
    loaded: Loaded, state: CycleState, pod: ClusterPod, nodes: View, row: int
) -> Status:
    plugin = loaded.plugin
    if isinstance(plugin, FilterPlugin):
        status = status_of(plugin.filter(state, pod, NodeInfo(nodes, row)), loaded.name)
        if status.ok or status.rejected:
            return status
        raise StatusFailed(loaded.name, status)
    assert isinstance(plugin, VectorFilterPlugin)  # noqa: S101 - it has one of the forms
    found = filter_vector(plugin, state, pod, nodes)
    number = int(found.numbers[row])
    return found.rejections[number - 1] if number else SUCCESS


def _nowhere(plugins: Sequence[str]) -> Status:
    if len(plugins) == 1:
        return Status.unresolvable(f"node(s) didn't satisfy plugin {plugins[0]}")
    named = " ".join(plugins)
    return Status.unresolvable(f"node(s) didn't satisfy plugin(s) [{named}] simultaneously")
