"""What the daemon hands to plugins, from a fake cluster."""

from typing import Any

from prometheus_client import CollectorRegistry

from koord.kube.client import ApiClient
from koord.kube.eventobjects import Event
from koord.kube.events import EventRecorder
from koord.kube.informer import SharedInformer
from koord.kube.resource import Resource
from koord_descheduler.framework.decisions import Decisions
from koord_descheduler.framework.handle import Services
from koord_descheduler.framework.metrics import FrameworkMetrics
from koord_descheduler.framework.migrations import Migrations
from koord_descheduler.plugin.testing.cluster import FakeCluster
from koord_descheduler.plugin.testing.server import ScriptedServer


class CapturedEvents(EventRecorder):
    """Events that plugins have reported, the latest one last."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)


class NoInformers:
    """No collections are followed but those of the cluster's state."""

    def informer(self, resource: Resource) -> SharedInformer[Any]:
        raise NotImplementedError(f"the kit follows no {resource.plural}: give informers yourself")


def fake_services(
    cluster: FakeCluster,
    *,
    server: ScriptedServer | None = None,
    exposition: CollectorRegistry | None = None,
) -> Services:
    """Return services on simulated time. server answers the client; None: one of its own."""
    transport = server or ScriptedServer(cluster)
    return Services(
        client=ApiClient(transport, cluster.clock, draw=lambda: 0.0),
        events=CapturedEvents(),
        informers=NoInformers(),
        cluster=cluster.state,
        decisions=Decisions(),
        migrations=Migrations(),
        clock=cluster.clock,
        metrics=FrameworkMetrics(exposition or CollectorRegistry()),
    )
