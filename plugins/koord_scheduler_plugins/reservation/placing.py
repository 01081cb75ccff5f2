"""Where a Reservation itself may be, and which running pods it takes over there."""

from collections.abc import Iterable

from koord_scheduler.plugin import POD_COUNT, ClusterPod, NodeInfo, Status, View
from koord_scheduler.plugin.koordinator import HypotheticalCluster
from koord_scheduler_plugins.reservation.args import PreAllocationConfig
from koord_scheduler_plugins.reservation.cycledata import CycleData
from koord_scheduler_plugins.reservation.fit import FitOptions, NodeRoom
from koord_scheduler_plugins.reservation.info import (
    POLICY_CONFLICT,
    policies_conflict,
    reservation_info,
)
from koord_scheduler_plugins.reservation.nomination import score_reservation
from koord_scheduler_plugins.reservation.objects import Policy, Reservation, ReservationSpec
from koord_scheduler_plugins.reservation.preallocation import (
    Selection,
    labelled_candidates,
    multiple_score,
    owned_candidates,
    unsupported,
)
from koord_scheduler_plugins.reservation.preallocation import select as select_pods
from koord_scheduler_plugins.reservation.reserve_pod import pinned_node
from koord_scheduler_plugins.reservation.tracker import ReservationTracker

GONE = "cannot get reservation: it has gone"
PINNED = "node(s) didn't match the nodeName specified by reservation"
NO_CANDIDATES = "node(s) no pod match reservation with pre allocation required"
MAX_CANDIDATES = 4096  # pods that are looked at for a reservation's pre-allocation
NOT_PINNED = Status.unresolvable(PINNED)
_CONFLICT = Status.unresolvable(POLICY_CONFLICT)


class Placing:
    """Judges nodes for Reservations."""

    def __init__(
        self, tracker: ReservationTracker, config: PreAllocationConfig, fit: FitOptions
    ) -> None:
        self._tracker = tracker
        self._config = config
        self._fit = fit

    def begin(self, found: Reservation, nodes: View) -> CycleData | Status:
        """Return what the cycle of a Reservation needs, or why it can be nowhere."""
        spec = found.spec
        if spec is None:
            return Status.unresolvable("; ".join(found.problems) or GONE)
        if not spec.pre_allocation:
            return CycleData(nodes, reservation=found)
        reason = unsupported(spec, cluster_mode=self._config.enable_cluster_mode)
        if reason:
            return Status.unresolvable(reason)
        candidates = self._candidates(found, spec, nodes)
        if not candidates and found.pre_allocation_required:
            return Status.unresolvable(NO_CANDIDATES)
        cluster = HypotheticalCluster(nodes)
        for name, pods in candidates.items():
            for pod in pods:
                cluster.remove(pod.key, name)
        return CycleData(cluster.view(), reservation=found, candidates=candidates)

    def _candidates(
        self, found: Reservation, spec: ReservationSpec, nodes: View
    ) -> dict[str, list[ClusterPod]]:
        """Pods that a reservation may take over, by node."""
        config = self._config
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

    def look(self, data: CycleData, found: Reservation, node: NodeInfo) -> Status | None:
        """Whether a reservation may be on a node."""
        pinned = pinned_node(found)
        if pinned and pinned != node.name:
            return NOT_PINNED
        policy = Policy.DEFAULT if found.spec is None else found.spec.policy
        for other in self._tracker.sharing(node.name):
            if other.spec is None or other.uid == found.uid:
                continue
            if policies_conflict(policy, other.spec.policy):
                return _CONFLICT
        if found.spec is None or not found.spec.pre_allocation:
            return None
        selection = self.select(data, found, node)
        return None if selection.passes else Status.unschedulable(*selection.reasons)

    def select(self, data: CycleData, found: Reservation, node: NodeInfo) -> Selection:
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
        config = self._config
        prefer_none = config.prefer_no_pre_allocated_pods
        return select_pods(info, room, candidates, prefer_none=prefer_none, options=self._fit)

    def score(self, data: CycleData, found: Reservation, node: NodeInfo) -> int:
        """How well the pods that it would take over use the reservation."""
        selection = self.select(data, found, node)
        if found.spec is not None and found.spec.pre_allocation_multiple:
            return multiple_score(selection.pods)
        if not selection.pods:
            return 0
        chosen = dict(selection.pods[0].spec.requests)
        return score_reservation(chosen, reservation_info(found, {}))
