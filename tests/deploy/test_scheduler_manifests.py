"""The scheduler's manifests agree with each other and with what they promise."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from koord.component.plugins.discovery import discover
from koord_scheduler.cli import explain
from koord_scheduler.config.configuration import ReadConfig, parse_configuration
from koord_scheduler.config.profiles import DEFAULT_WEIGHTS, KnownPlugins, Point
from koord_scheduler.daemon.run import FOLLOWED
from koord_scheduler.daemon.settings import load_settings
from koord_scheduler.framework.extension.networktopology import TOPOLOGIES
from koord_scheduler.framework.profile import PluginRegistry, known_plugins
from koord_scheduler_plugins.coscheduling.gangs import WORKLOADS
from koord_scheduler_plugins.coscheduling.serving import POD_GROUPS
from koord_scheduler_plugins.device_share.plugin import DEVICE_OBJECTS
from koord_scheduler_plugins.elastic_quota.tracker import QUOTAS
from koord_scheduler_plugins.node_numa_resource.plugin import TOPOLOGIES as MACHINES
from koord_scheduler_plugins.reservation.status import RESERVATIONS
from tests.support.deploy.component import patched
from tests.support.deploy.replicated import Manifests, group_of

MANIFESTS = Manifests("scheduler", "koord-scheduler")
ROOT = MANIFESTS.directory.parents[1]


@pytest.fixture(scope="module")
def known() -> KnownPlugins:
    """The plugins of this tree."""
    registry = PluginRegistry()
    assert list(discover(registry)) == []
    return known_plugins(registry)


@pytest.fixture
def config(known: KnownPlugins) -> ReadConfig:
    name, text = MANIFESTS.config
    return parse_configuration(text, name, known)


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


def test_the_shipped_configuration_is_kubernetes_profile_and_the_load(config: ReadConfig) -> None:
    """Of the pods that ask for it, without a warning."""
    assert config.warnings == ()
    assert config.configuration.leader_election.leader_elect
    [profile] = config.configuration.profiles
    assert profile.scheduler_name == "koord-scheduler"
    assert {*DEFAULT_WEIGHTS, "LoadAwareScheduling"} <= set(profile.names)


def test_the_arguments_are_the_daemon_s(tmp_path: Path) -> None:
    """Each has a meaning; the lease is where the pod is, and the open port the container's."""
    settings = load_settings(MANIFESTS.arguments(tmp_path), {}, discover=discover)
    assert settings.flags.inert_set() == []
    assert settings.configuration.leader_election.resource_namespace == "control"
    [port] = MANIFESTS.container["ports"]
    assert settings.options.plain_address == f"0.0.0.0:{port['containerPort']}"


def test_the_role_covers_what_is_followed() -> None:
    """Lists and watches of all kinds that a scheduler follows, with all flags and plugins."""
    followed = {
        (group_of(served.resource.api_version), served.resource.plural)
        for served in FOLLOWED.values()
    }
    by_flag = {(group_of(TOPOLOGIES.api_version), TOPOLOGIES.plural)}
    templates = {("", "configmaps")}  # one, by its name
    by_plugin = {
        (group_of(one.api_version), one.plural)
        for one in (POD_GROUPS, WORKLOADS, QUOTAS, DEVICE_OBJECTS, MACHINES, RESERVATIONS)
    }
    assert MANIFESTS.followed() == followed | by_flag | by_plugin | templates


def test_the_lease_is_reached_by_name(config: ReadConfig) -> None:
    election = config.configuration.leader_election
    assert MANIFESTS.named_rights() == {("leases", election.resource_name): {"get", "update"}}


def test_the_role_has_no_more_than_that() -> None:
    """No wildcard, no secret, no node is changed; pods are bound, ended, and have a status."""
    changes = set()
    for rule in MANIFESTS.one("ClusterRole")["rules"]:
        everything = [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
        assert "*" not in everything
        assert {"secrets", "pods/exec", "nodes/proxy"}.isdisjoint(everything)
        assert "configmaps" not in everything or len(rule["resourceNames"]) == 1
        changes |= {
            (what, verb)
            for what in rule["resources"]
            for verb in rule["verbs"]
            if verb not in ("list", "watch")
        }
    assert changes == {
        ("pods/binding", "create"),
        ("pods/status", "patch"),
        ("pods", "get"),
        ("pods", "delete"),
        ("persistentvolumes", "patch"),
        ("persistentvolumeclaims", "patch"),
        ("events", "create"),
        ("events", "patch"),
    }


def test_a_component_lets_reservations_be_kept() -> None:
    role = MANIFESTS.one("ClusterRole")
    more = patched(role, "scheduler/reservations")["rules"][len(role["rules"]) :]
    group = "scheduling.koordinator.sh"
    assert more == [
        {"apiGroups": [group], "resources": ["reservations"], "verbs": ["get", "patch", "delete"]},
        {"apiGroups": [group], "resources": ["reservations/status"], "verbs": ["patch"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]},
    ]


def test_a_component_lets_nodes_be_locked() -> None:
    role = MANIFESTS.one("ClusterRole")
    [more] = patched(role, "scheduler/device-locks")["rules"][len(role["rules"]) :]
    assert more == {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}


def test_a_component_grants_one_right_more() -> None:
    """And the page says which."""
    role = MANIFESTS.one("ClusterRole")
    [more] = patched(role, "scheduler/patch-pods")["rules"][len(role["rules"]) :]
    assert more == {"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}
    text = (ROOT / "docs" / "scheduler.md").read_text()
    assert re.search(r"^\| `patch-pods` \| .+ \| `patch` on pods ", text, re.MULTILINE)


def test_the_example_of_make_run_scheduler(known: KnownPlugins) -> None:
    """It takes the pods that ask for it, and needs no lease."""
    path = ROOT / "docs" / "examples" / "scheduler.yaml"
    found = parse_configuration(path.read_bytes(), path, known)

    assert found.warnings == ()
    assert not found.configuration.leader_election.leader_elect
    [profile] = found.configuration.profiles
    assert profile.scheduler_name == "koord-scheduler"
    assert profile.enabled(Point.BIND)


def test_the_help_of_explain_asks_these_pods(capsys: pytest.CaptureFixture[str]) -> None:
    """A line to be copied, as the documentation has it."""
    with pytest.raises(SystemExit):
        explain.main(["--help"])
    assert MANIFESTS.command("explain ") in capsys.readouterr().out
