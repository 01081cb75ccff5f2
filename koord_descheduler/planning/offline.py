"""Services for plugins that look at a cluster without a server."""

from prometheus_client import CollectorRegistry

from koord.cluster.state import ClusterState
from koord.controlplane.offline import EmptyInformers, FixedTime, NoEvents, NoServer
from koord.kube.client import ApiClient
from koord_descheduler.framework.decisions import Decisions
from koord_descheduler.framework.handle import Services
from koord_descheduler.framework.metrics import FrameworkMetrics
from koord_descheduler.framework.migrations import Migrations


def offline_services(cluster: ClusterState, now: float) -> Services:
    """Return services for a cluster as it was at so many Unix seconds."""
    clock = FixedTime(now)
    return Services(
        client=ApiClient(NoServer(), clock),
        events=NoEvents(),
        informers=EmptyInformers(),
        cluster=cluster,
        decisions=Decisions(),
        migrations=Migrations(),
        clock=clock,
        metrics=FrameworkMetrics(CollectorRegistry()),
    )
