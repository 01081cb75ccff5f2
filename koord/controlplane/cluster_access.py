"""Access to the API server: clients, informers and the cluster state that they feed."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from prometheus_client import CollectorRegistry

from koord.cluster.decoder import ObjectKind
from koord.cluster.keptfields import NO_FIELDS, KeptFields
from koord.cluster.state import ClusterState
from koord.component.http.guard import TokenGuard
from koord.component.plugins.execution import running_plugin
from koord.component.supervisor import supervise
from koord.controlplane.clusterfeed import ClusterFeed, ServedKind
from koord.controlplane.sections import ClientConnection, ComponentInfo
from koord.controlplane.transport import PooledTransport, encode_json_fast
from koord.kube.authorization import Reviews, User
from koord.kube.client import ApiClient, EventMetrics, KubeMetrics, OneObject, Resource
from koord.kube.credentials import ApiConfig
from koord.kube.errors import ConfigError, KubeError
from koord.kube.events import EventLimits, EventRecorder
from koord.kube.informer import SharedInformer
from koord.kube.kubeconfig import find_config
from koord.kube.reflector import Change, MissingKind, Watched, without_managed_fields
from koord.kube.transport import Call, Limits, Object, Transport
from koord.util.clock import Clock, SystemClock
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.stop import Stop


class NotLeader(KubeError):
    """A request that changes something was not sent, because this replica does not lead."""

    def __init__(self, where: str) -> None:
        super().__init__(f"{where}: not sent, as this replica does not lead (any more)")


class LeaderClient(ApiClient):
    """Reads always, and sends what changes something only while this process leads.

    That is asked right before each request is sent, so that also a process that was held up for
    longer than its lease, or a request that had to wait for its turn, changes nothing.
    """

    def __init__(self, transport: Transport, clock: Clock, is_leader: Callable[[], bool]) -> None:
        super().__init__(transport, clock, encode=encode_json_fast)
        self._is_leader = is_leader

    async def _exchange(self, call: Call) -> bytes:
        if call.method == "GET":
            return await super()._exchange(call)
        check = partial(self._check, call.where)
        check()
        return await super()._exchange(call._replace(check=check))

    def _check(self, where: str) -> None:
        if not self._is_leader():
            raise NotLeader(where)


PAGE = 500  # objects
SYNC_TIMEOUT = 30.0  # seconds of rejections (403, 404) that the start waits for a kind


MIN_SHARED, MAX_SHARED = 512, 256  # characters of an annotation, and how many are known


class _ObjectReader:
    """Reads the objects of one kind; annotations that are equal in many of them are kept once.

    Nodes of one kind have the same CPUs: of 5,000 NodeResourceTopologies that is half of all.
    """

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def __call__(self, item: Object) -> Object:
        found = without_managed_fields(item)
        meta = found.get("metadata")
        annotations = meta.get("annotations") if isinstance(meta, dict) else None
        if isinstance(annotations, dict):
            for key, text in annotations.items():
                if isinstance(text, str) and len(text) >= MIN_SHARED:
                    annotations[key] = self._shared(text)
        return found

    def _shared(self, text: str) -> str:
        known = self._texts.pop(text, text)
        self._texts[known] = known  # the last one now
        if len(self._texts) > MAX_SHARED:
            del self._texts[next(iter(self._texts))]
        return known


class InformerFactory:
    """Makes an informer when the first plugin asks for its kind; it follows until the end.

    Objects are plain JSON without managedFields. Belongs to the event loop.
    """

    def __init__(self, client: ApiClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._informers: dict[Resource, SharedInformer[Object]] = {}
        self._askers: dict[Resource, str] = {}  # the plugin that has asked first; "": none
        self._added = asyncio.Event()
        self._awaited = False  # the start waits for lists

    def informer(
        self, resource: Resource, *, absent: MissingKind | None = None, without: str = ""
    ) -> SharedInformer[Object]:
        """Return the informer of a kind. It runs while these informers do.

        absent and without: for a kind that the cluster, or the role, need not have; see Collection.
        The first caller decides.
        """
        found = self._informers.get(resource)
        if found is None:
            watched = Watched(
                name=resource.plural,
                path=resource.collection(),
                query=resource.query if isinstance(resource, OneObject) else {},
                read=_ObjectReader(),
                on_change=_ignore,
                page_size=PAGE,
                is_large=True,
                absent=absent,
                without=without,
                sync_timeout=SYNC_TIMEOUT,
            )
            self._askers[resource] = running_plugin()
            found = SharedInformer(self._client, watched, self._clock)
            self._informers[resource] = found
            self._added.set()
        return found

    def health(self) -> Mapping[str, PartHealth]:
        """The health of each, by the plural of its kind."""
        return {resource.plural: one.health() for resource, one in self._informers.items()}

    def start_health(self) -> PartHealth:
        """Unhealthy while the start waits for a list; degraded where it goes on without one."""
        waits = [one for one, informer in self._informers.items() if not informer.answered]
        lacks = [
            one
            for one, informer in self._informers.items()
            if informer.answered and not informer.synced and informer.health() != OK
        ]
        if not waits and not lacks:
            return OK
        status = HealthStatus.UNHEALTHY if self._awaited else HealthStatus.DEGRADED
        return PartHealth(status, f"not listed: {'; '.join(map(self._text, (*waits, *lacks)))}")

    def _text(self, resource: Resource) -> str:
        asker, reason = self._askers[resource], self._informers[resource].health().reason
        plugin = f" of plugin {asker}" if asker else ""
        return f"{resource.plural}{plugin}" + (f": {reason}" if reason else "")

    async def wait_synced(self) -> None:
        """Return when all that have been asked for until now are listed, or cannot be.

        Others run them. Kinds that need not be there are not waited for, and any other kind not
        for long when the server rejects it.
        """
        self._awaited = True
        try:
            for one in tuple(self._informers.values()):
                await one.wait_answered()
        finally:
            self._awaited = False

    async def run(self, stop: Stop) -> None:
        """Run all informers, those that are asked for meanwhile too, until stop."""
        running: set[Resource] = set()
        async with asyncio.TaskGroup() as group:
            while not stop.is_set():
                self._added.clear()
                for resource in self._informers.keys() - running:
                    name = f"informer {resource.plural}"
                    run = self._informers[resource].run
                    group.create_task(supervise(name, run, stop, self._clock), name=name)
                    running.add(resource)
                await stop.bound(self._added.wait())


@asynccontextmanager
async def live_informers(config: ApiConfig, name: str) -> AsyncIterator[InformerFactory]:
    """Informers of the objects that an API server has, for a command that ends soon.

    name is the user agent. They follow from when they are asked for, until the context ends.
    """
    clock = SystemClock()
    limits = Limits(response_bytes=_LARGEST_PAGE, qps=50, burst=100, connections=_CONNECTIONS)
    client = ApiClient(Transport(config, clock, limits=limits, user_agent=name), clock)
    found, stop = InformerFactory(client, clock), Stop(clock)
    following = asyncio.create_task(found.run(stop), name="informers")
    try:
        yield found
    finally:
        stop.set()
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
        await client.close()


def _ignore(change: Change[Object]) -> None:
    """Handlers are added later."""


S = TypeVar("S", bound=ClusterState)

_LARGEST_PAGE = 64 << 20  # bytes; 500 pods with all their managedFields
_CONNECTIONS = 64  # a watch of each kind, and what plugins ask
_LEASE_CONNECTIONS = 2
_EVENTS = EventLimits(waiting=2000, remembered=4096, rate=5.0, burst=100)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterAccess(Generic[S]):
    """The parts that need the API server. Close it at the end."""

    server: str
    transport: Transport
    client: ApiClient
    events_client: ApiClient  # has its own rate of requests
    lease_client: ApiClient  # the same: answers that are late must not cost the lead
    state: S
    feed: ClusterFeed
    informers: InformerFactory
    events: EventRecorder
    guard: TokenGuard[User]

    async def close(self) -> None:
        """Close all connections."""
        await self.client.close()
        await self.events_client.close()
        await self.lease_client.close()


def connect(
    wanted: ClientConnection,
    state: S,
    served: Mapping[ObjectKind[Any], ServedKind],
    program: ComponentInfo,
    *,
    environ: Mapping[str, str],
    hostname: str,
    clock: Clock,
    registry: CollectorRegistry,
    events: EventLimits = _EVENTS,
    master: str = "",
    kept: KeptFields = NO_FIELDS,
) -> ClusterAccess[S]:
    """Make the parts. Nothing is sent yet: the API server may be away.

    served: the kinds that the state is to have. master: the URL of the API server, in place of the
    one that is configured. kept: what plugins read of pods and nodes beyond what is always kept.

    Raises:
        ConfigError: it is not clear which API server to use, or as which user.
    """
    config = _api_config(wanted.kubeconfig, master, environ)
    limits = Limits(
        qps=wanted.qps,
        burst=wanted.burst,
        response_bytes=_LARGEST_PAGE,
        connections=_CONNECTIONS,
    )
    observe = KubeMetrics(registry, program.prefix).observe
    make = partial(PooledTransport, config, clock, observe=observe, user_agent=program.name)
    transport = make(limits=limits)
    client = ApiClient(transport, clock)
    apart = replace(limits, connections=max(2, events.writers))
    of_events = make(limits=apart)
    events_client = ApiClient(of_events, clock, encode=encode_json_fast)
    of_lease = make(limits=replace(limits, connections=_LEASE_CONNECTIONS, qps=0))
    count = EventMetrics(registry, program.prefix).count
    recorder = EventRecorder(events_client, hostname, clock, count=count, limits=events)
    return ClusterAccess(
        server=config.server,
        transport=transport,
        client=client,
        events_client=events_client,
        lease_client=ApiClient(of_lease, clock),
        state=state,
        feed=ClusterFeed(
            client,
            state,
            clock,
            served=served,
            announce=recorder.emit,
            component=program.name,
            kept=kept,
        ),
        informers=InformerFactory(client, clock),
        events=recorder,
        guard=TokenGuard(Reviews(client, clock), clock, registry, name=program.prefix),
    )


def _api_config(kubeconfig: str, master: str, environ: Mapping[str, str]) -> ApiConfig:
    home = Path(environ.get("HOME", "/nonexistent"))
    found = find_config(kubeconfig, environ, home=home)
    if found is not None and not master:
        return found
    if found is not None:
        return replace(found, server=master, server_setting="--master")
    if master:
        return ApiConfig(server=master, source="--master", server_setting="--master")
    raise ConfigError(
        "clientConnection.kubeconfig",
        wanted="an API server",
        found="no kubeconfig and no service account",
        hint="name a kubeconfig there or with KUBECONFIG, or run as a pod",
    )
