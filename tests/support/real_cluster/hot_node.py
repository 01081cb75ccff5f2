"""A node that is hot by a busy pod of the real kubelet, and what koord-descheduler does then."""

import os

from koord.api.quantity import Quantity
from tests.support.real_cluster.access import NODE
from tests.support.real_cluster.client import (
    SYSTEM,
    Cluster,
    Object,
    budget,
    names,
    pod,
    replica_set,
)
from tests.support.real_cluster.installation import Installed


def make_hot(cluster: Cluster, installed: Installed, app: str) -> None:
    """Two pods, of which one is busy on the real node, which is hot by it alone.

    The other is placed by koord-scheduler. What else this machine does is on both sides of the
    threshold: the node is above it only with half of what the pod uses.
    """
    cluster.apply(pod(f"{app}-hot", app, busy=1, cpu="300m", nodeName=NODE))
    cluster.apply(replica_set(app, 2, cpu="300m"))

    def usage() -> tuple[Object, Object] | None:
        report = cluster.report()
        found = {each["name"]: each["podUsage"] for each in report.get("podsMetric") or []}
        here = f"{app}-hot" in found and milli(found[f"{app}-hot"]) > 200
        return (report["nodeMetric"]["nodeUsage"], found[f"{app}-hot"]) if here else None

    node, busy = cluster.until(usage, "the report says that the pod is busy")  # type: ignore[misc]
    threshold = (milli(node) - milli(busy) / 2) / (1000 * (os.cpu_count() or 1)) * 100
    installed.apply(high=round(threshold, 1))
    cluster.kubectl("-n", SYSTEM, "rollout", "restart", "deployment/koord-descheduler")
    cluster.rolled_out("deployment/koord-descheduler")


def milli(usage: Object) -> int:
    """Thousandths of a CPU."""
    return Quantity.parse(usage["resources"]["cpu"]).milli


def places(cluster: Cluster, app: str) -> list[str]:
    """Where its pods are; empty for one that waits."""
    return [str(each["spec"].get("nodeName", "")) for each in cluster.pods(app)]


def leaves_the_hot_node(cluster: Cluster, installed: Installed, idle_nodes: list[str]) -> None:
    """See that a busy pod does."""
    cluster.apply(budget("web", minAvailable=1))
    make_hot(cluster, installed, "web")
    cluster.until(lambda: "web-hot" not in names(cluster.pods("web")), "the pod was evicted")

    cluster.until(
        lambda: len(found := places(cluster, "web")) == 2 and set(found) <= set(idle_nodes),
        "both pods are on nodes that are not hot",
    )

    def phases() -> list[str]:
        jobs = cluster.items("podmigrationjobs")
        ours = [each for each in jobs if each["spec"]["podRef"]["name"] == "web-hot"]
        return [each["status"]["phase"] for each in ours]

    cluster.until(lambda: phases() == ["Succeeded"], "one job says so")
