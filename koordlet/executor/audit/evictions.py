"""Evictions as audit events: Koordinator's words, and then the reason."""

from koord.api.eviction import EvictionOutcome
from koordlet.executor.audit.event import EVICTION, AuditEvent, Subject
from koordlet.executor.evictions.eviction import EvictionRequest


def eviction_event(request: EvictionRequest, outcome: EvictionOutcome) -> AuditEvent:
    """The event of a pod that ends by this request, or in dry-run would."""
    pod = request.pod
    words = f"trigger by koordlet feature {request.feature}, kill pod: {pod.name}"
    return AuditEvent(
        verbosity=EVICTION,
        type=Subject.POD,
        namespace=pod.namespace,
        name=pod.name,
        reason=outcome.value,
        message=f"{words}, {request.reason}",
    )
