"""What the daemon hands to plugins, from a fake cluster."""

from prometheus_client import CollectorRegistry

from koord.controlplane.testing.cluster import FakeCluster
from koord.controlplane.testing.server import ScriptedServer
from koord.controlplane.testing.services import CapturedEvents, FakeInformers
from koord.kube.client import ApiClient
from koord_descheduler.framework.decisions import Decisions
from koord_descheduler.framework.handle import Services
from koord_descheduler.framework.metrics import FrameworkMetrics
from koord_descheduler.framework.migrations import Migrations


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
        informers=FakeInformers(),
        cluster=cluster.state,
        decisions=Decisions(),
        migrations=Migrations(),
        clock=cluster.clock,
        metrics=FrameworkMetrics(exposition or CollectorRegistry()),
    )
