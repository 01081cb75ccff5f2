"""PrioritySort and SchedulingGates: which pods are tried, and in which order."""

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
    QueuedPod,
    QueueSortPlugin,
    Status,
    about_itself,
)


class PrioritySort(QueueSortPlugin):
    """Sorts by priority, then by the time at which a pod was added to the queue."""

    def __init__(self, args: Any, handle: Handle) -> None:
        """It has no arguments."""

    def less(self, first: QueuedPod, second: QueuedPod) -> bool:
        mine, theirs = first.pod.priority or 0, second.pod.priority or 0
        return mine > theirs or (mine == theirs and first.timestamp < second.timestamp)


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
