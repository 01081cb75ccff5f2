"""DynamicResources: pods with resource claims are refused, and the event says why.

They would be bound to a node that has not what they claim: nothing allocates devices here.
"""

from collections.abc import Hashable, Iterable
from typing import Any

from koord_scheduler.plugin import (
    ClusterPod,
    CycleState,
    EnqueueExtensions,
    Handle,
    HintedEvent,
    PreFilterPlugin,
    Status,
    View,
)

_REFUSED = Status.unresolvable(
    "resource claims (spec.resourceClaims, dynamic resource allocation) are not supported by this "
    "scheduler; schedule such pods with kube-scheduler"
)


class DynamicResources(PreFilterPlugin, EnqueueExtensions):
    """Refuses pods with resource claims."""

    def __init__(self, args: Any, handle: Handle) -> None:
        """Its arguments are those of allocating, which it does not do."""

    def events_to_register(self) -> Iterable[HintedEvent]:
        """None: a pod keeps its claims as long as it lives."""
        return ()

    def pre_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> Status | None:
        return _REFUSED if pod.spec.resource_claims else Status.skip()

    def pre_filter_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()
