"""Pre-allocation: a reservation on a node whose room running pods have, which become its owners.

Source: Koordinator, plugins/reservation preallocation.go.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from koord.api.reservation import PRE_ALLOCATABLE_PRIORITY, RESERVE_POD
from koord.plugin import InvalidObject
from koord_scheduler.plugin import ClusterPod
from koord_scheduler_plugins.reservation.amounts import Amounts, minus, total
from koord_scheduler_plugins.reservation.consumers import allocated_reservation
from koord_scheduler_plugins.reservation.fit import (
    DEFAULT_OPTIONS,
    FitOptions,
    NodeRoom,
    by_node,
    common,
    node_shortages,
    reservation_reasons,
)
from koord_scheduler_plugins.reservation.info import ReservationInfo
from koord_scheduler_plugins.reservation.objects import Policy, ReservationSpec

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
    if spec.policy is not Policy.RESTRICTED:
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
    chosen, shortages, reasons = search(info, room, candidates, options, rejects)
    if chosen:
        return Selection(True, tuple(chosen))
    if required:
        return Selection(False, reasons=(*by_node(shortages), *reasons) or (NO_PODS,))
    if not shortages and candidates:
        shortages = _short(requests, room, (), options)
    return Selection(not shortages, reasons=by_node(shortages))


def multiple_score(selected: Sequence[ClusterPod]) -> int:
    """Return the score of a node where several pods may be taken over: fewer are better."""
    return 100 // (1 + len(selected)) if selected else 100


_Found = tuple[list[ClusterPod], list[str], list[str]]
"""The pods, and without any the shortages of the node and the reasons of the reservation."""


def _single(
    info: ReservationInfo,
    room: NodeRoom,
    candidates: Sequence[ClusterPod],
    options: FitOptions,
    rejects: Callable[[ClusterPod], Sequence[str]],
) -> _Found:
    """Candidates with each of which alone the reservation fits."""
    chosen: list[ClusterPod] = []
    shortages: list[str] = []
    reasons: list[str] = []
    for pod in candidates:
        requests = dict(pod.spec.requests)
        if not common(info.names, requests):
            continue
        short = _short(info.allocatable, room, (pod,), options)
        rejected = [*reservation_reasons(requests, info, options=options), *rejects(pod)]
        if short or rejected:
            shortages += short
            reasons += rejected
        else:
            chosen.append(pod)
    return chosen, shortages, reasons


def _several(
    info: ReservationInfo,
    room: NodeRoom,
    candidates: Sequence[ClusterPod],
    options: FitOptions,
    rejects: Callable[[ClusterPod], Sequence[str]],
) -> _Found:
    """The first candidates with all of which the reservation fits."""
    chosen: list[ClusterPod] = []
    shortages: list[str] = []
    reasons: list[str] = []
    for pod in candidates:
        trial = [*chosen, pod]
        together = total(dict(one.spec.requests) for one in trial)
        with_others = replace(info, consumers=info.consumers + len(chosen))
        rejected = [*reservation_reasons(together, with_others, options=options), *rejects(pod)]
        if rejected:
            reasons += rejected
            continue
        chosen = trial
        shortages = _short(info.allocatable, room, trial, options)
        if not shortages:
            return chosen, [], []
    return [], shortages, reasons


def _short(
    requests: Amounts, room: NodeRoom, without: Sequence[ClusterPod], options: FitOptions
) -> list[str]:
    """What the node lacks for a reservation in the place of some of its pods."""
    freed = total(dict(pod.spec.requests) for pod in without)
    left = replace(
        room, requested=minus(room.requested, freed), pods=room.pods - len(without), matched=0
    )
    return node_shortages(requests, left, options=options)


def _priority(text: str) -> int:
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS):
        return 0
    number = int(text)
    return number if -(2**63) <= number < 2**63 else 0
