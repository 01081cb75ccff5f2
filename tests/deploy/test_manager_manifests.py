"""The manager's manifests agree with each other and with what they promise."""

from pathlib import Path

import yaml

from koord.component.plugins.discovery import discover
from koord_manager import LEASE
from koord_manager.certificates import CONFIGURATION, CONFIGURATIONS, SECRET, SERVICE
from koord_manager.cluster import FOLLOWED
from koord_manager.config import DEFAULT_PORT
from koord_manager.daemon.settings import load_settings
from koord_manager.webhook import PATH
from tests.support.deploy.component import patched
from tests.support.deploy.replicated import Manifests, group_of

MANIFESTS = Manifests("manager", "koord-manager")
NAMESPACE = "koordinator-system"


def arguments(directory: Path) -> list[str]:
    """The container's, with its file in a directory and the pods in the namespace of agents."""
    name, text = MANIFESTS.config
    (directory / name).write_bytes(text)
    return [
        one.replace("$(POD_NAMESPACE)", NAMESPACE).replace("/config/", f"{directory}/")
        for one in MANIFESTS.container["args"]
    ]


def test_the_arguments_are_the_daemon_s(tmp_path: Path) -> None:
    """Each has a meaning, the lease is where agents look for it; the file says the defaults."""
    settings = load_settings(arguments(tmp_path), {}, discover=discover)

    assert settings.warnings() == []
    plain = [one for one in arguments(tmp_path) if "--config=" not in one]
    assert settings.document() == load_settings(plain, {}, discover=discover).document()
    election = settings.configuration.leader_election
    assert (election.resource_namespace, election.resource_name) == (NAMESPACE, LEASE)
    [port] = MANIFESTS.container["ports"]
    assert settings.options.plain_address == f"0.0.0.0:{port['containerPort']}"
    assert port["containerPort"] == DEFAULT_PORT


def test_koordinators_arguments_start_it() -> None:
    """Those of its Deployment."""
    settings = load_settings(
        [
            "--enable-leader-election",
            "--metrics-addr=:8080",
            "--health-probe-addr=:8000",
            "--leader-election-namespace=koordinator-system",
            "--config-namespace=koordinator-system",
            "--sync-period=0",
            "--colocation-profile-reconcile-interval=10s",
            "--feature-gates=ColocationProfileController=true,PodMutatingWebhook=true",
        ],
        {},
        discover=discover,
    )

    assert settings.own.addresses == ["0.0.0.0:8080", "0.0.0.0:8000"]
    assert settings.configuration.leader_election.leader_elect
    assert settings.gates.not_built() == []
    assert settings.gates.enabled("ColocationProfileController")
    assert settings.own.profiles_interval.value == 10


def test_pods_are_restricted_and_of_one_namespace() -> None:
    """No privilege, a read-only root, two replicas."""
    context = MANIFESTS.container["securityContext"]
    assert context["readOnlyRootFilesystem"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert MANIFESTS.one("Deployment")["spec"]["replicas"] == 2
    for each in MANIFESTS.objects():
        assert each["metadata"].get("namespace", NAMESPACE) == NAMESPACE


def test_the_role_covers_what_is_followed_and_writes_no_pod() -> None:
    """Lists and watches of what it follows; of nodes the status alone is written."""
    followed = {
        (group_of(served.resource.api_version), served.resource.plural)
        for served in FOLLOWED.values()
    }
    followed |= {
        ("slo.koordinator.sh", "nodeslos"),
        ("topology.node.k8s.io", "noderesourcetopologies"),
        ("scheduling.koordinator.sh", "devices"),
        ("config.koordinator.sh", "clustercolocationprofiles"),
        ("scheduling.k8s.io", "priorityclasses"),
    }
    rules = MANIFESTS.one("ClusterRole")["rules"]
    listed = {
        (rule["apiGroups"][0], what)
        for rule in rules
        if {"list", "watch"} <= set(rule["verbs"])
        for what in rule["resources"]
    }
    assert listed == followed
    writes = {
        (what, verb)
        for rule in rules
        for what in rule["resources"]
        for verb in rule["verbs"]
        if verb not in ("list", "watch")
    }
    specs = {(what, verb) for what in ("nodemetrics", "nodeslos")
             for verb in ("create", "patch", "delete")}  # fmt: skip
    policies = {
        (f"{how}admissionpolic{what}", verb)
        for how in ("mutating", "validating")
        for what in ("ies", "ybindings")
        for verb in ("create", "update", "delete")
    }
    assert writes == specs | policies | {
        ("nodes/status", "patch"),
        ("noderesourcetopologies", "patch"),
        ("events", "create"),
        ("events", "patch"),
    }


def test_lease_and_configuration_are_reached_by_name() -> None:
    """Of all others of their kinds nothing can be read or changed."""
    assert MANIFESTS.named_rights() == {
        ("leases", LEASE): {"get", "update"},
        ("configmaps", "slo-controller-config"): {"list", "watch"},
    }


def test_components_are_about_its_pods_and_their_port() -> None:
    """Prometheus scrapes the port that is there, and nobody else is let in."""
    [port] = MANIFESTS.container["ports"]
    labels = MANIFESTS.one("Deployment")["spec"]["template"]["metadata"]["labels"]
    directory = Path(__file__).parents[2] / "deploy" / "manager"
    policy = yaml.safe_load((directory / "networkpolicy" / "networkpolicy.yaml").read_text())
    monitor = yaml.safe_load((directory / "podmonitor" / "podmonitor.yaml").read_text())

    assert policy["spec"]["podSelector"]["matchLabels"] == labels
    [rule] = policy["spec"]["ingress"]
    assert [one["port"] for one in rule["ports"]] == [port["containerPort"]]
    [peer] = rule["from"]
    assert peer["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "prometheus"}
    assert monitor["spec"]["selector"]["matchLabels"] == labels
    assert [one["port"] for one in monitor["spec"]["podMetricsEndpoints"]] == [port["name"]]
    assert {one["metadata"]["namespace"] for one in (policy, monitor)} == {NAMESPACE}


def test_the_example_writes_nothing() -> None:
    """The file of `make run-manager`."""
    file = Path(__file__).parents[2] / "docs" / "examples" / "manager.yaml"
    settings = load_settings([f"--config={file}"], {}, discover=discover)

    assert settings.warnings() == []
    assert settings.configuration.dry_run
    assert not settings.configuration.leader_election.leader_elect


def test_the_webhook_is_served_by_all_and_keeps_no_pod_from_being_made(tmp_path: Path) -> None:
    """Flag, port, path and names of the component are those of the daemon."""
    deployment = patched(MANIFESTS.one("Deployment"), "manager/webhook")
    pod = deployment["spec"]["template"]["spec"]
    container = pod["containers"][0]
    files = Path(__file__).parents[2] / "deploy" / "manager" / "webhook" / "webhook.yaml"
    service, configuration = yaml.safe_load_all(files.read_text())
    arguments(tmp_path)  # the file
    given = [
        one.replace("$(POD_NAMESPACE)", NAMESPACE).replace("/config/", f"{tmp_path}/")
        for one in container["args"]
    ]

    settings = load_settings(given, {}, discover=discover)

    address = settings.own.webhook
    assert address is not None
    port = next(one for one in container["ports"] if one["containerPort"] == address.port)
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert settings.options.tls_cert_file.value == ""  # the daemon keeps it
    assert service["metadata"]["name"] == SERVICE
    assert configuration["metadata"]["name"] == CONFIGURATION
    [webhook] = configuration["webhooks"]
    assert webhook["failurePolicy"] == "Ignore"
    assert webhook["timeoutSeconds"] == 3
    assert webhook["clientConfig"]["service"] == {
        "name": service["metadata"]["name"],
        "namespace": service["metadata"]["namespace"],
        "path": PATH,
    }
    rules = patched(MANIFESTS.one("ClusterRole"), "manager/webhook")["rules"]
    assert [one["resources"] for one in rules[-2:]] == [["namespaces"], [CONFIGURATIONS.plural]]
    assert rules[-1]["resourceNames"] == [CONFIGURATION]
    create, keep = patched(MANIFESTS.one("Role"), "manager/webhook")["rules"][-2:]
    assert create == {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]}
    assert (keep["resources"], keep["resourceNames"]) == (["secrets"], [SECRET])
