"""Leases: their holder, as the object in the API names it, and the object as a holder writes it.

Source: Kubernetes API, coordination.k8s.io/v1, LeaseSpec; client-go, tools/leaderelection.
"""

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from koord.kube.client import LEASES
from koord.kube.transport import Object

_DEFAULT_DURATION, _LONGEST_DURATION = 15.0, 120.0  # seconds
_RELEASED_DURATION = 1  # seconds; the least that the API takes, as client-go writes it
_MAX_TRANSITIONS = 2**31 - 2  # of an int32, so that one more can be written


@dataclass(frozen=True, slots=True)
class LeaseHolding:
    """A held Lease; each renewal makes another one."""

    holder: str
    renewed: str  # as its holder wrote it
    duration: float  # seconds


def read_holding(item: Object, *, longest: float = _LONGEST_DURATION) -> LeaseHolding | None:
    """Return the holder of a Lease; None: it has none. A malformed field counts as absent.

    longest, in seconds: a duration above it counts as malformed.
    """
    spec = _spec(item)
    if not spec.get("holderIdentity"):
        return None
    seconds = spec.get("leaseDurationSeconds")
    if not isinstance(seconds, int) or not 0 < seconds <= longest:
        seconds = _DEFAULT_DURATION
    return LeaseHolding(str(spec["holderIdentity"]), str(spec.get("renewTime", "")), seconds)


def new_lease(namespace: str, name: str, holder: str, duration: float, now: float) -> Object:
    """Return the Lease to create, held from the beginning; see held_lease."""
    lease = {
        "apiVersion": LEASES.api_version,
        "kind": "Lease",
        "metadata": {"name": name, "namespace": namespace},
    }
    held = held_lease(lease, holder, duration, now)
    held["spec"]["leaseTransitions"] = 0
    return held


def held_lease(item: Object, holder: str, duration: float, now: float) -> Object:
    """Return the Lease as its holder renews it, or as another one takes it over.

    duration is in seconds, and written in whole ones, rounded up; now is Unix seconds. Whatever
    else the object has stays, above all its version: the server does not replace a later one.
    """
    spec, moment = dict(_spec(item)), _micro_time(now)
    if spec.get("holderIdentity") != holder:
        transitions = _transitions(spec) + 1
        spec |= {"holderIdentity": holder, "acquireTime": moment, "leaseTransitions": transitions}
    spec |= {"leaseDurationSeconds": math.ceil(duration), "renewTime": moment}
    return item | {"spec": spec}


def released_lease(item: Object, now: float) -> Object:
    """Return the Lease as its holder releases it: another one may take it at once."""
    moment = _micro_time(now)
    freed = {
        "holderIdentity": "",
        "leaseDurationSeconds": _RELEASED_DURATION,
        "acquireTime": moment,
        "renewTime": moment,
    }
    return item | {"spec": _spec(item) | freed}


def _spec(item: Object) -> dict[str, Any]:
    spec = item.get("spec")
    return spec if isinstance(spec, dict) else {}


def _transitions(spec: dict[str, Any]) -> int:
    found = spec.get("leaseTransitions")
    return found if isinstance(found, int) and 0 <= found <= _MAX_TRANSITIONS else 0


def _micro_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
