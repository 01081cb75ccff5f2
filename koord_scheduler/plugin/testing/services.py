"""What the daemon hands to plugins, from a fake cluster."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry

from koord.controlplane.testing.cluster import FakeCluster
from koord.controlplane.testing.server import ScriptedServer
from koord.controlplane.testing.services import CapturedEvents, NoInformers
from koord.kube.client import ApiClient
from koord_scheduler.framework.changes import Changes
from koord_scheduler.framework.extension.handlers import FailureFilters, ForgetHandlers
from koord_scheduler.framework.handle import Services
from koord_scheduler.framework.metrics import FrameworkMetrics
from koord_scheduler.framework.nominator import Nominator
from koord_scheduler.framework.waitingpods import WaitingPods


def fake_services(
    cluster: FakeCluster,
    *,
    server: ScriptedServer | None = None,
    activate: Callable[[Iterable[str]], None] = lambda uids: None,
    exposition: CollectorRegistry | None = None,
) -> Services:
    """Return services on the cluster's time. server answers the client; None: one of its own."""
    clock = cluster.clock
    return Services(
        client=ApiClient(server or ScriptedServer(cluster), clock, draw=lambda: 0.0),
        events=CapturedEvents(),
        informers=NoInformers(),
        cluster=cluster.state,
        changes=Changes(clock),
        failures=FailureFilters(clock),
        forgotten=ForgetHandlers(clock),
        waiting=WaitingPods(clock),
        nominator=Nominator(),
        activate=activate,
        clock=clock,
        metrics=FrameworkMetrics(exposition or CollectorRegistry()),
    )
