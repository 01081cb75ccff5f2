"""What the daemon hands to plugins, from a fake cluster."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry

from koord.controlplane.testing.cluster import FakeCluster
from koord.controlplane.testing.server import ScriptedServer
from koord.controlplane.testing.services import CapturedEvents, FakeInformers
from koord.kube.client import ApiClient
from koord_scheduler.framework.handle import Services, new_services


def fake_services(
    cluster: FakeCluster,
    *,
    server: ScriptedServer | None = None,
    activate: Callable[[Iterable[str]], None] = lambda uids: None,
    exposition: CollectorRegistry | None = None,
) -> Services:
    """Return services on the cluster's time. server answers the client; None: one of its own."""
    clock = cluster.clock
    return new_services(
        client=ApiClient(server or ScriptedServer(cluster), clock, draw=lambda: 0.0),
        events=CapturedEvents(),
        informers=FakeInformers(),
        cluster=cluster.state,
        activate=activate,
        clock=clock,
        registry=exposition or CollectorRegistry(),
    )
