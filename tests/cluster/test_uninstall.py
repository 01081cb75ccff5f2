"""`kubectl delete -k`: nothing of the installation is left in the API server and on the node."""

from pathlib import Path

from clusterclient import Cluster, quota
from installation import Installation
from readme import commands, shell
from traces import RUN_DIRECTORY, Traces, changed_by_an_agent, left_behind, to_restore


def test_kubectl_delete_leaves_nothing(
    cluster: Cluster, installed: Installation, squeezed: None, checkout: Path, pristine: Traces
) -> None:
    """By README.md's command, while pods are squeezed; the pods run on, with the kubelet's values.

    As documented, the run directory stays until the node boots again.
    """
    assert changed_by_an_agent(pristine)

    shell(commands().delete, checkout)

    assert quota() == -1
    cluster.kubectl("-n", "shop", "delete", "pods", "--all")
    stays = f"{RUN_DIRECTORY}: None -> is there"
    assert left_behind(cluster, pristine, lambda each: each == stays, 60.0) == []
    assert to_restore() == []
