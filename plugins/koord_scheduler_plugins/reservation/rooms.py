"""The room that a pod finds on nodes: free, and in the reservations that it matches."""

from koord_scheduler.plugin import POD_COUNT, NodeInfo, Status, View
from koord_scheduler.plugin.koordinator import HypotheticalCluster
from koord_scheduler_plugins.reservation.cycledata import CycleData
from koord_scheduler_plugins.reservation.demands import Demands
from koord_scheduler_plugins.reservation.fit import (
    NO_MATCH,
    PREEMPTION_FAILED,
    FilterResult,
    FitOptions,
    NodeRoom,
    filter_node,
    node_shortages,
)
from koord_scheduler_plugins.reservation.info import ReservationInfo
from koord_scheduler_plugins.reservation.matches import ByNode
from koord_scheduler_plugins.reservation.nomination import nominate, score_reservation
from koord_scheduler_plugins.reservation.tracker import ReservationTracker

NO_MATCHING = Status.unresolvable(NO_MATCH)


class Rooms:
    """Whether pods fit, also in what-ifs in which consumers are elsewhere."""

    def __init__(self, tracker: ReservationTracker, fit: FitOptions) -> None:
        self._tracker = tracker
        self._fit = fit

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

    def look(self, data: CycleData, node: NodeInfo) -> Status | None:
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

    def nominated(
        self, data: CycleData, demands: Demands, node: NodeInfo
    ) -> ReservationInfo | None:
        """The reservation that a pod is to have on a node; None: none."""
        fitting = self._fitting(data, demands, node).fitting
        return nominate(fitting, lambda info: score_reservation(demands.requests, info))

    def _room(self, data: CycleData, node: NodeInfo) -> tuple[NodeRoom, bool]:
        """A node with the pods of its reservations as large as its consumers leave them.

        Also whether a pod that the view has there would be larger.
        """
        assert data.demands is not None  # noqa: S101 - of a pod that stands for no reservation
        names, matched = data.demands.requests, data.by_node.get(node.name, ())
        requested = {name: node.requested(name) for name in names}
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
            allocatable={name: node.allocatable(name) for name in names},
            requested=requested,
            allowed_pods=node.allocatable(POD_COUNT),
            pods=node.requested(POD_COUNT) + len(matched),
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
