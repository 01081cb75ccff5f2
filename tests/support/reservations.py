"""Reservations of tests: as JSON, as objects, and with what their consumers hold."""

from typing import Any

from koord.api.reservation import (
    AFFINITY,
    ALLOCATED,
    CURRENT_OWNER,
    EXACT_MATCH,
    OWNERS,
    PRE_ALLOCATABLE_PRIORITY,
    RESERVE_POD,
)
from koord.cluster.decoder import Decoder
from koord.cluster.facts import ClusterPod
from koord.cluster.keptfields import KeptFields
from koord.cluster.kinds import POD
from koord_scheduler_plugins.reservation.consumers import ReservationInfo, reservation_info
from koord_scheduler_plugins.reservation.objects import Reservation, read_reservation
from tests.support import clusters

Json = dict[str, Any]
GI = 1 << 30
KEYS = (
    AFFINITY,
    ALLOCATED,
    CURRENT_OWNER,
    EXACT_MATCH,
    OWNERS,
    PRE_ALLOCATABLE_PRIORITY,
    RESERVE_POD,
)
DECODER = Decoder(KeptFields(pod_annotations=dict.fromkeys(KEYS, 4096)))
MINE: Json = {"labelSelector": {"matchLabels": {"app": "web"}}}
CREATED = "2026-07-24T00:00:00Z"
NOW = 1_784_851_200.0  # the same moment


def pod(
    name: str = "p",
    node: str = "",
    requests: Json | None = None,
    labels: Json | None = None,
    annotations: Json | None = None,
    **meta: Any,
) -> ClusterPod:
    """A pod of the owner MINE, if no other labels are given."""
    found = clusters.pod(name, node, {"app": "web"} if labels is None else labels, requests or {})
    found["metadata"] |= {"annotations": annotations or {}, **meta}
    return DECODER.object(POD, clusters.json.dumps(found).encode())


def reservation_json(
    name: str = "r",
    requests: Json | None = None,
    *,
    node: str = "n",
    phase: str = "Available",
    created: str = CREATED,
    status: Json | None = None,
    labels: Json | None = None,
    annotations: Json | None = None,
    template: Json | None = None,
    **spec: Any,
) -> Json:
    """A Reservation for MINE; it is available, if nothing else is said."""
    container = {"name": "main", "resources": {"requests": requests or {"cpu": "4"}}}
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "creationTimestamp": created,
            "labels": labels or {},
            "annotations": annotations or {},
        },
        "spec": {
            "owners": [MINE],
            "ttl": "1h",
            "template": {"spec": {"containers": [container], **(template or {})}},
            **spec,
        },
        "status": {"phase": phase, "nodeName": node, **(status or {})},
    }


def reservation(*args: Any, **more: Any) -> Reservation:
    return read_reservation(reservation_json(*args, **more))


def info(*args: Any, used: dict[str, int] | None = None, **more: Any) -> ReservationInfo:
    """A reservation with what consumers hold; "pods" is their number."""
    return reservation_info(reservation(*args, **more), used or {})
