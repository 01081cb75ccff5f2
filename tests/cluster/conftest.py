"""The cluster that the tests run in: `make cluster-test` starts it, and pytest in its machine.

All tests share it, and what the first of them installs: they run in the order of ORDER.
"""

import json
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from clusterclient import SHOP, Cluster, best_effort, names, quota
from installation import INTERVAL, Installation, slo_config

ORDER = (
    "test_readme.py", "test_agent.py", "test_loop.py", "test_faults.py",
    "test_schedulers.py", "test_upgrade.py", "test_audit.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: ORDER.index(item.path.name))


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """The cluster that we are in."""
    if not os.environ.get("CLUSTER"):
        (pytest.fail if os.environ.get("CI") else pytest.skip)("run it by make cluster-test")
    return Cluster(Path(os.environ["CLUSTER"]))


@pytest.fixture(scope="session")
def namespaces(cluster: Cluster) -> None:
    """Those of koord-manager's configuration and of the tests' pods."""
    for name in (SHOP, "koordinator-system"):
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    cluster.apply(slo_config(squeeze=True))


@pytest.fixture(scope="session")
def installed(
    cluster: Cluster, namespaces: None, tmp_path_factory: pytest.TempPathFactory
) -> Installation:
    """The three daemons; the agent reports."""
    installation = Installation(cluster, tmp_path_factory.mktemp("my-cluster"))
    installation.apply()
    cluster.until(cluster.report, "the agent has reported")
    return installation


@pytest.fixture
def shop(cluster: Cluster, namespaces: None) -> Iterator[None]:
    """A namespace for the test's pods, which are gone afterwards."""
    yield
    kinds = "deployments,replicasets,pods,poddisruptionbudgets"
    cluster.kubectl("-n", SHOP, "delete", kinds, "--all", "--wait=true")


@pytest.fixture
def squeezed(cluster: Cluster, installed: Installation, shop: None) -> None:
    """A best-effort pod that would take every CPU, and does not get them."""
    cluster.apply(best_effort("crunch"))
    cluster.until(lambda: quota() > 0, "the agent has set a quota")


@pytest.fixture
def idle_nodes(cluster: Cluster, installed: Installation) -> list[str]:
    """The nodes without a kubelet, of which it is said that they have nothing to do."""
    found = [name for name in names(cluster.items("nodes")) if name.startswith("hollow-")]
    for name in found:
        cluster.apply(
            {
                "apiVersion": "slo.koordinator.sh/v1alpha1",
                "kind": "NodeMetric",
                "metadata": {"name": name},
                "spec": {"metricCollectPolicy": {"reportIntervalSeconds": INTERVAL}},
            }
        )
        nothing = {"resources": {"cpu": "10m", "memory": "100Mi"}}
        status = {
            "updateTime": datetime.fromtimestamp(time.time(), UTC).isoformat(),
            "nodeMetric": {"nodeUsage": nothing, "systemUsage": nothing},
        }
        patch = json.dumps({"status": status})
        cluster.kubectl(
            "patch", "nodemetric", name, "--subresource=status", "--type=merge", "-p", patch
        )
    return found
