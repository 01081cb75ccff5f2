"""A node that is hot by a busy pod of the real kubelet, and what koord-descheduler does then."""

import copy
import json
import os

import yaml

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
from tests.support.real_cluster.installation import descheduler_config


def make_hot(cluster: Cluster, made: Object) -> None:
    """Two pods like this one, of which one is busy on the real node, which is hot by it alone.

    The other is placed by koord-scheduler. What else this machine does is on both sides of the
    threshold: the node is above it only with half of what the pod uses.
    """
    app = app_of(made)
    busy_one = copy.deepcopy(made)
    busy_one["metadata"]["name"] = f"{app}-hot"
    busy_one["spec"]["nodeName"] = NODE
    busy_one["spec"]["containers"][0]["args"] = ["1"]
    cluster.apply(busy_one)
    cluster.apply(replica_set(app, 2, made))

    def usage() -> tuple[Object, Object] | None:
        report = cluster.report()
        found = {each["name"]: each["podUsage"] for each in report.get("podsMetric") or []}
        here = f"{app}-hot" in found and milli(found[f"{app}-hot"]) > 200
        return (report["nodeMetric"]["nodeUsage"], found[f"{app}-hot"]) if here else None

    node, busy = cluster.until(usage, "the report says that the pod is busy")  # type: ignore[misc]
    threshold = (milli(node) - milli(busy) / 2) / (1000 * (os.cpu_count() or 1)) * 100
    set_threshold(cluster, round(threshold, 1))


def set_threshold(cluster: Cluster, high: float) -> None:
    """Have nodes be hot from so many percent of CPU."""
    config = {"koord-descheduler.config": yaml.safe_dump(descheduler_config(high))}
    patch = json.dumps({"data": config})
    name = ("configmap", "koord-descheduler-config")
    cluster.kubectl("-n", SYSTEM, "patch", *name, "--type=merge", "-p", patch)
    cluster.kubectl("-n", SYSTEM, "rollout", "restart", "deployment/koord-descheduler")
    cluster.rolled_out("deployment/koord-descheduler")


def app_of(made: Object) -> str:
    """Return the name of the application that a pod is of."""
    return str(made["metadata"]["labels"]["app.kubernetes.io/name"])


def milli(usage: Object) -> int:
    """Thousandths of a CPU."""
    return Quantity.parse(usage["resources"]["cpu"]).milli


def places(cluster: Cluster, app: str) -> list[str]:
    """Where its pods are; empty for one that waits."""
    return [str(each["spec"].get("nodeName", "")) for each in cluster.pods(app)]


def leaves_the_hot_node(
    cluster: Cluster, idle_nodes: list[str], made: Object | None = None
) -> None:
    """See that a busy pod does, by default an ordinary one."""
    made = made or pod("", "web", cpu="300m")
    app = app_of(made)
    hot = f"{app}-hot"
    cluster.apply(budget(app, minAvailable=1))
    make_hot(cluster, made)
    cluster.until(lambda: hot not in names(cluster.pods(app)), "the pod was evicted")

    cluster.until(
        lambda: len(found := places(cluster, app)) == 2 and set(found) <= set(idle_nodes),
        "both pods are on nodes that are not hot",
    )

    def phases() -> list[str]:
        jobs = cluster.items("podmigrationjobs")
        ours = [each for each in jobs if each["spec"]["podRef"]["name"] == hot]
        return [each["status"]["phase"] for each in ours]

    cluster.until(lambda: phases() == ["Succeeded"], "one job says so")
