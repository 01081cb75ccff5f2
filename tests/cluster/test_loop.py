"""The loop that the three daemons close, with a busy pod of the real kubelet."""

from tests.support.real_cluster.client import Cluster, budget, names, pod
from tests.support.real_cluster.hot_node import leaves_the_hot_node, make_hot
from tests.support.real_cluster.installation import Installation


def test_a_busy_pod_leaves_the_hot_node_and_its_successor_is_placed_elsewhere(
    cluster: Cluster, installed: Installation, idle_nodes: list[str], shop: None
) -> None:
    """Measured, reported, planned, evicted within its budget, made anew, bound to a cool node."""
    leaves_the_hot_node(cluster, idle_nodes)


def test_an_eviction_waits_for_the_budget(
    cluster: Cluster, installed: Installation, idle_nodes: list[str], shop: None
) -> None:
    """While it has none to give the pod stays where it is, however hot its node; then it leaves."""
    cluster.apply(budget("kept", maxUnavailable=0))
    make_hot(cluster, pod("", "kept", cpu="300m"))
    last = cluster.report()["updateTime"]
    cluster.until(lambda: cluster.report()["updateTime"] > last, "there was time to evict it")
    assert "kept-hot" in names(cluster.pods("kept"))

    cluster.apply(budget("kept", maxUnavailable=1))

    cluster.until(lambda: "kept-hot" not in names(cluster.pods("kept")), "the pod was evicted")
