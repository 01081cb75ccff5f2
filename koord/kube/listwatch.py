"""The protocol that keeps a copy of a collection true: list, then watch, for as long as we live.

Source: Kubernetes, API concepts, "Efficient detection of changes".
"""

import asyncio
import math
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from koord.kube.client import PAGE_SIZE, WatchLimits
from koord.kube.errors import ApiError, BadResponse, Forbidden, Gone, KubeError, NotFound
from koord.util.clock import Clock
from koord.util.flowcontrol import Backoff
from koord.util.logs import LogState, get_logger
from koord.util.stop import Stop

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
        self._note_refusal(err)
        hint = self._hint(err)
        self._reason = f"{err}; {hint}" if hint else str(err)
        self._trouble.failed("watch.failed", watched=name, error=self._reason)

    def _note_refusal(self, err: KubeError) -> None:
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
