"""The same daemons as a release of Helm, after what kubectl installed is gone.

The release begins as README.md has it: the agents alone, in dry-run. Then it gets the other daemons
and the components that the tests of kubectl's installation have, acts, and gets another version. At
last koord-manager comes and goes: its rules refuse the best-effort pods of the other tests.
"""

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.support.deploy.overlay import DEPLOY
from tests.support.image.treeimages import NAMES, TAGS
from tests.support.programs import MINOR
from tests.support.real_apiserver.control_plane import MUTATING_MINOR
from tests.support.real_cluster.api import Api
from tests.support.real_cluster.audit_log import forbidden
from tests.support.real_cluster.client import SHOP, SYSTEM, Cluster, quota
from tests.support.real_cluster.colocation import (
    begin_colocation,
    end_colocation,
    is_admitted,
    is_mutated,
    offered,
    policies,
)
from tests.support.real_cluster.hot_node import leaves_the_hot_node
from tests.support.real_cluster.installation import (
    CONFIG,
    Release,
    removal,
    slo_config,
    upgrade,
)
from tests.support.real_cluster.readme import commands, shell
from tests.support.real_cluster.traces import (
    RUN_DIRECTORY,
    Traces,
    changed_by_an_agent,
    left_behind,
    to_restore,
)


@pytest.fixture(scope="module")
def release(cluster: Cluster, pristine: Traces, checkout: Path) -> Release:
    """All three daemons; the agents report, and are in dry-run."""
    said = shell(commands().install_release, checkout)
    assert "It is in dry-run: it changes nothing on any node." in said
    cluster.rolled_out("daemonset/koordlet")
    release = Release(cluster, checkout)
    release.apply()
    cluster.until(cluster.report, "the agent has reported")
    return release


@pytest.fixture(scope="module")
def acting(cluster: Cluster, release: Release, checkout: Path) -> Release:
    """The same, and the agents act."""
    assert "It acts." in shell(commands().upgrade_release, checkout)
    cluster.rolled_out("daemonset/koordlet")
    return release


def explained(cluster: Cluster) -> dict[str, str]:
    """What the agent says of values: whether each is in force."""
    command = ("exec", "daemonset/koordlet", "--", "koordletctl", "explain", "--output=json")
    found = json.loads(cluster.kubectl("-n", SYSTEM, *command))
    return {f"{each['resource']} of {each['target']}": each["state"] for each in found["values"]}


def test_a_first_release_changes_nothing_on_the_node(
    cluster: Cluster, release: Release, crunch: None, pristine: Traces
) -> None:
    """The agent reports the pods, says that it would squeeze one, and that is all."""
    cluster.until(
        lambda: explained(cluster).get("cpu_quota of kubepods/besteffort") == "would",
        "it would squeeze the pod",
    )
    cluster.until(lambda: "crunch" in reported(cluster), "it reports the pod")
    assert quota() == -1
    assert changed_by_an_agent(pristine) == []


def reported(cluster: Cluster) -> list[str]:
    """The pods in the report of the real node."""
    return [each["name"] for each in cluster.report().get("podsMetric") or []]


def test_then_it_acts(cluster: Cluster, acting: Release, crunch: None, pristine: Traces) -> None:
    """By README.md's upgrade; the pod that was there before gets its batch resources."""
    cluster.until(lambda: quota() > 0, "the agent has set a quota")
    cluster.until(
        lambda: any("/pod" in each for each in changed_by_an_agent(pristine)),
        "a value of a pod that was there before is changed",
    )


def test_a_busy_pod_leaves_the_hot_node(
    cluster: Cluster, acting: Release, idle_nodes: list[str], shop: None
) -> None:
    """As with what kubectl installed."""
    leaves_the_hot_node(cluster, idle_nodes)


def test_reports_go_on_when_it_is_upgraded(cluster: Cluster, acting: Release, crunch: None) -> None:
    """While pods are squeezed."""
    cluster.until(lambda: quota() > 0, "the agent has set a quota")
    upgrade(cluster, acting)


@pytest.mark.skipif(MINOR < MUTATING_MINOR, reason="there is no MutatingAdmissionPolicy")
def test_the_policies_of_koord_manager_outlive_it(
    cluster: Cluster, acting: Release, shop: None, checkout: Path
) -> None:
    """A new version of it leaves them alone, its end as well; documented commands remove them."""
    api = Api(cluster.directory)
    acting.apply_manager()
    begin_colocation(cluster)
    before = policies(cluster)

    acting.apply_manager(TAGS[1])

    assert policies(cluster) == before
    cluster.apply(slo_config(squeeze=True, colocate=False))
    cluster.until(lambda: not offered(api), "the node offers nothing")
    assert forbidden(cluster, "koord-manager", acting.since) == []

    acting.remove_manager()  # its role goes first, and it a moment later

    assert policies(cluster) == before
    assert is_mutated(api)
    shell("\n".join(removal()[1:]), checkout)
    end_colocation(cluster)
    assert policies(cluster) == {}
    cluster.until(lambda: is_admitted(cluster), "the API server has read that they are gone")
    # Its namespace is not a part of this release, so the Lease stays, as documented.
    cluster.kubectl("-n", CONFIG, "delete", "lease", "koordinator-manager")
    cluster.apply(slo_config(squeeze=True))


def test_nothing_was_forbidden(cluster: Cluster, acting: Release) -> None:
    """What Helm installs has the rights that it needs."""
    for daemon in sorted({*NAMES} - {"koord-manager"}):  # which was asked about before its end
        assert forbidden(cluster, daemon, acting.since) == []


def test_its_end_leaves_the_definitions_only(
    cluster: Cluster, acting: Release, crunch: None, checkout: Path, pristine: Traces
) -> None:
    """With their objects, and the run directory, as documented; then these go by hand."""
    cluster.until(lambda: quota() > 0, "the agent has set a quota")

    shell(commands().uninstall_release, checkout)

    assert quota() == -1
    cluster.kubectl("-n", SHOP, "delete", "pods", "--all")
    crds = [
        each["metadata"]["name"]
        for daemon in ("", "descheduler", "manager", "scheduler")
        for path in (DEPLOY / daemon / "crds").glob("*.yaml")
        for each in yaml.safe_load_all(path.read_text())
        if each["kind"] == "CustomResourceDefinition"
    ]
    groups = "|".join({re.escape(name.partition(".")[2]) for name in crds})
    documented = re.compile(rf".*({groups}).*: None -> is there|{RUN_DIRECTORY}: None -> is there")
    assert left_behind(cluster, pristine, lambda each: bool(documented.fullmatch(each))) == []
    cluster.kubectl("delete", "--ignore-not-found", "crd", *crds)
    stays = f"{RUN_DIRECTORY}: None -> is there"
    assert left_behind(cluster, pristine, lambda each: each == stays) == []
    assert to_restore() == []
