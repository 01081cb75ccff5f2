"""Reservation: holds room on nodes for pods that do not exist yet, and gives it to their owners.

Source: Koordinator, pkg/scheduler/plugins/reservation; docs/differences.md for what differs.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from koord.api.node import NODE_RESERVATION
from koord.api.reservation import (
    AFFINITY,
    ALLOCATED,
    CURRENT_OWNER,
    EXACT_MATCH,
    IS_PRE_ALLOCATABLE,
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
from koord.plugin.args import FieldError, Int32, invalid, takes_args
from koord.plugin.kube import Event, EventType, KubeError, ObjectRef
from koord_scheduler.plugin import (
    POD_COUNT,
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
    FrozenAccount,
    HypotheticalCluster,
    PendingAdvice,
    PlannedReservePlugin,
    PreFilterTransformer,
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
from koord_scheduler_plugins.reservation import messages, status, writing
from koord_scheduler_plugins.reservation.consumers import allocated_text
from koord_scheduler_plugins.reservation.controller import ControllerOptions, ReservationController
from koord_scheduler_plugins.reservation.demands import Demands, read_demands
from koord_scheduler_plugins.reservation.fit import (
    NO_MATCH,
    PREEMPTION_FAILED,
    FilterResult,
    FitOptions,
    NodeRoom,
    filter_node,
    node_shortages,
)
from koord_scheduler_plugins.reservation.info import (
    POLICY_CONFLICT,
    ReservationInfo,
    policies_conflict,
    reservation_info,
)
from koord_scheduler_plugins.reservation.matches import ByNode, MatchCache, merged
from koord_scheduler_plugins.reservation.matching import MatchOptions, NodeDiagnosis
from koord_scheduler_plugins.reservation.nomination import (
    PREFERRED,
    nominate,
    preferred_node,
    score_reservation,
)
from koord_scheduler_plugins.reservation.objects import Policy, Reservation, ReservationSpec
from koord_scheduler_plugins.reservation.preallocation import (
    NO_PODS,
    Selection,
    labelled_candidates,
    multiple_score,
    owned_candidates,
    select,
    unsupported,
)
from koord_scheduler_plugins.reservation.reserve_pod import pinned_node
from koord_scheduler_plugins.reservation.serving import (
    ReservationMetrics,
    ReservationServing,
    advice,
)
from koord_scheduler_plugins.reservation.tracker import ReservationTracker

PINNED = "node(s) didn't match the nodeName specified by reservation"
NO_CANDIDATES = "node(s) no pod match reservation with pre allocation required"
GONE = "cannot get reservation: it has gone"
TERMINATING = "target reservation is terminating"
NOT_FOUND = "cannot find target reservation"
TAKEN = "target reservation was given to another pod meanwhile"
MAX_CANDIDATES = 4096  # pods that are looked at for a reservation's pre-allocation
NO_PREEMPTION = "preemption for reservations is off"
NOT_ACTIVE = "reservation is not active"
_NAME = "Reservation"
_DATA, _CHOSEN, _PREFERRED = _NAME, f"{_NAME}/chosen", f"{_NAME}/preferred"
_RESOURCE = "reservations.v1alpha1.scheduling.koordinator.sh"
_NO_MATCH = Status.unresolvable(NO_MATCH)
_PINNED = Status.unresolvable(PINNED)
_CONFLICT = Status.unresolvable(POLICY_CONFLICT)
_NATIVE = ("cpu", "memory", "ephemeral-storage", POD_COUNT)


@dataclass(frozen=True, kw_only=True, slots=True)
class PreAllocationConfig:
    """How pods are found that a reservation may take over."""

    enable_cluster_mode: bool = False
    cluster_label_key: str = IS_PRE_ALLOCATABLE
    cluster_priority_annotation_key: str = PRE_ALLOCATABLE_PRIORITY
    prefer_no_pre_allocated_pods: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class SelectorIndex:
    """Koordinator's index by labels; reservations are indexed by owner in any case."""

    enabled: bool = False
    key_prefixes: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ReservationArgs:
    """Arguments of the plugin, as Koordinator has them."""

    enable_preemption: bool = False  # of pods, for the sake of reservations
    min_candidate_nodes_percentage: Int32 = 10  # accepted; DefaultPreemption has its own
    min_candidate_nodes_absolute: Int32 = 100
    controller_workers: Int32 = 1  # accepted; writes are one after the other
    gc_duration_seconds: Int32 = 86400
    gc_interval_seconds: Int32 = 60
    resync_interval_seconds: Int32 = 60
    disable_garbage_collection: bool = False
    pre_allocation_config: PreAllocationConfig = field(default_factory=PreAllocationConfig)
    ignored_resources: tuple[str, ...] = ()
    ignored_resource_groups: tuple[str, ...] = ()
    reservation_selector_index: SelectorIndex = field(default_factory=SelectorIndex)

    def validate(self) -> Iterator[FieldError]:
        percentage = self.min_candidate_nodes_percentage
        if not 0 <= percentage <= 100:
            text = "must be in the range [0, 100]"
            yield invalid(("minCandidateNodesPercentage",), percentage, text)
        for key, number in (
            ("minCandidateNodesAbsolute", self.min_candidate_nodes_absolute),
            ("gcDurationSeconds", self.gc_duration_seconds),
            ("gcIntervalSeconds", self.gc_interval_seconds),
            ("resyncIntervalSeconds", self.resync_interval_seconds),
        ):
            if number < 0:
                yield invalid((key,), number, "must be non-negative")
        for name in self.ignored_resources:
            if "/" not in name or name.partition("/")[0].endswith("kubernetes.io"):
                text = (
                    "must be an extended resource name (e.g. example.com/gpu); native resources "
                    "cannot be ignored"
                )
                yield invalid(("ignoredResources",), name, text)
        for name in self.ignored_resource_groups:
            if "/" in name:
                text = "resource group name can't contain '/'"
                yield invalid(("ignoredResourceGroups",), name, text)
            elif not name or name.endswith("kubernetes.io"):
                text = "must be a resource group that extended resources can have"
                yield invalid(("ignoredResourceGroups",), name, text)


@dataclass(frozen=True, slots=True)
class CycleData:
    """What the cycle of a pod knows of reservations."""

    nodes: View  # without the pods of what matches
    demands: Demands | None = None  # None: of a reserve pod
    by_node: ByNode = field(default_factory=dict)
    key: Hashable = ()
    ordered: bool = False
    reservation: Reservation | None = None  # that a reserve pod stands for
    candidates: Mapping[str, Sequence[ClusterPod]] = field(default_factory=dict)
    """Pods that this reservation may take over, by node; they are not in nodes."""

    @property
    def account(self) -> FrozenAccount:
        return self.nodes.account

    def clone(self) -> "CycleData":
        return self


@dataclass(frozen=True, slots=True)
class Chosen:
    """The reservation that a pod is given, or the pods that a reservation takes over."""

    reservation: Reservation | None = None
    pods: tuple[ClusterPod, ...] = ()

    def clone(self) -> "Chosen":
        return self


@dataclass(frozen=True, slots=True)
class Preferred:
    """The node with the first reservation by order; None: no feasible node has one."""

    node: str | None

    def clone(self) -> "Preferred":
        return self


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
):
    """Schedules Reservations, and has their owners use what they hold."""

    def __init__(self, args: ReservationArgs, handle: Handle) -> None:
        services = handle.services
        self._args = args
        self._handle = handle
        self._services = services
        self.tracker = services.shared.get(_NAME, lambda: ReservationTracker(services))
        self._matching = MatchOptions(
            omit_node_labels=services.gates("OmitNodeLabelsForReservation")
        )
        self._fit = FitOptions(
            ignored_resources=frozenset(args.ignored_resources),
            ignored_groups=frozenset(args.ignored_resource_groups),
            skip_node=services.gates("SkipReservationFitsNode"),
        )
        self._cache = MatchCache(self.tracker, self._matching)
        services.failures.register(after=self._failed)
        services.hooks.add(_NAME, self.tracker.restore)

    def new_controllers(self) -> Mapping[str, SharedPart]:
        args = self._args
        options = ControllerOptions(
            keep=float(args.gc_duration_seconds or 86400),
            gc_interval=float(args.gc_interval_seconds or 60),
            resync_interval=float(args.resync_interval_seconds or 60),
            collects_garbage=not args.disable_garbage_collection,
        )
        metrics = self._services.metrics.own(ReservationMetrics)
        controller = ReservationController(self._services, self.tracker, options, metrics)
        return {"reservationController": controller}

    def endpoints(self) -> Iterable[Endpoint]:
        serving = ReservationServing(self._services, self.tracker)
        yield Endpoint("GET", "/nodeReservations/{node}", serving.answer_node)

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
        return advice(pod, found, infos, nodes, required=demands.required)

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
            chosen = self._nominated(data, demands, NodeInfo(matches.nodes, node.row))
        if chosen is not None:
            return {ALLOCATED: allocated_text(chosen.name, chosen.uid)}
        stale = any(key == ALLOCATED for key, _ in pod.annotations)
        return {ALLOCATED: ""} if stale else {}

    # The queue.

    def events_to_register(self) -> Iterable[HintedEvent]:
        """What makes room in a reservation or beside it, and reservations that come or change."""
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
            helps = before is None or _facts(before) != _facts(after)
        return QueueingHint.QUEUE if helps else QueueingHint.SKIP

    def _failed(self, failed: FailedPod) -> bool:
        """Report on a Reservation why no node was found for it."""
        if failed.profile != self._handle.profile:
            return False
        found, message = self.tracker.of_reserve_pod(failed.pod), failed.status.message
        if found is not None:
            self.tracker.attempt_failed(found, message)
            return True
        if any(key == AFFINITY for key, _ in failed.pod.annotations):
            text = messages.event_message(message)
            if text is not None:
                pod = failed.pod
                about = ObjectRef("v1", "Pod", pod.name, pod.namespace, pod.uid)
                reason, profile = "FailedScheduling-Reservation", failed.profile
                self._services.events.emit(Event(about, EventType.WARNING, reason, text, profile))
        return False

    # A cycle.

    def before_pre_filter(
        self, state: CycleState, pod: ClusterPod, nodes: View
    ) -> Transformed | Status | None:
        """Let the pod see nodes without the pods of the reservations that it can have."""
        found = self.tracker.of_reserve_pod(pod)
        if found is not None:
            return self._begin_reservation(state, found, nodes)
        try:
            demands = read_demands(pod)
        except InvalidObject as err:
            return Status.unresolvable(str(err))
        matches = self._cache.of(pod, demands, nodes)
        seen = nodes if not matches.by_node or matches.nodes is None else matches.nodes
        seen = self._as_consumed(nodes, seen, matches.by_node)
        data = CycleData(seen, demands, matches.by_node, matches.key, ordered=matches.ordered > 0)
        state.write(_DATA, data)
        return None if seen is nodes else Transformed(nodes=seen, stable=True)

    def _as_consumed(self, nodes: View, seen: View, by_node: ByNode) -> View:
        """A what-if in which the pods of reservations take what its consumers have left.

        As of a group, whose members are placed one after the other. It may begin with nodes from
        which the pods of reservations were taken that others than this pod match.

        nodes: the what-if; seen: the same without the pods of by_node.
        """
        if not nodes.altered:
            return seen
        cluster = None
        for row in sorted(nodes.altered):
            name = nodes.node(row).name
            mine = {info.uid for info in by_node.get(name, ())}
            for found in self.tracker.on_node(name):
                pod = None if found.uid in mine else self.tracker.pod_in(found, nodes.account)
                if pod is None:
                    continue
                there = next((one for one in seen.pods(row) if one.key == pod.key), None)
                if there is not None and there.spec.requests == pod.spec.requests:
                    continue
                cluster = cluster or HypotheticalCluster(seen)
                if there is not None:
                    cluster.remove(pod.key, name)
                cluster.add(pod, name)
        return seen if cluster is None else cluster.view()

    def _begin_reservation(
        self, state: CycleState, found: Reservation, nodes: View
    ) -> Transformed | Status | None:
        spec = found.spec
        if spec is None:
            return Status.unresolvable("; ".join(found.problems) or GONE)
        if not spec.pre_allocation:
            state.write(_DATA, CycleData(nodes, reservation=found))
            return None
        reason = unsupported(
            spec, cluster_mode=self._args.pre_allocation_config.enable_cluster_mode
        )
        if reason:
            return Status.unresolvable(reason)
        candidates = self._candidates(found, spec, nodes)
        if not candidates and found.pre_allocation_required:
            return Status.unresolvable(NO_CANDIDATES)
        cluster = HypotheticalCluster(nodes)
        for name, pods in candidates.items():
            for pod in pods:
                cluster.remove(pod.key, name)
        state.write(_DATA, CycleData(cluster.view(), reservation=found, candidates=candidates))
        return Transformed(nodes=cluster.view()) if candidates else None

    def _candidates(
        self, found: Reservation, spec: ReservationSpec, nodes: View
    ) -> dict[str, list[ClusterPod]]:
        """Pods that a reservation may take over, by node."""
        config = self._args.pre_allocation_config
        pinned = pinned_node(found)
        rows: Iterable[int] = range(len(nodes))
        if pinned:
            row = nodes.row(pinned)
            rows = () if row is None else (row,)
        by_node: dict[str, list[ClusterPod]] = {}
        left = MAX_CANDIDATES
        for row in rows:
            if spec.pre_allocation_by_cluster:
                pods = labelled_candidates(
                    nodes.pods(row),
                    config.cluster_label_key,
                    config.cluster_priority_annotation_key,
                    mine=found.uid,
                )
            else:
                pods = owned_candidates(spec, nodes.pods(row), mine=found.uid)
            if pods:
                by_node[nodes.node(row).name] = pods[:left]
                left -= len(pods)
            if left <= 0:
                break
        return by_node

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
            if not data.by_node:
                return _NO_MATCH
            return PreFilterResult(frozenset(data.by_node))
        return None if self.tracker.nodes else Status.skip()

    def pre_filter_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        """The answer for pods that need no reservation depends on whether there is any."""
        if self.tracker.of_reserve_pod(pod) is not None or _has_affinity(pod):
            return None
        return bool(self.tracker.nodes)

    def filter_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        data = state.find(_DATA, CycleData)
        return None if data is None or data.reservation is not None else data.key

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        data = state.find(_DATA, CycleData)
        if data is None:
            return None
        if data.reservation is not None:
            return self._look_for_reservation(data, data.reservation, node)
        return self._look(data, node)

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
        names: set[str] = set(data.by_node)
        if data.reservation is not None:
            names = {*self.tracker.shared_nodes, *data.candidates}
            if data.reservation.pre_allocation_required:
                names = {nodes.node(row).name for row in np.flatnonzero(among).tolist()}
            pinned = pinned_node(data.reservation)
            if pinned:
                known[_PINNED] = 1
                numbers[:] = 1
                names &= {pinned}
                row = nodes.row(pinned)
                if row is not None:
                    numbers[row] = 0
        elif data.demands is not None and data.demands.required:
            known[_NO_MATCH] = 1
            numbers[:] = 1
        if data.reservation is None and self._is_what_if(nodes):
            names.update(self.tracker.nodes)
        for name in names:
            row = nodes.row(name)
            if row is None or not among[row]:
                continue
            status = self.filter(state, pod, NodeInfo(nodes, row))
            numbers[row] = 0 if status is None else known.setdefault(status, len(known) + 1)
        return Verdicts(numbers, tuple(known))

    def _is_what_if(self, nodes: View) -> bool:
        """Whether consumers are on other nodes there than in the cluster."""
        return nodes.account is not self.tracker.account

    def _look(self, data: CycleData, node: NodeInfo) -> Status | None:
        """Whether a pod fits a node, through one of its reservations or beside them."""
        demands, name = data.demands, node.name
        matched = data.by_node.get(name, ())
        if demands is None:
            return None
        if not matched:
            if demands.required:
                return _NO_MATCH
            if not self._is_what_if(node.view):
                return None
            room, retaken = self._room(data, node)
            if retaken and node_shortages(demands.requests, room, options=self._fit):
                return Status.unschedulable(PREEMPTION_FAILED)
            return None
        found = self._fitting(data, demands, node)
        return None if found.passes else Status.unschedulable(*found.reasons)

    def _fitting(self, data: CycleData, demands: Demands, node: NodeInfo) -> FilterResult:
        """The reservations of a node through which a pod fits there."""
        room, _ = self._room(data, node)
        infos = [self._now(info, node.view) for info in data.by_node.get(node.name, ())]
        return filter_node(
            demands, [info for info in infos if not info.taken], room, options=self._fit
        )

    def _room(self, data: CycleData, node: NodeInfo) -> tuple[NodeRoom, bool]:
        """A node with the pods of its reservations as large as its consumers leave them.

        Also whether a pod that the view has there would be larger.
        """
        assert data.demands is not None  # noqa: S101 - of a pod that stands for no reservation
        names, matched = data.demands.requests, data.by_node.get(node.name, ())
        requested = {name: node.requested(name) for name in names}
        for info in matched:
            held = self.tracker.held(info.uid, self._now(info, node.view).used)
            for name in names:
                requested[name] += held.get(name, 0)
        retaken = False
        if self._is_what_if(node.view):
            mine = {info.uid for info in matched}
            there = {pod.uid: dict(pod.spec.requests) for pod in node.pods}
            for other in self.tracker.on_node(node.name):
                takes = there.get(other.uid)
                if other.uid in mine or takes is None:
                    continue
                used = self.tracker.info(other, node.view.account).used
                for name, amount in self.tracker.held(other.uid, used).items():
                    more = amount - takes.get(name, 0)
                    if more > 0 and name in requested:
                        requested[name] += more
                        retaken = True
        room = NodeRoom(
            allocatable={name: node.allocatable(name) for name in names},
            requested=requested,
            allowed_pods=node.allocatable(POD_COUNT),
            pods=node.requested(POD_COUNT) + len(matched),
            matched=len(matched),
        )
        return room, retaken

    def _now(self, info: ReservationInfo, nodes: View) -> ReservationInfo:
        """A reservation with what consumers hold of it in a view."""
        if not self._is_what_if(nodes):
            return info
        return self.tracker.info(info.reservation, nodes.account)

    def _look_for_reservation(
        self, data: CycleData, found: Reservation, node: NodeInfo
    ) -> Status | None:
        """Whether a reservation may be on a node."""
        pinned = pinned_node(found)
        if pinned and pinned != node.name:
            return _PINNED
        policy = Policy.DEFAULT if found.spec is None else found.spec.policy
        for other in self.tracker.sharing(node.name):
            if other.spec is None or other.uid == found.uid:
                continue
            if policies_conflict(policy, other.spec.policy):
                return _CONFLICT
        if found.spec is None or not found.spec.pre_allocation:
            return None
        selection = self._select(data, found, node)
        return None if selection.passes else Status.unschedulable(*selection.reasons)

    def _select(self, data: CycleData, found: Reservation, node: NodeInfo) -> Selection:
        """The pods of a node that a reservation takes over."""
        candidates = data.candidates.get(node.name, ())
        info = reservation_info(found, {})
        names = info.allocatable
        requested = {name: node.requested(name) for name in names}
        for pod in candidates:  # they are not in the view
            for name, amount in pod.spec.requests:
                if name in requested:
                    requested[name] += amount
        room = NodeRoom(
            allocatable={name: node.allocatable(name) for name in names},
            requested=requested,
            allowed_pods=node.allocatable(POD_COUNT),
            pods=node.requested(POD_COUNT) + len(candidates),
        )
        config = self._args.pre_allocation_config
        prefer_none = config.prefer_no_pre_allocated_pods
        return select(info, room, candidates, prefer_none=prefer_none, options=self._fit)

    async def post_filter(
        self, state: CycleState, pod: ClusterPod, nodes: View, statuses: NodeStatuses
    ) -> PostFilterResult | Status | None:
        """Say how many reservations matched the pod, and why they did not help."""
        data = state.find(_DATA, CycleData)
        if data is None:
            return Status.unschedulable()
        if data.reservation is not None:
            if self._args.enable_preemption:
                return Status.unschedulable()
            return Status.unresolvable(NO_PREEMPTION)
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
        required = data.demands.required
        return Status.unschedulable(*messages.reasons(rejected, required=required))

    async def post_filter_dry_run(
        self, state: CycleState, pod: ClusterPod, nodes: View, statuses: NodeStatuses
    ) -> PostFilterResult | Status | None:
        return await self.post_filter(state, pod, nodes, statuses)

    def pre_score(
        self, state: CycleState, pod: ClusterPod, nodes: View, feasible: Mask
    ) -> Status | None:
        """Find the feasible node whose reservation is the first by order."""
        data = state.find(_DATA, CycleData)
        if data is not None and data.reservation is not None and data.candidates:
            return None
        if data is None or data.demands is None or data.demands.ignored or not data.by_node:
            return Status.skip()
        preferred = None
        if data.ordered:
            rows = ((name, nodes.row(name)) for name in data.by_node)
            good = [name for name, row in rows if row is not None and feasible[row]]
            preferred = preferred_node({name: data.by_node[name] for name in sorted(good)})
        state.write(_PREFERRED, Preferred(preferred))
        return None

    def score_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        data = state.find(_DATA, CycleData)
        if data is None or data.reservation is not None or data.ordered:
            return None
        return data.key

    def score(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
        """How full the reservation is that the pod would have there."""
        data = state.find(_DATA, CycleData)
        if data is None:
            return 0
        if data.reservation is not None:
            return self._score_taken_over(data, data.reservation, node)
        if data.demands is None or node.name not in data.by_node:
            return 0
        preferred = state.find(_PREFERRED, Preferred)
        if preferred is not None and preferred.node == node.name:
            return PREFERRED
        chosen = self._nominated(data, data.demands, node)
        return 0 if chosen is None else score_reservation(data.demands.requests, chosen)

    def _score_taken_over(self, data: CycleData, found: Reservation, node: NodeInfo) -> int:
        selection = self._select(data, found, node)
        if found.spec is not None and found.spec.pre_allocation_multiple:
            return multiple_score(selection.pods)
        if not selection.pods:
            return 0
        chosen = dict(selection.pods[0].spec.requests)
        return score_reservation(chosen, reservation_info(found, {}))

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
        for name in names:
            row = nodes.row(name)
            if row is not None:
                scores[row] = self.score(state, pod, NodeInfo(nodes, row))
        return scores

    def normalize_scores(self, state: CycleState, pod: ClusterPod, scores: Scores) -> Scores:
        return default_normalize(scores)

    def _nominated(
        self, data: CycleData, demands: Demands, node: NodeInfo
    ) -> ReservationInfo | None:
        """The reservation that a pod is to have on a node; None: none."""
        fitting = self._fitting(data, demands, node).fitting
        return nominate(fitting, lambda info: score_reservation(demands.requests, info))

    # A node is chosen.

    def reserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        """Give the pod a reservation of the node, in the annotation by which it is counted."""
        data = state.find(_DATA, CycleData)
        if data is None:
            return None
        if data.reservation is not None:
            return self._reserve_reservation(state, data, data.reservation, node_name)
        demands, chosen, row = data.demands, None, data.nodes.row(node_name)
        if demands is not None and not demands.ignored and row is not None:
            chosen = self._nominated(data, demands, NodeInfo(data.nodes, row))
        if chosen is None:
            if demands is not None and demands.required and not demands.ignored:
                return _NO_MATCH
            if any(key == ALLOCATED for key, _ in pod.annotations):
                pod_changes(state).annotations[ALLOCATED] = None
            return None
        found = self.tracker.get(chosen.uid)
        if found is None or not found.available:
            return Status.unschedulable(NOT_FOUND)
        if found.deleting:
            return Status.unschedulable(TERMINATING)
        if self.tracker.info(found, self._services.cluster.account).taken:
            return Status.unschedulable(TAKEN)
        text = allocated_text(found.name, found.uid)
        if dict(pod.annotations).get(ALLOCATED) != text:
            pod_changes(state).annotations[ALLOCATED] = text
        state.write(_CHOSEN, Chosen(found))
        return None

    def _reserve_reservation(
        self, state: CycleState, data: CycleData, found: Reservation, node: str
    ) -> Status | None:
        row = data.nodes.row(node)
        if row is not None and found.spec is not None and found.spec.pre_allocation:
            pods = self._select(data, found, NodeInfo(data.nodes, row)).pods
            if not pods and found.pre_allocation_required:
                return Status.unschedulable(NO_PODS)
            if not found.spec.pre_allocation_multiple:
                pods = pods[:1]
            state.write(_CHOSEN, Chosen(found, tuple(pods)))
        self.tracker.reserve(found.uid, node)
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
        found = chosen.reservation
        text = allocated_text(found.name, found.uid)
        for one in chosen.pods:
            try:
                await writing.annotate(self._services.client, one, {ALLOCATED: text})
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
            await writing.change_metadata(self._services.client, data.reservation, changes.metadata)
        except KubeError as err:
            return Status.failed(err)
        return None

    async def bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        """Have a Reservation say that it is available; other pods are the next plugin's."""
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
            found = await writing.write_status_anew(client, clock, known, wanted)
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


def _facts(found: Reservation) -> tuple[object, ...]:
    """What pods that were rejected may wait for."""
    return found.uid, found.node, found.spec, found.labels, found.allocatable, found.deleting


def _has_affinity(pod: ClusterPod) -> bool:
    return any(key == AFFINITY for key, _ in pod.annotations)
