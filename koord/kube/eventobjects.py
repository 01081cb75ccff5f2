"""Core v1 Events as JSON."""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from koord.kube.answers import Object

LONGEST_MESSAGE = 1024  # bytes, as in Kubernetes
LONGEST_REASON = 128
_LONGEST_NAME = 253 - 17  # of the object, before a dot and the time in nanoseconds
_CLUSTER_SCOPED = "default"  # the namespace of events about objects that have none


class EventType(StrEnum):
    """The class of an event in Kubernetes."""

    NORMAL = "Normal"
    WARNING = "Warning"


class ObjectRef(NamedTuple):
    """The object that an event is about. namespace is empty where the kind has none."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""


class Event(NamedTuple):
    """An event to report. Two that are equal are one event that happened twice.

    message is for every reader of events in the object's namespace, so it must hold nothing
    secret; it is cut to what Kubernetes takes. component is the part of the daemon that reports it.
    """

    about: ObjectRef
    type: EventType
    reason: str  # one word in camel case
    message: str
    component: str


@dataclass(slots=True)
class Series:
    """The count of an event, and when it happened; Unix seconds."""

    first: float
    last: float
    count: int = 0
    name: str = ""  # of the object on the server; empty: none was tried
    stored: bool = False  # whether it is there
    written_at: float | None = None  # monotonic; None: never

    def happened(self, at: float) -> None:
        self.count += 1
        self.last = at

    def forget_object(self) -> None:
        """Have the next write make a new object."""
        self.name, self.stored = "", False


def namespace_of(event: Event) -> str:
    """The path of the event's object."""
    return event.about.namespace or _CLUSTER_SCOPED


def event_name(event: Event, moment: int) -> str:
    """A name as Kubernetes' clients make it: the object's, and the time in nanoseconds."""
    return f"{event.about.name[:_LONGEST_NAME].rstrip('.-')}.{moment:x}"


def new_event(event: Event, series: Series, node: str) -> Object:
    """The object to create, under the name of the series."""
    about = event.about
    involved = {
        "apiVersion": about.api_version,
        "kind": about.kind,
        "name": about.name,
        "namespace": about.namespace,
        "uid": about.uid,
    }
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": series.name, "namespace": namespace_of(event)},
        "involvedObject": {key: value for key, value in involved.items() if value},
        "type": event.type.value,
        "reason": event.reason[:LONGEST_REASON],
        "message": _cut(event.message),
        "source": {"component": event.component, "host": node},
        "reportingComponent": event.component,
        "reportingInstance": node,
        "firstTimestamp": _time(series.first),
        **repeated(series),
    }


def repeated(series: Series) -> Object:
    """The patch of an event that happens again."""
    return {"count": series.count, "lastTimestamp": _time(series.last)}


def _time(seconds: float) -> str:
    return _whole_second(int(seconds))


@lru_cache(maxsize=4)  # hundreds of events are of the same second
def _whole_second(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC).isoformat()[:19]}Z"


def _cut(message: str) -> str:
    """The message in one line of printable text."""
    if not message.isprintable():
        message = "".join(c if c.isprintable() else " " for c in message)
    line = " ".join(message.split())
    return line.encode(errors="replace")[:LONGEST_MESSAGE].decode(errors="ignore")
