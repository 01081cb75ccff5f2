"""Which cluster events a change of an object is.

Source: Kubernetes, pkg/scheduler/framework/events.go.
"""

import operator
from collections.abc import Iterator, Mapping
from typing import Any

from koord.cluster import decoding
from koord.cluster.decoder import Kind
from koord.cluster.facts import ClusterNode, ClusterPod
from koord.controlplane.kinds import SERVED_TO_SCHEDULER
from koord.kube.resource import Resource
from koord_scheduler.framework.events import Action, ClusterEvent, EventResource, cluster_event

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
    """What was done to a pod, one action for each event.

    None, if only its status has changed, as far as that says nothing of what it takes: that is the
    most of what comes about pods, and above all what this program writes itself.
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
    """What was done to a node, one action for each event; none, if it concerns no pod."""
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


def events_of(kind: Kind[Any], old: Any, new: Any) -> Iterator[ClusterEvent]:
    """The events of an object that is no pod; None: it is absent."""
    resource = RESOURCES[kind]
    if old is None or new is None:
        yield cluster_event(resource, Action.ADD if old is None else Action.DELETE)
    elif kind is decoding.NODE:
        for action in node_actions(old, new):
            yield cluster_event(resource, action)
    else:
        yield cluster_event(resource, Action.UPDATE)


def _asks_less(old: tuple[tuple[str, int], ...], new: tuple[tuple[str, int], ...]) -> bool:
    now = dict(new)
    return any(amount > now.get(name, 0) for name, amount in old)


def _resource_of(kind: Kind[Any], served: Resource) -> str:
    """An EventResource, or resource.version.group as plugins of Koordinator register it."""
    known = _SHORT.get(kind.name.lower())
    if known is not None:
        return known
    group, _, version = served.api_version.rpartition("/")
    return f"{served.plural}.{version}.{group}" if group else f"{served.plural}.{version}"


RESOURCES: Mapping[Kind[Any], str] = {
    kind: _resource_of(kind, place.resource) for kind, place in SERVED_TO_SCHEDULER.items()
}
"""What events about a kind name, such as "Node" or "nodemetrics.v1alpha1.slo.koordinator.sh"."""
