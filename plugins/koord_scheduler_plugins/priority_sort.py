"""PrioritySort: the pod with the highest priority is tried first, then the oldest.

Source: Kubernetes, plugins/queuesort/priority_sort.go.
"""

from typing import Any

from koord_scheduler.plugin import Handle, QueuedPod, QueueSortPlugin


class PrioritySort(QueueSortPlugin):
    """By priority, then by the time at which a pod came into the queue."""

    def __init__(self, args: Any, handle: Handle) -> None:
        """It has no arguments."""

    def less(self, first: QueuedPod, second: QueuedPod) -> bool:
        mine, theirs = first.pod.priority or 0, second.pod.priority or 0
        return mine > theirs or (mine == theirs and first.timestamp < second.timestamp)
