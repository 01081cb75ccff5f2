"""A new version, by `kubectl apply -k` with another image, while best-effort pods are squeezed."""

from tests.support.real_cluster.client import Cluster
from tests.support.real_cluster.installation import Installation, upgrade


def test_reports_go_on_and_no_value_is_left_behind(
    cluster: Cluster, installed: Installation, squeezed: None
) -> None:
    """Between two reports are at most two intervals; all pods have the new image in the end."""
    upgrade(cluster, installed)
