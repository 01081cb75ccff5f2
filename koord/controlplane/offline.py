"""Clusters without a running daemon: read once from the API server, and stand-ins for plugins."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from koord.cluster.decoder import ObjectKind
from koord.cluster.dump import Dump
from koord.cluster.keptfields import NO_FIELDS, KeptFields
from koord.cluster.state import ClusterState
from koord.controlplane.clusterfeed import SERVED_KINDS, ClusterFeed, ServedKind
from koord.kube.client import ApiClient, Resource
from koord.kube.credentials import ApiConfig
from koord.kube.errors import ConfigError, Unreachable
from koord.kube.events import Event, EventRecorder
from koord.kube.informer import Handler, SharedInformer
from koord.kube.kubeconfig import find_config
from koord.kube.reflector import Change, ChangeKind, MissingKind
from koord.kube.transport import Call, Limits, Transport
from koord.util.clock import SystemClock
from koord.util.errors import KoordError
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.stop import Stop

LIST_TIMEOUT = 120.0  # seconds for all lists
_LARGEST_PAGE = 64 << 20  # bytes


class ClusterReadError(KoordError):
    """The API server did not list what a plan needs."""


def find_cluster(kubeconfig: str) -> ApiConfig:
    """Return the API server to ask: of that file, else as kubectl finds it.

    Raises:
        ConfigError: there is none, or its file cannot be used.
    """
    home = Path(os.environ.get("HOME", "/nonexistent"))
    found = find_config(kubeconfig, os.environ, home=home)
    if found is None:
        raise ConfigError(
            "--kubeconfig",
            wanted="an API server, or a dump",
            found="no kubeconfig and no service account",
            hint="name a dump with --from, or a kubeconfig there or with KUBECONFIG",
        )
    return found


async def read_cluster(
    config: ApiConfig,
    name: str,
    warn: Callable[[str], None],
    *,
    served: Mapping[ObjectKind[Any], ServedKind] = SERVED_KINDS,
    list_timeout: float = LIST_TIMEOUT,
    kept: KeptFields = NO_FIELDS,
) -> ClusterState:
    """Return all objects that decisions need, by one list of each kind.

    name is the user agent. warn is called with each object or kind that cannot be read. kept: what
    plugins read of pods and nodes beyond what is always kept.

    Raises:
        ClusterReadError: not all lists arrived within so many seconds.
    """
    clock = SystemClock()
    limits = Limits(response_bytes=_LARGEST_PAGE, qps=50, burst=100, connections=32)
    client = ApiClient(Transport(config, clock, limits=limits, user_agent=name), clock)
    state = ClusterState()
    try:
        feed, stop = ClusterFeed(client, state, clock, served=served, kept=kept), Stop(clock)
        following = asyncio.create_task(feed.run(stop), name="cluster")
        try:
            async with asyncio.timeout(list_timeout):
                await feed.wait_synced()
        except TimeoutError as err:
            raise ClusterReadError(_why(config, feed, list_timeout)) from err
        finally:
            stop.set()
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following
        for kind, health in feed.kinds_health().items():
            if health.status is not HealthStatus.OK:
                warn(f"{kind}: {health.reason}")
        return state
    finally:
        await client.close()


def _why(config: ApiConfig, feed: ClusterFeed, list_timeout: float) -> str:
    troubles = {
        health.reason
        for health in feed.kinds_health().values()
        if health.status is not HealthStatus.OK
    }
    found = "; ".join([feed.health().reason, *sorted(troubles)][:5])
    return f"{config.server}: wanted all lists within {list_timeout:g} s, found {found}"


class FixedWallClock(SystemClock):
    """The wall clock stands still, so that a dump does not get older; deadlines are real."""

    def __init__(self, wall: float) -> None:
        """wall is in Unix seconds."""
        self._wall = wall

    def wall(self) -> float:
        return self._wall


class UnreachableTransport(Transport):
    """Every request fails as when the API server cannot be reached."""

    def __init__(self) -> None:
        """There is nothing to connect to."""

    async def exchange(self, call: Call) -> bytes:
        self._refuse(call)

    def stream(self, call: Call, silence: object) -> Any:
        self._refuse(call)

    async def close(self) -> None:
        """There are no connections."""

    def _refuse(self, call: Call) -> NoReturn:
        raise Unreachable(f"{call.where}: nothing is asked of an API server here")


class DiscardingEventRecorder(EventRecorder):
    """Events are dropped."""

    def __init__(self) -> None:
        """There is nothing to keep."""

    def emit(self, event: Event) -> None:
        """Drop it."""


class FixedInformer(SharedInformer[Any]):
    """A collection that is known, and never changes."""

    def __init__(self, objects: Mapping[str, Any] = MappingProxyType({})) -> None:
        """objects: in JSON, by namespace/name or name."""
        self._fixed = objects

    @property
    def objects(self) -> Mapping[str, Any]:
        return self._fixed

    def indexed(self, index: str, name: str) -> Mapping[str, Any]:
        return {}

    def add_handler(self, handler: Handler[Any]) -> Callable[[], None]:
        for key, item in self._fixed.items():
            handler(Change(ChangeKind.ADDED, key, None, item))
        handler(Change(ChangeKind.SYNCED, "", None, None))
        return lambda: None

    @property
    def synced(self) -> bool:
        return True

    answered = synced

    async def wait_synced(self) -> None:
        """It is."""

    async def wait_answered(self) -> None:
        """It is."""

    def health(self) -> PartHealth:
        return OK

    async def run(self, stop: Stop) -> None:
        """There is nothing to follow."""


class EmptyInformers:
    """Informers without objects: the dump's objects are in the cluster's state."""

    def informer(
        self, resource: Resource, *, absent: MissingKind | None = None, without: str = ""
    ) -> SharedInformer[Any]:
        return FixedInformer()


class DumpInformers:
    """Informers of the custom resources of a dump, each kind for the first who asks for it."""

    def __init__(self, dump: Dump) -> None:
        self._dump = dump

    def informer(
        self, resource: Resource, *, absent: MissingKind | None = None, without: str = ""
    ) -> SharedInformer[Any]:
        return FixedInformer(self._dump.take_custom(resource.api_version, resource.plural))
