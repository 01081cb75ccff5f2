"""Types that plugins see: NodeInfo, QueuedPod, ClusterEvent and queueing hints."""

import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, IntFlag, StrEnum, auto
from functools import lru_cache
from itertools import islice

from koord.cluster.account import FrozenAccount
from koord.cluster.facts import ClusterNode, ClusterPod
from koord.cluster.view import View
from koord.component.plugins.registry import is_coroutine_function
from koord.util.text import nearest

Refresh = Callable[[FrozenAccount, FrozenAccount], Iterable[ClusterPod]]
"""refresh(before, now): own pods that depend on the account, as they are to be from now on."""


class NodeInfo:
    """A row of a view: the node, its pods and amounts. Read-only, like the view."""

    __slots__ = ("row", "view")

    def __init__(self, view: View, row: int) -> None:
        self.view = view
        """All nodes, for what depends on others."""
        self.row = row

    @property
    def node(self) -> ClusterNode:
        return self.view.node(self.row)

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def labels(self) -> Mapping[str, str]:
        return self.node.labels

    @property
    def pods(self) -> tuple[ClusterPod, ...]:
        """Its pods, finished ones too, and those that are assumed to be there."""
        return self.view.pods(self.row)

    def allocatable(self, resource: str) -> int:
        """Milli-cores, bytes, pods, or units of what it is; 0: it has none."""
        column = self.view.resources.get(resource)
        return 0 if column is None else self.view.allocatable_of(self.row, column)

    def requested(self, resource: str) -> int:
        """The sum over its pods that are not finished; of "pods", their number."""
        column = self.view.resources.get(resource)
        return 0 if column is None else self.view.requested_of(self.row, column)

    def nonzero_requested(self) -> tuple[int, int]:
        """Milli-cores and bytes, where a container that requests none counts with a default."""
        return self.view.nonzero_requested_of(self.row)

    def free(self, resource: str) -> int:
        """Return allocatable minus requested; below zero on a node that is overcommitted."""
        return self.allocatable(resource) - self.requested(resource)

    def __repr__(self) -> str:
        return f"NodeInfo({self.name})"


_MOST_NOTED = 64  # rows that a log keeps


class ChangedRows:
    """The log of a plugin: rows for which its results have changed, though the rows have not.

    Bounded: a reader that comes late only learns that too many have changed. Rows are those of the
    view that the plugin has followed last; one that has moved since counts as changed anyway.
    """

    def __init__(self) -> None:
        self.rows: deque[int] = deque(maxlen=_MOST_NOTED)
        """The latest ones, the last one last."""
        self.count = 0
        """How many were noted up to now."""

    def note(self, row: int) -> None:
        """Note that results for a row are others now.

        Raises:
            ValueError: it is negative, which no row is.
        """
        if row < 0:
            raise ValueError(f"row: wanted one of a view, found {row}")
        self.rows.append(row)
        self.count += 1


class NotedRows:
    """A reader of a log of changed rows."""

    def __init__(self, log: ChangedRows | None) -> None:
        """log: None: nothing is ever noted."""
        self._log = log
        self._count = 0 if log is None else log.count

    def take(self) -> Collection[int] | None:
        """Return what was noted since the last call, or since this was made; None: too many."""
        log, before = self._log, self._count
        if log is None or log.count == before:
            return ()
        self._count = log.count
        new = log.count - before
        return None if new > len(log.rows) else set(islice(reversed(log.rows), new))


def readers_of(logs: Iterable[ChangedRows | None]) -> Mapping[int, NotedRows]:
    """Return readers of the logs that plugins have, by the place of the plugin: few have one."""
    return {place: NotedRows(log) for place, log in enumerate(logs) if log is not None}


def nodes_of(view: View) -> Iterator[NodeInfo]:
    """All nodes of a view, in the order of its rows."""
    return (NodeInfo(view, row) for row in range(len(view)))


@dataclass(eq=False, kw_only=True, slots=True)
class QueuedPod:
    """A pod in the queue, or taken from it for an attempt. Plugins only read it."""

    pod: ClusterPod
    timestamp: float  # monotonic seconds, when it was added to the queue, or added again
    first_attempt: float | None = None  # monotonic seconds; None: there was none
    attempts: int = 0  # that were begun
    unschedulable_count: int = 0  # attempts that ended with a rejection; for the backoff
    consecutive_errors: int = 0  # attempts that ended with an error, in a row; for the backoff
    cuts: int = 0  # attempts that were ended for time, in a row; for the backoff
    unschedulable_plugins: frozenset[str] = frozenset()  # that rejected it in its last attempt
    pending_plugins: frozenset[str] = frozenset()  # that answered Pending in it
    gating_plugin: str = ""  # the PreEnqueue plugin that keeps it from being tried; "": none

    @property
    def key(self) -> str:
        """namespace/name."""
        return self.pod.key

    @property
    def rejecting_plugins(self) -> frozenset[str]:
        """All plugins whose hints are asked about it."""
        return self.unschedulable_plugins | self.pending_plugins


class Action(IntFlag):
    """A kind of change of an object."""

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
    """An event in the cluster; registered by a plugin, the events that it wants to see."""

    resource: str  # an EventResource, or resource.version.group
    action: Action

    @property
    def wildcard(self) -> bool:
        """Whether it is everything that can happen."""
        return self.resource == EventResource.ANY and self.action == Action.ALL

    @property
    def label(self) -> str:
        """Return the name in metrics: "NodeAdd", "AssignedPodDelete", "NodeUpdateNodeLabel"."""
        return _label(self)

    def covers(self, other: "ClusterEvent") -> bool:
        """Whether this, registered by a plugin, includes an event."""
        return bool(self.action & other.action) and (
            self.resource in (EventResource.ANY, other.resource)
            or (self.resource == EventResource.POD and other.resource in _PODS)
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
    """The answer of a plugin about an event and a pod that it had rejected."""

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


_FULL_NAME = re.compile(r"[a-z0-9-]+\.v[a-z0-9]+(\.[a-z0-9-]+)*")  # without a group: of v1
