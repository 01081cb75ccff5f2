"""Event handlers: which cluster events a changed object is, and what they mean for the queue."""

import operator
from collections.abc import Iterator, Mapping
from enum import Enum, auto
from typing import Any

from koord.cluster import kinds
from koord.cluster.decoder import ObjectKind
from koord.cluster.facts import ClusterNode, ClusterPod
from koord.controlplane.clusterfeed import SCHEDULER_KINDS
from koord.kube.client import Resource
from koord_scheduler.cache import SchedulerCache
from koord_scheduler.framework.customresources import event_resource_of
from koord_scheduler.framework.enqueueing import Enqueueing
from koord_scheduler.framework.handle import Services
from koord_scheduler.framework.nominator import Nominator
from koord_scheduler.framework.types import (
    POD_DELETED,
    Action,
    ClusterEvent,
    EventResource,
    cluster_event,
)
from koord_scheduler.queue import SchedulingQueue
from koord_scheduler.scheduling.failures import PodStatuses

_STATUS = frozenset(
    {
        "phase",
        "qos",
        "nominated_node",
        "started",
        "ready",
        "status_reason",
        "containers",
        "conditions",
        "condition_times",
    }
)
_OTHER = operator.attrgetter(
    *(
        name
        for name in ClusterPod.__struct_fields__
        if name not in _STATUS | {"label_set", "spec", "scheduling_gates"}
    )
)
_SHORT = {resource.value.lower(): resource.value for resource in EventResource}


def pod_actions(old: ClusterPod, new: ClusterPod) -> tuple[Action, ...]:
    """Return the changes of a pod, one action for each event.

    It is empty if only the status has changed, and not the resources in it: most updates of pods
    are like this, above all those that this program writes itself.
    """
    found = []
    if old.label_set is not new.label_set and old.labels != new.labels:
        found.append(Action.UPDATE_POD_LABEL)
    if old.spec is not new.spec:
        if _asks_less(old.spec.requests, new.spec.requests):
            found.append(Action.UPDATE_POD_SCALE_DOWN)
        if old.spec.tolerations != new.spec.tolerations:
            found.append(Action.UPDATE_POD_TOLERATION)
    if old.scheduling_gates and not new.scheduling_gates:
        found.append(Action.UPDATE_POD_GATES_ELIMINATED)
    if not found and (old.spec is not new.spec or _OTHER(old) != _OTHER(new)):
        found.append(Action.UPDATE_OTHER)
    return tuple(found)


def node_actions(old: ClusterNode, new: ClusterNode) -> tuple[Action, ...]:
    """Return the changes of a node, one action for each event; empty if none concerns a pod."""
    found = []
    if old.allocatable != new.allocatable:
        found.append(Action.UPDATE_NODE_ALLOCATABLE)
    if old.labels != new.labels:
        found.append(Action.UPDATE_NODE_LABEL)
    if (old.taints, old.unschedulable) != (new.taints, new.unschedulable):
        found.append(Action.UPDATE_NODE_TAINT)
    if old.conditions != new.conditions:
        found.append(Action.UPDATE_NODE_CONDITION)
    if (old.annotations, old.raw_allocatable) != (new.annotations, new.raw_allocatable):
        found.append(Action.UPDATE_NODE_ANNOTATION)
    return tuple(found)


def events_of(kind: ObjectKind[Any], old: Any, new: Any) -> Iterator[ClusterEvent]:
    """The events of an object that is no pod; None: it is absent."""
    resource = RESOURCES[kind]
    if old is None or new is None:
        yield cluster_event(resource, Action.ADD if old is None else Action.DELETE)
    elif kind is kinds.NODE:
        for action in node_actions(old, new):
            yield cluster_event(resource, action)
    else:
        yield cluster_event(resource, Action.UPDATE)


def _asks_less(old: tuple[tuple[str, int], ...], new: tuple[tuple[str, int], ...]) -> bool:
    now = dict(new)
    return any(amount > now.get(name, 0) for name, amount in old)


def _resource_of(kind: ObjectKind[Any], served: Resource) -> str:
    """An EventResource, or resource.version.group as plugins of Koordinator register it."""
    known = _SHORT.get(kind.name.lower())
    if known is not None:
        return known
    return event_resource_of(served)


RESOURCES: Mapping[ObjectKind[Any], str] = {
    kind: _resource_of(kind, place.resource) for kind, place in SCHEDULER_KINDS.items()
}
"""The resource in events of a kind: "Node" or "nodemetrics.v1alpha1.slo.koordinator.sh"."""

_POD_ADDED = ClusterEvent(EventResource.ASSIGNED_POD, Action.ADD)


class _PodPlace(Enum):
    ABSENT = auto()  # or finished, which takes no resources any more
    UNSCHEDULED = auto()
    ASSIGNED = auto()


class EventHandlers:
    """Observes the state, for plugins and for the queue."""

    def __init__(
        self,
        state: SchedulerCache,
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
            _place(pod) is _PodPlace.UNSCHEDULED
            and self._is_ours(pod)
            and not self._state.is_assumed(pod.uid)
        )

    def __call__(self, kind: ObjectKind[Any], old: Any, new: Any) -> None:
        """Take note of a change; see OnStateChange."""
        self._changes.notify(kind, old, new)  # first, as hints may look at what plugins keep
        if kind is kinds.POD:
            self._pod_changed(old, new)
            return
        for event in events_of(kind, old, new):
            self._queue.on_cluster_event(event, old, new)

    def _pod_changed(self, old: ClusterPod | None, new: ClusterPod | None) -> None:
        before, after = _place(old), _place(new)
        if self._nominator.others is not None:
            self._others_nominate(self._nominator.others, old, new)
        if new is not None and after is _PodPlace.UNSCHEDULED:
            self._wanted(old if before is _PodPlace.UNSCHEDULED else None, new)
        elif old is not None and before is _PodPlace.UNSCHEDULED:
            self._unwanted(old, is_assigned=after is _PodPlace.ASSIGNED)
        if _PodPlace.ASSIGNED in (before, after):
            self._assigned_changed(
                old if before is _PodPlace.ASSIGNED else None,
                new if after is _PodPlace.ASSIGNED else None,
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
        waits = new is not None and _place(new) is _PodPlace.UNSCHEDULED and not new.deleting
        if new is not None and waits and new.nominated_node and not self._plugins.schedules(new):
            known = others.node_of(new.key)
            if known == new.nominated_node:
                others.update(new)
                return
            others.nominate(new, new.nominated_node)
            if known is not None:
                self._queue.on_cluster_event(POD_DELETED, old, None)
            return
        gone = old or new
        if gone is None or others.node_of(gone.key) is None:
            return
        others.forget(gone.key)
        if _place(new) is not _PodPlace.ASSIGNED:  # its resources are free for ours again
            self._queue.on_cluster_event(POD_DELETED, gone, None)

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
        if nominated is not None:  # others of its priority left resources for it there
            self._queue.on_cluster_event(POD_DELETED, pod, None)

    def _assigned_changed(self, old: ClusterPod | None, new: ClusterPod | None) -> None:
        if old is None:
            self._queue.on_cluster_event(_POD_ADDED, None, new)
        elif new is None:
            self._queue.on_cluster_event(POD_DELETED, old, None)
        else:
            for action in pod_actions(old, new):
                event = cluster_event(EventResource.ASSIGNED_POD, action)
                self._queue.on_cluster_event(event, old, new)

    def _is_ours(self, pod: ClusterPod) -> bool:
        return not pod.deleting and self._plugins.schedules(pod)


def _place(pod: ClusterPod | None) -> _PodPlace:
    if pod is None or pod.finished:
        return _PodPlace.ABSENT
    return _PodPlace.ASSIGNED if pod.node else _PodPlace.UNSCHEDULED
