"""Which reservations a pod can have, and why it cannot have others."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from koord_scheduler.plugin import UNSCHEDULABLE_TAINT, ClusterPod
from koord_scheduler.plugin.koordinator import Taint
from koord_scheduler_plugins.reservation.amounts import Amounts
from koord_scheduler_plugins.reservation.demands import Demands
from koord_scheduler_plugins.reservation.info import ReservationInfo
from koord_scheduler_plugins.reservation.owners import owners_match

_REPELLING = ("NoSchedule", "NoExecute")


class Verdict(Enum):
    """Whether a reservation matches a pod, or the first rule that speaks against it."""

    MATCHED = auto()
    IGNORED = auto()  # the pod may use all of them
    NOT_OWNER = auto()
    NAME_UNMATCHED = auto()
    UNSCHEDULABLE = auto()
    TAINTED = auto()
    AFFINITY_UNMATCHED = auto()
    NOT_EXACT = auto()

    @property
    def matches(self) -> bool:
        return self in (Verdict.MATCHED, Verdict.IGNORED)


@dataclass(frozen=True, slots=True)
class Match:
    """A verdict with its details."""

    verdict: Verdict
    taint: Taint | None = None  # that is not tolerated
    bypasses: bool = False  # it is matched by its name although it is unschedulable or tainted


@dataclass(frozen=True, kw_only=True, slots=True)
class MatchOptions:
    """Switches of the rules."""

    omit_node_labels: bool = False  # the gate OmitNodeLabelsForReservation
    spare_without_affinity: bool = False  # as Koordinator: taints repel pods with affinity only


_DEFAULTS = MatchOptions()


def match(
    pod: ClusterPod,
    demands: Demands,
    info: ReservationInfo,
    node_labels: Mapping[str, str],
    options: MatchOptions = _DEFAULTS,
) -> Match:
    """Return whether a pod can have a matchable reservation on its node.

    As in Koordinator a name bypasses unschedulable and taints. A reservation that is being deleted
    is never matched.

    Source: Koordinator, plugins/reservation transformer.go.
    """
    if demands.ignored:
        return Match(Verdict.IGNORED)
    reservation, spec = info.reservation, info.reservation.spec
    if spec is None or not owners_match(spec.owners, pod):
        return Match(Verdict.NOT_OWNER)
    cordoned = spec.unschedulable and not any(
        one.tolerates(UNSCHEDULABLE_TAINT) for one in demands.tolerations
    )
    taint = None
    if demands.affinity is not None or not options.spare_without_affinity:
        taint = untolerated(demands, spec.taints)
    if demands.name:
        if demands.name != reservation.name:
            return Match(Verdict.NAME_UNMATCHED)
        if reservation.deleting:
            return Match(Verdict.UNSCHEDULABLE)
        if not is_exact(demands.exact, demands.requests, info.allocatable):
            return Match(Verdict.NOT_EXACT)
        return Match(Verdict.MATCHED, bypasses=cordoned or taint is not None)
    if reservation.deleting or cordoned:
        return Match(Verdict.UNSCHEDULABLE)
    if taint is not None:
        return Match(Verdict.TAINTED, taint)
    if demands.affinity is not None:
        labels = dict(reservation.labels)
        if not options.omit_node_labels:
            labels = {**node_labels, **labels}
        if not demands.affinity.selects(reservation.name, labels):
            return Match(Verdict.AFFINITY_UNMATCHED)
    if not is_exact(demands.exact, demands.requests, info.allocatable):
        return Match(Verdict.NOT_EXACT)
    return Match(Verdict.MATCHED)


def untolerated(demands: Demands, taints: tuple[Taint, ...]) -> Taint | None:
    """Return the first taint of a reservation that repels a pod; None: none does."""
    for taint in taints:
        if taint.effect in _REPELLING and not any(
            one.tolerates(taint) for one in demands.tolerations
        ):
            return taint
    return None


def is_exact(names: tuple[str, ...], requests: Amounts, allocatable: Amounts) -> bool:
    """Whether a reservation has exactly what a pod requests of all the names."""
    return all(requests.get(name, 0) == allocatable.get(name, 0) for name in names)


@dataclass(slots=True)
class NodeDiagnosis:
    """How many reservations of a node matched or failed, and why."""

    owner_matched: int = 0
    ignored: int = 0
    name_matched: int = 0
    name_unmatched: int = 0
    unschedulable: int = 0
    affinity_unmatched: int = 0
    not_exact: int = 0
    tainted: Counter[str] = field(default_factory=Counter)  # by the text of the taint

    def add(self, found: Match, *, named: bool) -> None:
        """Count a reservation; named: the pod names one."""
        verdict = found.verdict
        if verdict is Verdict.IGNORED:
            self.ignored += 1
        if verdict in (Verdict.IGNORED, Verdict.NOT_OWNER):
            return
        self.owner_matched += 1
        if verdict is Verdict.NAME_UNMATCHED:
            self.name_unmatched += 1
        elif named:
            self.name_matched += 1
        if verdict is Verdict.UNSCHEDULABLE:
            self.unschedulable += 1
        elif verdict is Verdict.AFFINITY_UNMATCHED:
            self.affinity_unmatched += 1
        elif verdict is Verdict.NOT_EXACT:
            self.not_exact += 1
        elif found.taint is not None:
            self.tainted[f"{{{found.taint.key}: {found.taint.value}}}"] += 1

    @property
    def left(self) -> int:
        """How many matched."""
        failed = self.name_unmatched + self.unschedulable + self.affinity_unmatched + self.not_exact
        return self.owner_matched - failed - self.tainted.total()
