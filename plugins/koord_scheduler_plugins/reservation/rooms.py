"""The room that a pod finds on nodes, and which of the reservations that fit it is to have.

All choices are made in one order: order label, score, creation, uid.
"""

import math
from abc import ABC
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from koord_scheduler.plugin import (
    POD_COUNT,
    ClusterPod,
    CycleState,
    Handle,
    NodeInfo,
    Status,
    View,
)
from koord_scheduler.plugin.koordinator import (
    FrozenAccount,
    HypotheticalCluster,
    NUMATopologyHint,
    NUMATopologyHintProvider,
    ReservationRoom,
)
from koord_scheduler_plugins.reservation.amounts import Amounts
from koord_scheduler_plugins.reservation.consumers import ReservationInfo
from koord_scheduler_plugins.reservation.fit import (
    NO_MATCH,
    PREEMPTION_FAILED,
    PREFIX,
    FilterResult,
    FitOptions,
    NodeRoom,
    filter_node,
    insufficient_on_node,
)
from koord_scheduler_plugins.reservation.matches import (
    FEW_NODES,
    ByNode,
    Judgement,
    MatchColumns,
)
from koord_scheduler_plugins.reservation.matching import Demands
from koord_scheduler_plugins.reservation.objects import AllocatePolicy, Reservation
from koord_scheduler_plugins.reservation.tracker import ReservationTracker


@dataclass(frozen=True, slots=True)
class CycleData:
    """The state of reservations in the cycle of a pod."""

    nodes: View  # without the pods of what matches
    demands: Demands | None = None  # None: of a reserve pod
    by_node: ByNode = field(default_factory=ByNode)
    key: Hashable = ()
    ordered: bool = False
    reservation: Reservation | None = None  # that a reserve pod stands for
    columns: MatchColumns = field(default_factory=MatchColumns)
    candidates: Mapping[str, Sequence[ClusterPod]] = field(default_factory=dict)
    """Pods that this reservation may take over, by node; they are not in nodes."""
    found: dict[str, FilterResult] = field(default_factory=dict)
    """Results of this cycle by node: Filter, Score and nomination share them."""

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


def _none(_: ReservationInfo | None) -> Sequence[str]:
    """No plugin rejects a reservation."""
    return ()


CYCLE_DATA = "Reservation"
"""Key of CycleData in the state of a cycle."""

PREFERRED = 1000  # the score of a node with the first reservation by order, before normalization
ALREADY_ALLOCATED = "reservation has allocateOnce enabled and has already been allocated"
_NOTHING: Amounts = {}


def score_reservation(
    requests: Amounts, info: ReservationInfo, preemptible: Amounts = _NOTHING
) -> int:
    """Return how full a reservation is with the pod in it, 0 to 100; what is over full counts 0."""
    scores = []
    for name in info.names:
        capacity = info.allocatable[name]
        if capacity > 0:
            used = max(0, info.used.get(name, 0) - preemptible.get(name, 0))
            wanted = requests.get(name, 0) + used
            scores.append(100 * wanted // capacity if wanted <= capacity else 0)
    return sum(scores) // len(scores) if scores else 0


def nominate(
    candidates: Iterable[ReservationInfo], score: Callable[[ReservationInfo], int]
) -> ReservationInfo | None:
    """Return the reservation that a pod is to have; None: there is none.

    candidates: those of one node through which the pod fits. One that has been given away already
    is none.
    """
    free = [one for one in candidates if not one.taken]
    if len(free) <= 1:
        return free[0] if free else None

    def place(info: ReservationInfo) -> tuple[float, int, float, str]:
        reservation = info.reservation
        created = math.inf if reservation.created is None else reservation.created
        return _order(info), -score(info), created, info.uid

    return min(free, key=place)


def preferred_node(matched: Mapping[str, Sequence[ReservationInfo]]) -> str | None:
    """Return the node that has the reservation with the smallest order; None: none has an order.

    matched: by node. Of several nodes the first one of the mapping is returned.
    """
    orders = {
        node: min((_order(info) for info in infos), default=math.inf)
        for node, infos in matched.items()
    }
    found = min(orders, key=lambda node: orders[node], default=None)
    return None if found is None or math.isinf(orders[found]) else found


def node_scores(
    nodes: Iterable[str], scores: Mapping[str, int], preferred: str | None
) -> dict[str, int]:
    """Return the normalized scores of nodes, 0 to 100.

    scores: of the reservations that are nominated, by node.
    """
    found = {node: PREFERRED if node == preferred else scores.get(node, 0) for node in nodes}
    most = max(found.values(), default=0)
    return {node: 100 * score // most if most else 0 for node, score in found.items()}


def _order(info: ReservationInfo) -> float:
    order = info.reservation.order
    return math.inf if order is None else order


NO_MATCHING = Status.unresolvable(NO_MATCH)


Cycle = tuple[CycleState, ClusterPod]
"""The state of a cycle, and its pod."""


class Rejections(Protocol):
    """The plugins of a profile, as far as they look at reservations."""

    def filters(self, state: CycleState, pod: ClusterPod) -> bool: ...

    def filter(
        self, state: CycleState, pod: ClusterPod, reservation: ReservationRoom, node: str
    ) -> Status: ...

    def ranks(self, state: CycleState, pod: ClusterPod) -> bool: ...

    def scores(
        self, state: CycleState, pod: ClusterPod, reservations: Sequence[ReservationRoom], node: str
    ) -> Mapping[str, int]: ...


class Rooms:
    """Whether pods fit, also in what-ifs in which consumers are elsewhere."""

    def __init__(
        self, tracker: ReservationTracker, fit: FitOptions, plugins: Callable[[], Rejections]
    ) -> None:
        """plugins: of the profile, which may reject reservations."""
        self._tracker = tracker
        self._fit = fit
        self._plugins = plugins

    def as_consumed(self, nodes: View, seen: View, by_node: ByNode) -> View:
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
            for found in self._tracker.on_node(name):
                pod = None if found.uid in mine else self._tracker.pod_in(found, nodes.account)
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

    def rejects(self, cycle: Cycle) -> bool:
        """Whether any plugin may reject a reservation for the pod of a cycle."""
        return self._plugins().filters(*cycle)

    def look(self, data: CycleData, node: NodeInfo, cycle: Cycle) -> Status | None:
        """Whether a pod fits a node, through one of its reservations or beside them."""
        demands, name = data.demands, node.name
        matched = data.by_node.get(name, ())
        if demands is None:
            return None
        if not matched:
            if demands.required:
                return NO_MATCHING
            if not self.is_what_if(node.view):
                return None
            room, retaken = self._room(data, node)
            if retaken and insufficient_on_node(demands.requests, room, options=self._fit):
                return Status.unschedulable(PREEMPTION_FAILED)
            reasons = self._rejections(demands, node, cycle)(None)
            return Status.unschedulable(*reasons) if reasons else None
        found = self._fitting(data, demands, node, cycle)
        return None if found.passes else Status.unschedulable(*found.reasons)

    def judge(self, data: CycleData, nodes: View, cycle: Cycle) -> Judgement | None:
        """Judge nodes that have one reservation of the pod together; None: each is to be looked at.

        A few nodes, what-ifs and pods for which other plugins look at reservations are none of it.
        """
        demands = data.demands
        if demands is None or demands.ignored or demands.name or len(data.by_node) <= FEW_NODES:
            return None
        if nodes is not data.nodes or self.is_what_if(nodes) or self.rejects(cycle):
            return None
        return data.columns.judge(data.by_node, self._tracker, demands, nodes, self._fit)

    def _fitting(
        self, data: CycleData, demands: Demands, node: NodeInfo, cycle: Cycle | None
    ) -> FilterResult:
        """The reservations of a node through which a pod fits there."""
        others = self._rejections(demands, node, cycle)
        keeps, name = others is _none and node.view is data.nodes, node.name
        known = data.found.get(name) if keeps else None
        if known is not None:
            return known
        room, _ = self._room(data, node)
        infos = [self._now(info, node.view) for info in data.by_node.get(name, ())]
        left = [info for info in infos if not info.taken]
        found = filter_node(demands, left, room, options=self._fit, others=others)
        if keeps:
            data.found[name] = found
        return found

    def _rejections(
        self, demands: Demands, node: NodeInfo, cycle: Cycle | None
    ) -> Callable[[ReservationInfo | None], Sequence[str]]:
        """Why other plugins reject a reservation of a node for a pod; None: a place beside them."""
        if cycle is None or demands.ignored or not self.rejects(cycle):
            return _none
        account = self._account(node)

        def rejections(info: ReservationInfo | None) -> Sequence[str]:
            room = self._offer(() if info is None else (info,), node, account)
            status = self._plugins().filter(*cycle, room, node.name)
            if status.ok:
                return ()
            return status.reasons if info is None else [f"{PREFIX}{one}" for one in status.reasons]

        return rejections

    def _account(self, node: NodeInfo) -> FrozenAccount:
        """The account of a node with the pods of all its reservations, as consumers leave them."""
        account = node.view.account
        there = {pod.uid: pod for pod in node.pods}
        gone: list[tuple[ClusterPod, str]] = []
        added: list[tuple[ClusterPod, str]] = []
        for found in self._tracker.on_node(node.name):
            pod, known = self._tracker.pod_in(found, account), there.get(found.uid)
            if pod is None or (known is not None and known.annotations == pod.annotations):
                continue
            added.append((pod, node.name))
            if known is not None:
                gone.append((known, node.name))
        return account.with_pods(gone, added) if added else account

    def _offer(
        self, infos: Sequence[ReservationInfo], node: NodeInfo, account: FrozenAccount
    ) -> ReservationRoom:
        tracker, first = self._tracker, infos[0] if infos else None
        reserved = [tracker.whole_pod(one.uid) for one in infos]
        pods = [
            tracker.pod_in(one.reservation, account)
            for one, whole in zip(infos, reserved, strict=True)
            if whole is not None  # devices and CPUs of a pod in operating mode are its own
        ]
        return ReservationRoom(
            name="" if first is None else first.name,
            labels={} if first is None else first.reservation.labels,
            node=node,
            account=account,
            pods=tuple(filter(None, pods)),
            reserved=tuple(filter(None, reserved)),
            restricted=len(infos) == 1 and infos[0].policy is AllocatePolicy.RESTRICTED,
        )

    def room_of(
        self,
        found: Reservation,
        node: NodeInfo,
        pods: Sequence[ClusterPod],
        candidates: Sequence[ClusterPod],
    ) -> ReservationRoom:
        """The room that a reservation gets with running pods that it takes over.

        node: without any of the candidates, which are there.
        """
        there = [(pod, node.name) for pod in candidates]
        return ReservationRoom(
            name=found.name,
            labels=found.labels,
            node=node,
            account=self._account(node).with_pods((), there),
            pods=tuple(pods),
            reserved=tuple(pods),
            taken_over=True,
        )

    def rejections_of(
        self, found: Reservation, node: NodeInfo, candidates: Sequence[ClusterPod], cycle: Cycle
    ) -> Callable[[ClusterPod], Sequence[str]]:
        """Why other plugins reject that a reservation takes over a pod of a node."""
        if not candidates or not self.rejects(cycle):
            return lambda _: ()

        def rejections(pod: ClusterPod) -> Sequence[str]:
            room = self.room_of(found, node, (pod,), candidates)
            status = self._plugins().filter(*cycle, room, node.name)
            return () if status.ok else [f"{PREFIX}{one}" for one in status.reasons]

        return rejections

    def room_for(
        self, data: CycleData, demands: Demands, node: NodeInfo, chosen: ReservationInfo | None
    ) -> ReservationRoom | None:
        """The room that a pod has on its node, for plugins; None: it has no reservation there."""
        infos: Sequence[ReservationInfo] = () if chosen is None else (chosen,)
        if demands.ignored:
            infos = data.by_node.get(node.name, ())
        return self._offer(infos, node, self._account(node)) if infos else None

    def nominated(
        self, data: CycleData, demands: Demands, node: NodeInfo, cycle: Cycle | None
    ) -> ReservationInfo | None:
        """The reservation that a pod is to have on a node; None: none.

        cycle: None: there is none, and other plugins are not asked.
        """
        if node.name not in data.by_node:
            return None
        fitting = self._fitting(data, demands, node, cycle).fitting
        others = self._scores(fitting, node, cycle)
        return nominate(
            fitting,
            lambda info: score_reservation(demands.requests, info) + others.get(info.name, 0),
        )

    def admits(self, data: CycleData, demands: Demands, node: NodeInfo, cycle: Cycle) -> bool:
        """Whether a pod fits a node through one of its reservations."""
        return any(not one.taken for one in self._fitting(data, demands, node, cycle).fitting)

    def _scores(
        self, infos: Sequence[ReservationInfo], node: NodeInfo, cycle: Cycle | None
    ) -> Mapping[str, int]:
        """The scores of other plugins, by name, for those among which there is a choice."""
        if cycle is None or len(infos) < 2 or not self._plugins().ranks(*cycle):
            return {}
        account = self._account(node)
        rooms = [self._offer((info,), node, account) for info in infos]
        return self._plugins().scores(*cycle, rooms, node.name)

    def rejection(self, data: CycleData, demands: Demands, node: NodeInfo, cycle: Cycle) -> Status:
        """Why a pod that must have a reservation gets none on a node."""
        reasons = self._fitting(data, demands, node, cycle).reasons
        return Status.unschedulable(*reasons) if reasons else NO_MATCHING

    def _room(self, data: CycleData, node: NodeInfo) -> tuple[NodeRoom, bool]:
        """A node with the pods of its reservations as large as its consumers leave them.

        Also whether a pod that the view has there would be larger.
        """
        assert data.demands is not None  # noqa: S101 - of a pod that stands for no reservation
        names, matched = data.demands.requests, data.by_node.get(node.name, ())
        allocatable, requested = _uses(node, (*names, POD_COUNT))
        pods, allowed_pods = requested[POD_COUNT], allocatable[POD_COUNT]
        for info in matched:
            held = self._tracker.held(info.uid, self._now(info, node.view).used)
            for name in names:
                requested[name] += held.get(name, 0)
        retaken = False
        if self.is_what_if(node.view):
            mine = {info.uid for info in matched}
            there = {pod.uid: dict(pod.spec.requests) for pod in node.pods}
            for other in self._tracker.on_node(node.name):
                takes = there.get(other.uid)
                if other.uid in mine or takes is None:
                    continue
                used = self._tracker.info(other, node.view.account).used
                for name, amount in self._tracker.held(other.uid, used).items():
                    more = amount - takes.get(name, 0)
                    if more > 0 and name in requested:
                        requested[name] += more
                        retaken = True
        room = NodeRoom(
            allocatable=allocatable,
            requested=requested,
            allowed_pods=allowed_pods,
            pods=pods + len(matched),
            matched=len(matched),
        )
        return room, retaken

    def _now(self, info: ReservationInfo, nodes: View) -> ReservationInfo:
        """A reservation with what consumers hold of it in a view."""
        if not self.is_what_if(nodes):
            return info
        return self._tracker.info(info.reservation, nodes.account)

    def is_what_if(self, nodes: View) -> bool:
        """Whether consumers are on other nodes there than in the cluster."""
        return nodes.account is not self._tracker.account


def _uses(node: NodeInfo, names: Iterable[str]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the allocatable and requested amounts of a node, 0 of what it does not have."""
    columns = node.view.resources
    known = [name for name in names if name in columns]
    uses = node.view.uses_of(node.row, [columns[name] for name in known])
    allocatable, requested = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    for name, (allowed, taken) in zip(known, uses, strict=True):
        allocatable[name], requested[name] = allowed, taken
    return allocatable, requested


class ReservationHints(NUMATopologyHintProvider, ABC):
    """Has pods that must have a reservation go to NUMA nodes where they get one."""

    _handle: Handle
    _rooms: Rooms

    def pod_topology_hints(
        self, state: CycleState, pod: ClusterPod, node: NodeInfo
    ) -> Mapping[str, list[NUMATopologyHint]] | None:
        """NUMA nodes with which other plugins let the pod have one; None: all, or none at all."""
        data, numa = state.find(CYCLE_DATA, CycleData), self._handle.numa()
        if data is None or data.demands is None or not data.by_node.get(node.name):
            return None
        demands = data.demands
        if not demands.required or demands.ignored or not self._rooms.rejects((state, pod)):
            return None
        found = [
            nodes
            for nodes in numa.choices(state)
            if self._rooms.admits(
                data, demands, node, (numa.with_affinity(state, node, nodes), pod)
            )
        ]
        if not found:
            return None  # what Filter says of the reservations is more
        least = len(found[0])
        hints = [NUMATopologyHint(one, preferred=len(one) == least) for one in found]
        return {"reservation": hints}

    def allocate(
        self, state: CycleState, affinity: NUMATopologyHint, pod: ClusterPod, node: NodeInfo
    ) -> Status | None:
        """Do nothing: reservations are looked at in Filter and when one is nominated."""
