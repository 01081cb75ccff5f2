"""What changes of objects mean for the queue: pods to schedule, and events that may help others.

Source: Kubernetes, pkg/scheduler/eventhandlers.go.
"""

from enum import Enum, auto
from typing import Any

from koord.cluster import decoding
from koord.cluster.decoder import Kind
from koord.cluster.facts import ClusterPod
from koord_scheduler.cache.assumed import SchedulerState
from koord_scheduler.framework.enqueueing import Enqueueing
from koord_scheduler.framework.events import (
    POD_DELETED,
    Action,
    ClusterEvent,
    EventResource,
    cluster_event,
)
from koord_scheduler.framework.handle import Services
from koord_scheduler.framework.nominator import Nominator
from koord_scheduler.queue.schedulingqueue import SchedulingQueue
from koord_scheduler.scheduling.clusterevents import events_of, pod_actions
from koord_scheduler.scheduling.podstatus import PodStatuses

_POD_ADDED = ClusterEvent(EventResource.ASSIGNED_POD, Action.ADD)


class _Place(Enum):
    ABSENT = auto()  # or finished, which takes no room any more
    UNSCHEDULED = auto()
    ASSIGNED = auto()


class ObjectChanges:
    """Observes the state, for plugins and for the queue."""

    def __init__(
        self,
        state: SchedulerState,
        services: Services,
        plugins: Enqueueing,
        queue: SchedulingQueue,
        statuses: PodStatuses,
    ) -> None:
        self._state = state
        self._changes = services.changes
        self._waiting = services.waiting
        self._nominator = services.nominator
        self._plugins = plugins
        self._queue = queue
        self._statuses = statuses

    def is_wanted(self, pod: ClusterPod) -> bool:
        """Whether a pod, as the API server has it, waits for us to schedule it."""
        return (
            _place(pod) is _Place.UNSCHEDULED
            and self._is_ours(pod)
            and not self._state.is_assumed(pod.uid)
        )

    def __call__(self, kind: Kind[Any], old: Any, new: Any) -> None:
        """Take note of a change; see OnStateChange."""
        self._changes.notify(kind, old, new)  # first, as hints may look at what plugins keep
        if kind is decoding.POD:
            self._pod_changed(old, new)
            return
        for event in events_of(kind, old, new):
            self._queue.happened(event, old, new)

    def _pod_changed(self, old: ClusterPod | None, new: ClusterPod | None) -> None:
        before, after = _place(old), _place(new)
        if self._nominator.others is not None:
            self._others_nominate(self._nominator.others, old, new)
        if new is not None and after is _Place.UNSCHEDULED:
            self._wanted(old if before is _Place.UNSCHEDULED else None, new)
        elif old is not None and before is _Place.UNSCHEDULED:
            self._unwanted(old, is_assigned=after is _Place.ASSIGNED)
        if _Place.ASSIGNED in (before, after):
            self._assigned_changed(
                old if before is _Place.ASSIGNED else None,
                new if after is _Place.ASSIGNED else None,
            )

    def _wanted(self, old: ClusterPod | None, new: ClusterPod) -> None:
        """An unscheduled pod was added or changed."""
        if not self._is_ours(new):
            if old is not None:
                self._unwanted(old)
            return
        if old is not None and old.scheduler_name != new.scheduler_name:
            self._unwanted(old)
            old = None
        if self._state.is_assumed(new.uid):
            return
        self._nominate(old, new)
        if old is None:
            self._queue.add(new)
        else:
            resource = EventResource.UNSCHEDULED_POD
            events = [cluster_event(resource, action) for action in pod_actions(old, new)]
            self._queue.update(new, events, old)

    def _nominate(self, old: ClusterPod | None, new: ClusterPod) -> None:
        """Take over what a pod's status says, unless it says nothing about it now and before."""
        before = "" if old is None else old.nominated_node
        if new.nominated_node and new.nominated_node != before:
            self._nominator.nominate(new, new.nominated_node)
        elif before and not new.nominated_node:
            self._nominator.forget(new.key)

    def _others_nominate(
        self, others: Nominator, old: ClusterPod | None, new: ClusterPod | None
    ) -> None:
        """Take over to which node another scheduler has nominated its pod."""
        waits = new is not None and _place(new) is _Place.UNSCHEDULED and not new.deleting
        if new is not None and waits and new.nominated_node and not self._plugins.schedules(new):
            known = others.node_of(new.key)
            if known == new.nominated_node:
                others.update(new)
                return
            others.nominate(new, new.nominated_node)
            if known is not None:
                self._queue.happened(POD_DELETED, old, None)
            return
        gone = old or new
        if gone is None or others.node_of(gone.key) is None:
            return
        others.forget(gone.key)
        if _place(new) is not _Place.ASSIGNED:  # its room is free for ours again
            self._queue.happened(POD_DELETED, gone, None)

    def _unwanted(self, pod: ClusterPod, *, is_assigned: bool = False) -> None:
        """An unscheduled pod is not to be scheduled any more."""
        if not self._plugins.schedules(pod):
            return
        nominated = self._nominator.node_of(pod.key)
        self._queue.forget(pod)
        self._statuses.forget(pod.uid)
        if is_assigned:
            return
        self._waiting.reject(pod.uid, "the pod is being deleted")
        if nominated is not None:  # others of its priority left room for it there
            self._queue.happened(POD_DELETED, pod, None)

    def _assigned_changed(self, old: ClusterPod | None, new: ClusterPod | None) -> None:
        if old is None:
            self._queue.happened(_POD_ADDED, None, new)
        elif new is None:
            self._queue.happened(POD_DELETED, old, None)
        else:
            for action in pod_actions(old, new):
                event = cluster_event(EventResource.ASSIGNED_POD, action)
                self._queue.happened(event, old, new)

    def _is_ours(self, pod: ClusterPod) -> bool:
        return not pod.deleting and self._plugins.schedules(pod)


def _place(pod: ClusterPod | None) -> _Place:
    if pod is None or pod.finished:
        return _Place.ABSENT
    return _Place.ASSIGNED if pod.node else _Place.UNSCHEDULED
