"""Leases: their holder, as the object in the API names it."""

from dataclasses import dataclass

from koord.kube.answers import Object

_DEFAULT_DURATION, _LONGEST_DURATION = 15.0, 120.0  # seconds


@dataclass(frozen=True, slots=True)
class LeaseHolding:
    """A held Lease; each renewal makes another one.

    Source: Kubernetes API, coordination.k8s.io/v1, LeaseSpec.
    """

    holder: str
    renewed: str  # as its holder wrote it
    duration: float  # seconds


def read_holding(item: Object) -> LeaseHolding | None:
    """Return the holder of a Lease; None: it has none. A malformed field counts as absent."""
    spec = item.get("spec")
    if not isinstance(spec, dict) or not spec.get("holderIdentity"):
        return None
    seconds = spec.get("leaseDurationSeconds")
    if not isinstance(seconds, int) or not 0 < seconds <= _LONGEST_DURATION:
        seconds = _DEFAULT_DURATION
    return LeaseHolding(str(spec["holderIdentity"]), str(spec.get("renewTime", "")), seconds)
