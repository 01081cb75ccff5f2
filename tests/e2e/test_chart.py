"""The chart in deploy/chart, rendered by Helm: what it installs is what kustomize makes.

The life of a release on a real cluster is in tests/cluster/test_helm.py.
"""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from reference.chart.files import VALUES

from koordlet.daemon.run import STOP_LIMIT
from koordlet.plugin.base import Limits
from tests.support.deploy.overlay import DEPLOY, overlay

ACTS = {"koordlet": {"dryRun": False}}  # as the manifests do
BARE = {**ACTS, "crds": {"managed": False}}

Helm = Callable[..., "subprocess.CompletedProcess[str]"]
Objects = dict[tuple[str, str, str], dict[str, Any]]
Rendered = Callable[[dict[str, Any]], Objects]


def by_name(objects: list[dict[str, Any]]) -> Objects:
    return {
        (each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]): each
        for each in objects
    }


@pytest.fixture(scope="session")
def rendered(installed: Callable[[dict[str, Any]], list[dict[str, Any]]]) -> Rendered:
    """The objects of a release with some values."""
    return lambda values: by_name(installed(values))


def merged(*values: dict[str, Any]) -> dict[str, Any]:
    """Values above values."""
    found: dict[str, Any] = {}
    for each in values:
        for key, value in each.items():
            inner = isinstance(value, dict) and isinstance(found.get(key), dict)
            found[key] = merged(found[key], value) if inner else value
    return found


def switched(path: str) -> dict[str, Any]:
    """A value that is on, and the daemon that it is for."""
    first, *rest = path.split(".")
    inner: Any = True
    for name in reversed(rest):
        inner = {name: inner}
    whole = {first: inner}
    return merged(whole, {first: {"enabled": True}}) if first != "koordlet" else whole


def directory_of(path: str) -> str:
    """The component of a value: that of koordlet.components.networkQos is network-qos."""
    first, *rest = path.split(".")
    dashed = "".join(f"-{c.lower()}" if c.isupper() else c for c in rest[-1])
    name = {"network-policy": "networkpolicy", "pod-monitor": "podmonitor"}.get(dashed, dashed)
    return name if first == "koordlet" else f"{first}/{name}"


COMPONENTS = [each.path for each in VALUES if ".components." in each.path]
MEASURE_ONLY = "koordlet.components.measureOnly"
CRDS = ("crds", "descheduler/crds", "manager/crds", "scheduler/crds")
DAEMONS = ("descheduler", "manager", "scheduler")
ALL = [path for path in COMPONENTS if path != MEASURE_ONLY] + [
    "alerts.enabled",
    "dashboards.enabled",
]


def shipped(directory: Path, *components: str) -> Path:
    """A kustomization with these; manager is one of its own, not a component."""
    others = [name for name in components if name != "manager"]
    bases = [DEPLOY, *(DEPLOY / name for name in components if name == "manager")]
    return overlay(directory, *others, resources=[os.path.relpath(one, directory) for one in bases])


def test_the_chart_is_sound(helm: Helm) -> None:
    """Helm's own lint, strict; each component of deploy has a value."""
    for values in ({}, merged(*map(switched, ALL))):
        done = helm("lint", "--strict", values=values)
        assert done.returncode == 0, done.stdout
        found = [line for line in done.stdout.splitlines() if line.startswith("[")]
        assert found == ["[INFO] Chart.yaml: icon is recommended"]
    known = {directory_of(path) for path in COMPONENTS}
    known |= {"alerts", "dashboards", *DAEMONS, *CRDS}
    there = {str(each.parent.relative_to(DEPLOY)) for each in DEPLOY.rglob("kustomization.yaml")}
    assert known == there - {"."}


def test_the_agent_alone_is_that_of_the_manifests(rendered: Rendered, render: Any) -> None:
    assert rendered(BARE) == by_name(render(DEPLOY))


@pytest.mark.parametrize("path", COMPONENTS)
def test_a_component_is_that_of_the_manifests(
    rendered: Rendered, render: Any, tmp_path: Path, path: str
) -> None:
    daemon, name = path.split(".")[0], directory_of(path)
    wanted = [daemon] * (daemon != "koordlet") + [name]
    found = rendered(merged(BARE, switched(path)))
    assert found == by_name(render(shipped(tmp_path, *wanted)))


def test_the_manager_is_that_of_the_manifests_in_a_namespace_of_its_own(
    rendered: Rendered, render: Any
) -> None:
    """Where the agents look for its Lease, wherever they are; its namespace may be there already"""
    values = merged(BARE, {"manager": {"enabled": True}})
    elsewhere = merged(values, {"installation": {"namespace": "agents"}})
    without = merged(values, {"manager": {"createNamespace": False}})

    of_manifests = by_name(render(DEPLOY / "manager"))
    assert of_manifests.items() <= rendered(values).items()
    assert of_manifests.items() <= rendered(elsewhere).items()
    gone = rendered(values).keys() - rendered(without).keys()
    assert gone == {("Namespace", "", "koordinator-system")}


@pytest.mark.parametrize("first", [[], [MEASURE_ONLY]])
def test_everything_at_once_is_that_of_the_manifests(
    rendered: Rendered, render: Any, problems: Any, tmp_path: Path, first: list[str]
) -> None:
    """And a real API server takes it without a warning."""
    values = merged(ACTS, *map(switched, [*first, *ALL]))
    components = [directory_of(path) for path in [*first, *ALL] if path in COMPONENTS]
    components += ["alerts", "dashboards", *DAEMONS, *CRDS]

    found = rendered(values)
    for (kind, _, _), each in found.items():
        if kind == "CustomResourceDefinition":  # which outlives the release
            annotations = each["metadata"]["annotations"]
            assert annotations.pop("helm.sh/resource-policy") == "keep"
            if not annotations:
                del each["metadata"]["annotations"]
    ordered = sorted(components, key=lambda name: name.count("/"))

    wanted = by_name(render(shipped(tmp_path, *ordered)))
    assert without_order(found) == without_order(wanted)
    known = [each for each in found.values() if "monitoring" not in each["apiVersion"]]
    assert problems(known) == ""


def without_order(objects: Objects) -> Objects:
    """Volumes, rights and flags of different components in any order."""

    def sort(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: sort(each) for key, each in value.items()}
        if isinstance(value, list):
            return sorted(
                (sort(each) for each in value), key=lambda each: json.dumps(each, sort_keys=True)
            )
        return value

    return {key: sort(each) for key, each in objects.items()}


def agent(objects: Objects) -> dict[str, Any]:
    [daemonset] = [each for (kind, _, _), each in objects.items() if kind == "DaemonSet"]
    pod: dict[str, Any] = daemonset["spec"]["template"]["spec"]
    return pod


def test_a_first_installation_changes_nothing(rendered: Rendered) -> None:
    [container] = agent(rendered({}))["containers"]
    assert container["args"][-1] == "--dry-run=true"


def test_values_are_those_of_the_pods(rendered: Rendered) -> None:
    """With the names that Koordinator's chart has for them."""
    digest = f"sha256:{'0' * 64}"
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}
    values = {
        "installation": {"namespace": "agents"},
        "imageRepositoryHost": "registry.example",
        "imagePullSecrets": [{"name": "pull"}],
        "koordlet": {
            "image": {"repository": "qos/koordlet", "tag": "v1", "digest": digest},
            "features": "CPUEvict=true",
            "log": {"level": "4"},
            "extraArgs": ["--report-interval=30s"],
            "resources": {"limits": {"memory": "1Gi"}},
            "nodeAffinity": {"nodeAffinity": affinity},
            "tolerations": [],
        },
        "descheduler": {"enabled": True, "replicas": 3, "nodeAffinity": affinity},
    }
    found = rendered(values)
    pod = agent(found)
    [container] = pod["containers"]

    assert {namespace for _, namespace, _ in found} == {"", "agents"}
    assert container["image"] == f"registry.example/qos/koordlet:v1@{digest}"
    assert container["args"][-4:] == [
        "--dry-run=true", "--feature-gates=CPUEvict=true", "--v=4", "--report-interval=30s",
    ]  # fmt: skip
    assert container["resources"]["limits"] == {"cpu": "500m", "memory": "1Gi"}
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    assert pod["affinity"] == {"nodeAffinity": affinity}
    assert "tolerations" not in pod
    deployment = found["Deployment", "agents", "koord-descheduler"]["spec"]
    assert deployment["replicas"] == 3
    affinities = deployment["template"]["spec"]["affinity"]
    assert affinities["nodeAffinity"] == affinity
    assert "podAntiAffinity" in affinities
    [config] = found["ConfigMap", "agents", "koord-descheduler-config"]["data"].values()
    excluded = yaml.safe_load(config)["profiles"][0]["pluginConfig"][0]["args"]
    assert excluded["evictableNamespaces"] == {"exclude": ["kube-system", "agents"]}


@pytest.mark.parametrize("level", [0, "0", 4])
def test_a_log_level_may_be_a_number(rendered: Rendered, level: object) -> None:
    """As --set makes it; 0 is a level."""
    [container] = agent(rendered({"koordlet": {"log": {"level": level}}}))["containers"]
    assert container["args"][-1] == f"--v={level}"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"koordlet": {"dryrun": False}}, "'dryrun' not allowed"),
        ({"koordlet": {"dryRun": "no"}}, "got string, want boolean"),
        ({"koordlet": {"image": {"digest": "sha256:12"}}}, "does not match pattern"),
        ({"installation": {"namespace": "Not A Name"}}, "does not match pattern"),
        (
            {"koordlet": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}},
            "'preferredDuringSchedulingIgnoredDuringExecution' not allowed",
        ),
        (
            {"scheduler": {"nodeAffinity": {"nodeAffinity": {}}}},
            "'nodeAffinity' not allowed",
        ),
        (
            {"koordlet": {"features": "A=true", "components": {"measureOnly": True}}},
            "wanted none with koordlet.components.measureOnly",
        ),
    ],
)
def test_wrong_values_are_refused(helm: Helm, values: dict[str, Any], said: str) -> None:
    done = helm("template", "koordlet", values=values)
    assert said in done.stderr
    assert done.stdout == ""


def test_the_pods_have_the_time_to_restore(rendered: Rendered) -> None:
    """The kubelet kills no agent whose plugins end and whose values are restored in their time."""
    needed = Limits().stop + Limits().grace + STOP_LIMIT
    assert agent(rendered(ACTS))["terminationGracePeriodSeconds"] > needed


@pytest.mark.parametrize(
    ("kubernetes", "may"), [("v1.30.14", True), ("v1.32.9-gke.1", True), ("v1.33.0", False)]
)
def test_where_kubelets_refuse_the_agent_it_may_list_pods(
    helm: Helm, kubernetes: str, may: bool
) -> None:
    """Kubelets before 1.33 know no right to their pods but nodes/proxy."""
    done = helm("template", "koordlet", values={}, kubernetes=kubernetes)
    assert done.returncode == 0, done.stderr
    [role] = [
        each
        for each in yaml.safe_load_all(done.stdout)
        if each and each["kind"] == "ClusterRole" and each["metadata"]["name"] == "koordlet"
    ]
    pods = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}
    assert (pods in role["rules"]) is may
