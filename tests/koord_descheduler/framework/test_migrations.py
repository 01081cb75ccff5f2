"""The cluster as if all migrations had ended."""

import pytest

from koord_descheduler.plugin import Migration
from koord_descheduler.plugin.testing import FakeCluster, fake_services


@pytest.fixture
def cluster() -> FakeCluster:
    """Pods a and b on n1, n2 is empty."""
    cluster = FakeCluster()
    for name in ("n1", "n2"):
        cluster.node(name)
    for name in ("a", "b"):
        cluster.pod(name, "n1")
    return cluster


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"target": "n2"}, ({"b"}, {"a"})),
        ({}, ({"b"}, set())),
        ({"target": "gone"}, ({"b"}, set())),
        ({"target": "n1"}, ({"a", "b"}, set())),
        ({"uid": "another", "target": "n2"}, ({"a", "b"}, set())),
        ({"pod": "default/none", "target": "n2"}, ({"a", "b"}, set())),
    ],
)
def test_a_pod_is_where_it_goes(
    cluster: FakeCluster, change: dict[str, str], where: tuple[set[str], set[str]]
) -> None:
    """Nowhere, if that is not known. A migration of a pod that is gone changes nothing."""
    services = fake_services(cluster)
    known = {"pod": "default/a", "uid": "uid-default-a", "node": "n1"}
    services.migrations.put(Migration(**{**known, **change}))
    view = services.migrations.carried_out(services.cluster)

    for node, names in zip(("n1", "n2"), where, strict=True):
        row = view.row(node)
        assert row is not None
        assert {pod.name for pod in view.pods(row)} == names
        assert {pod.node for pod in view.pods(row)} <= {node}


@pytest.mark.parametrize("node", ["", "elsewhere"])
def test_a_pod_without_a_known_node_or_that_has_ended_stays(
    cluster: FakeCluster, node: str
) -> None:
    cluster.pod("a", node)
    cluster.pod("b", "n1", phase="Succeeded")
    services = fake_services(cluster)
    for name in ("a", "b"):
        moving = Migration(pod=f"default/{name}", uid=f"uid-default-{name}", node="n1", target="n2")
        services.migrations.put(moving)
    view = services.migrations.carried_out(services.cluster)

    assert [pod.name for row in range(2) for pod in view.pods(row)] == ["b"]


def test_without_migrations_it_is_the_cluster(cluster: FakeCluster) -> None:
    services = fake_services(cluster)

    assert services.migrations.carried_out(services.cluster) is services.cluster.view()
