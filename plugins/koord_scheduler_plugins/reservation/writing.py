"""Write Reservations: their status, and pods that are given to them."""

from collections.abc import Callable, Mapping
from typing import Any

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
from koord_scheduler_plugins.reservation.objects import Reservation, read_reservation

RESERVATIONS = ApiResource(API_VERSION, PLURAL)
_PAUSES = (0.05, 0.1, 0.2, 0.4)  # seconds before each further attempt to write

Json = Mapping[str, Any]
_AMOUNTS = ("allocatable", "allocated")
_PASSING = (Conflict, TooManyRequests, Unreachable)


def status_patch(reservation: Reservation, status: Json) -> Json:
    """Return the merge patch that makes this the status of exactly this version of the object."""
    before = reservation.raw.get("status")
    known: Json = before if isinstance(before, Mapping) else {}
    wanted: dict[str, Any] = {**dict.fromkeys(known), **status}
    for key in _AMOUNTS:  # a merge patch leaves what it does not name
        old, new = known.get(key), status.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            wanted[key] = {**dict.fromkeys(old), **new}
    changed = {key: value for key, value in wanted.items() if known.get(key) != value}
    return {"metadata": _identity(reservation), "status": changed} if changed else {}


async def write_status(client: ApiClient, reservation: Reservation, status: Json) -> None:
    """Write a status. Raises KubeError; Conflict: the object is another one by now."""
    patch = status_patch(reservation, status)
    if patch:
        path = RESERVATIONS.object(reservation.name, subresource="status")
        await client.patch(path, patch, MERGE_PATCH)


async def write_status_anew(
    client: ApiClient,
    clock: Clock,
    found: Reservation,
    wanted: Callable[[Reservation], Json | None],
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


async def delete(client: ApiClient, reservation: Reservation) -> None:
    """Delete exactly this Reservation. Raises KubeError."""
    try:
        await client.delete(RESERVATIONS.object(reservation.name), uid=reservation.uid)
    except (NotFound, Conflict):
        return


async def annotate(client: ApiClient, pod: ClusterPod, annotations: Json) -> None:
    """Set annotations of exactly this pod. Raises KubeError."""
    path = PODS.object(pod.name, namespace=pod.namespace)
    body = {"metadata": {"uid": pod.uid, "annotations": dict(annotations)}}
    await client.patch(path, body, MERGE_PATCH)


async def change_metadata(client: ApiClient, reservation: Reservation, metadata: Json) -> None:
    """Set labels and annotations of exactly this Reservation. Raises KubeError."""
    body = {"metadata": {"uid": reservation.uid, **metadata}}
    await client.patch(RESERVATIONS.object(reservation.name), body, MERGE_PATCH)


def _identity(reservation: Reservation) -> Json:
    meta = reservation.raw.get("metadata")
    version = meta.get("resourceVersion") if isinstance(meta, Mapping) else None
    return {"uid": reservation.uid, **({"resourceVersion": version} if version else {})}
