"""The descheduler's manifests agree with each other and with what they promise."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from component import patched

from koord.api import podmigrationjob, reservations
from koord.controlplane.kinds import SERVED
from koord_descheduler.config.intree import IN_TREE
from koord_descheduler.config.points import Point
from koord_descheduler.config.read import ReadConfig, parse_configuration
from koord_descheduler.daemon.settings import load_settings
from koord_descheduler.framework.interfaces import Plugin
from koord_descheduler.framework.registry import PluginRegistry
from koord_descheduler.ledger.keeper import NAME as LEDGER

DEPLOY = Path(__file__).parents[2] / "deploy" / "descheduler"
NAME, NAMESPACE = "koord-descheduler", "koordlet-system"
CLUSTER_WIDE = {"ClusterRole", "ClusterRoleBinding"}


def objects() -> list[dict[str, Any]]:
    others = {"kustomization.yaml", "podmigrationjobs.yaml", "reservations.yaml"}
    paths = [path for path in DEPLOY.rglob("*.yaml") if path.name not in others]
    return [each for path in paths for each in yaml.safe_load_all(path.read_text())]


def one(kind: str) -> dict[str, Any]:
    [found] = [each for each in objects() if each["kind"] == kind]
    return found


@pytest.fixture
def template() -> dict[str, Any]:
    found: dict[str, Any] = one("Deployment")["spec"]["template"]
    return found


@pytest.fixture
def container(template: dict[str, Any]) -> dict[str, Any]:
    [found] = template["spec"]["containers"]
    assert isinstance(found, dict)
    return found


@pytest.fixture
def config() -> ReadConfig:
    [(name, text)] = one("ConfigMap")["data"].items()
    return parse_configuration(text.encode(), Path(name), IN_TREE)


def test_names_namespaces_and_accounts_agree() -> None:
    """One name for all; the pods' account is the one with the rights."""
    for each in objects():
        assert each["metadata"]["name"] == NAME
        wanted = None if each["kind"] in CLUSTER_WIDE else NAMESPACE
        assert each["metadata"].get("namespace") == wanted, each["kind"]
    account = {"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}
    for kind in ("Role", "ClusterRole"):
        binding = one(f"{kind}Binding")
        assert binding["roleRef"]["kind"] == kind
        assert binding["subjects"] == [account]


def test_the_container_is_as_small_as_can_be(
    template: dict[str, Any], container: dict[str, Any]
) -> None:
    """The level "restricted" of Kubernetes, on a root that cannot be written, without the host."""
    spec = template["spec"]
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["securityContext"] == {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostPID", "hostNetwork", "hostIPC"} & spec.keys()
    assert [volume.keys() - {"name"} for volume in spec["volumes"]] == [{"configMap"}]


def test_two_replicas_of_which_one_may_be_away(template: dict[str, Any]) -> None:
    """On different nodes where that is possible; a drain of both has to wait."""
    deployment, budget = one("Deployment")["spec"], one("PodDisruptionBudget")["spec"]
    labels = template["metadata"]["labels"]
    [term] = template["spec"]["affinity"]["podAntiAffinity"].values()
    assert deployment["replicas"] == 2
    assert budget["maxUnavailable"] == 1
    for selector in (
        deployment["selector"],
        budget["selector"],
        term[0]["podAffinityTerm"]["labelSelector"],
        one("NetworkPolicy")["spec"]["podSelector"],
        one("PodMonitor")["spec"]["selector"],
    ):
        assert selector["matchLabels"] == labels


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


def test_the_configuration_is_where_the_arguments_look(
    template: dict[str, Any], container: dict[str, Any]
) -> None:
    """The mounted ConfigMap, whole: one that is mounted by file is never renewed."""
    [volume], [mounted] = template["spec"]["volumes"], container["volumeMounts"]
    [name] = one("ConfigMap")["data"]
    assert volume["configMap"]["name"] == one("ConfigMap")["metadata"]["name"]
    assert mounted["name"] == volume["name"]
    assert "subPath" not in mounted
    assert f"--config={mounted['mountPath']}/{name}" in container["args"]


def test_the_role_covers_what_is_followed() -> None:
    """Lists and watches of all kinds of the cluster, and of no others but those that it writes."""
    followed = {
        (_group(served.resource.api_version), served.resource.plural) for served in SERVED.values()
    }
    held = {
        (group, resource)
        for rule in one("ClusterRole")["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        if {"list", "watch"} <= set(rule["verbs"])
    }
    own = {(_group(podmigrationjob.API_VERSION), "podmigrationjobs")}
    own.add((_group(reservations.API_VERSION), "reservations"))
    assert held == followed | own


def test_the_arguments_are_the_daemon_s(
    container: dict[str, Any], tmp_path: Path, config: ReadConfig
) -> None:
    """Each has a meaning, and the lease is where the pod is."""
    path = tmp_path / "koord-descheduler.config"
    [text] = one("ConfigMap")["data"].values()
    path.write_text(text)
    args = [
        argument.replace("/config/", f"{tmp_path}/").replace("$(POD_NAMESPACE)", "control")
        for argument in container["args"]
    ]
    settings = load_settings(args, {}, discover=_named_only)
    assert settings.warnings() == []
    assert settings.configuration.leader_election.resource_namespace == "control"
    assert settings.configuration.profiles == config.configuration.profiles


def _named_only(registry: PluginRegistry) -> list[str]:
    """Plugins of the tree, whose arguments are known by their names."""
    for name in IN_TREE:
        registry.register(name, lambda args, handle: Plugin())
    return []


def _group(api_version: str) -> str:
    return api_version.rpartition("/")[0]


def test_ports_agree(config: ReadConfig, container: dict[str, Any]) -> None:
    """What the configuration opens is what probes, Prometheus and the policy use."""
    [port] = container["ports"]
    for address in (
        config.configuration.healthz_bind_address,
        config.configuration.metrics_bind_address,
    ):
        assert address == f"0.0.0.0:{port['containerPort']}"
    for probe, path in (("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
        asked = container[probe]["httpGet"]
        assert (asked["path"], asked["port"]) == (path, port["name"])
    [rule] = one("NetworkPolicy")["spec"]["ingress"]
    assert [each["port"] for each in rule["ports"]] == [port["containerPort"]]
    [endpoint] = one("PodMonitor")["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == port["name"]


def test_lease_and_ledger_are_reached_by_name(config: ReadConfig) -> None:
    """Of all others of their kinds nothing can be read or changed."""
    election = config.configuration.leader_election
    named = {
        (resource, rule["resourceNames"][0]): set(rule["verbs"])
        for rule in one("Role")["rules"]
        for resource in rule["resources"]
        if "resourceNames" in rule
    }
    assert named == {
        ("leases", election.resource_name): {"get", "update"},
        ("configmaps", LEDGER): {"get", "update"},
    }
    others = [rule for rule in one("Role")["rules"] if "resourceNames" not in rule]
    assert all(rule["verbs"] == ["create"] for rule in others)


def test_the_role_changes_no_node_and_no_pod() -> None:
    """No wildcard, no secret; pods are evicted, and patched only with the component for that."""
    role = one("ClusterRole")
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
    role = one("ClusterRole")
    [more] = patched(role, f"descheduler/{component}")["rules"][len(role["rules"]) :]
    assert more == {"apiGroups": [""], "resources": [resource], "verbs": [verb]}
    text = (DEPLOY.parents[1] / "docs" / "operations.md").read_text()
    assert re.search(rf"^\| `{component}` \| .+ \| `{verb}` on {resource} ", text, re.MULTILINE)


def test_the_definitions_are_of_the_kinds_that_it_writes() -> None:
    """The same names, scope and subresource as in Koordinator; a job that it makes is whole."""
    definitions = {
        module.PLURAL: yaml.safe_load((DEPLOY / "crds" / f"{module.PLURAL}.yaml").read_text())
        for module in (podmigrationjob, reservations)
    }
    for module in (podmigrationjob, reservations):
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
