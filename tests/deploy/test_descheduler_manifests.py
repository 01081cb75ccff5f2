"""The descheduler's manifests agree with each other and with what they promise."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from koord.api import podmigrationjob, reservation
from koord.component.plugins.discovery import discover
from koord.controlplane.clusterfeed import SERVED_KINDS
from koord.kube.client import DEVICES, NODE_TOPOLOGIES
from koord_descheduler.cli import explain
from koord_descheduler.config import Point, ReadConfig, parse_configuration
from koord_descheduler.daemon.run import load_settings
from koord_descheduler.ledger.ledger import NAME as LEDGER
from tests.support.deploy.component import patched
from tests.support.deploy.replicated import NAMESPACE, Manifests, group_of
from tests.support.descheduler.shipped_plugins import IN_TREE

MANIFESTS = Manifests("descheduler", "koord-descheduler")
DEPLOY = MANIFESTS.directory


@pytest.fixture
def config() -> ReadConfig:
    name, text = MANIFESTS.config
    return parse_configuration(text, name, IN_TREE)


@pytest.mark.parametrize(
    "check",
    [
        MANIFESTS.check_names,
        MANIFESTS.check_container,
        MANIFESTS.check_replicas,
        MANIFESTS.check_config,
        MANIFESTS.check_ports,
    ],
    ids=lambda check: check.__name__,
)
def test_what_both_daemons_have(check: Callable[[], None]) -> None:
    """Names, restricted pods, two replicas, the mounted file, ports."""
    check()


def test_the_shipped_configuration_is_read_without_a_warning(config: ReadConfig) -> None:
    """LowNodeLoad at work, in dry-run, within limits; the system's own pods stay."""
    assert config.warnings == ()
    found = config.configuration
    assert found.dry_run
    assert None not in (found.limits.per_node, found.limits.per_namespace, found.limits.total)
    assert found.leader_election.leader_elect
    [profile] = found.profiles
    assert profile.enabled(Point.BALANCE) == ("LowNodeLoad",)
    assert profile.enabled(Point.EVICT) == profile.enabled(Point.FILTER) == ("MigrationController",)
    low, migration = profile.args["LowNodeLoad"], profile.args["MigrationController"]
    for namespaces in (
        low.evictable_namespaces,  # type: ignore[attr-defined]
        migration.namespaces,  # type: ignore[attr-defined]
    ):
        assert {"kube-system", NAMESPACE} <= set(namespaces.exclude)


def test_the_role_covers_what_is_followed() -> None:
    """Lists and watches of all kinds of the cluster, and of no others but those that it writes."""
    followed = {
        (group_of(served.resource.api_version), served.resource.plural)
        for served in SERVED_KINDS.values()
    }
    own = {(group_of(podmigrationjob.API_VERSION), "podmigrationjobs")}
    own.add((group_of(reservation.API_VERSION), "reservations"))
    late = {(group_of(one.api_version), one.plural) for one in (DEVICES, NODE_TOPOLOGIES)}
    assert MANIFESTS.followed() == followed | own | late


def test_the_arguments_are_the_daemon_s(tmp_path: Path, config: ReadConfig) -> None:
    """Each has a meaning, and the lease is where the pod is."""
    settings = load_settings(MANIFESTS.arguments(tmp_path), {}, discover=discover)
    assert settings.warnings() == []
    assert settings.configuration.leader_election.resource_namespace == "control"
    assert settings.configuration.profiles == config.configuration.profiles


def test_ports_agree(config: ReadConfig) -> None:
    """What the configuration opens is what the container has."""
    [port] = MANIFESTS.container["ports"]
    for address in (
        config.configuration.healthz_bind_address,
        config.configuration.metrics_bind_address,
    ):
        assert address == f"0.0.0.0:{port['containerPort']}"


def test_lease_and_ledger_are_reached_by_name(config: ReadConfig) -> None:
    """Of all others of their kinds nothing can be read or changed."""
    election = config.configuration.leader_election
    assert MANIFESTS.named_rights() == {
        ("leases", election.resource_name): {"get", "update"},
        ("configmaps", LEDGER): {"get", "update"},
    }


def test_the_role_changes_no_node_and_no_pod() -> None:
    """No wildcard, no secret; pods are evicted, and patched only with the component for that."""
    role = MANIFESTS.one("ClusterRole")
    for rule in role["rules"]:
        everything = [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
        assert "*" not in everything
        assert {"secrets", "configmaps", "pods/exec", "nodes/proxy"}.isdisjoint(everything)
        if not {"podmigrationjobs", "reservations"} & set(rule["resources"]):
            writes = {(what, verb) for what in rule["resources"] for verb in rule["verbs"]}
            assert {each for each in writes if each[1] not in ("get", "list", "watch")} <= {
                ("pods/eviction", "create"),
                ("events", "create"),
                ("events", "patch"),
                ("podmigrationjobs/status", "patch"),
            }


@pytest.mark.parametrize(
    ("component", "resource", "verb"),
    [
        ("patch-pods", "pods", "patch"),
        ("delete-pods", "pods", "delete"),
        ("cordon", "nodes", "patch"),
    ],
)
def test_a_component_grants_one_right_more(component: str, resource: str, verb: str) -> None:
    """And the table of operations.md says which."""
    role = MANIFESTS.one("ClusterRole")
    [more] = patched(role, f"descheduler/{component}")["rules"][len(role["rules"]) :]
    assert more == {"apiGroups": [""], "resources": [resource], "verbs": [verb]}
    text = (DEPLOY.parents[1] / "docs" / "operations.md").read_text()
    assert re.search(rf"^\| `{component}` \| .+ \| `{verb}` on {resource} ", text, re.MULTILINE)


def test_the_definitions_are_of_the_kinds_that_it_writes() -> None:
    """The same names, scope and subresource as in Koordinator; a job that it makes is whole."""
    definitions = {
        module.PLURAL: yaml.safe_load((DEPLOY / "crds" / f"{module.PLURAL}.yaml").read_text())
        for module in (podmigrationjob, reservation)
    }
    for module in (podmigrationjob, reservation):
        spec = definitions[module.PLURAL]["spec"]
        [version] = spec["versions"]
        assert f"{spec['group']}/{version['name']}" == module.API_VERSION
        assert (spec["names"]["kind"], spec["scope"]) == (module.KIND, "Cluster")
        assert version["subresources"] == {"status": {}}
    [version] = definitions[podmigrationjob.PLURAL]["spec"]["versions"]
    fields = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    job = podmigrationjob.new_job(
        "j",
        podmigrationjob.JobPod("default", "web", "uid"),
        mode="EvictDirectly",
        ttl=300.0,
        annotations={},
        delete_options={"gracePeriodSeconds": 1},
    )
    assert job["spec"].keys() <= fields.keys()
    assert job["spec"]["podRef"].keys() <= fields["podRef"]["properties"].keys()
    assert job["spec"]["mode"] in fields["mode"]["enum"]


def test_the_help_of_explain_asks_these_pods(capsys: pytest.CaptureFixture[str]) -> None:
    """A line to be copied, as the documentation has it."""
    with pytest.raises(SystemExit):
        explain.main(["--help"])
    assert MANIFESTS.command("explain ") in capsys.readouterr().out
