"""A copy of a collection, as plain objects, that follows the API server."""

import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from koord.kube.access.completion import Completion
from koord.kube.answers import Object
from koord.kube.client import ApiClient
from koord.kube.listwatch import Collection, ListWatch
from koord.kube.store import Change, ChangeKind, Reading, Store, resource_version
from koord.kube.transport import METADATA, METADATA_LIST, WHOLE
from koord.kube.watch import WatchEvent, WatchEventType, WatchLimits
from koord.util.clock import Clock
from koord.util.health import OK, PartHealth, Status
from koord.util.logs import get_logger
from koord.util.slices import in_slices
from koord.util.stop import Stop

T = TypeVar("T")

log = get_logger("koord.kube")


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched(Collection, Generic[T]):
    """The collection that a reflector follows, and how its objects are read.

    read is called for each new version of an object; see Store. on_change is called on the event
    loop, for one change at a time, and must not block; when it raises, that is logged and the rest
    goes on.
    """

    read: Callable[[Object], T]
    on_change: Callable[[Change[T]], None]
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
        """draw returns a number from 0 to 1."""
        self._client = client
        self._watched = watched
        self._store = Store(watched.read, watched.name)
        self._completion = Completion(client, watched.path) if watched.spec_only else None
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
        if self._protocol.trouble:
            return PartHealth(Status.DEGRADED, self._protocol.trouble, {"synced": self.synced})
        if self._rejections:
            return PartHealth(Status.DEGRADED, "; ".join(self._rejections.values()))
        return OK

    async def run(self, stop: Stop) -> None:
        """Follow the server until stop is set."""
        await self._protocol.run(stop)

    async def take_list(self, query: Mapping[str, str]) -> str:
        """As Copy.take_list: a list is read as a whole before any of it counts."""
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
        """As Copy.watch: a version for each event."""
        path, accept = self._watched.path, METADATA if self._completion else WHOLE
        async with self._client.watch(path, query, limits, accept=accept) as events:
            yield self._taken(events)

    async def _taken(self, events: AsyncIterator[WatchEvent]) -> AsyncIterator[str]:
        async for event in events:
            yield await self._take(event)

    async def _read_all(
        self, query: Mapping[str, str], accept: str
    ) -> tuple[str, dict[str, Reading[T]]]:
        """Return version and readings of a whole list, page by page: raw objects are large."""
        version, listed = "", dict[str, Reading[T]]()
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
