"""Reservation: holds room on nodes for pods that do not exist yet, and gives it to their owners.

Source: Koordinator, pkg/scheduler/plugins/reservation; docs/differences.md for what differs.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from koord.api.node import NODE_RESERVATION
from koord.api.reservation import (
    AFFINITY,
    ALLOCATED,
    CURRENT_OWNER,
    EXACT_MATCH,
    IS_PRE_ALLOCATION,
    OPERATING_MODE,
    OWNERS,
    PRE_ALLOCATABLE_PRIORITY,
    RESERVATION_NAME,
    RESERVATION_NODE,
    RESERVE_POD,
    RESTRICTED_OPTIONS,
)
from koord.plugin import InvalidObject
from koord.plugin.args import takes_args
from koord.plugin.kube import Event, EventType, KubeError, ObjectRef
from koord_scheduler.plugin import (
    POD_DELETED,
    Action,
    BindPlugin,
    ClusterEvent,
    ClusterPod,
    CycleState,
    EnqueueExtensions,
    EventResource,
    FilterPlugin,
    Handle,
    HintedEvent,
    NodeInfo,
    PodChanges,
    PostFilterPlugin,
    PostFilterResult,
    PreBindExtensions,
    PreBindPlugin,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    QueueingHint,
    ReservePlugin,
    ScorePlugin,
    SharedPart,
    Status,
    View,
    claims_pods_with,
    pod_changes,
    reads,
)
from koord_scheduler.plugin.koordinator import (
    APIServiceProvider,
    ControllerProvider,
    Endpoint,
    FailedPod,
    NamedReservation,
    PendingAdvice,
    PlannedReservePlugin,
    PreFilterTransformer,
    ReservationNominator,
    ReservationRoom,
    Transformed,
)
from koord_scheduler.plugin.preemption import NodeStatuses
from koord_scheduler.plugin.vector import (
    Mask,
    Scores,
    VectorFilterPlugin,
    VectorNormalizeScorePlugin,
    VectorScorePlugin,
    Verdicts,
    default_normalize,
)
from koord_scheduler_plugins.reservation import serving, status
from koord_scheduler_plugins.reservation.args import ReservationArgs
from koord_scheduler_plugins.reservation.consumers import allocate, allocated_text
from koord_scheduler_plugins.reservation.controller import ControllerOptions, ReservationController
from koord_scheduler_plugins.reservation.fit import FitOptions
from koord_scheduler_plugins.reservation.matches import MatchCache, merged
from koord_scheduler_plugins.reservation.matching import MatchOptions, NodeDiagnosis, read_demands
from koord_scheduler_plugins.reservation.objects import Reservation
from koord_scheduler_plugins.reservation.placing import (
    GONE,
    NO_PODS,
    NOT_PINNED,
    Placing,
    Rejects,
    multiple_score,
)
from koord_scheduler_plugins.reservation.reserve_pod import pinned_node
from koord_scheduler_plugins.reservation.rooms import (
    CYCLE_DATA,
    NO_MATCHING,
    PREFERRED,
    Chosen,
    CycleData,
    Preferred,
    ReservationHints,
    Rooms,
    preferred_node,
    score_reservation,
)
from koord_scheduler_plugins.reservation.tracker import ReservationTracker

TERMINATING = "target reservation is terminating"
NOT_FOUND = "cannot find target reservation"
TAKEN = "target reservation was given to another pod meanwhile"
NO_PREEMPTION = "preemption for reservations is off"
NOT_ACTIVE = "reservation is not active"
_NAME = "Reservation"
_DATA, _CHOSEN, _PREFERRED = CYCLE_DATA, f"{_NAME}/chosen", f"{_NAME}/preferred"
_RESOURCE = "reservations.v1alpha1.scheduling.koordinator.sh"


@takes_args(ReservationArgs)
@claims_pods_with(AFFINITY, OPERATING_MODE)
@reads(
    pod_annotations={
        ALLOCATED: 4 << 10,
        AFFINITY: 256 << 10,
        EXACT_MATCH: 16 << 10,
        PRE_ALLOCATABLE_PRIORITY: 64,
        OWNERS: 256 << 10,
        CURRENT_OWNER: 4 << 10,
        RESERVE_POD: 16,
        RESERVATION_NAME: 512,
        RESERVATION_NODE: 512,
        IS_PRE_ALLOCATION: 16,
        NODE_RESERVATION: 16 << 10,
        RESTRICTED_OPTIONS: 16 << 10,
    }
)
class ReservationPlugin(
    PreFilterTransformer,
    PreFilterPlugin,
    FilterPlugin,
    VectorFilterPlugin,
    PostFilterPlugin,
    PreScorePlugin,
    ScorePlugin,
    VectorScorePlugin,
    VectorNormalizeScorePlugin,
    ReservePlugin,
    PreBindPlugin,
    PreBindExtensions,
    BindPlugin,
    EnqueueExtensions,
    ControllerProvider,
    APIServiceProvider,
    PendingAdvice,
    PlannedReservePlugin,
    ReservationNominator,
    ReservationHints,
):
    """Schedules Reservations, and has their owners use what they hold."""

    comes_before = MappingProxyType(
        {
            "postFilter": "DefaultPreemption",  # it would evict pods though reservations may help
            "preBind": "DefaultPreBind",  # it would patch a pod that is in no API server
            "bind": "DefaultBinder",  # it would bind it
        }
    )

    scales_to_highest = True

    def __init__(self, args: ReservationArgs, handle: Handle) -> None:
        services = handle.services
        self._args = args
        self._handle = handle
        self._services = services
        self.tracker = services.shared.get(_NAME, lambda: ReservationTracker(services))
        omits = services.gates("OmitNodeLabelsForReservation")
        self._matching = MatchOptions(omit_node_labels=omits)
        fit = FitOptions(
            ignored_resources=frozenset(args.ignored_resources),
            ignored_groups=frozenset(args.ignored_resource_groups),
            skip_node=services.gates("SkipReservationFitsNode"),
        )
        self._rooms = Rooms(self.tracker, fit, handle.reservations)
        self._nominated: dict[str, tuple[str, ReservationRoom]] = {}  # by uid, with the node
        self._placing = Placing(self.tracker, args.pre_allocation_config, fit)
        self._cache = MatchCache(self.tracker, self._matching)
        self.tracker.follow_use(handle.reconsider)
        services.failures.register(after=self._failed)
        services.hooks.add(_NAME, self.tracker.restore)

    def new_controllers(self) -> Mapping[str, SharedPart]:
        args = self._args
        options = ControllerOptions(
            keep=float(args.gc_duration_seconds or 86400),
            gc_interval=float(args.gc_interval_seconds or 60),
            resync_interval=float(args.resync_interval_seconds or 60),
            collects_garbage=not args.disable_garbage_collection,
            cleans_pods=self._services.gates("CleanExpiredReservationAllocated"),
        )
        metrics = self._services.metrics.own(serving.ReservationMetrics)
        controller = ReservationController(self._services, self.tracker, options, metrics)
        return {"reservationController": controller}

    def endpoints(self) -> Iterable[Endpoint]:
        answers = serving.ReservationServing(self._services, self.tracker)
        yield Endpoint("GET", "/nodeReservations/{node}", answers.answer_node)

    def pending_advice(self, pod: ClusterPod) -> Iterable[str]:
        """Say why the reservations of the pod's owners do not help it."""
        if self.tracker.of_reserve_pod(pod) is not None:
            return ()
        nodes = self._services.cluster.view()
        try:
            demands = read_demands(pod)
        except InvalidObject as err:
            return (str(err),)
        matched = self._cache.of(pod, demands, nodes).by_node.values()
        infos = {info.uid: info for each in matched for info in each}
        found = self._cache.diagnoses(pod, demands, nodes)
        sentences = list(serving.advice(pod, found, infos, nodes, required=demands.required))
        advice = self.advice(pod) if sentences else None
        return sentences if advice is None else (*sentences, str(advice))

    def advice(self, pod: ClusterPod) -> serving.ReservationAdvice | None:
        """The smallest change by which a reservation would help a pending pod; None: unknown."""
        nodes = self._services.cluster.view()
        try:
            demands = read_demands(pod)
        except InvalidObject:
            return None
        free = self._cache.free(pod, demands, nodes)
        return serving.smallest_advice(pod, free, nodes, self._matching)

    def planned_annotations(self, pod: ClusterPod, node: NodeInfo) -> Mapping[str, str]:
        """Return which reservation a member of a group would get."""
        if self.tracker.of_reserve_pod(pod) is not None:
            return {}
        try:
            demands = read_demands(pod)
        except InvalidObject:
            return {}
        matches = self._cache.of(pod, demands, node.view)
        chosen = None
        if matches.nodes is not None and node.name in matches.by_node and not demands.ignored:
            data = CycleData(matches.nodes, demands, matches.by_node, matches.key)
            chosen = self._rooms.nominated(data, demands, NodeInfo(matches.nodes, node.row), None)
        if chosen is not None:
            return {ALLOCATED: allocated_text(chosen.name, chosen.uid)}
        return {ALLOCATED: ""} if any(key == ALLOCATED for key, _ in pod.annotations) else {}

    def active_at(self, pod: ClusterPod) -> Collection[str] | None:
        """Nowhere while there is no reservation, for a pod that speaks of none."""
        return None if pod.annotations or self.tracker.in_use else ()

    # The queue.

    def events_to_register(self) -> Iterable[HintedEvent]:
        """Return the events that make room in or beside reservations, and their own."""
        node = Action.ADD | Action.UPDATE_NODE_ALLOCATABLE | Action.UPDATE_NODE_LABEL
        yield HintedEvent(POD_DELETED)
        yield HintedEvent(ClusterEvent(EventResource.NODE, node))
        yield HintedEvent(ClusterEvent(_RESOURCE, Action.ALL), self._may_help)

    def _may_help(self, pod: ClusterPod, old: object, new: object) -> QueueingHint:
        """A status that says why an attempt has failed helps nobody."""
        before = old if isinstance(old, Reservation) and old.available else None
        after = new if isinstance(new, Reservation) and new.available else None
        if self.tracker.of_reserve_pod(pod) is not None:
            helps = before is not None and after is None
        elif after is None:
            helps = False
        else:
            helps = before is None or before.usable != after.usable
        return QueueingHint.QUEUE if helps else QueueingHint.SKIP

    def _failed(self, failed: FailedPod) -> bool:
        """Report on a Reservation why no node was found for it."""
        if failed.profile != self._handle.profile:
            return False
        found, message = self.tracker.of_reserve_pod(failed.pod), failed.status.message
        if found is not None:
            self.tracker.attempt_failed(found, message, failed.nominated_node)
            return True
        text = serving.event_message(message) if _has_affinity(failed.pod) else None
        if text is not None:
            self._emit(failed.pod, EventType.WARNING, "FailedScheduling-Reservation", text)
        return False

    def _emit(self, pod: ClusterPod, type_: EventType, reason: str, text: str) -> None:
        about = ObjectRef("v1", "Pod", pod.name, pod.namespace, pod.uid)
        self._services.events.emit(Event(about, type_, reason, text, self._handle.profile))

    # A cycle.

    def before_pre_filter(
        self, state: CycleState, pod: ClusterPod, nodes: View
    ) -> Transformed | Status | None:
        """Let the pod see nodes without the pods of the reservations that it can have."""
        if not self._matters(pod):
            return None
        found = self.tracker.of_reserve_pod(pod)
        if found is not None:
            data = self._placing.begin(found, nodes)
            if isinstance(data, Status):
                return data
            state.write(_DATA, data)
            return Transformed(nodes=data.nodes) if data.candidates else None
        try:
            demands = read_demands(pod)
        except InvalidObject as err:
            return Status.unresolvable(str(err))
        matches = self._cache.of(pod, demands, nodes)
        seen = nodes if not matches.by_node or matches.nodes is None else matches.nodes
        seen = self._rooms.as_consumed(nodes, seen, matches.by_node)
        ordered, columns = matches.ordered > 0, matches.columns
        data = CycleData(
            seen, demands, matches.by_node, matches.key, ordered=ordered, columns=columns
        )
        state.write(_DATA, data)
        return None if seen is nodes else Transformed(nodes=seen, stable=True)

    def pre_filter(
        self, state: CycleState, pod: ClusterPod, nodes: View
    ) -> PreFilterResult | Status | None:
        """Name the nodes whose reservations the pod can have, if it must have one."""
        data = state.find(_DATA, CycleData)
        if data is None:
            return Status.skip()
        if data.reservation is not None:
            if data.reservation.pre_allocation_required:
                return PreFilterResult(frozenset(data.candidates))
            return None
        if data.demands is not None and data.demands.required:
            return PreFilterResult(frozenset(data.by_node)) if data.by_node else NO_MATCHING
        return None if self.tracker.nodes else Status.skip()

    def _matters(self, pod: ClusterPod) -> bool:
        """Whether a reservation can matter to a pod: a node has one, or the pod speaks of one."""
        if pod.annotations or self.tracker.nodes:
            return True
        return self.tracker.of_reserve_pod(pod) is not None

    def pre_filter_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        """The answer for pods that need no reservation depends on whether there is any."""
        if self.tracker.of_reserve_pod(pod) is not None or _has_affinity(pod):
            return None
        return bool(self.tracker.nodes)

    def filter_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        data = state.find(_DATA, CycleData)
        if data is None or data.reservation is not None:
            return None
        if data.by_node and self._rooms.rejects((state, pod)):
            return None  # what other plugins say of reservations counts
        return data.key

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        data = state.find(_DATA, CycleData)
        if data is None:
            return None
        if data.reservation is not None:
            rejects = self._rejects(data, data.reservation, node, (state, pod))
            return self._placing.look(data, data.reservation, node, rejects)
        return self._rooms.look(data, node, (state, pod))

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mask | Verdicts:
        return self.filter_among(state, pod, nodes, np.ones(len(nodes), np.bool_))

    def filter_among(
        self, state: CycleState, pod: ClusterPod, nodes: View, among: Mask
    ) -> Mask | Verdicts:
        """Look at the nodes that have reservations; the others pass or fail alike."""
        data = state.find(_DATA, CycleData)
        numbers, known = np.zeros(len(nodes), np.int32), dict[Status, int]()
        if data is None:
            return Verdicts(numbers, ())
        judged = self._rooms.judge(data, nodes, (state, pod))
        names = set(data.by_node if judged is None else judged.others)
        if data.reservation is not None:
            names = {*self.tracker.shared_nodes, *data.candidates}
            if data.reservation.pre_allocation_required:
                names = {nodes.node(row).name for row in np.flatnonzero(among).tolist()}
            if pinned := pinned_node(data.reservation):
                known[NOT_PINNED] = 1
                numbers[:] = 1
                names &= {pinned}
                if (row := nodes.row(pinned)) is not None:
                    numbers[row] = 0
        elif data.demands is not None and data.demands.required:
            known[NO_MATCHING] = 1
            numbers[:] = 1
        if data.reservation is None and self._rooms.is_what_if(nodes):
            names.update(self.tracker.nodes)
        if judged is not None:
            numbers[judged.rows[judged.passes]] = 0
            for rows in judged.refused():
                why = self.filter(state, pod, NodeInfo(nodes, int(rows[0])))
                numbers[rows] = 0 if why is None else known.setdefault(why, len(known) + 1)
        for name in names:
            row = nodes.row(name)
            if row is None or not among[row]:
                continue
            status = self.filter(state, pod, NodeInfo(nodes, row))
            numbers[row] = 0 if status is None else known.setdefault(status, len(known) + 1)
        return Verdicts(numbers, tuple(known))

    async def post_filter(
        self, state: CycleState, pod: ClusterPod, nodes: View, statuses: NodeStatuses
    ) -> PostFilterResult | Status | None:
        """Say how many reservations matched the pod, and why they did not help."""
        data = state.find(_DATA, CycleData)
        if data is None:
            return Status.unschedulable()
        if data.reservation is not None:
            allowed = self._args.enable_preemption
            return Status.unschedulable() if allowed else Status.unresolvable(NO_PREEMPTION)
        if data.demands is None:
            return Status.unschedulable()
        diagnoses: dict[str, NodeDiagnosis] = {}
        for found, one in self._cache.diagnoses(pod, data.demands, nodes):
            known = diagnoses.get(found.node)
            diagnoses[found.node] = one if known is None else merged((known, one))
        rejected = []
        for name, one in diagnoses.items():
            row = nodes.row(name)
            status = None if row is None else statuses.status(row)
            rejected.append((one, () if status is None else status.reasons))
        return Status.unschedulable(*serving.reasons(rejected, required=data.demands.required))

    async def post_filter_dry_run(
        self, state: CycleState, pod: ClusterPod, nodes: View, statuses: NodeStatuses
    ) -> PostFilterResult | Status | None:
        return await self.post_filter(state, pod, nodes, statuses)

    def pre_score(
        self, state: CycleState, pod: ClusterPod, nodes: View, feasible: Mask
    ) -> Status | None:
        """Find the feasible node whose reservation is the first by order."""
        data = state.find(_DATA, CycleData)
        if data is not None and data.ordered:
            rows = ((name, nodes.row(name)) for name in data.by_node)
            good = [name for name, row in rows if row is not None and feasible[row]]
            preferred = preferred_node({name: data.by_node[name] for name in sorted(good)})
            state.write(_PREFERRED, Preferred(preferred))
        return None

    def pre_score_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        """Nothing is written while no reservation has an order; scores_pod says what is skipped."""
        return None if self.tracker.has_order else ()

    def scores_pod(self, state: CycleState, pod: ClusterPod) -> bool:
        data = state.find(_DATA, CycleData)
        if data is None or data.reservation is not None:
            return data is not None and bool(data.candidates)
        return data.demands is not None and not data.demands.ignored and bool(data.by_node)

    def score_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        data = state.find(_DATA, CycleData)
        if data is None or data.reservation is not None or data.ordered:
            return None
        if data.by_node and self._rooms.rejects((state, pod)):
            return None
        return data.key

    def score(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
        """How full the reservation is that the pod would have there."""
        data = state.find(_DATA, CycleData)
        if data is None:
            return 0
        if data.reservation is not None:
            rejects = self._rejects(data, data.reservation, node, (state, pod))
            return self._placing.score(data, data.reservation, node, rejects)
        if data.demands is None or node.name not in data.by_node:
            return 0
        preferred = state.find(_PREFERRED, Preferred)
        if preferred is not None and preferred.node == node.name:
            return PREFERRED
        chosen = self._rooms.nominated(data, data.demands, node, (state, pod))
        return 0 if chosen is None else score_reservation(data.demands.requests, chosen)

    def score_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Scores:
        data = state.find(_DATA, CycleData)
        scores = np.zeros(len(nodes), np.int64)
        if data is None:
            return scores
        names: Iterable[str] = data.by_node
        if data.reservation is not None:
            names = data.candidates
            spec = data.reservation.spec
            if spec is not None and spec.pre_allocation_multiple:
                scores[:] = multiple_score(())
        judged = None if data.ordered else self._rooms.judge(data, nodes, (state, pod))
        if judged is not None:
            names = judged.others
            scores[judged.rows] = judged.scores
        for name in names:
            row = nodes.row(name)
            if row is not None:
                scores[row] = self.score(state, pod, NodeInfo(nodes, row))
        return scores

    def normalize_scores(self, state: CycleState, pod: ClusterPod, scores: Scores) -> Scores:
        return default_normalize(scores)

    # A node is chosen.

    def reservation_nominate(
        self, state: CycleState, pod: ClusterPod, node_name: str
    ) -> Status | None:
        """Choose the reservation of the node that the pod gets, before any plugin's Reserve.

        The pod is assumed there with the annotation that says so.
        """
        found = self.nominate_reservation(state, pod, node_name)
        data, chosen = state.find(_DATA, CycleData), state.find(_CHOSEN, Chosen)
        if data is not None and data.reservation is None:
            allocate(state, pod, None if chosen is None else chosen.reservation)
        if isinstance(found, ReservationRoom):
            self.add_nominated_reservation(pod, node_name, found)
        return found if isinstance(found, Status) else None

    def nominate_reservation(
        self, state: CycleState, pod: ClusterPod, node_name: str
    ) -> ReservationRoom | Status | None:
        data = state.find(_DATA, CycleData)
        if data is not None and data.reservation is not None:
            return self._take_over(state, pod, data, data.reservation, node_name)
        if data is None or data.demands is None:
            return None
        demands, chosen, row = data.demands, None, data.nodes.row(node_name)
        if row is None:
            return NO_MATCHING if demands.required and not demands.ignored else None
        node = NodeInfo(data.nodes, row)
        if not demands.ignored:
            chosen = self._rooms.nominated(data, demands, node, (state, pod))
            if chosen is None and demands.required:
                return self._rooms.rejection(data, demands, node, (state, pod))
        state.write(_CHOSEN, Chosen(None if chosen is None else chosen.reservation))
        if not self._rooms.rejects((state, pod)):
            return None  # no other plugin asks for it
        return self._rooms.room_for(data, demands, node, chosen)

    def _rejects(
        self,
        data: CycleData,
        found: Reservation,
        node: NodeInfo,
        cycle: tuple[CycleState, ClusterPod],
    ) -> Rejects:
        """Why other plugins reject a pod that a reservation would take over."""
        return self._rooms.rejections_of(found, node, data.candidates.get(node.name, ()), cycle)

    def _take_over(
        self, state: CycleState, pod: ClusterPod, data: CycleData, found: Reservation, name: str
    ) -> ReservationRoom | Status | None:
        """Choose the pods that a reservation takes over on its node."""
        row = data.nodes.row(name)
        if row is None or found.spec is None or not found.spec.pre_allocation:
            return None
        node, cycle = NodeInfo(data.nodes, row), (state, pod)
        pods = self._placing.select(data, found, node, self._rejects(data, found, node, cycle)).pods
        if not pods and found.pre_allocation_required:
            return Status.unschedulable(NO_PODS)
        if not found.spec.pre_allocation_multiple:
            pods = pods[:1]
        state.write(_CHOSEN, Chosen(found, pods))
        if not pods or not self._rooms.rejects(cycle):
            return None
        return self._rooms.room_of(found, node, pods, data.candidates[name])

    def add_nominated_reservation(
        self, pod: ClusterPod, node_name: str, reservation: NamedReservation
    ) -> None:
        if isinstance(reservation, ReservationRoom):
            self._nominated[pod.uid] = node_name, reservation

    def nominated_reservation(self, pod: ClusterPod, node_name: str) -> ReservationRoom | None:
        node, found = self._nominated.get(pod.uid, ("", None))
        return found if node == node_name else None

    def delete_nominated(self, pod: ClusterPod) -> None:
        self._nominated.pop(pod.uid, None)

    def _report_unused(self, pod: ClusterPod, data: CycleData, node: str) -> None:
        if data.demands is not None and not data.demands.ignored and self.tracker.nodes:
            nodes = data.nodes.actual
            most, matched = serving.MAX_ADVISED, data.by_node
            found = self._cache.diagnoses(pod, data.demands, nodes, most, matched)
            if text := serving.why_unused(pod, node, found, matched, nodes):
                self._emit(pod, EventType.NORMAL, "ReservationNotUsed", text)

    def reserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        """Check that the pod, which is assumed to have its reservation, can have it still."""
        data = state.find(_DATA, CycleData)
        if data is None:
            return None
        if data.reservation is not None:
            self.tracker.reserve(data.reservation.uid, node_name)
            return None
        chosen = state.find(_CHOSEN, Chosen)
        if chosen is None or chosen.reservation is None:
            self._report_unused(pod, data, node_name)
            return None
        found = self.tracker.get(chosen.reservation.uid)
        if found is None or not found.available:
            return Status.unschedulable(NOT_FOUND)
        if found.deleting:
            return Status.unschedulable(TERMINATING)
        if found.spec is not None and found.spec.allocate_once:
            # The pod is assumed to have it already, and is no other one.
            account = self._services.cluster.account.with_pods([(pod, node_name)], ())
            if self.tracker.info(found, account).taken:
                return Status.unschedulable(TAKEN)
        state.write(_CHOSEN, Chosen(found))
        return None

    def unreserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:
        """The annotation goes with the attempt: it counts when its pod is bound, and not before."""
        data = state.find(_DATA, CycleData)
        if data is not None and data.reservation is not None:
            self.tracker.unreserve(data.reservation.uid)

    def pre_bind_pre_flight(
        self, state: CycleState, pod: ClusterPod, node_name: str
    ) -> Status | None:
        chosen = state.find(_CHOSEN, Chosen)
        changed = ALLOCATED in pod_changes(state).annotations
        is_mine = self.tracker.of_reserve_pod(pod) is not None
        if changed or (chosen is not None and chosen.pods):
            return None
        return None if is_mine and pod_changes(state).metadata else Status.skip()

    async def pre_bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        """Give pods to the reservation that takes them over, before it is available."""
        chosen = state.find(_CHOSEN, Chosen)
        if chosen is None or chosen.reservation is None:
            return None
        text = allocated_text(chosen.reservation.name, chosen.reservation.uid)
        for one in chosen.pods:
            try:
                await status.annotate(self._services.client, one, {ALLOCATED: text})
            except KubeError as err:
                return Status.failed(err)
        return None

    async def apply_patch(
        self, state: CycleState, pod: ClusterPod, changes: PodChanges
    ) -> Status | None:
        """Change the Reservation, where its pod was changed; other pods are DefaultPreBind's."""
        data = state.find(_DATA, CycleData)
        if data is None or data.reservation is None:
            return Status.skip()
        try:
            await status.change_metadata(self._services.client, data.reservation, changes.metadata)
        except KubeError as err:
            return Status.failed(err)
        return None

    async def bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        """Write that a Reservation is available; other pods are the next plugin's."""
        data = state.find(_DATA, CycleData)
        if data is None or data.reservation is None:
            return Status.skip()
        client, clock = self._services.client, self._services.clock
        known = self.tracker.of_reserve_pod(pod)
        if known is None:
            return Status.failed(GONE)

        def wanted(latest: Reservation) -> Mapping[str, Any] | None:
            if latest.spec is None or not latest.unassigned:
                return None
            return status.available(latest, node_name, clock.wall())

        try:
            found = await status.write_status_anew(client, clock, known, wanted)
        except KubeError as err:
            return Status.failed(err)
        if found is None or found.spec is None:
            return Status.failed(GONE)
        is_bound = found.available and found.node == node_name  # its response was lost
        if not (found.unassigned or is_bound):
            return Status.failed(NOT_ACTIVE)
        text = f"Successfully assigned {found.name} to {node_name}"
        self.tracker.emit(found, EventType.NORMAL, "Scheduled", text)
        return None


def _has_affinity(pod: ClusterPod) -> bool:
    return any(key == AFFINITY for key, _ in pod.annotations)
