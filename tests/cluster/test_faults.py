"""What an operator does to nodes and pods while the daemons work."""

from tests.support.real_cluster.access import NODE
from tests.support.real_cluster.client import SYSTEM, Cluster, names, replica_set
from tests.support.real_cluster.installation import Installation


def test_when_a_leader_is_deleted_the_other_replica_goes_on(
    cluster: Cluster, installed: Installation, shop: None
) -> None:
    """Of both daemons; pods are placed by the new one."""
    for daemon in ("koord-scheduler", "koord-descheduler"):
        first = cluster.until(lambda d=daemon: cluster.leader(d), "there is a leader")
        assert first in names(cluster.pods(daemon, SYSTEM))
        cluster.kubectl("-n", SYSTEM, "delete", "pod", first, "--wait=false")
        cluster.until(
            lambda d=daemon, f=first: cluster.leader(d) not in ("", f), "there is a new leader"
        )
    cluster.apply(replica_set("after", 3))
    cluster.until(
        lambda: sum("nodeName" in each["spec"] for each in cluster.pods("after")) == 3,
        "the new leader has placed three pods",
    )


def test_a_drained_node_gets_no_pods(
    cluster: Cluster, installed: Installation, idle_nodes: list[str], shop: None
) -> None:
    """Its pods go elsewhere, what comes later as well, until it is uncordoned."""
    cluster.apply(replica_set("drained", 6))
    placed = lambda: [each["spec"].get("nodeName") for each in cluster.pods("drained")]  # noqa: E731
    cluster.until(lambda: len(placed()) == 6 and all(placed()), "six pods are placed")
    node = idle_nodes[0]
    try:
        cluster.kubectl(
            "drain", node, "--ignore-daemonsets", "--pod-selector=app.kubernetes.io/name=drained"
        )
        cluster.until(lambda: len(placed()) == 6 and all(placed()), "all are placed again")
        assert node not in placed()
        assert set(placed()) <= {NODE, *idle_nodes[1:]}
    finally:
        cluster.kubectl("uncordon", node)
