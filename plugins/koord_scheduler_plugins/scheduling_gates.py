"""SchedulingGates: a pod with gates is not tried before all of them have been removed.

Source: Kubernetes, plugins/schedulinggates/scheduling_gates.go.
"""

from collections.abc import Iterable
from typing import Any

from koord_scheduler.plugin import (
    Action,
    ClusterEvent,
    ClusterPod,
    EnqueueExtensions,
    EventResource,
    Handle,
    HintedEvent,
    PreEnqueuePlugin,
    Status,
    about_itself,
)


class SchedulingGates(PreEnqueuePlugin, EnqueueExtensions):
    """Keeps pods with scheduling gates out of the active queue."""

    def __init__(self, args: Any, handle: Handle) -> None:
        """It has no arguments."""

    def pre_enqueue(self, pod: ClusterPod) -> Status | None:
        if not pod.scheduling_gates:
            return None
        gates = " ".join(pod.scheduling_gates)
        return Status.unresolvable(f"waiting for scheduling gates: [{gates}]")

    def events_to_register(self) -> Iterable[HintedEvent]:
        freed = ClusterEvent(EventResource.UNSCHEDULED_POD, Action.UPDATE_POD_GATES_ELIMINATED)
        return (HintedEvent(freed, about_itself),)
