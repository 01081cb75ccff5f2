"""Keep a ClusterState as the API server has it: list and watch all its kinds, as bytes."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from koord.cluster import kinds, storage
from koord.cluster.decoder import DecodedEvent, DecodedPage, Decoder, ObjectKind
from koord.cluster.keptfields import NO_FIELDS, KeptFields
from koord.cluster.kinds import NODE
from koord.cluster.state import ClusterState
from koord.kube import reflector
from koord.kube.client import (
    NODE_METRICS,
    NODES,
    PERSISTENT_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    ApiClient,
    Resource,
    WatchLimits,
    WatchLines,
)
from koord.kube.errors import BadResponse, KubeError, api_error
from koord.kube.events import Event as KubeEvent
from koord.kube.events import EventType, ObjectRef
from koord.kube.reflector import ListWatch, MissingKind
from koord.util.clock import Clock
from koord.util.errors import InvalidObject
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.logs import get_logger
from koord.util.stop import Stop
from koord.util.timebudget import in_slices

_PAGE = 500  # objects, about two megabytes of pods: read in a hundredth of a second
_DISCOVERY_INTERVAL = 60.0  # seconds between questions for a kind whose CRD is missing
_MAX_DISCOVERY_INTERVAL = 600.0  # most clusters never have OpenKruise


@dataclass(frozen=True, slots=True)
class ServedKind:
    """The place of one kind."""

    resource: Resource
    page_size: int = _PAGE
    absent: MissingKind | None = None  # None: each cluster has it
    without: str = ""  # what is missed where a role does not allow it, as Koordinator's does not


_NODE_METRICS_MISSING = MissingKind(
    pause=_DISCOVERY_INTERVAL,
    hint="install the CRD nodemetrics.slo.koordinator.sh and koordlet: nothing is known about the "
    "load of nodes without",
)

_VOLUMES = "a pod with volumes counts as fitting no other node"
_WORKLOADS = "it is not known how many pods they want"

SERVED_KINDS: Mapping[ObjectKind[Any], ServedKind] = {
    kinds.NODE: ServedKind(NODES, page_size=250),  # with their images, 20 kB each
    kinds.POD: ServedKind(PODS),
    storage.CLAIM: ServedKind(PERSISTENT_CLAIMS, without=_VOLUMES),
    storage.VOLUME: ServedKind(PERSISTENT_VOLUMES, without=_VOLUMES),
    kinds.NAMESPACE: ServedKind(Resource("v1", "namespaces")),
    kinds.NODE_METRIC: ServedKind(NODE_METRICS, page_size=100, absent=_NODE_METRICS_MISSING),
    kinds.BUDGET: ServedKind(
        Resource("policy/v1", "poddisruptionbudgets"),
        without="only the API server knows them, and refuses evictions by them",
    ),
    kinds.PRIORITY_CLASS: ServedKind(Resource("scheduling.k8s.io/v1", "priorityclasses")),
    kinds.REPLICATION_CONTROLLER: ServedKind(
        Resource("v1", "replicationcontrollers"), without=_WORKLOADS
    ),
    kinds.REPLICA_SET: ServedKind(Resource("apps/v1", "replicasets")),
    kinds.DEPLOYMENT: ServedKind(Resource("apps/v1", "deployments")),
    kinds.STATEFUL_SET: ServedKind(Resource("apps/v1", "statefulsets")),
    kinds.CLONE_SET: ServedKind(
        Resource("apps.kruise.io/v1alpha1", "clonesets"),
        absent=MissingKind(pause=_DISCOVERY_INTERVAL, hint="", max_pause=_MAX_DISCOVERY_INTERVAL),
        without=_WORKLOADS,
    ),
}
"""Objects that every daemon of the control plane follows."""

_STORAGE = "storage.k8s.io/v1"
_CLASSES = "pods with claims that wait for their first pod are not scheduled"

SCHEDULER_KINDS: Mapping[ObjectKind[Any], ServedKind] = {
    **SERVED_KINDS,
    kinds.SERVICE: ServedKind(
        Resource("v1", "services"),
        without="pods without spread constraints are spread by their controller's selector alone",
    ),
    storage.STORAGE_CLASS: ServedKind(Resource(_STORAGE, "storageclasses"), without=_CLASSES),
    storage.CSI_NODE: ServedKind(
        Resource(_STORAGE, "csinodes"), without="limits of volumes on nodes are not known"
    ),
    storage.CSI_DRIVER: ServedKind(
        Resource(_STORAGE, "csidrivers"), without="volumes count as having room everywhere"
    ),
    storage.STORAGE_CAPACITY: ServedKind(
        Resource(_STORAGE, "csistoragecapacities"),
        without="drivers that report room for volumes count as having none",
    ),
    storage.VOLUME_ATTACHMENT: ServedKind(
        Resource(_STORAGE, "volumeattachments"),
        without="volumes that are attached without a pod are not counted",
    ),
}
"""All kinds that a ClusterState keeps."""

MAX_NAMED = 5  # objects that health names
MAX_LOGGED = 100
"""Objects of one kind that are not understood, or not read in full, with a log line each; of the
latter also with an event."""

log = get_logger("koord.controlplane")

Announce = Callable[[KubeEvent], None]


def _keep_quiet(_: KubeEvent) -> None:
    """Ignore the event."""


class ClusterFeed:
    """Follows all kinds of one cluster state. Belongs to the event loop, as the state does."""

    def __init__(
        self,
        client: ApiClient,
        state: ClusterState,
        clock: Clock,
        *,
        served: Mapping[ObjectKind[Any], ServedKind] = SERVED_KINDS,
        draw: Callable[[], float] = random.random,
        announce: Announce = _keep_quiet,
        component: str = "",
        kept: KeptFields = NO_FIELDS,
    ) -> None:
        """served: the kinds that are followed. draw returns a number from 0 to 1.

        announce gets an event, in the name of component, about an object that is not read in full.
        kept: what plugins read of pods and nodes beyond what is always kept.
        """
        self.decoder = decoder = Decoder(kept)
        self._kinds = {
            kind.name: _KindFeed(
                client,
                state,
                decoder,
                kind,
                place,
                clock,
                draw,
                _CutObjects(kind.name, place.resource.api_version, announce, component),
            )
            for kind, place in served.items()
        }

    def health(self) -> PartHealth:
        """Unhealthy while a list is still to come."""
        awaited = [name for name, kind in self._kinds.items() if not kind.protocol.answered]
        if awaited:
            return PartHealth(HealthStatus.UNHEALTHY, f"not listed yet: {', '.join(awaited)}")
        return OK

    def kinds_health(self) -> Mapping[str, PartHealth]:
        """Degraded: the server does not answer about a kind, or an object is not understood."""
        return {name: kind.health() for name, kind in self._kinds.items()}

    def is_listed(self, kind: ObjectKind[Any]) -> bool:
        """Whether a kind has been listed once."""
        return self._kinds[kind.name].protocol.synced

    async def wait_synced(self) -> None:
        """Return when all kinds have been listed once, or do not exist in this cluster."""
        for kind in self._kinds.values():
            await kind.protocol.wait_answered()

    async def wait_watching(self) -> None:
        """Return when all kinds that have been listed are watched, or that was tried once."""
        for kind in self._kinds.values():
            await kind.protocol.wait_watching()

    async def catch_up(self, kind: ObjectKind[Any], seconds: float = 1.0) -> None:
        """Return when what is known of a kind is no older than this call.

        For a leader, before it decides anything: what the one before it has done last may not have
        come yet. After so many seconds without a sign of it the kind is listed again.
        """
        await self._kinds[kind.name].catch_up(seconds)

    @property
    def kept(self) -> KeptFields:
        """Fields of pods and nodes that are kept beyond those that always are."""
        return self.decoder.kept

    async def keep(self, kept: KeptFields) -> None:
        """Keep other fields of pods and nodes; return when all that are known have them.

        Where something is added, pods and nodes are listed again.
        """
        is_covered = self.decoder.kept.covers(kept)
        self.decoder.kept = kept
        if is_covered:
            return
        for kind in (kinds.NODE, kinds.POD):
            feed = self._kinds.get(kind.name)
            if feed is not None and feed.protocol.answered:
                await feed.protocol.catch_up("", 0.0)
            elif feed is not None:  # a part of its first list may have been read already
                feed.protocol.list_again()

    async def run(self, stop: Stop) -> None:
        """Follow the server until stop is set."""
        async with asyncio.TaskGroup() as group:
            for name, kind in self._kinds.items():
                group.create_task(kind.protocol.run(stop), name=f"{name} feed")


class _KindFeed:
    """Takes over what the server says about one kind."""

    def __init__(
        self,
        client: ApiClient,
        state: ClusterState,
        decoder: Decoder,
        kind: ObjectKind[Any],
        place: ServedKind,
        clock: Clock,
        draw: Callable[[], float],
        cut: "_CutObjects",
    ) -> None:
        self._cut = cut
        self._client = client
        self._state = state
        self._decoder = decoder
        self._kind = kind
        self._path = place.resource.collection()
        self._page_size = place.page_size
        self._rejected: dict[str, str] = {}  # object -> why; the last good one stays in force
        followed = reflector.Collection(
            name=place.resource.plural,
            path=self._path,
            page_size=place.page_size,
            is_large=True,
            absent=place.absent,
            without=place.without,
        )
        self.protocol = ListWatch(followed, self, clock, draw=draw)

    def health(self) -> PartHealth:
        """Degraded while the server does not answer, or an object on it is not understood."""
        if self.protocol.problem:
            return PartHealth(
                HealthStatus.DEGRADED, self.protocol.problem, {"synced": self.protocol.synced}
            )
        if self._rejected:
            named = "; ".join([*self._rejected.values()][:MAX_NAMED])
            return PartHealth(
                HealthStatus.DEGRADED, f"{len(self._rejected)} not understood: {named}"
            )
        return self._cut.health()

    async def catch_up(self, seconds: float) -> None:
        """Wait for the server's newest version; after so many seconds list the kind again."""
        try:
            newest = await self._client.get(self._path, {"limit": "1"})
            version = str(newest.get("metadata", {}).get("resourceVersion", ""))
        except KubeError as err:
            log.warning("version.unknown", watched=self._kind.name, error=str(err))
            version, seconds = "", 0.0
        if not await self.protocol.catch_up(version, seconds):
            log.info("kind.relisted", watched=self._kind.name)

    async def take_list(self, query: Mapping[str, str]) -> str:
        """Fetch the list page by page into the state; return its version."""
        listed: set[str] = set()
        version, is_first = "", not any(True for _ in self._state.keys(self._kind))
        pages = self._client.pages_read(self._path, self._read_page, query, size=self._page_size)
        async for page in pages:
            version = page.resource_version
            cut = {each.key: each for each in page.cut}
            async for item in in_slices(page.objects):
                found = cut.get(item.key)
                self._put(item, *((found.uid, found.faults) if found else ("", ())))
                if not is_first:
                    listed.add(item.key)
            for each in page.rejected:
                self._reject(each.key, each.error)
                listed.add(each.key)
        if not is_first:
            await self._forget_all_but(listed)
        if not version:
            raise BadResponse(self._path, wanted="a list with a resourceVersion", found="none")
        return version

    @asynccontextmanager
    async def watch(
        self, query: Mapping[str, str], limits: WatchLimits
    ) -> AsyncIterator[AsyncIterator[str]]:
        """Watch the kind; yields one version for all events of one read."""
        async with self._client.watch_lines(self._path, query, limits) as lines:
            yield self._versions(lines)

    async def _versions(self, lines: WatchLines) -> AsyncIterator[str]:
        async for batch in lines:
            version = ""
            async for line in in_slices(batch):
                version = self._take(line, lines.bookmarked)
            yield version

    def _take(self, line: bytes, bookmarked: Callable[[], None]) -> str:
        """Take over one event; return the version that it leads to."""
        where = f"watch of {self._path}"
        try:
            event = self._decoder.event(self._kind, line)
        except InvalidObject as err:
            raise BadResponse(where, wanted="a watch event", found=str(err)) from err
        if event.type == "ERROR":
            raise api_error(event.code or 500, {}, where=where)
        if not event.resource_version:
            found = f"{event.type} {event.key}"
            raise BadResponse(where, wanted="an object with a resourceVersion", found=found)
        if event.type == "BOOKMARK":
            bookmarked()
        elif event.type == "DELETED":
            self._remove(event)
        elif isinstance(event.object, InvalidObject):
            self._reject(event.key, event.object)
        else:
            self._put(event.object, event.uid, event.faults)
        return event.resource_version

    async def _read_page(self, data: bytes) -> DecodedPage[Any]:
        read = partial(self._decoder.page, self._kind, data)
        try:
            return await asyncio.to_thread(read)
        except InvalidObject as err:
            raise BadResponse(self._path, wanted="a list", found=str(err)) from err

    def _put(self, item: Any, uid: str, faults: tuple[str, ...]) -> None:
        self._state.put(self._kind, item)
        if self._kind is NODE:
            faults = (*faults, *self._state.left_out(item))
        if faults or self._cut:
            self._cut.note(item.key, uid, faults)
        if self._rejected:
            self._rejected.pop(item.key, None)

    def _remove(self, event: DecodedEvent[Any]) -> None:
        self._state.remove(self._kind, event.key, event.uid)
        self._rejected.pop(event.key, None)
        self._cut.forget(event.key)

    async def _forget_all_but(self, listed: Collection[str]) -> None:
        """Forget what a whole list lacks."""
        async for key in in_slices(tuple(self._state.keys(self._kind)), 1000):
            if key not in listed:
                self._state.remove(self._kind, key)
                self._cut.forget(key)
        for key in [key for key in self._rejected if key not in listed]:
            del self._rejected[key]

    def _reject(self, key: str, error: InvalidObject) -> None:
        reason = str(error)
        if self._rejected.get(key) != reason and len(self._rejected) < MAX_LOGGED:
            log.warning("object.rejected", watched=self._kind.name, object=key, error=reason)
        self._rejected[key] = reason


class _CutObjects:
    """The objects of one kind that are not read in full: each with one log line and one event."""

    def __init__(self, name: str, api_version: str, announce: Announce, component: str) -> None:
        self._name = name
        self._api_version = api_version
        self._announce = announce
        self._component = component
        self._faults: dict[str, str] = {}  # by key, of the first MAX_LOGGED
        self._others: set[str] = set()  # keys

    def __len__(self) -> int:
        return len(self._faults) + len(self._others)

    def health(self) -> PartHealth:
        """Ok, and which they are."""
        if not self:
            return OK
        named = "; ".join(f"{key}: {text}" for key, text in [*self._faults.items()][:MAX_NAMED])
        return PartHealth(HealthStatus.OK, f"{len(self)} not read in full: {named}")

    def note(self, key: str, uid: str, faults: tuple[str, ...]) -> None:
        """Note what was left out of an object, as it is now."""
        if not faults:
            self.forget(key)
        elif key in self._faults:
            self._faults[key] = faults[0]
        elif len(self._faults) < MAX_LOGGED:
            self._faults[key] = faults[0]
            self._others.discard(key)
            self._report(key, uid, faults)
        else:
            self._others.add(key)

    def forget(self, key: str) -> None:
        """The object is gone, or read in full."""
        self._faults.pop(key, None)
        self._others.discard(key)

    def _report(self, key: str, uid: str, faults: tuple[str, ...]) -> None:
        log.warning("object.cut", watched=self._name, object=key, left_out=faults)
        namespace, _, name = key.rpartition("/")
        kind = self._name[0].upper() + self._name[1:]
        about = ObjectRef(self._api_version, kind, name, namespace, uid)
        message = f"left out, all else counts: {'; '.join(faults)}"
        self._announce(
            KubeEvent(about, EventType.WARNING, "PartsLeftOut", message, self._component)
        )
