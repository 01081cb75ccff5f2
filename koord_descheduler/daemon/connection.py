"""What talks to the API server: one client for all, and what it keeps of the cluster."""

from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry

from koord.cluster.state import ClusterState
from koord.component.http.tokenguard import TokenGuard
from koord.controlplane.clusterfeed import ClusterFeed
from koord.controlplane.informers import LiveInformers
from koord.kube.access.findconfig import find_config
from koord.kube.client import ApiClient
from koord.kube.errors import ConfigError
from koord.kube.events import EventLimits, EventRecorder
from koord.kube.metrics import EventMetrics, KubeMetrics
from koord.kube.reviews import Reviews, User
from koord.kube.transport import Limits, Transport
from koord.util.clock import Clock
from koord_descheduler import NAME, PREFIX
from koord_descheduler.daemon.settings import Settings

_LARGEST_PAGE = 64 << 20  # bytes; 500 pods with all their managedFields
_CONNECTIONS = 64  # a watch of each kind, and what plugins ask
_EVENTS = EventLimits(waiting=2000, remembered=4096, rate=5.0, burst=100)


@dataclass(frozen=True, kw_only=True, slots=True)
class Connection:
    """The parts that need the API server. Close it at the end."""

    server: str
    client: ApiClient
    state: ClusterState
    feed: ClusterFeed
    informers: LiveInformers
    events: EventRecorder
    guard: TokenGuard[User]

    async def close(self) -> None:
        """Close all connections."""
        await self.client.close()


def connect(
    settings: Settings, hostname: str, clock: Clock, registry: CollectorRegistry
) -> Connection:
    """Make the parts. Nothing is sent yet: the API server may be away.

    Raises:
        ConfigError: it is not clear which API server to use, or as which user.
    """
    wanted = settings.configuration.client_connection
    home = Path(settings.environ.get("HOME", "/nonexistent"))
    config = find_config(wanted.kubeconfig, settings.environ, home=home)
    if config is None:
        raise ConfigError(
            "clientConnection.kubeconfig",
            wanted="an API server",
            found="no kubeconfig and no service account",
            hint="name a kubeconfig there or with KUBECONFIG, or run as a pod",
        )
    limits = Limits(
        qps=wanted.qps,
        burst=wanted.burst,
        answer_bytes=_LARGEST_PAGE,
        connections=_CONNECTIONS,
    )
    observe = KubeMetrics(registry, PREFIX).observe
    transport = Transport(config, clock, limits=limits, observe=observe, user_agent=NAME)
    client, state = ApiClient(transport, clock), ClusterState()
    return Connection(
        server=config.server,
        client=client,
        state=state,
        feed=ClusterFeed(client, state, clock),
        informers=LiveInformers(client, clock),
        events=EventRecorder(
            client, hostname, clock, count=EventMetrics(registry, PREFIX).count, limits=_EVENTS
        ),
        guard=TokenGuard(Reviews(client, clock), clock, registry, name=PREFIX),
    )
