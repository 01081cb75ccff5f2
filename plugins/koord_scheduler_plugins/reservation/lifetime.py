"""The life of a Reservation after it was made: consumers, expiry, garbage collection.

Source: Koordinator, plugins/reservation/controller.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from koord_scheduler.plugin import ClusterPod
from koord_scheduler_plugins.reservation import status as transitions
from koord_scheduler_plugins.reservation.amounts import Amounts, amount_text, masked, total
from koord_scheduler_plugins.reservation.objects import Condition, Phase, Reservation

MIN_REQUEUE = 3.0  # seconds
MAX_REQUEUE = 15.0  # seconds


@dataclass(frozen=True, slots=True)
class Sync:
    """What a controller does with a reservation."""

    status: Mapping[str, Any] | None = None  # to be written; None: it is as it should be
    requeue: float | None = None  # seconds; None: it is looked at when something changes


def sync(
    reservation: Reservation, consumers: Iterable[ClusterPod], now: float, *, node_exists: bool
) -> Sync:
    """Return what to do with a reservation.

    consumers: pods on its node that have been given it and have not finished. A reservation that
    was never scheduled expires like any other.
    """
    if reservation.terminated:
        return Sync()
    is_lost = bool(reservation.node) and not node_exists
    if is_lost or needs_expiration(reservation, now):
        return Sync(transitions.expired(reservation, now))
    status = _recounted(reservation, consumers, now) if reservation.node else None
    return Sync(status, _requeue(reservation, now))


def needs_expiration(reservation: Reservation, now: float) -> bool:
    """Whether its time is over; one with a ttl of 0 has no end."""
    spec = reservation.spec
    if reservation.terminated or spec is None or spec.ttl == 0:
        return False
    if spec.expires is not None and now > spec.expires:
        return True
    created = reservation.created
    return spec.ttl is not None and created is not None and now - created > spec.ttl


def is_garbage(reservation: Reservation, now: float, keep: float, *, node_exists: bool) -> bool:
    """Whether a reservation is to be deleted.

    It has ended more than keep seconds ago, or its node is gone. One that has failed in another
    way than by its time counts from its last condition.
    """
    if not reservation.terminated:
        return False
    if reservation.node and not node_exists:
        return True
    ended = _ended(reservation)
    return ended is not None and now - ended > keep


def utilization(reservation: Reservation) -> dict[str, float]:
    """Return the shares of allocatable that are allocated, by resource."""
    return {
        name: reservation.allocated.get(name, 0) / amount
        for name, amount in (reservation.allocatable or {}).items()
        if amount > 0
    }


def _recounted(
    reservation: Reservation, consumers: Iterable[ClusterPod], now: float
) -> Mapping[str, Any] | None:
    """The status with the consumers of now; None: it has them already."""
    pods = sorted(consumers, key=lambda pod: pod.uid)
    owners: list[Mapping[str, str]] = [
        {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid} for pod in pods
    ]
    allocatable = reservation.allocatable or {}
    allocated = masked(total(dict(pod.spec.requests) for pod in pods), allocatable)
    if _owners(reservation) == owners and _canonical(reservation.allocated) == _canonical(
        allocated
    ):
        return None
    status = transitions.with_consumers(reservation, owners, allocated)
    spec = reservation.spec
    if owners and spec is not None and spec.allocate_once:
        return transitions.succeeded(status, now)
    return status


def _owners(reservation: Reservation) -> list[Mapping[str, str]]:
    """The owners in its status, sorted as they are written."""
    status = reservation.raw.get("status")
    found = status.get("currentOwners") if isinstance(status, Mapping) else None
    owners = [
        {key: str(one.get(key) or "") for key in ("namespace", "name", "uid")}
        for one in (found if isinstance(found, list) else ())
        if isinstance(one, Mapping)
    ]
    return sorted(owners, key=lambda one: one["uid"])


def _canonical(amounts: Amounts) -> dict[str, str]:
    return {name: amount_text(name, value) for name, value in amounts.items() if value}


def _requeue(reservation: Reservation, now: float) -> float | None:
    spec = reservation.spec
    if spec is None or spec.ttl == 0:
        return None
    ends = [] if spec.expires is None else [spec.expires]
    if spec.ttl is not None and reservation.created is not None:
        ends.append(reservation.created + spec.ttl)
    return min(max(min(ends) - now, MIN_REQUEUE), MAX_REQUEUE) if ends else None


def _ended(reservation: Reservation) -> float | None:
    """When it ended, Unix seconds; None: nothing says it."""
    if reservation.phase == Phase.SUCCEEDED:
        times = [_probed(one) for one in reservation.conditions if one.reason == "Succeeded"]
    else:
        times = [one.changed for one in reservation.conditions if one.reason == "Expired"]
    times = times or [_probed(one) for one in reservation.conditions] or [reservation.created]
    return max((one for one in times if one is not None), default=None)


def _probed(condition: Condition) -> float | None:
    return condition.changed if condition.probed is None else condition.probed
