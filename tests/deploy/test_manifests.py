"""The manifests agree with each other, with the daemon's flags and with what they promise."""

import copy
import functools
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from koord.component.plugins.discovery import discover
from koordlet.daemon.settings import Settings, load_settings
from koordlet.doctor.privileges import CAPABILITIES
from koordlet.host.net.guard.client import STATE_DIRECTORY
from koordlet.host.terway_files import TERWAY_DIRECTORY, directory_of
from koordlet.plugin.testing import SimulatedClock
from tests.support.deploy.component import components, patched

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
NAMESPACE = "koordlet-system"
CLUSTER_WIDE = {
    "Namespace",
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}
OWN = ("/proc", "/sys")  # mounted into every container, read-only but for the processes

APART = (DEPLOY / "chart", DEPLOY / "manager")


def objects(*patterns: str) -> Iterator[dict[str, Any]]:
    for pattern in patterns or ("*.yaml", "*/*.yaml"):
        for path in sorted(DEPLOY.glob(pattern)):
            # the manager is in another namespace: test_manager_manifests.py
            if path.name != "kustomization.yaml" and path.parent not in APART:
                yield from copy.deepcopy(_documents(path))


@functools.cache
def _documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def one(kind: str, name: str = "koordlet") -> dict[str, Any]:
    [found] = [o for o in objects() if (o["kind"], o["metadata"]["name"]) == (kind, name)]
    return found


@pytest.fixture
def pod() -> dict[str, Any]:
    spec: dict[str, Any] = one("DaemonSet")["spec"]["template"]["spec"]
    return spec


@pytest.fixture
def container(pod: dict[str, Any]) -> dict[str, Any]:
    [container] = pod["containers"]
    assert isinstance(container, dict)
    return container


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Settings]:
    """What the daemon makes of its arguments and environment in a pod with some components."""
    config = tmp_path / "config"
    config.write_text("")

    def load(*names: str) -> Settings:
        [container] = patched(one("DaemonSet"), *names)["spec"]["template"]["spec"]["containers"]
        environ = {entry["name"]: entry.get("value", "n1") for entry in container["env"]}
        return load_settings(
            container["args"],
            {"KUBECONFIG": str(config), **environ},
            clock=SimulatedClock(),
            metrics=CollectorRegistry(),
            discover=discover,
        )

    return load


@pytest.fixture
def settings(load: Callable[..., Settings]) -> Settings:
    """The same without components."""
    return load()


def mount(container: dict[str, Any], path: Path) -> dict[str, Any] | None:
    found = [each for each in container["volumeMounts"] if path.is_relative_to(each["mountPath"])]
    return found[0] if found else None


def test_every_file_is_in_its_kustomization() -> None:
    """A manifest that no kustomization lists would never be applied."""
    for path in DEPLOY.glob("**/kustomization.yaml"):
        listed = yaml.safe_load(path.read_text()).get("resources", ())
        there = {path.name for path in path.parent.glob("*.yaml")} - {"kustomization.yaml"}
        assert set(listed) == there


def test_namespaces_and_accounts_agree() -> None:
    """All that has a namespace is in ours; the DaemonSet's account is the one with the rights."""
    for each in objects():
        wanted = None if each["kind"] in CLUSTER_WIDE else NAMESPACE
        assert each["metadata"].get("namespace") == wanted, each["metadata"]["name"]
    one("Namespace", NAMESPACE)
    account = one("DaemonSet")["spec"]["template"]["spec"]["serviceAccountName"]
    [subject] = one("ClusterRoleBinding")["subjects"]
    assert (subject["name"], subject["namespace"]) == (account, NAMESPACE)
    assert one("ServiceAccount", account)
    assert one("ClusterRoleBinding")["roleRef"]["name"] == one("ClusterRole")["metadata"]["name"]


def test_the_container_is_as_small_as_can_be(pod: dict[str, Any], container: Any) -> None:
    """Nothing privileged; a capability only if the daemon's own table has a gate for it."""
    security = container["securityContext"]
    assert security["privileged"] is security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"]["drop"] == ["ALL"]
    known = {capability.name.removeprefix("CAP_") for capability in CAPABILITIES}
    assert set(security["capabilities"].get("add", ())) <= known
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["hostNetwork"] is False
    assert pod["priorityClassName"] == "system-node-critical"


def test_the_arguments_are_the_daemon_s(settings: Settings, container: Any) -> None:
    """Its own flags, each with a meaning, in a cluster, on the port that the probes ask."""
    assert not settings.mode.standalone
    assert settings.node_name == "n1"
    assert not settings.flags.inert_set()
    [port] = container["ports"]
    assert settings.options.addr.value == f":{port['containerPort']}"
    for probe, path in (("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
        asked = container[probe]["httpGet"]
        assert (asked["path"], asked["port"]) == (path, port["name"])


def test_the_directories_of_the_host_are_mounted(
    settings: Settings, container: Any, pod: dict[str, Any]
) -> None:
    """Where the daemon looks and writes: no more than that."""
    paths = settings.paths
    cgroup, run = mount(container, paths.cgroup), mount(container, settings.run_dir)
    assert cgroup
    assert run
    assert not {"readOnly", "recursiveReadOnly"} & (cgroup.keys() | run.keys())
    for path in (paths.proc, paths.sys, paths.sysfs):
        assert str(path).startswith(OWN)
    assert pod["hostPID"] is True  # else /proc would be the container's alone
    volumes = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
    assert {each["name"]: volumes.pop(each["name"]) for each in (cgroup, run)} == {
        cgroup["name"]: "/sys/fs/cgroup",
        run["name"]: "/var/run/koordlet",
    }
    assert not volumes


def test_the_room_is_what_was_measured(container: Any) -> None:
    """Requests cover 150 pods by the sizing table, limits three times 300 pods."""
    rows = re.findall(
        r"^\| (150|300) \| ([\d.]+) \| \d+ \| (\d+) \|",
        (ROOT / "docs/operations.md").read_text(),
        re.MULTILINE,
    )
    (_, cores, mebibytes), (_, most_cores, most_mebibytes) = rows
    requests, limits = container["resources"]["requests"], container["resources"]["limits"]
    assert int(requests["cpu"].removesuffix("m")) >= float(cores) * 1000
    assert int(requests["memory"].removesuffix("Mi")) >= int(mebibytes)
    assert int(limits["cpu"].removesuffix("m")) >= 3 * float(most_cores) * 1000
    assert int(limits["memory"].removesuffix("Mi")) >= 3 * int(most_mebibytes)


def test_the_capability_table_is_the_daemon_s() -> None:
    """operations.md lists the capabilities that the daemon knows, each with its gates."""
    rows = re.findall(
        r"^\| `([A-Z_]+)` \| .+ \| (.+) \|$",
        (ROOT / "docs/operations.md").read_text(),
        re.MULTILINE,
    )
    written = {name: tuple(re.findall(r"`(\w+)`", gates)) for name, gates in rows}
    assert written == {each.name.removeprefix("CAP_"): each.needed_by for each in CAPABILITIES}


def test_the_default_may_do_little() -> None:
    """What only some need is in the components: to see all pods, to evict, to make objects."""
    default = role()
    others = {"pods", "pods/eviction", "events", "configmaps", "leases", "persistentvolumeclaims"}
    others |= {"devices"}
    assert others.isdisjoint(default)
    marked = "write-own-node-only"  # for admission.yaml
    assert default["nodemetrics"] == {"get", "list", "watch", marked}
    assert default["nodeslos"] == {"list", "watch"}

    assert role("pods-from-api-server")["pods"] == {"list", "watch"}
    assert role("evictions")["pods/eviction"] == {"create"}
    assert role("events")["events"] == {"create", "patch"}
    assert role("volume-claims")["persistentvolumeclaims"] == {"get"}
    assert role("manager-duties")["nodeslos"] == {"list", "watch", "create", "patch"}
    assert role("devices")["devices"] == {"list", "watch", "create", "patch"}
    assert role("measure-only") == role("nvidia") == role("pod-resources") == default


def role(*names: str) -> dict[str, set[str]]:
    """The verbs that the role with these components has for each resource."""
    found: dict[str, set[str]] = {}
    for rule in patched(one("ClusterRole"), *names)["rules"]:
        for resource in rule["resources"]:
            found.setdefault(resource, set()).update(rule["verbs"])
    return found


@pytest.mark.parametrize(
    ("names", "duties"), [((), "off"), (("manager-duties",), "auto"), (("measure-only",), "off")]
)
def test_duties_are_done_where_the_role_allows_them(
    load: Any, names: tuple[str, ...], duties: str
) -> None:
    """The argument and the rights come together."""
    assert load(*names).options.manager_duties.value == duties


def test_measure_only_can_do_nothing_to_the_node(load: Any) -> None:
    """No root, no process of the host, nothing writable of the host, and no gate that acts."""
    settings = load("measure-only")
    spec = patched(one("DaemonSet"), "measure-only")["spec"]["template"]["spec"]
    [container] = spec["containers"]
    security = container["securityContext"]

    assert spec["hostPID"] is spec["hostNetwork"] is False
    assert security["runAsNonRoot"] is True
    assert security["runAsUser"] == security["runAsGroup"] == 65532
    assert security["capabilities"] == {"drop": ["ALL"]}
    [volume], [mounted] = spec["volumes"], container["volumeMounts"]
    assert volume["hostPath"]["path"] == "/sys/fs/cgroup"
    assert mounted["readOnly"] is True
    assert mounted["recursiveReadOnly"] == "IfPossible"
    assert mounted["mountPropagation"] == "None"  # else the API server refuses the line before
    assert settings.dry_run.covers("any plugin")
    assert settings.gates.working() == ["NodeTopologyReport"]


def test_measure_only_keeps_its_state_where_koordletctl_looks(load: Any) -> None:
    """`kubectl exec` runs it with the environment of the container."""
    settings = load("measure-only")
    [container] = patched(one("DaemonSet"), "measure-only")["spec"]["template"]["spec"][
        "containers"
    ]
    [runtime] = [each["value"] for each in container["env"] if each["name"] == "XDG_RUNTIME_DIR"]

    assert settings.run_dir == Path(runtime) / "koordlet"


def test_the_component_for_resctrl_adds_one_directory(load: Any) -> None:
    """Where the daemon then looks for it; neither a capability nor a privilege."""
    settings = load("resctrl")
    pod = patched(one("DaemonSet"), "resctrl")["spec"]["template"]["spec"]
    [container] = pod["containers"]

    found = mount(container, settings.paths.resctrl)

    assert found
    assert found["mountPath"] == str(settings.paths.resctrl)
    [volume] = [each for each in pod["volumes"] if each["name"] == found["name"]]
    assert volume["hostPath"] == {"path": "/sys/fs/resctrl", "type": "Directory"}
    assert (
        container["securityContext"]
        == one("DaemonSet")["spec"]["template"]["spec"]["containers"][0]["securityContext"]
    )


def test_the_component_for_traffic_classes(load: Any) -> None:
    """What its helper needs, by the daemon's own table, and where it keeps its record."""
    settings = load("network-qos")
    pod = patched(one("DaemonSet"), "network-qos")["spec"]["template"]["spec"]
    [container] = pod["containers"]

    wanted = {each.name for each in CAPABILITIES if "TCNetworkQoS" in each.needed_by}
    added = container["securityContext"]["capabilities"]["add"]
    assert {f"CAP_{name}" for name in added} == wanted
    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
    assert container["securityContext"]["privileged"] is pod["hostNetwork"] is False
    assert pod["hostPID"] is True
    state = settings.paths.var_run / STATE_DIRECTORY
    found = mount(container, state)
    assert found
    assert found["mountPath"] == str(state)
    [volume] = [each for each in pod["volumes"] if each["name"] == found["name"]]
    assert volume["hostPath"] == {
        "path": f"/var/run/{STATE_DIRECTORY}",
        "type": "DirectoryOrCreate",
    }


def test_the_files_of_terway_are_where_the_daemon_writes(load: Any) -> None:
    settings = load("terway")
    pod = patched(one("DaemonSet"), "terway")["spec"]["template"]["spec"]
    [container] = pod["containers"]

    wanted = directory_of(settings.paths)
    found = mount(container, wanted)
    assert found
    assert found["mountPath"] == str(wanted)
    assert not found.get("readOnly", False)
    [volume] = [each for each in pod["volumes"] if each["name"] == found["name"]]
    assert volume["hostPath"]["path"] == TERWAY_DIRECTORY


def test_hami_is_seen_where_the_daemon_looks(load: Callable[..., Settings]) -> None:
    """With all directories above it, as a link among them would lead elsewhere; none writable."""
    settings = load("nri", "hami")
    pod = patched(one("DaemonSet"), "nri", "hami")["spec"]["template"]["spec"]
    volumes = {each["name"]: each["hostPath"]["path"] for each in pod["volumes"]}
    below = str(settings.paths.root)
    mounts = [
        (volumes[each["name"]], each["mountPath"], each.get("readOnly", False))
        for each in pod["containers"][0]["volumeMounts"]
        if each["mountPath"].startswith(below)
    ]
    library = Path(settings.options.hooks.hami_library.value)
    containers = str(library.parent / "containers")
    assert mounts == [
        (path, f"{below}{path}", path != containers)
        for path in (f"/{library.parts[1]}/{library.parts[2]}", "/tmp", containers)
    ]


def test_the_component_table_is_complete() -> None:
    """operations.md says of each component that grants or takes something what needs it."""
    rows = re.findall(
        r"^\| `([a-z-]+)` \| ", (ROOT / "docs/operations.md").read_text(), re.MULTILINE
    )
    assert set(components()) <= set(rows)


def test_the_role_writes_nothing_that_belongs_to_others() -> None:
    """No wildcard, no nodes/proxy, no Node or Pod is changed, no Secret is read."""
    for rule in patched(one("ClusterRole"), *components())["rules"]:
        everything = [*rule.get("apiGroups", ()), *rule.get("resources", ()), *rule["verbs"]]
        assert "*" not in everything
        assert {"nodes/proxy", "secrets", "nodes/status", "pods/exec"}.isdisjoint(everything)
        if {"nodes", "pods"} & set(rule.get("resources", ())):
            assert set(rule["verbs"]) <= {"get", "list", "watch"}


def test_prometheus_finds_the_pods() -> None:
    """By the label and the port of the DaemonSet; the node gets the names that dashboards use."""
    monitor = one("PodMonitor")["spec"]
    template = one("DaemonSet")["spec"]["template"]
    labels = template["metadata"]["labels"]
    assert labels.items() >= monitor["selector"]["matchLabels"].items()
    [endpoint] = monitor["podMetricsEndpoints"]
    [container] = template["spec"]["containers"]
    assert endpoint["port"] in {port["name"] for port in container["ports"]}
    nodes = {each["targetLabel"]: each["sourceLabels"] for each in endpoint["relabelings"]}
    assert nodes.keys() == {"node", "kubernetes_node"}
    assert all(sources == ["__meta_kubernetes_pod_node_name"] for sources in nodes.values())


@pytest.mark.parametrize(
    ("program", "packages", "locked"),
    [
        ("koordlet", {"koord", "koordlet", "plugins/koordlet_plugins"}, "run.txt"),
        (
            "koord-descheduler",
            {"koord", "koord_descheduler", "plugins/koord_descheduler_plugins"},
            "descheduler.txt",
        ),
        (
            "koord-manager",
            {"koord", "koord_manager", "plugins/koord_manager_plugins"},
            "manager.txt",
        ),
        (
            "koord-scheduler",
            {"koord", "koord_scheduler", "plugins/koord_scheduler_plugins"},
            "descheduler.txt",
        ),
    ],
)
def test_an_image_is_made_of_what_is_there(program: str, packages: set[str], locked: str) -> None:
    """Each package and source of a COPY is there for the build; of programs it has its own."""
    text = (DEPLOY / "Containerfile").read_text()
    ignored = (ROOT / ".dockerignore").read_text().split()
    seen = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    [common] = re.findall(r"^FROM \S+ AS python\n(.*?)^FROM", text, re.M | re.S)
    [stage] = re.findall(rf"^FROM python AS build-{program}\n(.*?)^FROM", text, re.M | re.S)

    copied = re.findall(r"^COPY (.+) \S+$", common + stage, re.MULTILINE)
    sources = {source for line in copied for source in line.split()}

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    known = set(project["tool"]["setuptools"]["package-dir"].values())
    assert sources & known == packages
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(Path(source).is_relative_to(allowed) for allowed in seen), source
    assert f"-r requirements/{locked}\n" in stage
    scripts = set(project["project"]["scripts"])
    [rm] = re.findall(r"^RUN rm (.+)$", stage, re.M)
    removed = {path.rpartition("/")[2] for path in rm.split()}
    own = scripts - removed
    assert program in own
    assert all(each.startswith(program) for each in own)
    program_is = rf"^COPY --from=build-{program} /opt/{program}/bin/{program} /{program}$"
    assert re.search(program_is, text, re.M)
    assert re.search(rf"^FROM \S+ AS {program}$", text, re.M)


def test_the_last_image_is_the_agent_s() -> None:
    """A build that names no target makes it, as before."""
    text = (DEPLOY / "Containerfile").read_text()
    assert re.findall(r"^FROM \S+ AS (\S+)$", text, re.M)[-1] == "koordlet"
