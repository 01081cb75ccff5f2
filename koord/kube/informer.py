"""One copy of a collection for many readers: handlers that follow it, and indexes into it."""

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Generic, TypeVar

from koord.kube.client import ApiClient
from koord.kube.reflector import Change, ChangeKind, Reflector, Watched
from koord.util.clock import Clock
from koord.util.health import PartHealth
from koord.util.logs import get_logger
from koord.util.stop import Stop

T = TypeVar("T")
Handler = Callable[[Change[T]], None]
IndexKeys = Callable[[T], Iterable[str]]
"""Under which names an index has an object; none: it is left out."""

log = get_logger("koord.kube")


class SharedInformer(Generic[T]):
    """A reflector with any number of handlers and indexes. Belongs to the event loop.

    Source: Kubernetes client-go, tools/cache: SharedIndexInformer.
    """

    def __init__(
        self,
        client: ApiClient,
        watched: Watched[T],
        clock: Clock,
        *,
        indexes: Mapping[str, IndexKeys[T]] | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """watched.on_change is the first handler; draw is the Reflector's."""
        self._indexes = {name: _ObjectIndex(keys) for name, keys in (indexes or {}).items()}
        self._handlers: list[Handler[T]] = [watched.on_change]
        self._synced = asyncio.Event()
        self._name = watched.name
        self._reflector = Reflector(
            client, replace(watched, on_change=self._take), clock, draw=draw
        )

    @property
    def objects(self) -> Mapping[str, T]:
        """The collection as last known, by namespace/name or name: a snapshot for any thread."""
        return self._reflector.objects

    def indexed(self, index: str, name: str) -> Mapping[str, T]:
        """The objects, by key, that an index has under a name. The mapping is live."""
        return self._indexes[index].found(name)

    def add_handler(self, handler: Handler[T]) -> Callable[[], None]:
        """Call a handler on each change, existing objects first; return a function to remove it.

        Existing objects are reported at once: add the handlers of a large collection before run. A
        handler must not block. When it raises, the error is logged and the rest goes on.
        """
        for key, value in self.objects.items():
            self._call(handler, Change(ChangeKind.ADDED, key, None, value))
        if self._synced.is_set():
            self._call(handler, Change(ChangeKind.SYNCED, "", None, None))
        self._handlers.append(handler)
        return lambda: self._handlers.remove(handler)

    async def wait_synced(self) -> None:
        """Return when a whole list has come."""
        await self._synced.wait()

    @property
    def synced(self) -> bool:
        """Whether a whole list has come."""
        return self._synced.is_set()

    @property
    def answered(self) -> bool:
        """Whether wait_answered returns at once."""
        return self._reflector.answered

    async def wait_answered(self) -> None:
        """Return when a whole list has come, or the server has none and need not have one."""
        await self._reflector.wait_answered()

    def health(self) -> PartHealth:
        """Degraded while the server does not answer, or an object on it is not understood."""
        return self._reflector.health()

    async def run(self, stop: Stop) -> None:
        """Follow the server until stop is set."""
        await self._reflector.run(stop)

    def _take(self, change: Change[T]) -> None:
        for index in self._indexes.values():
            try:
                index.take(change)
            except Exception:
                log.exception("index.failed", watched=self._name, object=change.key)
        for handler in tuple(self._handlers):
            self._call(handler, change)
        if change.kind is ChangeKind.SYNCED:
            self._synced.set()

    def _call(self, handler: Handler[T], change: Change[T]) -> None:
        try:
            handler(change)
        except Exception:
            # The others must hear of it all the same.
            log.exception("change.handler_failed", watched=self._name, object=change.key)


class _ObjectIndex(Generic[T]):
    def __init__(self, keys: IndexKeys[T]) -> None:
        self._keys = keys
        self._by_name: dict[str, dict[str, T]] = {}
        self._nothing: Mapping[str, T] = {}

    def found(self, name: str) -> Mapping[str, T]:
        return self._by_name.get(name, self._nothing)

    def take(self, change: Change[T]) -> None:
        new = () if change.new is None else tuple(self._keys(change.new))
        old = () if change.old is None else tuple(self._keys(change.old))
        for name in old:
            if name not in new:
                self._drop(name, change.key)
        for name in new:
            assert change.new is not None  # noqa: S101 - it has names
            self._by_name.setdefault(name, {})[change.key] = change.new

    def _drop(self, name: str, key: str) -> None:
        bucket = self._by_name.get(name, {})
        bucket.pop(key, None)
        if not bucket:
            self._by_name.pop(name, None)
