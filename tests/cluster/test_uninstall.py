"""`kubectl delete -k`: nothing of the installation is left in the API server and on the node."""

from pathlib import Path

from tests.support.real_cluster.access import NODE
from tests.support.real_cluster.api import Api
from tests.support.real_cluster.client import SHOP, Cluster, names, pod, quota
from tests.support.real_cluster.colocation import is_admitted, offered, policies
from tests.support.real_cluster.installation import Installation, Manager, slo_config
from tests.support.real_cluster.readme import commands, shell
from tests.support.real_cluster.traces import (
    RUN_DIRECTORY,
    Traces,
    changed_by_an_agent,
    left_behind,
    to_restore,
)

BRIEF = 8  # pods


def test_koord_manager_is_removed_as_documented(cluster: Cluster, manager: Manager) -> None:
    """Once colocation is off the node offers nothing; then it goes, and its policies."""
    api = Api(cluster.directory)
    assert policies(cluster)

    cluster.apply(slo_config(squeeze=True, colocate=False))
    cluster.until(lambda: not offered(api), "the node offers nothing")
    manager.delete()

    assert policies(cluster) == {}
    cluster.until(lambda: is_admitted(cluster), "the API server has read that they are gone")
    cluster.apply(slo_config(squeeze=True))


def running(cluster: Cluster) -> int:
    """Count the pods that have just been made and run."""
    return sum(each["status"]["phase"] == "Running" for each in cluster.pods("brief"))


def test_kubectl_delete_leaves_nothing(
    cluster: Cluster, installed: Installation, squeezed: None, checkout: Path, pristine: Traces
) -> None:
    """By README.md's command, while pods are squeezed; the pods run on, with the kubelet's values.

    Other pods begin and end at that moment. As documented, the run directory stays until the node
    boots again.
    """
    assert changed_by_an_agent(pristine)
    brief = [pod(f"brief-{number}", "brief", cpu="10m", nodeName=NODE) for number in range(BRIEF)]
    cluster.apply(*brief)
    cluster.until(lambda: running(cluster) > BRIEF // 4, "some of the pods run")
    cluster.kubectl("-n", SHOP, "delete", "pods", "--now", "--wait=false", *names(brief)[::2])

    shell(commands().delete, checkout)

    assert quota() == -1
    cluster.kubectl("-n", SHOP, "delete", "pods", "--all")
    stays = f"{RUN_DIRECTORY}: None -> is there"
    assert left_behind(cluster, pristine, lambda each: each == stays, 60.0) == []
    assert to_restore() == []
