"""Kubernetes events: the objects, and a recorder that never blocks."""

import asyncio
import heapq
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from koord.kube.client import EVENTS, ApiClient
from koord.kube.errors import TRANSIENT_ERRORS, AlreadyExists, ApiError, KubeError, NotFound
from koord.kube.transport import Object
from koord.util.clock import Clock
from koord.util.logs import LogState, get_logger
from koord.util.stop import Stop
from koord.util.timebudget import Backoff, TokenBucket

MAX_MESSAGE_BYTES = 1024  # bytes, as in Kubernetes
MAX_REASON_BYTES = 128
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
    """An event to report. Two that are equal are one event that occurred twice.

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
    """The count of an event, and the times of its first and last occurrence; Unix seconds."""

    first: float
    last: float
    count: int = 0
    name: str = ""  # of the object on the server; empty: none was tried
    stored: bool = False  # whether it is there
    written_at: float | None = None  # monotonic; None: never

    def record(self, at: float) -> None:
        self.count += 1
        self.last = at

    def forget_object(self) -> None:
        """Make the next write create a new object."""
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
        "reason": event.reason[:MAX_REASON_BYTES],
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
    return line.encode(errors="replace")[:MAX_MESSAGE_BYTES].decode(errors="ignore")


REPEAT_GAP = 60.0  # seconds between two writes of an event that goes on happening
FORGOTTEN_AFTER = 3600.0  # seconds; API servers delete events after an hour
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds between attempts while the server is in trouble

log = get_logger("koord.kube")


async def _may_write() -> str:
    return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class EventLimits:
    """Bounds of a recorder; by default those of an agent, of which there are thousands."""

    waiting: int = 64  # different events not yet on the server
    remembered: int = 256  # different events whose repetitions are counted
    rate: float = 0.2  # writes a second on average
    burst: int = 25  # writes at once after a quiet time
    writers: int = 1  # requests on their way at a time


@dataclass(slots=True, eq=False)
class _PendingEvent:
    due: float  # monotonic
    until: float  # monotonic; then it is dropped


class _Queue:
    """Events that wait, by when they are due and when they are dropped."""

    def __init__(self) -> None:
        self._entries: dict[Event, _PendingEvent] = {}
        self._numbers = itertools.count()
        # Entries that have been replaced or removed stay until they come up.
        self._due: list[tuple[float, int, Event, _PendingEvent]] = []
        self._ends: list[tuple[float, int, Event, _PendingEvent]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, event: Event) -> bool:
        return event in self._entries

    def put(self, event: Event, due: float, until: float) -> None:
        """Queue an event; replace its earlier entry."""
        entry, number = _PendingEvent(due, until), next(self._numbers)
        self._entries[event] = entry
        heapq.heappush(self._due, (due, number, event, entry))
        heapq.heappush(self._ends, (until, number, event, entry))

    def put_off(self, event: Event, due: float) -> None:
        """Postpone a waiting event."""
        entry = self._entries.get(event)
        if entry is not None:  # else it has expired
            self.put(event, due, entry.until)

    def take_first(self) -> None:
        """The event that is due first is being written: it waits, but is not due any more."""
        heapq.heappop(self._due)

    def remove(self, event: Event) -> None:
        """It does not wait any more, if it has not expired already."""
        self._entries.pop(event, None)

    def drop(self, now: float) -> int:
        """Remove what is to be dropped by now; return how many events."""
        dropped = 0
        while (found := self._first(self._ends)) is not None and found[1].until <= now:
            del self._entries[found[0]]
            dropped += 1
        return dropped

    def first(self) -> tuple[Event, _PendingEvent] | None:
        """The event that is due first; of several the one that has waited longest."""
        return self._first(self._due)

    def _first(
        self, heap: list[tuple[float, int, Event, _PendingEvent]]
    ) -> tuple[Event, _PendingEvent] | None:
        while heap:
            _, _, event, entry = heap[0]
            if self._entries.get(event) is entry:
                return event, entry
            heapq.heappop(heap)
        return None


class EventRecorder:
    """Writes events in the background, rarely, and gives up on those that are not wanted.

    Events with the same object, reason and message are one event that is counted. count gets
    the outcome of each write, or of an event that was dropped: created, updated, refused (the
    server does not take it), overflow (too many wait), expired (waited for an hour) or withheld
    (this agent only observes).
    """

    def __init__(
        self,
        client: ApiClient,
        node: str,
        clock: Clock,
        *,
        count: Callable[[str], None] = lambda outcome: None,
        observe_only: Callable[[], Awaitable[str]] = _may_write,
        limits: EventLimits = EventLimits(),
    ) -> None:
        """node is the host that the events come from.

        observe_only says why nothing may be written; "" when it may.
        """
        self._client = client
        self._node = node
        self._clock = clock
        self._count = count
        self._observe_only = observe_only
        self._waiting = _Queue()
        self._series: dict[Event, Series] = {}  # latest last
        self._last_moment = 0
        self._woken = asyncio.Event()
        self._limits = limits
        self._turns = TokenBucket(clock, limits.rate, limits.burst)
        self._backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self._away, self._refused, self._full = LogState(log), LogState(log), LogState(log)

    def emit(self, event: Event) -> None:
        """Queue an event to be written soon. Returns at once; call it on the event loop."""
        waiting, now = self._waiting, self._clock.monotonic()
        if event not in waiting and len(waiting) >= self._limits.waiting:
            self._full.failed("events.overflow", waiting=len(waiting), dropped=event.reason)
            self._count("overflow")
            return
        series = self._series_of(event)
        series.record(self._clock.wall())
        due = now if series.written_at is None else max(now, series.written_at + REPEAT_GAP)
        if event not in waiting:
            waiting.put(event, due, now + FORGOTTEN_AFTER)
        self._woken.set()

    async def run(self, stop: Stop) -> None:
        """Write events until stop; what still waits then is lost."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._limits.writers):
                writing = stop.bound(self._write_all(stop))
                group.create_task(writing, name=f"event writer {number}")

    async def _write_all(self, stop: Stop) -> None:
        while True:
            event, pause = self._next()
            if event is None:
                await stop.sleep(pause, wake=self._woken)
                continue
            if await self._observe_only():
                self._waiting.remove(event)
                self._count("withheld")
                continue
            await self._turns.take()
            if pause := await self._write(event):
                await stop.sleep(pause)

    def _next(self) -> tuple[Event | None, float]:
        """The event to write now, or None and the seconds until the next one is due."""
        self._woken.clear()
        waiting, now = self._waiting, self._clock.monotonic()
        for _ in range(waiting.drop(now)):
            self._count("expired")
        first = waiting.first()
        if first is None:
            return None, FORGOTTEN_AFTER
        event, entry = first
        seconds = entry.due - now
        if seconds > 0:
            return None, seconds
        waiting.take_first()
        return event, 0.0

    async def _write(self, event: Event) -> float:
        """Write an event; return the seconds to wait before the next one."""
        series = self._series_of(event)
        times = series.count
        try:
            outcome = await self._store(event, series)
        except KubeError as err:
            if isinstance(err, TRANSIENT_ERRORS):
                return self._put_off(event, err)
            self._refused.failed("events.rejected", event_reason=event.reason, error=str(err))
            outcome = "refused"
        else:
            self._away.ended("events.written", waiting=len(self._waiting))
            self._refused.ended("events.accepted")
        self._backoff.reset()
        self._done(event, series, times)
        self._count(outcome)
        return 0.0

    async def _store(self, event: Event, series: Series) -> str:
        """Create the event on the server, or raise its count there."""
        if series.stored:
            try:
                await self._raise_count(event, series)
            except NotFound:
                series.forget_object()  # an hour has passed, or it was deleted
            else:
                return "updated"
        series.name = series.name or event_name(event, self._moment())
        try:
            body = new_event(event, series, self._node)
            await self._client.submit(EVENTS.collection(namespace_of(event)), body)
        except AlreadyExists:  # the response to an earlier attempt was lost
            await self._raise_count(event, series)
        series.stored = True
        return "created"

    def _moment(self) -> int:
        """Unix time in nanoseconds, for names: never the same twice."""
        self._last_moment = max(self._last_moment + 1, int(self._clock.wall() * 1e9))
        return self._last_moment

    async def _raise_count(self, event: Event, series: Series) -> None:
        path = EVENTS.object(series.name, namespace=namespace_of(event))
        await self._client.merge_patch(path, repeated(series))

    def _put_off(self, event: Event, err: KubeError) -> float:
        """Let the others go first next time. Returns the seconds until then."""
        waiting = self._waiting
        self._away.failed("events.delayed", waiting=len(waiting), error=str(err))
        wanted = err.retry_after if isinstance(err, ApiError) else None
        pause = max(self._backoff.next(), wanted or 0.0)
        waiting.put_off(event, self._clock.monotonic() + pause)
        return pause

    def _done(self, event: Event, series: Series, times: int) -> None:
        """Take an event off the queue; queue it again if it occurred meanwhile."""
        waiting, now = self._waiting, self._clock.monotonic()
        series.written_at = now
        waiting.remove(event)
        if series.count > times:
            waiting.put(event, now + REPEAT_GAP, now + FORGOTTEN_AFTER)
        if len(waiting) < self._limits.waiting // 2:
            self._full.ended("events.flowing")

    def _series_of(self, event: Event) -> Series:
        """Return the record of an event, which becomes the latest."""
        known, now = self._series, self._clock.wall()
        series = known.pop(event, None)
        if series is None or now - series.last > FORGOTTEN_AFTER:
            series = Series(first=now, last=now)
        known[event] = series
        idle = (each for each in known if each not in self._waiting)
        if len(known) > self._limits.remembered and (oldest := next(idle, None)) is not None:
            del known[oldest]
        return series
