"""Plugins that were just made learn of the cluster as it is."""

from koord.cluster.decoding import NODE, NODE_METRIC, POD
from koord_scheduler.framework.handle import Services


def announce(services: Services) -> None:
    """Notify plugins, which are made by now, of what the cluster has; start hooks come after it."""
    cluster, notify = services.cluster, services.changes.notify
    for node in cluster.nodes():
        notify(NODE, None, node)
    for report in cluster.reports.values():
        notify(NODE_METRIC, None, report)
    for key in cluster.snapshot.pod_keys():
        notify(POD, None, cluster.pod(key))
