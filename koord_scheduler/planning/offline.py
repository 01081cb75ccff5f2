"""Services for plugins that look at a cluster without a server, and the cluster in them."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry

from koord.cluster.decoding import NODE, NODE_METRIC, POD
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


def announce(services: Services) -> None:
    """Notify plugins, which are made by now, of what the cluster has; start hooks come after it."""
    cluster, notify = services.cluster, services.changes.notify
    for node in cluster.nodes():
        notify(NODE, None, node)
    for report in cluster.reports.values():
        notify(NODE_METRIC, None, report)
    for key in cluster.snapshot.pod_keys():
        notify(POD, None, cluster.pod(key))


def _nothing_waits(uids: Iterable[str]) -> None:
    """There is no queue."""
