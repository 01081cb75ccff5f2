"""The reserve pod: the pod that stands for a Reservation in the scheduler, and is in no API server.

Source: Koordinator, pkg/util/reservation NewReservePod.
"""

from collections.abc import Mapping
from typing import Any

from koord.api.annotations import DEVICE_ALLOCATED, RESOURCE_STATUS
from koord.api.reservation import (
    ALLOCATED,
    IS_PRE_ALLOCATION,
    PRIORITY,
    RESERVATION_NAME,
    RESERVATION_NODE,
    RESERVE_POD,
)
from koord_scheduler.plugin import POD_COUNT
from koord_scheduler_plugins.reservation.amounts import Amounts, amount_texts, minus
from koord_scheduler_plugins.reservation.objects import Phase, Reservation

FAKE_CONTAINER = "__internal_fake_container__"
HIGHEST_PRIORITY = 2**31 - 1  # nothing preempts it
_DEFAULT_SCHEDULER = "default-scheduler"
_MAX_DIGITS = 10

Json = dict[str, Any]


def reserve_pod(reservation: Reservation, used: Amounts | None = None) -> Json:
    """Return the JSON of the pod of a reservation; equal inputs make equal pods.

    It shares parts with the reservation's JSON, so nobody may change it.

    used: what consumers hold of an available one, as its ReservationInfo has it. On its node the
    pod takes what they have left: each of them is a pod there itself.
    """
    raw = reservation.raw
    template = _object(_object(raw, "spec"), "template")
    own, wanted = _object(raw, "metadata"), _object(template, "metadata")
    spec = _object(template, "spec")
    templated, mine = _object(wanted, "annotations"), _object(own, "annotations")
    for key in (ALLOCATED, DEVICE_ALLOCATED, RESOURCE_STATUS):
        templated.pop(key, None)  # of the pod that the template was made of
    mine.pop(ALLOCATED, None)
    annotations = {**templated, **mine}
    annotations |= {RESERVE_POD: "true", RESERVATION_NAME: reservation.name}
    if _object(raw, "spec").get("preAllocation") is True:
        annotations[IS_PRE_ALLOCATION] = "true"
    pinned = spec.pop("nodeName", None)
    if pinned:
        annotations[RESERVATION_NODE] = pinned
    if reservation.node:
        spec["nodeName"] = reservation.node
    spec["priority"] = _priority(spec.get("priority"), reservation.labels)
    spec["schedulerName"] = spec.get("schedulerName") or _DEFAULT_SCHEDULER
    _hold_allocatable(spec, reservation, used or {})
    metadata: Json = {
        **wanted,
        "name": reservation.uid,
        "uid": reservation.uid,
        "namespace": wanted.get("namespace") or "default",
        "labels": {**_object(wanted, "labels"), **_object(own, "labels")},
        "annotations": annotations,
    }
    created = own.get("creationTimestamp")
    if created is not None:
        metadata["creationTimestamp"] = created
    pod: Json = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    if reservation.terminated:
        pod["status"] = {"phase": str(Phase(reservation.phase))}
    elif reservation.nominated:
        pod["status"] = {"nominatedNodeName": reservation.nominated}
    return pod


def pinned_node(reservation: Reservation) -> str:
    """Return the node that its template names; "": any."""
    template = _object(_object(reservation.raw, "spec"), "template")
    found = _object(template, "spec").get("nodeName")
    return found if isinstance(found, str) else ""


def _hold_allocatable(spec: Json, reservation: Reservation, used: Amounts) -> None:
    """Let the pod of an available reservation request what is left of its allocatable amounts."""
    allocatable = reservation.allocatable
    if not reservation.available or allocatable is None:
        return
    requests = {} if reservation.spec is None else reservation.spec.requests
    amounts = {**requests, **allocatable}
    amounts.pop(POD_COUNT, None)
    held = minus(amounts, used)
    if reservation.spec is not None and held == requests:
        return
    spec.pop("overhead", None)
    spec.pop("resources", None)
    for key in ("containers", "initContainers"):
        if key in spec:
            spec[key] = [_without_resources(one) for one in _list(spec, key)]
    texts = amount_texts(held)
    resources = {"requests": texts, "limits": dict(texts)}
    fake = {"name": FAKE_CONTAINER, "resources": resources}
    spec["containers"] = [*_list(spec, "containers"), fake]


def _without_resources(container: object) -> object:
    if not isinstance(container, Mapping):
        return container
    return {key: value for key, value in container.items() if key != "resources"}


def _priority(found: object, labels: Mapping[str, str]) -> int:
    if isinstance(found, int) and not isinstance(found, bool):
        return found
    text = labels.get(PRIORITY, "")
    digits = text[1:] if text[:1] in ("+", "-") else text
    if digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS:
        number = int(text)
        if -(2**31) <= number < 2**31:
            return number
    return HIGHEST_PRIORITY


def _object(value: Mapping[str, Any], key: str) -> Json:
    """A copy of an object, not of what is in it: a template may be nested too deep for that."""
    found = value.get(key)
    return dict(found) if isinstance(found, Mapping) else {}


def _list(value: Json, key: str) -> list[Any]:
    found = value.get(key)
    return found if isinstance(found, list) else []
