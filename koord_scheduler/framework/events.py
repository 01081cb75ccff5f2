"""What happens in a cluster, as far as it may make a rejected pod schedulable.

Source: Kubernetes, k8s.io/kube-scheduler/framework ClusterEvent, QueueingHintFn.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntFlag, StrEnum, auto
from functools import lru_cache

from koord.cluster.facts import ClusterPod
from koord.component.plugins.shape import is_coroutine_function
from koord.util.nearest import nearest


class Action(IntFlag):
    """What was done to an object."""

    ADD = auto()
    DELETE = auto()
    UPDATE_NODE_ALLOCATABLE = auto()
    UPDATE_NODE_LABEL = auto()
    UPDATE_NODE_TAINT = auto()
    UPDATE_NODE_CONDITION = auto()
    UPDATE_NODE_ANNOTATION = auto()
    UPDATE_POD_LABEL = auto()
    UPDATE_POD_SCALE_DOWN = auto()
    UPDATE_POD_TOLERATION = auto()
    UPDATE_POD_GATES_ELIMINATED = auto()
    UPDATE_POD_GENERATED_CLAIM = auto()
    UPDATE_OTHER = auto()
    UPDATE = (
        UPDATE_NODE_ALLOCATABLE
        | UPDATE_NODE_LABEL
        | UPDATE_NODE_TAINT
        | UPDATE_NODE_CONDITION
        | UPDATE_NODE_ANNOTATION
        | UPDATE_POD_LABEL
        | UPDATE_POD_SCALE_DOWN
        | UPDATE_POD_TOLERATION
        | UPDATE_POD_GATES_ELIMINATED
        | UPDATE_POD_GENERATED_CLAIM
        | UPDATE_OTHER
    )
    ALL = ADD | DELETE | UPDATE


class EventResource(StrEnum):
    """Kinds that events are about. A plugin may also name one as resource.version.group."""

    ANY = "*"
    POD = "Pod"  # in what a plugin registers: bound ones and unscheduled ones
    ASSIGNED_POD = "AssignedPod"
    UNSCHEDULED_POD = "UnschedulablePod"
    NODE = "Node"
    CLAIM = "PersistentVolumeClaim"
    VOLUME = "PersistentVolume"
    STORAGE_CLASS = "StorageClass"
    CSI_NODE = "CSINode"
    CSI_DRIVER = "CSIDriver"
    STORAGE_CAPACITY = "CSIStorageCapacity"
    VOLUME_ATTACHMENT = "VolumeAttachment"
    RESOURCE_CLAIM = "ResourceClaim"
    RESOURCE_SLICE = "ResourceSlice"
    DEVICE_CLASS = "DeviceClass"
    NAMESPACE = "Namespace"


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """Something that happened; or, registered by a plugin, what it wants to learn of."""

    resource: str  # an EventResource, or resource.version.group
    action: Action

    @property
    def wildcard(self) -> bool:
        """Whether it is everything that can happen."""
        return self.resource == EventResource.ANY and self.action == Action.ALL

    @property
    def label(self) -> str:
        """As in metrics: "NodeAdd", "AssignedPodDelete", "NodeUpdateNodeLabel"."""
        return _label(self)

    def covers(self, happened: "ClusterEvent") -> bool:
        """Whether this, registered by a plugin, means something that has happened."""
        return bool(self.action & happened.action) and (
            self.resource in (EventResource.ANY, happened.resource)
            or (self.resource == EventResource.POD and happened.resource in _PODS)
        )


@lru_cache(maxsize=256)
def cluster_event(resource: str, action: Action) -> ClusterEvent:
    """The one event of this kind: there are few kinds, and many events."""
    return ClusterEvent(resource, action)


@lru_cache(maxsize=256)
def _label(event: ClusterEvent) -> str:
    names = (event.action.name or "").split("|")
    titles = ("".join(word.capitalize() for word in name.split("_")) for name in names)
    return f"{event.resource}{'|'.join(titles)}"


_PODS = (EventResource.ASSIGNED_POD, EventResource.UNSCHEDULED_POD)
WILDCARD = ClusterEvent(EventResource.ANY, Action.ALL)
POD_DELETED = ClusterEvent(EventResource.ASSIGNED_POD, Action.DELETE)


class QueueingHint(Enum):
    """What a plugin says about an event and a pod that it had rejected."""

    SKIP = "skip"  # it does not help
    QUEUE = "queue"  # it may help


HintFn = Callable[[ClusterPod, object, object], QueueingHint]
"""hint(pod, old, new): the rejected pod, and the object before and after the event (None: absent).

Cheap, and without the snapshot. One that raises counts as QUEUE.
"""


def about_itself(pod: ClusterPod, old: object, new: object) -> QueueingHint:
    """The hint of a plugin that only a change of the rejected pod itself can help."""
    same = isinstance(new, ClusterPod) and new.uid == pod.uid
    return QueueingHint.QUEUE if same else QueueingHint.SKIP


@dataclass(frozen=True, slots=True)
class HintedEvent:
    """Events that a plugin wants to learn of, and its hint; without one, each may help."""

    event: ClusterEvent
    hint: HintFn | None = None


def event_defect(found: object) -> str:
    """Return what is wrong with what a plugin has registered; "": it is a HintedEvent as it ought.

    A kind that is none of ours is named in full, so that a slip of the pen is not taken for one.
    """
    if not isinstance(found, HintedEvent) or not isinstance(found.event, ClusterEvent):
        return f"wanted HintedEvent(ClusterEvent(…)), found {found!r:.120}"
    event, hint = found.event, found.hint
    if not isinstance(event.action, Action) or not event.action:
        return f"wanted an Action, such as Action.ADD, found {event.action!r:.80}"
    if not isinstance(event.resource, str) or (
        event.resource not in set(EventResource) and not _FULL_NAME.fullmatch(event.resource)
    ):
        known = ", ".join(EventResource)
        close = nearest(str(event.resource), list(EventResource))
        return (
            f"wanted events of {known}, or of a kind as resource.version.group, found "
            f"{event.resource!r:.80}; the nearest is {close}"
        )
    if hint is not None and (not callable(hint) or is_coroutine_function(hint)):
        return f"wanted def hint(pod, old, new) for events of {event.resource}, found {hint!r:.80}"
    return ""


_FULL_NAME = re.compile(r"[a-z0-9-]+\.v[a-z0-9]+(\.[a-z0-9-]+)+")
