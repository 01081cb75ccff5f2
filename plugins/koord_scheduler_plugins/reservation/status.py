"""Write Reservations: transitions of their status, and pods that are given to them.

Transitions are on the JSON of a status; what they do not mean stays as it is.

Source: Koordinator, pkg/util/reservation.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from koord.api.podmigrationjob import time_text
from koord.api.reservation import API_VERSION, PLURAL
from koord.plugin import Clock
from koord.plugin.kube import (
    MERGE_PATCH,
    PODS,
    ApiClient,
    ApiResource,
    Conflict,
    KubeError,
    NotFound,
    TooManyRequests,
    Unreachable,
)
from koord_scheduler.plugin import ClusterPod
from koord_scheduler_plugins.reservation.amounts import Amounts, amount_texts
from koord_scheduler_plugins.reservation.objects import (
    NOMINATED,
    Phase,
    Reservation,
    read_reservation,
)

Json = dict[str, Any]

_SCHEDULED, _READY, _VALID = "Scheduled", "Ready", "Valid"
_MAX_MESSAGE = 1024  # characters


def unschedulable(
    reservation: Reservation, message: str, now: float, nominated: str | None = None
) -> Json:
    """Return the status after an attempt that found no node. Its phase does not change.

    nominated: the node on which preemption makes room for it, so that another replica knows it;
    "": no node any more; None: as before.
    """
    status, time = _status(reservation), time_text(now)
    condition = _condition(status, _SCHEDULED)
    if condition is None:
        new = _new(_SCHEDULED, "False", "Unschedulable", time)
        _conditions(status).append({**new, "message": message})
    elif condition.get("status") == "False":
        condition |= {"reason": "Unschedulable", "message": message, "lastProbeTime": time}
    else:
        condition["lastProbeTime"] = time
    if nominated is not None and nominated != reservation.nominated:
        others = [one for one in _conditions(status) if one.get("type") != NOMINATED]
        new = _new(NOMINATED, "True" if nominated else "False", "Preemption", time)
        status["conditions"] = [*others, {**new, "message": nominated}]
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


def judged(reservation: Reservation, status: Json | None, now: float) -> Json | None:
    """Return the status with a condition that says what is wrong with the object, or that it ended.

    status: that is to be written anyway; None: none is. An object that was never wrong has no such
    condition. None is returned where nothing is to be written.
    """
    problem = "; ".join(reservation.problems)[:_MAX_MESSAGE]
    found = _copy(_status(reservation) if status is None else status)
    condition, time = _condition(found, _VALID), time_text(now)
    if condition is None:
        if not problem:
            return status
        condition = _new(_VALID, "False", "Invalid", time)
        _conditions(found).append(condition)
    wanted = "False" if problem else "True"
    if (condition.get("status"), condition.get("message", "")) == (wanted, problem):
        return status
    if condition.get("status") != wanted:
        condition["lastTransitionTime"] = time
    reason = "Invalid" if problem else "Valid"
    condition |= {"status": wanted, "reason": reason, "message": problem, "lastProbeTime": time}
    return found


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


RESERVATIONS = ApiResource(API_VERSION, PLURAL)
_PAUSES = (0.05, 0.1, 0.2, 0.4)  # seconds before each further attempt to write

JsonObject = Mapping[str, Any]
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")  # of objects; anything may ask for one
_AMOUNTS = ("allocatable", "allocated")
_PASSING = (Conflict, TooManyRequests, Unreachable)


def status_patch(reservation: Reservation, status: JsonObject) -> JsonObject:
    """Return the merge patch that makes this the status of exactly this version of the object."""
    before = reservation.raw.get("status")
    known: JsonObject = before if isinstance(before, Mapping) else {}
    wanted: dict[str, Any] = {**dict.fromkeys(known), **status}
    for key in _AMOUNTS:  # a merge patch leaves what it does not name
        old, new = known.get(key), status.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            wanted[key] = {**dict.fromkeys(old), **new}
    changed = {key: value for key, value in wanted.items() if known.get(key) != value}
    return {"metadata": _identity(reservation), "status": changed} if changed else {}


async def write_status(client: ApiClient, reservation: Reservation, status: JsonObject) -> None:
    """Write a status. Raises KubeError; Conflict: the object is another one by now."""
    patch = status_patch(reservation, status)
    if patch:
        path = RESERVATIONS.object(reservation.name, subresource="status")
        await client.patch(path, patch, MERGE_PATCH)


async def write_status_anew(
    client: ApiClient,
    clock: Clock,
    found: Reservation,
    wanted: Callable[[Reservation], JsonObject | None],
) -> Reservation | None:
    """Write the wanted status; after a conflict, or a response that was lost, of what is there now.

    wanted: None: nothing is to be written to this version. Returns the version that it was asked
    about the last; None: the object has gone. Raises KubeError.
    """
    latest: Reservation | None = found
    for pause in (*_PAUSES, None):
        status = None if latest is None else wanted(latest)
        if latest is None or status is None:
            break
        try:
            await write_status(client, latest, status)
            break
        except KubeError as err:
            if pause is None or not isinstance(err, _PASSING):
                raise
        await clock.sleep(pause)
        try:
            latest = await _read(client, found.name, found.uid)
        except KubeError:
            continue  # the version before is tried again
    return latest


async def _read(client: ApiClient, name: str, uid: str) -> Reservation | None:
    """Return a Reservation as it is now; None: it has gone, or its name is another one's."""
    try:
        found = read_reservation(await client.get(RESERVATIONS.object(name)))
    except NotFound:
        return None
    return found if found.uid == uid else None


async def is_there(client: ApiClient, name: str, uid: str) -> bool:
    """Return whether the API server has this Reservation. Raises KubeError."""
    if not _NAME.fullmatch(name):
        return False
    return await _read(client, name, uid) is not None


async def delete(client: ApiClient, reservation: Reservation) -> None:
    """Delete exactly this Reservation. Raises KubeError."""
    try:
        await client.delete(RESERVATIONS.object(reservation.name), uid=reservation.uid)
    except (NotFound, Conflict):
        return


async def annotate(client: ApiClient, pod: ClusterPod, annotations: JsonObject) -> None:
    """Set annotations of exactly this pod. Raises KubeError."""
    path = PODS.object(pod.name, namespace=pod.namespace)
    body = {"metadata": {"uid": pod.uid, "annotations": dict(annotations)}}
    await client.patch(path, body, MERGE_PATCH)


async def change_metadata(
    client: ApiClient, reservation: Reservation, metadata: JsonObject
) -> None:
    """Set labels and annotations of exactly this Reservation. Raises KubeError."""
    body = {"metadata": {"uid": reservation.uid, **metadata}}
    await client.patch(RESERVATIONS.object(reservation.name), body, MERGE_PATCH)


def _identity(reservation: Reservation) -> JsonObject:
    meta = reservation.raw.get("metadata")
    version = meta.get("resourceVersion") if isinstance(meta, Mapping) else None
    return {"uid": reservation.uid, **({"resourceVersion": version} if version else {})}
