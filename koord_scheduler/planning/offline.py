"""Services for plugins that look at a cluster without a server."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry

from koord.cluster.state import ClusterState
from koord.controlplane.offline import EmptyInformers, FixedTime, NoEvents, NoServer
from koord.kube.client import ApiClient
from koord_scheduler.framework.handle import Services, new_services


def offline_services(cluster: ClusterState, now: float) -> Services:
    """Return services for a cluster as it was at so many Unix seconds."""
    clock = FixedTime(now)
    return new_services(
        client=ApiClient(NoServer(), clock),
        events=NoEvents(),
        informers=EmptyInformers(),
        cluster=cluster,
        activate=_nothing_waits,
        clock=clock,
        registry=CollectorRegistry(),
    )


def _nothing_waits(uids: Iterable[str]) -> None:
    """There is no queue."""
