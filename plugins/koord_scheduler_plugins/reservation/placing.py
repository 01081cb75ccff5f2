"""Where a Reservation itself may be, and which running pods it takes over there.

Source: Koordinator, plugins/reservation preallocation.go.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from koord.api.reservation import PRE_ALLOCATABLE_PRIORITY, RESERVE_POD
from koord.plugin import InvalidObject
from koord_scheduler.plugin import POD_COUNT, ClusterPod, NodeInfo, Status, View
from koord_scheduler.plugin.koordinator import HypotheticalCluster
from koord_scheduler_plugins.reservation.amounts import Amounts, minus, total
from koord_scheduler_plugins.reservation.args import PreAllocationConfig
from koord_scheduler_plugins.reservation.consumers import (
    POLICY_CONFLICT,
    ReservationInfo,
    allocated_reservation,
    policies_conflict,
    reservation_info,
)
from koord_scheduler_plugins.reservation.fit import (
    DEFAULT_OPTIONS,
    FitOptions,
    NodeRoom,
    by_node,
    common,
    insufficient_on_node,
    reservation_reasons,
)
from koord_scheduler_plugins.reservation.objects import AllocatePolicy, Reservation, ReservationSpec
from koord_scheduler_plugins.reservation.reserve_pod import pinned_node
from koord_scheduler_plugins.reservation.rooms import CycleData, score_reservation
from koord_scheduler_plugins.reservation.tracker import ReservationTracker

UNSUPPORTED = "node(s) reservation pre allocation is unsupported with current attributes"
NO_CLUSTER_MODE = "reservation requires cluster mode pre-allocation which is disabled"
NO_PODS = "node(s) no pod(s) to meet the pre-allocation requirements"
_MAX_DIGITS = 19


@dataclass(frozen=True, slots=True)
class Selection:
    """The pods that a reservation takes over on a node, or why it cannot have the node."""

    passes: bool
    pods: tuple[ClusterPod, ...] = ()  # of them one becomes the owner, or all, if several may
    reasons: tuple[str, ...] = ()


def unsupported(spec: ReservationSpec, *, cluster_mode: bool) -> str:
    """Return why a reservation cannot be pre-allocated; "": it can.

    cluster_mode: the arguments enable it.
    """
    if spec.policy is not AllocatePolicy.RESTRICTED:
        return UNSUPPORTED
    return NO_CLUSTER_MODE if spec.pre_allocation_by_cluster and not cluster_mode else ""


def may_be_candidate(pod: ClusterPod, mine: str = "") -> bool:
    """Whether a pod runs, stands for no reservation, and has none yet.

    mine: uid of the reservation that it is for; one that was given to it already, before the
    scheduler had to begin again, is a candidate still.
    """
    if not pod.node or pod.finished or any(key == RESERVE_POD for key, _ in pod.annotations):
        return False
    try:
        found = allocated_reservation(pod)
    except InvalidObject:
        return False
    return found is None or found[1] == mine


def owned_candidates(
    spec: ReservationSpec, pods: Iterable[ClusterPod], mine: str = ""
) -> list[ClusterPod]:
    """Return the candidates in mode Default: owners by label, sorted by uid."""
    owners = [one for one in spec.owners if one.selector is not None]
    found = {
        pod.uid: pod
        for pod in pods
        if may_be_candidate(pod, mine) and any(one.matches(pod) for one in owners)
    }
    return [found[uid] for uid in sorted(found)]


def labelled_candidates(
    pods: Iterable[ClusterPod],
    label: str,
    priority_key: str = PRE_ALLOCATABLE_PRIORITY,
    mine: str = "",
) -> list[ClusterPod]:
    """Return the candidates in mode Cluster: those with a label, the highest priority first."""

    def place(pod: ClusterPod) -> tuple[int, str]:
        text = next((value for key, value in pod.annotations if key == priority_key), "")
        return -_priority(text), pod.uid

    found = [pod for pod in pods if may_be_candidate(pod, mine) and pod.labels.get(label) == "true"]
    return sorted(found, key=place)


def select(
    info: ReservationInfo,
    room: NodeRoom,
    candidates: Sequence[ClusterPod],
    *,
    prefer_none: bool = False,
    options: FitOptions = DEFAULT_OPTIONS,
    rejects: Callable[[ClusterPod], Sequence[str]] = lambda _: (),
) -> Selection:
    """Return the pods of a node with each of which, or with all, the reservation fits there.

    room: the node with all its pods. candidates: in the order in which they are tried. rejects: why
    further plugins reject a candidate; none: they do not.
    """
    spec, requests = info.reservation.spec, info.allocatable
    required = info.reservation.pre_allocation_required
    if spec is None:
        return Selection(False, reasons=(UNSUPPORTED,))
    if not required and prefer_none and not _short(requests, room, (), options):
        return Selection(True)
    search = _several if spec.pre_allocation_multiple else _single
    chosen, insufficient, reasons = search(info, room, candidates, options, rejects)
    if chosen:
        return Selection(True, tuple(chosen))
    if required:
        return Selection(False, reasons=(*by_node(insufficient), *reasons) or (NO_PODS,))
    if not insufficient and candidates:
        insufficient = _short(requests, room, (), options)
    return Selection(not insufficient, reasons=by_node(insufficient))


def multiple_score(selected: Sequence[ClusterPod]) -> int:
    """Return the score of a node where several pods may be taken over: fewer are better."""
    return 100 // (1 + len(selected)) if selected else 100


_Found = tuple[list[ClusterPod], list[str], list[str]]
"""The pods; without any, what is insufficient on the node, and the reasons of the reservation."""


def _single(
    info: ReservationInfo,
    room: NodeRoom,
    candidates: Sequence[ClusterPod],
    options: FitOptions,
    rejects: Callable[[ClusterPod], Sequence[str]],
) -> _Found:
    """Candidates with each of which alone the reservation fits."""
    chosen: list[ClusterPod] = []
    insufficient: list[str] = []
    reasons: list[str] = []
    for pod in candidates:
        requests = dict(pod.spec.requests)
        if not common(info.names, requests):
            continue
        short = _short(info.allocatable, room, (pod,), options)
        rejected = [*reservation_reasons(requests, info, options=options), *rejects(pod)]
        if short or rejected:
            insufficient += short
            reasons += rejected
        else:
            chosen.append(pod)
    return chosen, insufficient, reasons


def _several(
    info: ReservationInfo,
    room: NodeRoom,
    candidates: Sequence[ClusterPod],
    options: FitOptions,
    rejects: Callable[[ClusterPod], Sequence[str]],
) -> _Found:
    """The first candidates with all of which the reservation fits."""
    chosen: list[ClusterPod] = []
    insufficient: list[str] = []
    reasons: list[str] = []
    for pod in candidates:
        trial = [*chosen, pod]
        requested = total(dict(one.spec.requests) for one in trial)
        with_others = replace(info, consumers=info.consumers + len(chosen))
        rejected = [*reservation_reasons(requested, with_others, options=options), *rejects(pod)]
        if rejected:
            reasons += rejected
            continue
        chosen = trial
        insufficient = _short(info.allocatable, room, trial, options)
        if not insufficient:
            return chosen, [], []
    return [], insufficient, reasons


def _short(
    requests: Amounts, room: NodeRoom, without: Sequence[ClusterPod], options: FitOptions
) -> list[str]:
    """Return what the node lacks for a reservation in the place of some of its pods."""
    freed = total(dict(pod.spec.requests) for pod in without)
    left = replace(
        room, requested=minus(room.requested, freed), pods=room.pods - len(without), matched=0
    )
    return insufficient_on_node(requests, left, options=options)


def _priority(text: str) -> int:
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS):
        return 0
    number = int(text)
    return number if -(2**63) <= number < 2**63 else 0


GONE = "cannot get reservation: it has gone"
PINNED = "node(s) didn't match the nodeName specified by reservation"
NO_CANDIDATES = "node(s) no pod match reservation with pre allocation required"
MAX_CANDIDATES = 4096  # pods that are looked at for a reservation's pre-allocation
NOT_PINNED = Status.unresolvable(PINNED)
_CONFLICT = Status.unresolvable(POLICY_CONFLICT)


Rejects = Callable[[ClusterPod], Sequence[str]]
"""Why other plugins reject a pod that a reservation would take over; none: they do not."""


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

    def look(
        self, data: CycleData, found: Reservation, node: NodeInfo, rejects: Rejects
    ) -> Status | None:
        """Whether a reservation may be on a node."""
        pinned = pinned_node(found)
        if pinned and pinned != node.name:
            return NOT_PINNED
        policy = AllocatePolicy.DEFAULT if found.spec is None else found.spec.policy
        for other in self._tracker.sharing(node.name):
            if other.spec is None or other.uid == found.uid:
                continue
            if policies_conflict(policy, other.spec.policy):
                return _CONFLICT
        if found.spec is None or not found.spec.pre_allocation:
            return None
        selection = self.select(data, found, node, rejects)
        return None if selection.passes else Status.unschedulable(*selection.reasons)

    def select(
        self, data: CycleData, found: Reservation, node: NodeInfo, rejects: Rejects
    ) -> Selection:
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
        return select(
            info, room, candidates, prefer_none=prefer_none, options=self._fit, rejects=rejects
        )

    def score(self, data: CycleData, found: Reservation, node: NodeInfo, rejects: Rejects) -> int:
        """How well the pods that it would take over use the reservation."""
        selection = self.select(data, found, node, rejects)
        if found.spec is not None and found.spec.pre_allocation_multiple:
            return multiple_score(selection.pods)
        if not selection.pods:
            return 0
        chosen = dict(selection.pods[0].spec.requests)
        return score_reservation(chosen, reservation_info(found, {}))
