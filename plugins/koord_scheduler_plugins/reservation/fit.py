"""Whether a pod fits a node through a reservation of it.

Source: Koordinator, plugins/reservation plugin.go, fitsNode and fitsReservation.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from koord_scheduler.plugin import POD_COUNT
from koord_scheduler_plugins.reservation.amounts import Amounts
from koord_scheduler_plugins.reservation.consumers import ReservationInfo
from koord_scheduler_plugins.reservation.matching import Demands
from koord_scheduler_plugins.reservation.objects import AllocatePolicy

NO_MATCH = "node(s) no reservations match reservation affinity"
NO_ROOM = "node(s) no reservation(s) to meet the requirements"
PREEMPTION_FAILED = "node(s) preemption failed due to insufficient resources"
PREFIX = "Reservation(s) "
_NEVER_IGNORED = ("cpu", "memory", "ephemeral-storage", POD_COUNT)
_NOTHING: Amounts = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeRoom:
    """A node, with the pods of its matched reservations still on it."""

    allocatable: Amounts
    requested: Amounts
    consumed: Amounts = field(default_factory=dict)
    """The part of requested counted twice: with the consumers and with the reserve pods of matched
    reservations. Nothing, where these take only what consumers have left."""
    allowed_pods: int = 110
    pods: int = 0
    matched: int = 0  # reservations; the reserve pod of each is among pods


@dataclass(frozen=True, kw_only=True, slots=True)
class Preemptible:
    """Amounts of the pods that a what-if takes away; "pods" is their number."""

    on_node: Amounts = field(default_factory=dict)  # outside of reservations
    inside: Mapping[str, Amounts] = field(default_factory=dict)  # by uid of the reservation


@dataclass(frozen=True, kw_only=True, slots=True)
class FitOptions:
    """Switches of the rules."""

    ignored_resources: frozenset[str] = frozenset()
    ignored_groups: frozenset[str] = frozenset()  # parts of names before the first /
    skip_node: bool = False  # the gate SkipReservationFitsNode

    def ignores(self, name: str) -> bool:
        """Whether a resource is not looked at."""
        if name in _NEVER_IGNORED:
            return False
        group, slash, _ = name.partition("/")
        return name in self.ignored_resources or bool(slash and group in self.ignored_groups)


@dataclass(frozen=True, slots=True)
class FilterResult:
    """The reservations through which a pod fits a node, or why it does not fit."""

    passes: bool
    fitting: tuple[ReservationInfo, ...] = ()  # none, where it fits beside them
    reasons: tuple[str, ...] = ()


DEFAULT_OPTIONS = FitOptions()
NONE_PREEMPTIBLE = Preemptible()


def insufficient_on_node(
    requests: Amounts,
    room: NodeRoom,
    remaining: Amounts = _NOTHING,
    preemptible: Amounts = _NOTHING,
    options: FitOptions = DEFAULT_OPTIONS,
) -> list[str]:
    """Return the resources of which a node has too little.

    remaining: of the reservation that the pod is to be given. Preemptible pods do not count as
    pods here, as in Koordinator.
    """
    short = [POD_COUNT] if room.pods - room.matched + 1 > room.allowed_pods else []
    for name, wanted in requests.items():
        if wanted <= 0 or name == POD_COUNT or options.ignores(name):
            continue
        freed = remaining.get(name, 0) + room.consumed.get(name, 0) + preemptible.get(name, 0)
        if wanted > room.allocatable.get(name, 0) - (room.requested.get(name, 0) - freed):
            short.append(name)
    return short


def reservation_reasons(
    requests: Amounts,
    info: ReservationInfo,
    preemptible: Amounts = _NOTHING,
    options: FitOptions = DEFAULT_OPTIONS,
    *,
    detailed: bool = False,
) -> list[str]:
    """Return why a pod does not fit into a Restricted reservation; detailed: with amounts."""
    found = []
    limit = info.allocatable.get(POD_COUNT)
    if limit is not None:
        pods = info.consumers - preemptible.get(POD_COUNT, 0)
        if pods + 1 > limit:
            more = f", requested: 1, used: {pods}, capacity: {limit}" if detailed else ""
            found.append(f"{PREFIX}Too many pods{more}")
    for name in info.names:
        wanted = requests.get(name, 0)
        if wanted <= 0 or options.ignores(name):
            continue
        capacity = info.allocatable[name] - info.inner.get(name, 0)
        used = max(0, info.used.get(name, 0) - preemptible.get(name, 0))
        if wanted > capacity - used:
            more = f", requested: {wanted}, used: {used}, capacity: {capacity}" if detailed else ""
            found.append(f"{PREFIX}Insufficient {name}{more}")
    return found


def misfits(
    demands: Demands,
    info: ReservationInfo,
    room: NodeRoom,
    preemptible: Preemptible = NONE_PREEMPTIBLE,
    options: FitOptions = DEFAULT_OPTIONS,
) -> tuple[list[str], list[str]]:
    """Return the insufficient resources of the node, and the reasons of the reservation.

    Without any, the pod fits.

    Whatever its policy, a pod never gets what a reservation keeps back inside.
    """
    inside = preemptible.inside.get(info.uid, _NOTHING)
    insufficient: list[str] = []
    if not (options.skip_node and room.matched <= 1):
        freed = _sum(preemptible.on_node, inside)
        insufficient = insufficient_on_node(demands.requests, room, info.remaining, freed, options)
    reasons: list[str] = []
    if info.policy is AllocatePolicy.RESTRICTED:
        detailed = bool(demands.name)
        reasons = reservation_reasons(demands.requests, info, inside, options, detailed=detailed)
    return insufficient, reasons


def filter_node(
    demands: Demands,
    matched: Sequence[ReservationInfo],
    room: NodeRoom,
    preemptible: Preemptible = NONE_PREEMPTIBLE,
    options: FitOptions = DEFAULT_OPTIONS,
    others: Callable[[ReservationInfo | None], Sequence[str]] = lambda _: (),
) -> FilterResult:
    """Return whether a pod fits a node: through one of its reservations, or beside them.

    others: why further plugins reject a reservation, or with None a place beside them; none: they
    let the pod have it.
    """
    if not matched:
        return _unmatched(demands, room, preemptible, options)
    if demands.ignored:
        return FilterResult(True)
    insufficient: set[str] = set()
    reasons: list[str] = []
    fitting: list[ReservationInfo] = []
    for info in matched:
        if not demands.required and not common(info.names, demands.requests):
            continue
        if demands.name not in ("", info.name):
            continue
        short, own = misfits(demands, info, room, preemptible, options)
        rejected = [*own, *others(info)]
        if short or rejected:
            insufficient.update(short)
            reasons += rejected
        else:
            fitting.append(info)
    if fitting:
        return FilterResult(True, tuple(fitting))
    if demands.required:
        every = (*by_node(insufficient), *reasons)
        return FilterResult(False, reasons=every or (NO_ROOM,))
    if insufficient:
        return FilterResult(False, reasons=by_node(insufficient))
    found = _filter_unreserved(demands, room, preemptible, options)
    if found.passes and (unreserved := others(None)):
        return FilterResult(False, reasons=tuple(unreserved))
    return found


def by_node(insufficient: Iterable[str]) -> tuple[str, ...]:
    """Return the reasons for resources of which a node has too little, each once."""
    return tuple(f"Insufficient {name} by node" for name in sorted(set(insufficient)))


def common(names: Iterable[str], requests: Amounts) -> bool:
    """Whether a pod requests one of these resources."""
    return any(requests.get(name, 0) > 0 for name in names)


def _unmatched(
    demands: Demands, room: NodeRoom, preemptible: Preemptible, options: FitOptions
) -> FilterResult:
    """Check a node without a matched reservation: only the amounts that a what-if frees."""
    if demands.required:
        return FilterResult(False, reasons=(NO_MATCH,))
    if preemptible.on_node and not _filter_unreserved(demands, room, preemptible, options).passes:
        return FilterResult(False, reasons=(PREEMPTION_FAILED,))
    return FilterResult(True)


def _filter_unreserved(
    demands: Demands, room: NodeRoom, preemptible: Preemptible, options: FitOptions
) -> FilterResult:
    short = insufficient_on_node(demands.requests, room, _NOTHING, preemptible.on_node, options)
    return FilterResult(not short, reasons=by_node(short))


def _sum(some: Amounts, more: Amounts) -> Amounts:
    if not more:
        return some
    return {name: some.get(name, 0) + more.get(name, 0) for name in {**some, **more}}
