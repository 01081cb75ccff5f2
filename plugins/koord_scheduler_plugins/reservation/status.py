"""Transitions of a Reservation's status, on its JSON. What they do not mean stays as it is.

Source: Koordinator, pkg/util/reservation.
"""

from collections.abc import Mapping
from typing import Any

from koord.api.podmigrationjob import time_text
from koord_scheduler_plugins.reservation.amounts import Amounts, amount_texts
from koord_scheduler_plugins.reservation.objects import Phase, Reservation

Json = dict[str, Any]

_SCHEDULED, _READY = "Scheduled", "Ready"


def unschedulable(reservation: Reservation, message: str, now: float) -> Json:
    """Return the status after an attempt that found no node. Its phase does not change."""
    status, time = _status(reservation), time_text(now)
    condition = _condition(status, _SCHEDULED)
    if condition is None:
        new = _new(_SCHEDULED, "False", "Unschedulable", time)
        _conditions(status).append({**new, "message": message})
    elif condition.get("status") == "False":
        condition |= {"reason": "Unschedulable", "message": message, "lastProbeTime": time}
    else:
        condition["lastProbeTime"] = time
    return status


def available(reservation: Reservation, node: str, now: float) -> Json:
    """Return the status of a reservation that has a node. Its conditions begin anew."""
    time = time_text(now)
    return _status(reservation) | {
        "phase": str(Phase.AVAILABLE),
        "nodeName": node,
        "allocatable": amount_texts(allocatable_of(reservation)),
        "conditions": [
            _new(_SCHEDULED, "True", "Scheduled", time),
            _new(_READY, "True", "Available", time),
        ],
    }


def allocatable_of(reservation: Reservation) -> Amounts:
    """Return what a reservation has when it becomes available: as its template or annotation say.

    One that is available already keeps what it has, but what the annotation says.
    """
    spec = reservation.spec
    known: Amounts = {} if spec is None else spec.requests
    if reservation.available and reservation.allocatable is not None:
        known = reservation.allocatable
    return {**known, **({} if spec is None else spec.resized)}


def succeeded(status: Json, now: float) -> Json:
    """Return the status of a reservation that its one pod has."""
    return _ended(status, Phase.SUCCEEDED, "Succeeded", now)


def expired(reservation: Reservation, now: float) -> Json:
    """Return the status of a reservation whose time is over or whose node has gone."""
    return _ended(_status(reservation), Phase.FAILED, "Expired", now)


def with_consumers(
    reservation: Reservation, owners: list[Mapping[str, str]], allocated: Amounts
) -> Json:
    """Return the status with the pods that have been given it, and what they hold of it."""
    status = _status(reservation)
    return status | {
        "currentOwners": [dict(one) for one in owners],
        "allocated": amount_texts(allocated),
    }


def _ended(status: Json, phase: Phase, reason: str, now: float) -> Json:
    """The Ready condition is False from now on. One that is False already keeps its time."""
    status, time = _copy(status), time_text(now)
    status["phase"] = str(phase)
    condition = _condition(status, _READY)
    if condition is None:
        _conditions(status).append(_new(_READY, "False", reason, time))
    elif phase is Phase.FAILED and condition.get("status") == "True":
        condition.clear()
        condition |= _new(_READY, "False", reason, time)
    else:
        condition |= {"status": "False", "reason": reason, "lastProbeTime": time}
    return status


def _new(kind: str, status: str, reason: str, time: str) -> Json:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "lastProbeTime": time,
        "lastTransitionTime": time,
    }


def _status(reservation: Reservation) -> Json:
    found = reservation.raw.get("status")
    return _copy(found) if isinstance(found, Mapping) else {}


def _copy(status: Mapping[str, Any]) -> Json:
    """A copy whose conditions can be changed."""
    found = dict(status)
    conditions = found.get("conditions")
    if isinstance(conditions, list):
        found["conditions"] = [dict(one) for one in conditions if isinstance(one, Mapping)]
    return found


def _conditions(status: Json) -> list[Json]:
    found = status.get("conditions")
    if not isinstance(found, list):
        found = status["conditions"] = []
    return found


def _condition(status: Json, kind: str) -> Json | None:
    return next((one for one in _conditions(status) if one.get("type") == kind), None)
