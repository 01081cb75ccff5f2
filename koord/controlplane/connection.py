"""What talks to the API server: the clients, and what they keep of the cluster."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from prometheus_client import CollectorRegistry

from koord.cluster.decoder import Kind
from koord.cluster.state import ClusterState
from koord.component.http.tokenguard import TokenGuard
from koord.controlplane.clusterfeed import ClusterFeed
from koord.controlplane.informers import LiveInformers
from koord.controlplane.kinds import Served
from koord.controlplane.leantransport import LeanTransport
from koord.controlplane.program import Program
from koord.controlplane.quickjson import encode_quickly
from koord.controlplane.sections import ClientConnection
from koord.kube.access.config import ApiConfig
from koord.kube.access.findconfig import find_config
from koord.kube.client import ApiClient
from koord.kube.errors import ConfigError
from koord.kube.events import EventLimits, EventRecorder
from koord.kube.metrics import EventMetrics, KubeMetrics
from koord.kube.reviews import Reviews, User
from koord.kube.transport import Limits, Transport
from koord.util.clock import Clock

S = TypeVar("S", bound=ClusterState)

_LARGEST_PAGE = 64 << 20  # bytes; 500 pods with all their managedFields
_CONNECTIONS = 64  # a watch of each kind, and what plugins ask
_LEASE_CONNECTIONS = 2
_EVENTS = EventLimits(waiting=2000, remembered=4096, rate=5.0, burst=100)


@dataclass(frozen=True, kw_only=True, slots=True)
class Connection(Generic[S]):
    """The parts that need the API server. Close it at the end."""

    server: str
    transport: Transport
    client: ApiClient
    events_client: ApiClient  # has its own rate of requests
    lease_client: ApiClient  # the same: answers that are late must not cost the lead
    state: S
    feed: ClusterFeed
    informers: LiveInformers
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
    served: Mapping[Kind[Any], Served],
    program: Program,
    *,
    environ: Mapping[str, str],
    hostname: str,
    clock: Clock,
    registry: CollectorRegistry,
    events: EventLimits = _EVENTS,
    master: str = "",
) -> Connection[S]:
    """Make the parts. Nothing is sent yet: the API server may be away.

    served: the kinds that the state is to have. master: the URL of the API server, in place of the
    one that is configured.

    Raises:
        ConfigError: it is not clear which API server to use, or as which user.
    """
    config = _api_config(wanted.kubeconfig, master, environ)
    limits = Limits(
        qps=wanted.qps,
        burst=wanted.burst,
        answer_bytes=_LARGEST_PAGE,
        connections=_CONNECTIONS,
    )
    observe = KubeMetrics(registry, program.prefix).observe
    make = partial(LeanTransport, config, clock, observe=observe, user_agent=program.name)
    transport = make(limits=limits)
    client = ApiClient(transport, clock)
    apart = replace(limits, connections=max(2, events.writers))
    of_events = make(limits=apart)
    events_client = ApiClient(of_events, clock, encode=encode_quickly)
    of_lease = make(limits=replace(limits, connections=_LEASE_CONNECTIONS, qps=0))
    count = EventMetrics(registry, program.prefix).count
    recorder = EventRecorder(events_client, hostname, clock, count=count, limits=events)
    return Connection(
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
        ),
        informers=LiveInformers(client, clock),
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
