"""A new version, by `kubectl apply -k` with another image, while best-effort pods are squeezed."""

from datetime import datetime

from clusterclient import SYSTEM, Cluster, quota
from installation import INTERVAL, WORKLOADS, Installation
from treeimages import TAGS


def test_reports_go_on_and_no_value_is_left_behind(
    cluster: Cluster, installed: Installation, squeezed: None
) -> None:
    """Between two reports are less than two intervals; all pods have the new image in the end."""
    before = cluster.until(lambda: cluster.report().get("updateTime"), "it reports")
    installed.apply(TAGS[1])
    for workload in WORKLOADS:
        name = workload.partition("/")[2]
        images = {
            each["spec"]["containers"][0]["image"].rpartition(":")[2]
            for each in cluster.pods(name, SYSTEM)
        }
        assert images == {TAGS[1]}
    after = cluster.until(
        lambda: (found := cluster.report()["updateTime"]) > before and found, "the new one reports"
    )
    gap = datetime.fromisoformat(after) - datetime.fromisoformat(before)
    cluster.until(lambda: quota() > 0, "best-effort pods are squeezed again")
    assert gap.total_seconds() <= 2 * INTERVAL + 10
