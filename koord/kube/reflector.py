"""A copy of a collection that follows the API server: list, then watch, for as long as we live."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from koord.kube.access.completion import Completion
from koord.kube.answers import Object
from koord.kube.client import PAGE_SIZE, ApiClient
from koord.kube.errors import ApiError, BadAnswer, Forbidden, Gone, KubeError, NotFound
from koord.kube.store import Change, ChangeKind, Reading, Store, resource_version
from koord.kube.transport import METADATA, METADATA_LIST, WHOLE
from koord.kube.watch import WatchEvent, WatchEventType, WatchLimits
from koord.util.backoff import Backoff
from koord.util.clock import Clock
from koord.util.health import OK, PartHealth, Status
from koord.util.logs import LogState, get_logger
from koord.util.stop import Stop

SETTLED_AFTER = 5.0  # seconds that a watch must hold before the next one is begun at once
BUSY = (429, 503)  # statuses that say nothing about the object
MISSING_PAUSE = 5.0  # seconds at most between questions for a kind that is missing, likewise
ANY_VERSION = "0"  # the server's cache may answer: cheap, but perhaps a little old
NEWEST = ""  # etcd answers
FIRST_PAUSE, LONGEST_PAUSE = 0.8, 30.0  # seconds, as in Kubernetes' own clients

SLICE = 100  # objects that are read, or changes that are reported, without a pause for others

T = TypeVar("T")
_Item = TypeVar("_Item")

log = get_logger("koord.kube")


@dataclass(frozen=True, kw_only=True, slots=True)
class Absent:
    """The hint for a cluster that does not have the kind at all, because its CRD is missing."""

    pause: float  # seconds at least until the next question, doubled at most by jitter
    hint: str  # what can be done about it


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched(Generic[T]):
    """The resource that a reflector follows, and how its objects are read.

    query narrows the collection, as {"fieldSelector": "metadata.name=worker-1"} does. read is
    called for each new version of an object; see Store. on_change is called on the event loop, for
    one change at a time, and must not block; when it raises, that is logged and the rest goes on.
    """

    name: str  # for logs and health, for example "nodeslo"
    path: str
    read: Callable[[Object], T]
    on_change: Callable[[Change[T]], None]
    query: Mapping[str, str] | None = None
    watch_seconds: int = 300  # a watch lives that long at least, and at most twice as long
    page_size: int = PAGE_SIZE  # objects; a list of a whole cluster wants larger pages
    absent: Absent | None = None  # None: a kind that each cluster has, sooner or later
    component: str = ""  # of the manifests, which grants the right where the default does not
    spec_only: bool = False  # changes of the status are not fetched; see Completion


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
        self._client = client
        self._watched = watched
        self._clock = clock
        self._draw = draw  # a number from 0 to 1
        self._store = Store(watched.read, watched.name)
        self._completion = Completion(client, watched.path) if watched.spec_only else None
        self._backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE, jitter=1.0, draw=draw)
        self.listing = False  # objects are half of the last list, half of this one, until SYNCED
        self._version = ANY_VERSION  # what the next list must not be older than
        self._watchable = False  # whether _version is one that a watch can begin at
        self._trouble = LogState(log)
        self._reason = ""
        self._rejections: dict[str, str] = {}  # object -> why, as logged last
        self.synced = False  # whether a list has come at all

    @property
    def objects(self) -> Mapping[str, T]:
        """The collection as last known, by namespace/name or name: a snapshot for any thread."""
        return self._store.objects

    @property
    def rejected(self) -> Mapping[str, str]:
        """The objects whose present version is not understood, and why."""
        return self._rejections

    def health(self) -> PartHealth:
        """Degraded while the server does not answer, or an object on it is not understood."""
        if self._trouble.failing:
            return PartHealth(Status.DEGRADED, self._reason, {"synced": self.synced})
        if self._rejections:
            return PartHealth(Status.DEGRADED, "; ".join(self._rejections.values()))
        return OK

    async def run(self, stop: Stop) -> None:
        """Follow the server until stop is set."""
        while not stop.is_set():
            begun = self._clock.monotonic()
            error = await stop.bound(self._follow())
            if stop.is_set():
                return
            if self._clock.monotonic() - begun >= SETTLED_AFTER:
                self._backoff.reset()
                if error is None:
                    continue  # the watch lived its time
            if await stop.sleep(self._pause(error)):
                return

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
        query = dict(self._watched.query or {})
        if self._version != NEWEST:
            query |= {"resourceVersion": self._version, "resourceVersionMatch": "NotOlderThan"}
        try:
            accept = METADATA_LIST if self._completion else WHOLE
            version, listed = await self._read_all(query, accept)
        except ApiError as err:
            if isinstance(err, Gone) or _is_ahead(err):
                self._version = NEWEST
            raise
        self.listing = True
        self._report(self._store.keep(listed))
        async for key in _in_slices(list(listed)):
            # Popped, as to free all of them at once would take long, too.
            self._report(self._store.take(key, listed.pop(key)))
        self.listing = False
        self._report([Change(ChangeKind.SYNCED, "", None, None)])
        self._version, self._watchable, self.synced = version, True, True
        self._works()

    async def _read_all(
        self, query: Mapping[str, str], accept: str
    ) -> tuple[str, dict[str, Reading[T]]]:
        """Return version and readings of a whole list, page by page: raw objects are large."""
        version, listed = "", dict[str, Reading[T]]()
        path, size = self._watched.path, self._watched.page_size
        async for page in self._client.pages(path, query, size=size, accept=accept):
            version = page.resource_version
            async for item in _in_slices(page.items):
                key, reading = self._store.read(await self._whole(item))
                listed[key] = reading
        return version, listed

    async def _watch(self) -> None:
        least = self._watched.watch_seconds
        limits = WatchLimits(seconds=int(least * (1 + self._draw())))
        query = {**(self._watched.query or {}), "resourceVersion": self._version}
        path, accept = self._watched.path, METADATA if self._completion else WHOLE
        async with self._client.watch(path, query, limits, accept=accept) as events:
            self._works()
            async for event in events:
                await self._take(event)

    async def _take(self, event: WatchEvent) -> None:
        version = resource_version(event.object, self._watched.name)
        if event.type is WatchEventType.DELETED:
            if self._completion is not None:
                self._completion.forget(event.object)
            self._report(self._store.remove(event.object))
        elif event.type is not WatchEventType.BOOKMARK:
            self._report(self._store.put(await self._whole(event.object)))
        self._version = version

    async def _whole(self, item: Object) -> Object:
        """The object itself, fetched where only its metadata came."""
        return item if self._completion is None else await self._completion.complete(item)

    def _report(self, changes: Iterable[Change[T]]) -> None:
        for change in changes:
            try:
                self._watched.on_change(change)
            except Exception:
                # The copy must stay true for all its other readers.
                log.exception("change.unhandled", watched=self._watched.name, object=change.key)
        if not self.listing:
            self._note_rejections()

    def _note_rejections(self) -> None:
        rejected = {key: str(err) for key, err in self._store.rejected.items()}
        for key, reason in rejected.items():
            if self._rejections.get(key) != reason:
                log.warning("object.rejected", watched=self._watched.name, object=key, error=reason)
        self._rejections = rejected

    def _failed(self, err: KubeError) -> None:
        if isinstance(err, BadAnswer) or (isinstance(err, ApiError) and err.status not in BUSY):
            self._watchable = False  # what we know may no longer lead to what is
        if isinstance(err, Gone):
            log.info("watch.expired", watched=self._watched.name)
            return  # not a trouble: a long absence ends this way
        hint = self._hint(err)
        self._reason = f"{err}; {hint}" if hint else str(err)
        self._trouble.failed("watch.failed", watched=self._watched.name, error=self._reason)

    def _hint(self, err: KubeError) -> str:
        """A hint for an error; "" when there is none."""
        watched = self._watched
        if watched.absent and isinstance(err, NotFound):
            return watched.absent.hint
        if watched.component and isinstance(err, Forbidden):
            return f"the component {watched.component} of deploy/ grants it"
        return ""

    def _works(self) -> None:
        self._reason = ""
        self._trouble.ended("watch.recovered", watched=self._watched.name)

    def _pause(self, error: KubeError | None) -> float:
        wanted = error.retry_after if isinstance(error, ApiError) else None
        if self._watched.absent and isinstance(error, NotFound):
            wanted = self._watched.absent.pause * (1 + self._draw())
        elif isinstance(error, NotFound):
            # Its CRD is missing for the moment: refused at no cost, and due to be installed.
            return min(self._backoff.next(), MISSING_PAUSE * (1 + self._draw()))
        return max(self._backoff.next(), wanted or 0.0)


async def _in_slices(items: Iterable[_Item]) -> AsyncIterator[_Item]:
    """Yield all, letting others run in between: a cluster has 10^5 pods."""
    for number, item in enumerate(items, 1):
        yield item
        if number % SLICE == 0:
            await asyncio.sleep(0)


def _is_ahead(err: ApiError) -> bool:
    """Whether we know a resource version that the server does not: its data went back in time."""
    causes = err.details.get("causes")
    return isinstance(causes, list) and any(
        isinstance(cause, dict) and cause.get("reason") == "ResourceVersionTooLarge"
        for cause in causes
    )
