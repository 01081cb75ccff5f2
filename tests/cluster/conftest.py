"""The cluster that the tests run in: `make cluster-test` starts it, and pytest in its machine.

All tests share it, and what the first of them installs: they run in the order of ORDER.
"""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.programs import MINOR, REPOSITORY
from tests.support.real_apiserver.control_plane import MUTATING_MINOR
from tests.support.real_cluster.access import NODE
from tests.support.real_cluster.client import SHOP, Cluster, best_effort, names, pod, quota
from tests.support.real_cluster.installation import (
    INTERVAL,
    POD_MONITOR,
    Installation,
    Manager,
    slo_config,
)
from tests.support.real_cluster.traces import Traces, traces
from tests.support.real_runtime.nri_node import BATCH, BATCH_PODS

RESIDENTS = "residents"  # the namespace of pods that are there from the first to the last test

ORDER = (
    "test_soak_watch.py", "test_readme.py", "test_agent.py", "test_loop.py", "test_faults.py",
    "test_schedulers.py", "test_upgrade.py", "test_colocation.py", "test_audit.py",
    "test_uninstall.py", "test_helm.py",
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
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """This checkout, called as a clone is: koordlet, beside directories of the user's."""
    directory = tmp_path_factory.mktemp("home") / "koordlet"
    directory.mkdir()
    subprocess.run(["mount", "--bind", REPOSITORY, directory], check=True)
    yield directory
    subprocess.run(["umount", "--lazy", directory], check=True)


@pytest.fixture(scope="session")
def pristine(cluster: Cluster, checkout: Path) -> Traces:
    """What was there before anything was installed.

    That is koord-manager's configuration, the kind PodMonitor, and two pods that run on the real
    node all the time: one that waits, and a best-effort one, of which an agent changes values.
    """
    for name in (SHOP, RESIDENTS, "koordinator-system"):
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    cluster.apply(slo_config(squeeze=True), POD_MONITOR)
    cluster.kubectl("wait", "--for=condition=Established", "crd/podmonitors.monitoring.coreos.com")
    resident = best_effort("batch", **{BATCH: json.dumps(BATCH_PODS)})
    resident["spec"]["containers"][0]["args"] = []
    residents = [resident, pod("service", "service", cpu="100m", nodeName=NODE)]
    for each in residents:
        each["metadata"]["namespace"] = RESIDENTS
    cluster.apply(*residents)
    cluster.kubectl("-n", RESIDENTS, "wait", "--for=condition=Ready", "pods", "--all")
    untainted = "the node has no taint any more of a node that has just come"
    cluster.until(lambda: not cluster.find("node", NODE)["spec"].get("taints"), untainted)
    return traces(cluster)


@pytest.fixture(scope="session")
def installed(cluster: Cluster, pristine: Traces, checkout: Path) -> Installation:
    """All daemons but koord-manager; the agent reports."""
    installation = Installation(cluster, checkout.parent / "my-cluster")
    installation.apply()
    cluster.until(cluster.report, "the agent has reported")
    return installation


@pytest.fixture(scope="session")
def manager(cluster: Cluster, installed: Installation, checkout: Path) -> Manager:
    """koord-manager, which works beside the others; the test of its removal ends it."""
    if MINOR < MUTATING_MINOR:
        pytest.skip("there is no MutatingAdmissionPolicy")
    manager = Manager(cluster, checkout.parent / "my-manager")
    manager.apply()
    return manager


@pytest.fixture
def shop(cluster: Cluster, pristine: Traces) -> Iterator[None]:
    """A namespace for the test's pods, which are gone afterwards."""
    yield
    kinds = "deployments,replicasets,pods,poddisruptionbudgets"
    cluster.kubectl("-n", SHOP, "delete", kinds, "--all", "--wait=true")


@pytest.fixture
def crunch(cluster: Cluster, shop: None) -> None:
    """A best-effort pod that would take every CPU."""
    cluster.apply(best_effort("crunch"))


@pytest.fixture
def squeezed(cluster: Cluster, installed: Installation, crunch: None) -> None:
    """It does not get them."""
    cluster.until(lambda: quota() > 0, "the agent has set a quota")


@pytest.fixture
def idle_nodes(cluster: Cluster) -> list[str]:
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
