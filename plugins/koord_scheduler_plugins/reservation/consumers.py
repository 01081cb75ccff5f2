"""Consumers: the pods that have been given a reservation, as their annotations say it."""

import json
from collections.abc import Sequence

from koord.api.fields import Fields
from koord.api.gojson import parse_json
from koord.api.reservation import ALLOCATED
from koord_scheduler.plugin import POD_COUNT, ClusterPod
from koord_scheduler.plugin.koordinator import AccountKind, Holding


def allocated_text(name: str, uid: str) -> str:
    """Return the annotation of a pod that consumes a reservation."""
    return json.dumps({"name": name, "uid": uid}, separators=(",", ":"))


def allocated_reservation(pod: ClusterPod) -> tuple[str, str] | None:
    """Return name and uid of the reservation that a pod consumes; None: it consumes none.

    Raises:
        InvalidObject: its annotation is malformed.
    """
    text = next((value for key, value in pod.annotations if key == ALLOCATED), "")
    if not text:
        return None
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


CONSUMERS = AccountKind("reservation", _holdings, members=True)
"""Pods by the reservation that they consume, those on nodes that have not finished."""
