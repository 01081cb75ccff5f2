"""List and watch: a reflector and its store follow a collection of the API server."""

import asyncio
import math
import random
from collections.abc import AsyncIterator, Callable, Container, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar

from koord.kube.client import PAGE_SIZE, ApiClient, WatchEvent, WatchEventType, WatchLimits
from koord.kube.errors import ApiError, BadResponse, Forbidden, Gone, KubeError, NotFound
from koord.kube.transport import METADATA, METADATA_LIST, WHOLE, Object
from koord.util.clock import Clock
from koord.util.errors import InvalidObject
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.logs import LogState, get_logger
from koord.util.stop import Stop
from koord.util.timebudget import Backoff, in_slices

SETTLED_AFTER = 5.0  # seconds that a watch must hold before the next one is begun at once
BUSY = (429, 503)  # statuses that say nothing about the object
STARTING = 5.0  # seconds in which a server that starts may refuse what it will allow
MISSING_PAUSE = 5.0  # seconds at most between questions for a kind that is missing, likewise
ANY_VERSION = "0"  # the server's cache may answer: cheap, but perhaps a little old
NEWEST = ""  # etcd answers
FIRST_PAUSE, MAX_PAUSE = 0.8, 30.0  # seconds, as in Kubernetes' own clients

log = get_logger("koord.kube")


@dataclass(frozen=True, kw_only=True, slots=True)
class MissingKind:
    """The hint for a cluster that does not have the kind at all, because its CRD is missing."""

    pause: float  # seconds at least until the next question, doubled at most by jitter
    hint: str  # what can be done about it; "": nothing need be, the cluster is whole without
    max_pause: float = 0.0  # seconds to which the pauses grow, doubling; 0: they do not


@dataclass(frozen=True, kw_only=True, slots=True)
class Collection:
    """The collection that is followed.

    query narrows it, as {"fieldSelector": "metadata.name=worker-1"} does.
    """

    name: str  # for logs and health, for example "nodeslo"
    path: str
    query: Mapping[str, str] | None = None
    watch_seconds: int = 300  # a watch lives that long at least, and at most twice as long
    page_size: int = PAGE_SIZE  # objects; a list of a whole cluster wants larger pages
    is_large: bool = False
    """Whether pages must be kept to. The server's cache does not: it sends the whole list at once,
    half a gigabyte of 150,000 pods. So etcd answers the first list, page by page."""
    absent: MissingKind | None = None  # None: a kind that each cluster has, sooner or later
    without: str = ""
    """The loss where a role does not allow it; "": the rest cannot do without."""
    sync_timeout: float = math.inf
    """Seconds after which the server's rejection (403, 404) counts as its response in any case."""
    component: str = ""  # of the manifests, which grants the right where the default does not


class ListWatchTarget(Protocol):
    """Takes over what the server says. Both methods raise a KubeError when that breaks off."""

    async def take_list(self, query: Mapping[str, str]) -> str:
        """Fetch the whole collection, as the query narrows it; return its version."""

    def watch(
        self, query: Mapping[str, str], limits: WatchLimits
    ) -> AbstractAsyncContextManager[AsyncIterator[str]]:
        """Take over changes as they come; the version is yielded after each, or after several."""


class ListWatch:
    """Follows one collection: resumes watches, lists again when it must, and waits in between."""

    def __init__(
        self,
        collection: Collection,
        copy: ListWatchTarget,
        clock: Clock,
        *,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """draw returns a number from 0 to 1."""
        self._collection = collection
        self._copy = copy
        self._clock = clock
        self._draw = draw
        self._backoff = Backoff(FIRST_PAUSE, MAX_PAUSE, jitter=1.0, draw=draw)
        absent = collection.absent or MissingKind(pause=MAX_PAUSE, hint="")
        self._absence = Backoff(
            absent.pause, max(absent.pause, absent.max_pause), jitter=1.0, draw=draw
        )
        # what the next list must not be older than
        self._version = NEWEST if collection.is_large else ANY_VERSION
        self._watchable = False  # whether _version is one that a watch can begin at
        self._trouble = LogState(log)
        self._reason = ""
        self.synced = False  # whether a list has come at all
        self._answered = asyncio.Event()
        self._refused_at: float | None = None  # monotonic seconds, of the first rejection in a row
        self._tried = asyncio.Event()
        self._round = Stop(clock)  # ends what goes on now, so that the next round begins
        self._lists = 0  # that have come
        self._changed = asyncio.Event()  # the version has

    @property
    def problem(self) -> str:
        """Why the copy may be old; empty: it is not."""
        return self._reason if self._trouble.failing else ""

    @property
    def answered(self) -> bool:
        """Whether wait_answered returns at once."""
        return self._answered.is_set()

    async def wait_answered(self) -> None:
        """Return when a list has come, or the server has said why there will be none for now.

        That it does not have the kind, or does not let us see it, and not for a moment only. This
        counts where the collection says that the rest can do without, or has a sync_timeout.
        """
        await self._answered.wait()

    async def wait_watching(self) -> None:
        """Return when a watch has begun, or the server did not answer the first one well.

        Or where wait_answered returns without a list.
        """
        await self._tried.wait()

    async def catch_up(self, version: str, seconds: float) -> bool:
        """Return when the copy is as new as a version of the server's.

        The watch may say so, which is returned. Without its word within so many seconds everything
        is listed again, by etcd, where nothing is old.
        """
        timer = self._clock.timer(seconds)
        timer.add_done_callback(lambda _: self._changed.set())
        while not self._has(version) and not timer.done():
            await self._next_change()
        timer.cancel()
        if self._has(version):
            return True
        lists = self._lists
        self.list_again()
        while self._lists == lists:
            await self._next_change()
        return False

    def list_again(self) -> None:
        """List everything again, by etcd; a list or a watch that goes on ends."""
        self._version, self._watchable = NEWEST, False
        self._round.set()  # also ends a pause after an error

    async def run(self, stop: Stop) -> None:
        """Follow the server until stop is set."""
        while not stop.is_set():
            begun = self._clock.monotonic()
            self._round = Stop(self._clock)
            error = await stop.bound(self._round.bound(self._follow()))
            if stop.is_set():
                return
            if self._round.is_set():
                continue
            if self._clock.monotonic() - begun >= SETTLED_AFTER:
                self._backoff.reset()
                if error is None:
                    continue  # the watch lived its time
            await stop.bound(self._round.sleep(self._pause(error)))

    def _has(self, version: str) -> bool:
        """Whether the copy is as new as a version, so far as versions can be compared."""
        known = self._version
        return (
            self._watchable
            and known.isdecimal()
            and version.isdecimal()
            and int(known) >= int(version)
        )

    async def _next_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _reached(self, version: str) -> None:
        self._version = version
        self._changed.set()

    async def _follow(self) -> KubeError | None:
        try:
            if not self._watchable:
                await self._list()
            await self._watch()
        except KubeError as err:
            self._failed(err)
            return err
        return None

    async def _list(self) -> None:
        """Fetch the whole collection, at least as new as what we had."""
        query = dict(self._collection.query or {})
        if self._version != NEWEST:
            query |= {"resourceVersion": self._version, "resourceVersionMatch": "NotOlderThan"}
        try:
            version = await self._copy.take_list(query)
        except ApiError as err:
            if isinstance(err, Gone) or _is_ahead(err):
                self._version = NEWEST
            raise
        self._watchable = self.synced = True
        self._lists += 1
        self._absence.reset()
        self._reached(version)
        self._answered.set()
        self._works()

    async def _watch(self) -> None:
        least = self._collection.watch_seconds
        limits = WatchLimits(seconds=int(least * (1 + self._draw())))
        query = {**(self._collection.query or {}), "resourceVersion": self._version}
        async with self._copy.watch(query, limits) as versions:
            self._works()
            self._tried.set()
            async for version in versions:
                self._reached(version)

    def _failed(self, err: KubeError) -> None:
        self._note(err)
        if self._answered.is_set():
            self._tried.set()

    def _note(self, err: KubeError) -> None:
        if isinstance(err, BadResponse) or (isinstance(err, ApiError) and err.status not in BUSY):
            self._watchable = False  # what we know may no longer lead to what is
        name = self._collection.name
        if isinstance(err, Gone):
            log.info("watch.expired", watched=name)
            return  # not a trouble: a long absence ends this way
        absent = self._collection.absent
        if absent is not None and isinstance(err, NotFound):
            self._answered.set()
            if not absent.hint:
                self._works()
                return
        self._note_rejection(err)
        hint = self._hint(err)
        self._reason = f"{err}; {hint}" if hint else str(err)
        self._trouble.failed("watch.failed", watched=name, error=self._reason)

    def _note_rejection(self, err: KubeError) -> None:
        """Treat a rejection as the response once it has lasted.

        For the collection's sync_timeout. Where the rest can do without, a refusal need not: but
        kube-apiserver answers before it has read the roles, and refuses everything until then.
        """
        if not isinstance(err, NotFound | Forbidden):
            self._refused_at = None
            return
        now, timeout = self._clock.monotonic(), self._collection.sync_timeout
        if self._collection.without and isinstance(err, Forbidden):
            timeout = min(timeout, STARTING)
        if self._refused_at is None:
            self._refused_at = now
        if now - self._refused_at >= timeout:
            self._answered.set()

    def _hint(self, err: KubeError) -> str:
        """A hint for an error; "" when there is none."""
        collection = self._collection
        if collection.absent and isinstance(err, NotFound):
            return collection.absent.hint
        if collection.without and isinstance(err, Forbidden):
            return f"allow it in the role: {collection.without}"
        if collection.component and isinstance(err, Forbidden):
            return f"the component {collection.component} of deploy/ grants it"
        return ""

    def _works(self) -> None:
        self._reason = ""
        self._trouble.ended("watch.recovered", watched=self._collection.name)

    def _pause(self, error: KubeError | None) -> float:
        wanted = error.retry_after if isinstance(error, ApiError) else None
        if self._collection.absent and isinstance(error, NotFound):
            wanted = self._absence.next()
        elif isinstance(error, NotFound):
            # Its CRD is missing for the moment: rejected at no cost, and due to be installed.
            return min(self._backoff.next(), MISSING_PAUSE * (1 + self._draw()))
        return max(self._backoff.next(), wanted or 0.0)


def _is_ahead(err: ApiError) -> bool:
    """Whether we know a resource version that the server does not: its data went back in time."""
    causes = err.details.get("causes")
    return isinstance(causes, list) and any(
        isinstance(cause, dict) and cause.get("reason") == "ResourceVersionTooLarge"
        for cause in causes
    )


T = TypeVar("T")


class ChangeKind(Enum):
    """The kind of a change. One SYNCED follows each list, when all its changes were reported."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"
    SYNCED = "synced"


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """One change of the object under key: namespace/name, or name where there are no namespaces.

    old is None for what was added, new for what was deleted, both (and no key) for SYNCED.
    """

    kind: ChangeKind
    key: str
    old: T | None
    new: T | None


@dataclass(frozen=True, slots=True)
class DecodedItem(Generic[T]):
    """An object as it was received: what is kept of it, or why it is not understood."""

    uid: str
    version: str
    value: T | InvalidObject


class Store(Generic[T]):
    """Turns lists and events into changes. Belongs to one thread; objects is for any.

    read makes of an object what is kept of it. If it raises InvalidObject, the last good value of
    that object stays, and rejected says why. An object of the same name with another uid is another
    object: the old one is deleted, the new one added.
    """

    def __init__(self, read: Callable[[Object], T], where: str) -> None:
        self._read = read
        self._where = where
        self._values: dict[str, T] = {}
        self._versions: dict[
            str, tuple[str, str]
        ] = {}  # uid and version, as long as there is a value
        self._snapshot: Mapping[str, T] | None = None  # of _values; None: they have changed since
        self.rejected: dict[str, InvalidObject] = {}

    @property
    def objects(self) -> Mapping[str, T]:
        """The whole collection by key: a snapshot, which never changes again.

        Made when it is asked for, so that an event costs the same however many objects there are.
        """
        if self._snapshot is None:
            self._snapshot = MappingProxyType(self._values.copy())  # in one step for other threads
        return self._snapshot

    def read(self, item: Object) -> tuple[str, DecodedItem[T]]:
        """Return key and reading of an object; one that is known in this version is not read again.

        Raises:
            BadResponse: it has no name or no version.
        """
        key = _key(item, self._where)
        uid, version = identity = _uid(item), _version(item)
        if self._versions.get(key) == identity:
            return key, DecodedItem(uid, version, self._values[key])
        try:
            return key, DecodedItem(uid, version, self._read(item))
        except InvalidObject as err:
            return key, DecodedItem(uid, version, err)

    def keep(self, listed: Container[str]) -> Iterator[Change[T]]:
        """Forget what is not listed."""
        known = [*self._versions, *(key for key in self.rejected if key not in self._versions)]
        for key in [key for key in known if key not in listed]:
            yield from self._remove(key)

    def take(self, key: str, reading: DecodedItem[T]) -> Iterator[Change[T]]:
        """Take over an object that was read; yields at most its deletion and its addition."""
        uid, version = self._versions.get(key, ("", ""))
        known = key in self._versions
        if known and (uid, version) == (reading.uid, reading.version):
            return
        if known and uid != reading.uid:
            yield from self._remove(key)
            known = False
        if isinstance(reading.value, InvalidObject):
            self.rejected[key] = reading.value
            return
        self.rejected.pop(key, None)
        old = self._values.get(key)
        self._values[key] = reading.value
        self._versions[key] = reading.uid, reading.version
        self._snapshot = None
        kind = ChangeKind.MODIFIED if known else ChangeKind.ADDED
        yield Change(kind, key, old, reading.value)

    def put(self, item: Object) -> Iterator[Change[T]]:
        """Take over an object that was added or modified."""
        yield from self.take(*self.read(item))

    def remove(self, item: Object) -> Iterator[Change[T]]:
        """Forget an object that was deleted, unless another has taken its place already."""
        key = _key(item, self._where)
        if self._versions.get(key, (_uid(item), ""))[0] == _uid(item):
            yield from self._remove(key)

    def _remove(self, key: str) -> Iterator[Change[T]]:
        self.rejected.pop(key, None)
        if key in self._versions:
            del self._versions[key]
            self._snapshot = None
            yield Change(ChangeKind.DELETED, key, self._values.pop(key), None)


def without_managed_fields(item: Object) -> Object:
    """The object without its managedFields, which are often half of it."""
    metadata = {key: value for key, value in item["metadata"].items() if key != "managedFields"}
    return {**item, "metadata": metadata}


def resource_version(item: Object, where: str) -> str:
    """The resource version of an object.

    Raises:
        BadResponse: it has none.
    """
    metadata = item.get("metadata")
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    if not isinstance(version, str) or not version:
        raise BadResponse(where, wanted="an object with a resourceVersion", found=f"{item!r:.80}")
    return version


def _key(item: Object, where: str) -> str:
    resource_version(item, where)
    metadata = item["metadata"]
    name, namespace = metadata.get("name"), metadata.get("namespace")
    if not isinstance(name, str) or not name:
        raise BadResponse(where, wanted="an object with a name", found=f"{item!r:.80}")
    return f"{namespace}/{name}" if namespace else name


def _uid(item: Object) -> str:
    return str(item["metadata"].get("uid", ""))


def _version(item: Object) -> str:
    return str(item["metadata"]["resourceVersion"])


class MetadataCompleter:
    """Makes whole objects of metadata.

    The generation of an object counts the changes of its spec, so as long as that stays, what was
    fetched stays good. The status is the one of that time: for objects whose status is our own.

    Source: Kubernetes, API concepts, "Metadata-only fetches"; API conventions, "generation".
    """

    def __init__(self, client: ApiClient, path: str) -> None:
        """path: of the collection, of a kind without namespaces."""
        self._client = client
        self._path = path
        self._complete_objects: dict[str, Object] = {}  # by name

    async def complete(self, item: Object) -> Object:
        """Return the object whole, with the metadata given.

        Raises what ApiClient.get does; NotFound when it has gone meanwhile.
        """
        if item.get("kind") != "PartialObjectMetadata":
            return item  # from a server that sends objects whole
        name = str(item["metadata"].get("name", ""))
        known = self._complete_objects.get(name)
        if known is not None and _spec_id(known) == _spec_id(item) != ("", ""):
            return {**known, "metadata": item["metadata"]}
        self._complete_objects[name] = whole = await self._client.get(f"{self._path}/{name}")
        return whole

    def forget(self, item: Object) -> None:
        """Drop an object that was deleted."""
        self._complete_objects.pop(str(item["metadata"].get("name", "")), None)


def _spec_id(item: Object) -> tuple[str, str]:
    """The UID and generation: equal while the spec is the same. Empty where there is none."""
    metadata = item["metadata"]
    generation = str(metadata.get("generation", ""))
    return (str(metadata.get("uid", "")), generation) if generation else ("", "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched(Collection, Generic[T]):
    """The collection that a reflector follows, and how its objects are read.

    read is called for each new version of an object; see Store. on_change is called on the event
    loop, for one change at a time, and must not block; when it raises, that is logged and the rest
    goes on.
    """

    read: Callable[[Object], T]
    on_change: Callable[[Change[T]], None]
    spec_only: bool = False  # changes of the status are not fetched; see MetadataCompleter


class Reflector(Generic[T]):
    """Keeps `objects` as they are on the server; while it is away, as they were last."""

    def __init__(
        self,
        client: ApiClient,
        watched: Watched[T],
        clock: Clock,
        *,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """draw returns a number from 0 to 1."""
        self._client = client
        self._watched = watched
        self._store = Store(watched.read, watched.name)
        self._completion = MetadataCompleter(client, watched.path) if watched.spec_only else None
        self.listing = False  # objects are half of the last list, half of this one, until SYNCED
        self._rejections: dict[str, str] = {}  # object -> why, as logged last
        self._protocol = ListWatch(watched, self, clock, draw=draw)

    @property
    def objects(self) -> Mapping[str, T]:
        """The collection as last known, by namespace/name or name: a snapshot for any thread."""
        return self._store.objects

    @property
    def rejected(self) -> Mapping[str, str]:
        """The objects whose present version is not understood, and why."""
        return self._rejections

    @property
    def synced(self) -> bool:
        """Whether a list has come at all."""
        return self._protocol.synced

    @property
    def answered(self) -> bool:
        """Whether wait_answered returns at once."""
        return self._protocol.answered

    async def wait_answered(self) -> None:
        """Return when a whole list has come, or the server has none and need not have one."""
        await self._protocol.wait_answered()

    def health(self) -> PartHealth:
        """Degraded while the server does not answer, or an object on it is not understood."""
        if self._protocol.problem:
            return PartHealth(
                HealthStatus.DEGRADED, self._protocol.problem, {"synced": self.synced}
            )
        if self._rejections:
            return PartHealth(HealthStatus.DEGRADED, "; ".join(self._rejections.values()))
        return OK

    async def run(self, stop: Stop) -> None:
        """Follow the server until stop is set."""
        await self._protocol.run(stop)

    async def take_list(self, query: Mapping[str, str]) -> str:
        """Fetch the list and return its version; it is read as a whole before any of it counts."""
        accept = METADATA_LIST if self._completion else WHOLE
        version, listed = await self._read_all(query, accept)
        self.listing = True
        self._report(self._store.keep(listed))
        async for key in in_slices(list(listed)):
            # Popped, as to free all of them at once would take long, too.
            self._report(self._store.take(key, listed.pop(key)))
        self.listing = False
        self._report([Change(ChangeKind.SYNCED, "", None, None)])
        return version

    @asynccontextmanager
    async def watch(
        self, query: Mapping[str, str], limits: WatchLimits
    ) -> AsyncIterator[AsyncIterator[str]]:
        """Watch the collection; yields a version for each event."""
        path, accept = self._watched.path, METADATA if self._completion else WHOLE
        async with self._client.watch(path, query, limits, accept=accept) as events:
            yield self._taken(events)

    async def _taken(self, events: AsyncIterator[WatchEvent]) -> AsyncIterator[str]:
        async for event in events:
            yield await self._take(event)

    async def _read_all(
        self, query: Mapping[str, str], accept: str
    ) -> tuple[str, dict[str, DecodedItem[T]]]:
        """Return version and readings of a whole list, page by page: raw objects are large."""
        version, listed = "", dict[str, DecodedItem[T]]()
        path, size = self._watched.path, self._watched.page_size
        async for page in self._client.pages(path, query, size=size, accept=accept):
            version = page.resource_version
            async for item in in_slices(page.items):
                key, reading = self._store.read(await self._whole(item))
                listed[key] = reading
        return version, listed

    async def _take(self, event: WatchEvent) -> str:
        """Take over an event; return the version that it leads to."""
        version = resource_version(event.object, self._watched.name)
        if event.type is WatchEventType.DELETED:
            if self._completion is not None:
                self._completion.forget(event.object)
            self._report(self._store.remove(event.object))
        elif event.type is not WatchEventType.BOOKMARK:
            self._report(self._store.put(await self._whole(event.object)))
        return version

    async def _whole(self, item: Object) -> Object:
        """The object itself, fetched where the list had only its metadata."""
        return item if self._completion is None else await self._completion.complete(item)

    def _report(self, changes: Iterable[Change[T]]) -> None:
        for change in changes:
            try:
                self._watched.on_change(change)
            except Exception:
                # The copy must stay true for all its other readers.
                log.exception(
                    "change.handler_failed", watched=self._watched.name, object=change.key
                )
        if not self.listing:
            self._note_rejections()

    def _note_rejections(self) -> None:
        rejected = {key: str(err) for key, err in self._store.rejected.items()}
        for key, reason in rejected.items():
            if self._rejections.get(key) != reason:
                log.warning("object.rejected", watched=self._watched.name, object=key, error=reason)
        self._rejections = rejected
