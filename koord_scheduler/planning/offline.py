"""Services for plugins that look at a cluster without a server."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry

from koord.cluster.state import ClusterState
from koord.controlplane.offline import EmptyInformers, FixedTime, NoEvents, NoServer
from koord.kube.client import ApiClient
from koord_scheduler.framework.changes import Changes
from koord_scheduler.framework.extension.handlers import FailureFilters, ForgetHandlers
from koord_scheduler.framework.handle import Services
from koord_scheduler.framework.metrics import FrameworkMetrics
from koord_scheduler.framework.nominator import Nominator
from koord_scheduler.framework.waitingpods import WaitingPods


def offline_services(cluster: ClusterState, now: float) -> Services:
    """Return services for a cluster as it was at so many Unix seconds."""
    clock = FixedTime(now)
    return Services(
        client=ApiClient(NoServer(), clock),
        events=NoEvents(),
        informers=EmptyInformers(),
        cluster=cluster,
        changes=Changes(clock),
        failures=FailureFilters(clock),
        forgotten=ForgetHandlers(clock),
        waiting=WaitingPods(clock),
        nominator=Nominator(),
        activate=_nothing_waits,
        clock=clock,
        metrics=FrameworkMetrics(CollectorRegistry()),
    )


def _nothing_waits(uids: Iterable[str]) -> None:
    """There is no queue."""
