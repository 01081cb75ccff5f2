"""Consumers of a reservation, as pods' annotations say it, and what they hold of it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from koord.api.fields import Fields
from koord.api.gojson import parse_json
from koord.api.reservation import ALLOCATED
from koord.plugin import InvalidObject
from koord_scheduler.plugin import POD_COUNT, ClusterPod, CycleState, pod_changes
from koord_scheduler.plugin.koordinator import AccountKind, Holding
from koord_scheduler_plugins.reservation.amounts import Amounts, masked
from koord_scheduler_plugins.reservation.objects import AllocatePolicy, Reservation


@lru_cache(maxsize=4096)
def allocated_text(name: str, uid: str) -> str:
    """Return the annotation of a pod that consumes a reservation."""
    return json.dumps({"name": name, "uid": uid}, separators=(",", ":"))


def allocate(state: CycleState, pod: ClusterPod, chosen: Reservation | None) -> None:
    """Give a pod a reservation, in the annotation by which it is counted; None: none."""
    text = None if chosen is None else allocated_text(chosen.name, chosen.uid)
    if dict(pod.annotations).get(ALLOCATED) != text:
        pod_changes(state).annotations[ALLOCATED] = text


def allocated_reservation(pod: ClusterPod) -> tuple[str, str] | None:
    """Return name and uid of the reservation that a pod consumes; None: it consumes none.

    Raises:
        InvalidObject: its annotation is malformed.
    """
    text = next((value for key, value in pod.annotations if key == ALLOCATED), "")
    return _parsed(text) if text else None


def is_consumer(pod: ClusterPod) -> bool:
    """Whether a pod consumes a reservation; one whose annotation is malformed consumes none."""
    try:
        return allocated_reservation(pod) is not None
    except InvalidObject:
        return False


@lru_cache(maxsize=4096)  # it is asked several times for each change of a pod
def _parsed(text: str) -> tuple[str, str] | None:
    fields = Fields(parse_json(text, ALLOCATED), ALLOCATED)
    uid = fields.text("uid")
    return (fields.text("name"), uid) if uid else None


def pool_name(uid: str, node: str) -> str:
    """Return the pool of a reservation; it is of its node, so pods elsewhere take nothing of it."""
    return f"{uid}@{node}"


def _holdings(pod: ClusterPod) -> Sequence[Holding]:
    found = allocated_reservation(pod)
    if found is None or not pod.node:
        return ()  # an annotation counts when its pod is bound, and not before
    amounts = [each for each in pod.spec.requests if each[0] != POD_COUNT]
    return (Holding(pool_name(found[1], pod.node), (*amounts, (POD_COUNT, 1))),)


CONSUMERS = AccountKind("reservation", _holdings, members=True, nests=True, labels=frozenset())
"""Pods by the reservation that they consume, those on nodes that have not finished.

Its pools have the devices and CPUs of these pods, too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReservationInfo:
    """A reservation at one moment. Amounts are of the resources in names."""

    reservation: Reservation
    names: tuple[str, ...]  # of resources that it reserves, sorted; of Restricted, that it limits
    allocatable: Amounts  # of all resources, and of pods where it limits them
    used: Amounts  # by consumers
    consumers: int
    inner: Amounts
    remaining: Amounts = field(default_factory=dict)  # allocatable, less what is used and inner

    @property
    def name(self) -> str:
        return self.reservation.name

    @property
    def uid(self) -> str:
        return self.reservation.uid

    @property
    def policy(self) -> AllocatePolicy:
        spec = self.reservation.spec
        return AllocatePolicy.DEFAULT if spec is None else spec.policy

    @property
    def taken(self) -> bool:
        """Whether the one pod that it is for has it."""
        spec = self.reservation.spec
        has_one = self.consumers > 0 or self.reservation.has_owner
        return spec is not None and spec.allocate_once and has_one

    @property
    def matchable(self) -> bool:
        """Whether a pod may be given it."""
        return self.reservation.available and self.reservation.spec is not None and not self.taken

    def with_used(self, used: Amounts) -> "ReservationInfo":
        """Return the same reservation, where consumers hold something else."""
        counted, inner = masked(used, self.names), self.inner
        left = {
            name: self.allocatable[name] - counted.get(name, 0) - inner.get(name, 0)
            for name in self.names
        }
        return replace(
            self,
            used=counted,
            consumers=used.get(POD_COUNT, 0),
            remaining={name: amount if amount > 0 else 0 for name, amount in left.items()},
        )


def reservation_info(reservation: Reservation, used: Amounts) -> ReservationInfo:
    """Return a reservation with what consumers hold.

    used: the sums of its pool of the account; "pods" is their number.
    """
    spec = reservation.spec
    allocatable = effective_allocatable(reservation)
    names = tuple(sorted(name for name in allocatable if name != POD_COUNT))
    if spec is not None and spec.policy is AllocatePolicy.RESTRICTED and spec.restricted:
        names = tuple(name for name in names if name in spec.restricted) or names
    empty = ReservationInfo(
        reservation=reservation,
        names=names,
        allocatable=allocatable,
        used={},
        consumers=0,
        inner={} if spec is None else masked(spec.inner, names),
    )
    return empty.with_used(used)


def effective_allocatable(reservation: Reservation) -> Amounts:
    """Return what a reservation reserves: its status when it is available, else its template."""
    if reservation.available and reservation.allocatable is not None:
        return reservation.allocatable
    return {} if reservation.spec is None else reservation.spec.requests


def policies_conflict(one: AllocatePolicy, other: AllocatePolicy) -> bool:
    """Whether two reservations may not share a node: exactly one of them is Default."""
    return (one is AllocatePolicy.DEFAULT) != (other is AllocatePolicy.DEFAULT)


POLICY_CONFLICT = "node(s) reservation allocate policy conflict"
