"""The files of the chart, from those of the kustomize tree."""

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml

from reference.chart import values as v
from reference.chart.overlay import patch
from reference.chart.template import Expr, Items, Lines, When, Yaml, document, when
from reference.chart.values import Value

_ROOT = Path(__file__).parents[3]
_DEPLOY = _ROOT / "deploy"
_CHART = "deploy/chart"
_NAMESPACE = "koordlet-system"
_IN_NAMESPACE = ".Values.installation.namespace"
_HEADER = "{{- /* Written by `make docs` from the files of deploy; do not edit. */ -}}\n"
_SEPARATOR = "---\n"
_DAEMONS = ("descheduler", "manager", "scheduler")  # manager: in a namespace of its own
_APART = ("alerts", "chart", "crds", "dashboards", *_DAEMONS)
_CRDS = tuple(
    str(each.relative_to(_DEPLOY))
    for each in (_DEPLOY / "crds", *(_DEPLOY / daemon / "crds" for daemon in _DAEMONS))
    if each.is_dir()
)
_KEPT = {"helm.sh/resource-policy": "keep"}  # a CRD takes all objects of its kind with it

Tree = dict[str, Any]


def chart_files() -> Mapping[str, Callable[[], str]]:
    """Return what makes each file, by its path in the repository."""
    made: dict[str, Callable[[], str]] = {
        "Chart.yaml": _chart,
        "values.yaml": lambda: v.values_file(VALUES),
        "values.schema.json": lambda: json.dumps(v.values_schema(VALUES), indent=2) + "\n",
        "templates/_helpers.tpl": lambda: _HELPERS,
        "templates/NOTES.txt": lambda: _NOTES,
        "templates/crds.yaml": _crds,
        "templates/dashboards.yaml": _dashboards,
    }
    for name in _yaml_files():
        made[f"templates/{name.replace('/', '-')}"] = partial(_template, name)
    for board in sorted((_DEPLOY / "dashboards").glob("*.json")):
        made[f"dashboards/{board.name}"] = partial(_copied, board)
    return {f"{_CHART}/{name}": make for name, make in made.items()}


def _chart() -> str:
    version = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["version"]
    described = {
        "apiVersion": "v2",
        "name": "koordlet",
        "description": "QoS for nodes that run latency-sensitive and best-effort pods side by side",
        "type": "application",
        "version": version,
        "appVersion": version,
        "kubeVersion": ">=1.30.0-0",  # ValidatingAdmissionPolicy, and node names in tokens
    }
    return "# Written by `make docs`; do not edit.\n" + yaml.safe_dump(described, sort_keys=False)


def _copied(path: Path) -> str:
    return path.read_text()


# The kustomize tree.


def _yaml_files() -> Iterator[str]:
    """The resources of the base and of components, but CRDs."""
    for directory in (".", *_components(), "alerts", *_DAEMONS):
        for name in _kustomization(directory).get("resources", ()):
            yield f"{directory}/{name}".removeprefix("./")
    for daemon in _DAEMONS:
        for component in _components(daemon):
            for name in _kustomization(component).get("resources", ()):
                yield f"{component}/{name}"


def _components(below: str = ".") -> list[str]:
    """The components in a directory, that are switched by one value each."""
    found = sorted((_DEPLOY / below).glob("*/kustomization.yaml"))
    names = [str(each.parent.relative_to(_DEPLOY)) for each in found]
    return [name for name in names if name not in (*_APART, *_CRDS)]


@cache
def _kustomization(directory: str) -> Tree:
    found: Tree = yaml.safe_load((_DEPLOY / directory / "kustomization.yaml").read_text())
    return found


def _purpose(component: str) -> str:
    """Return what the first lines of its file say."""
    lines = (_DEPLOY / component / "kustomization.yaml").read_text().splitlines()
    return "\n".join(line.removeprefix("# ") for line in lines if line.startswith("#"))


def _value_of(component: str) -> str:
    """Return what switches it: network-qos of koordlet is koordlet.components.networkQos."""
    daemon, _, name = component.rpartition("/")
    first, *rest = _WORDS.get(name, name).split("-")
    camel = first + "".join(word.capitalize() for word in rest)
    return f"{daemon or 'koordlet'}.components.{camel}"


_NEEDED_BEFORE = {"pods-from-api-server": "1.33"}  # of Kubernetes
_WORDS = {"networkpolicy": "network-policy", "podmonitor": "pod-monitor"}


# The templates.


def _template(name: str) -> str:
    """The template of one file of the tree."""
    directory = str(Path(name).parent)
    objects = [tree for tree in yaml.safe_load_all((_DEPLOY / name).read_text()) if tree]
    for component in _components(directory if directory in _DAEMONS else "."):
        _patch_here(objects, component)
    parts = [document(_with_values(tree)) for tree in objects]
    text = _SEPARATOR.join(parts)
    conditions = _conditions(name, directory)
    for condition in reversed(conditions):
        text = when(condition, text)
    return _HEADER + text


def _patch_here(objects: list[Tree], component: str) -> None:
    """Those patches of a component whose objects are in this file."""
    here = {(each["kind"], each["metadata"]["name"]) for each in objects}
    patches = [
        each
        for each in _kustomization(component).get("patches", ())
        if (each["target"]["kind"], each["target"]["name"]) in here
    ]
    patch(objects, {"patches": patches}, _switch(component))


def _switch(component: str) -> str:
    """The condition for the patches of a component: its value, or a cluster that needs it."""
    value = f".Values.{_value_of(component)}"
    oldest = _NEEDED_BEFORE.get(component)
    if oldest is None:
        return value
    return f'or {value} (semverCompare "<{oldest}.0-0" .Capabilities.KubeVersion.Version)'


def _conditions(name: str, directory: str) -> list[str]:
    """Return what must hold for the objects of a file."""
    if name == "namespace.yaml":
        return [".Values.installation.createNamespace"]
    daemon = directory.split("/", 1)[0]
    found = [f".Values.{daemon}.enabled"] if daemon in (*_DAEMONS, "alerts") else []
    if name == "manager/namespace.yaml":
        found.append(".Values.manager.createNamespace")
    if directory in {name for below in (".", *_DAEMONS) for name in _components(below)}:
        found.append(f".Values.{_value_of(directory)}")
    return found


def _with_values(tree: Tree) -> Tree:
    """An object with what the values of the chart say."""
    found: Tree = _in_namespace(tree)
    kind, name = tree["kind"], tree["metadata"]["name"]
    daemon = name.removeprefix("koord-").removesuffix("-config")
    if kind == "ServiceAccount":
        found["metadata"]["annotations"] = Yaml(".Values.serviceAccount.annotations")
    elif kind in ("DaemonSet", "Deployment"):
        _workload(found, daemon)
    elif kind == "ConfigMap":
        found["data"] = {key: Lines(f"tpl .Values.{daemon}.config .") for key in found["data"]}
    return found


def _workload(tree: Tree, daemon: str) -> None:
    values, pod = f".Values.{daemon}", tree["spec"]["template"]["spec"]
    [container] = pod["containers"]
    container["image"] = Expr(f'include "koordlet.image" (list . {values}.image) | quote')
    container["imagePullPolicy"] = Expr(f"{values}.image.pullPolicy")
    container["resources"] = Yaml(f"{values}.resources")
    pod["imagePullSecrets"] = Yaml(".Values.imagePullSecrets")
    pod["nodeSelector"] = Yaml(f"{values}.nodeSelector")
    pod["tolerations"] = Yaml(f"{values}.tolerations")
    gates = f"{values}.featureGates"
    flag = f'printf "--feature-gates=%s" {gates} | quote'
    if daemon == "koordlet":
        gates, flag = f"{values}.features", f'include "koordlet.features" {values} | quote'
        pod["affinity"] = Yaml(f"{values}.nodeAffinity")
        dry_run = f"and {values}.dryRun (not {values}.components.measureOnly)"
        container["args"].append(When(dry_run, "--dry-run=true"))
    else:
        tree["spec"]["replicas"] = Expr(f"{values}.replicas")
        pod["affinity"] = {"nodeAffinity": Yaml(f"{values}.nodeAffinity"), **pod["affinity"]}
    level = f"toString {values}.log.level"  # 0 is one
    container["args"] += [
        When(gates, Expr(flag)),
        When(f'ne ({level}) ""', Expr(f'printf "--v=%s" ({level}) | quote')),
        Items(f"{values}.extraArgs"),
    ]


def _in_namespace(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _in_namespace(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_in_namespace(each) for each in value]
    if isinstance(value, When):
        return When(value.condition, _in_namespace(value.value))
    return Expr(f"{_IN_NAMESPACE} | quote") if value == _NAMESPACE else value


def _crds() -> str:
    text = ""
    for directory in _CRDS:
        trees = [
            yaml.safe_load((_DEPLOY / directory / name).read_text())
            for name in _kustomization(directory)["resources"]
        ]
        for tree in trees:
            annotations = tree["metadata"].get("annotations", {})
            tree["metadata"]["annotations"] = annotations | _KEPT
        part = _SEPARATOR + _SEPARATOR.join(map(document, trees))
        daemon = directory.partition("/")[0]
        text += part if daemon == "crds" else when(f".Values.{daemon}.enabled", part)
    return _HEADER + when(".Values.crds.managed", text)


def _dashboards() -> str:
    [made] = _kustomization("dashboards")["configMapGenerator"]
    tree = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": made["name"],
            "namespace": Expr(f"{_IN_NAMESPACE} | quote"),
            "labels": made["options"]["labels"],
        },
        "data": {name: Expr(f'.Files.Get "dashboards/{name}" | toJson') for name in made["files"]},
    }
    return _HEADER + when(".Values.dashboards.enabled", document(tree))


# The values.


def _spec_of_workload(path: str) -> Tree:
    """The specification of the workload in a file of the tree, which defaults are from."""
    for tree in yaml.safe_load_all((_DEPLOY / path).read_text()):
        if tree["kind"] in ("DaemonSet", "Deployment"):
            found: Tree = tree["spec"]
            return found
    raise LookupError(f"{path}: wanted a workload, found none")


def _of_daemon(daemon: str, workload: Tree) -> Iterator[Value]:
    """Return the files of each daemon."""
    pod = workload["template"]["spec"]
    container = pod["containers"][0]
    yield Value(
        f"{daemon}.image.repository", container["image"], "Of the image, in your registry.", v.TEXT
    )
    yield Value(f"{daemon}.image.tag", "", "Empty: none, as with a digest.", v.TEXT)
    yield Value(f"{daemon}.image.digest", "", "sha256:..., for an image that is pinned.", v.DIGEST)
    policy = container["imagePullPolicy"]
    yield Value(f"{daemon}.image.pullPolicy", policy, "As Kubernetes has it.", v.PULL_POLICY)
    gates = "features" if daemon == "koordlet" else "featureGates"
    meaning = "Feature gates, as A=true,B=false; empty: those that are on by default."
    yield Value(f"{daemon}.{gates}", "", meaning, v.TEXT)
    level = "klog's verbosity; empty: the daemon's default."
    yield Value(f"{daemon}.log.level", "", level, v.LEVEL)
    yield Value(f"{daemon}.extraArgs", [], "More flags of the daemon, the last ones.", v.TEXTS)
    yield Value(f"{daemon}.resources", container["resources"], "Of the container.", v.OBJECT)
    yield Value(f"{daemon}.nodeSelector", pod["nodeSelector"], "Of the pods.", v.LABELS)
    if daemon == "koordlet":  # as Koordinator's chart has it
        whole = "Of the pods, all of it: {nodeAffinity: ...}."
        yield Value(f"{daemon}.nodeAffinity", {}, whole, v.AFFINITY)
    else:
        yield Value(f"{daemon}.nodeAffinity", {}, "Of the pods.", v.NODE_AFFINITY)
    yield Value(f"{daemon}.tolerations", pod.get("tolerations", []), "Of the pods.", v.OBJECTS)


def _components_of(daemon: str) -> Iterator[Value]:
    below = "." if daemon == "koordlet" else daemon
    for component in _components(below):
        yield Value(_value_of(component), False, _purpose(component), v.BOOLEAN)


def _control_plane(daemon: str) -> Iterator[Value]:
    meaning = _purpose(daemon).partition("\nIts own")[0]
    yield Value(f"{daemon}.enabled", False, meaning, v.BOOLEAN)
    workload = _spec_of_workload(f"{daemon}/{daemon}.yaml")
    replicas = workload["replicas"]
    yield Value(f"{daemon}.replicas", replicas, "Of which one works at a time.", v.COUNT)
    yield from _of_daemon(daemon, workload)
    if daemon == "manager":
        yield Value("manager.createNamespace", True, _MANAGERS_NAMESPACE, v.BOOLEAN)
    [config] = yaml.safe_load((_DEPLOY / daemon / "config.yaml").read_text())["data"].values()
    config = re.sub(rf"\b{_NAMESPACE}\b", f"{{{{ {_IN_NAMESPACE} }}}}", config)
    meaning = f"Its configuration file, as a template. {_READ[daemon]}"
    yield Value(f"{daemon}.config", config, meaning, v.TEXT)
    yield from _components_of(daemon)


_MANAGERS_NAMESPACE = (
    "Its namespace, koordinator-system, is a part of the release, and goes with it. false: it is\n"
    "there already."
)
_READ = {
    "descheduler": "It is read again while the daemon runs.",
    "manager": "It is read again while the daemon runs; some fields wait for a restart.",
    "scheduler": "It is read at the start: restart the Deployment after a change.",
}


def _values() -> Iterator[Value]:
    managed = (
        "Whether the chart has the custom resource definitions. Koordinator has its own: false\n"
        "where it is installed. They stay when the chart is uninstalled."
    )
    yield Value("crds.managed", True, managed, v.BOOLEAN)
    yield Value("installation.namespace", _NAMESPACE, "Of all objects.", v.NAME)
    created = (
        "The namespace is a part of the release, with the label that lets the agents' pods in; it\n"
        "goes with the release. false: it is there already, with that label."
    )
    yield Value("installation.createNamespace", True, created, v.BOOLEAN)
    host = "The registry, before each repository; empty: repositories are whole."
    yield Value("imageRepositoryHost", "", host, v.TEXT)
    yield Value("imagePullSecrets", [], "Of all pods, as [{name: ...}].", v.OBJECTS)
    yield Value("serviceAccount.annotations", {}, "Of all service accounts.", v.LABELS)
    dry_run = (
        "Every plugin decides, explains and changes nothing. A first installation begins with it."
    )
    yield Value("koordlet.dryRun", True, dry_run, v.BOOLEAN)
    yield from _of_daemon("koordlet", _spec_of_workload("daemonset.yaml"))
    yield from _components_of("koordlet")
    for daemon in _DAEMONS:
        yield from _control_plane(daemon)
    yield Value("alerts.enabled", False, _purpose("alerts").partition(" rules.yml")[0], v.BOOLEAN)
    yield Value(
        "dashboards.enabled", False, _purpose("dashboards").partition(" To load")[0], v.BOOLEAN
    )


VALUES = tuple(_values())

_HELPERS = """\
{{- /* An image: (list $ .Values.koordlet.image). */ -}}
{{- define "koordlet.image" -}}
{{- $image := index . 1 -}}
{{- with (index . 0).Values.imageRepositoryHost }}{{ . }}/{{ end -}}
{{- $image.repository -}}
{{- with $image.tag }}:{{ . }}{{ end -}}
{{- with $image.digest }}@{{ . }}{{ end -}}
{{- end -}}

{{- /* The flag of the agents' gates, which are not those of measuring only. */ -}}
{{- define "koordlet.features" -}}
{{- if .components.measureOnly -}}
{{- fail "koordlet.features: wanted none with koordlet.components.measureOnly, found some" -}}
{{- end -}}
{{- printf "--feature-gates=%s" .features -}}
{{- end -}}
"""

_NOTES = """\
koordlet runs in the namespace {{ .Values.installation.namespace }}.
{{- if .Values.koordlet.components.measureOnly }}
It measures and reports; it can change nothing on the nodes.
{{- else if .Values.koordlet.dryRun }}
It is in dry-run: it changes nothing on any node. What it would do, and why:

  kubectl -n {{ .Values.installation.namespace }} exec daemonset/koordlet -- koordletctl explain

When that is what you want, let it act:

  helm upgrade {{ .Release.Name }} CHART --reset-then-reuse-values --set koordlet.dryRun=false
{{- else }}
It acts. What it changed, and why:

  kubectl -n {{ .Values.installation.namespace }} exec daemonset/koordlet -- koordletctl explain
{{- end }}

What a node's kernel or a missing right keeps from working:

  kubectl -n {{ .Values.installation.namespace }} exec daemonset/koordlet -- koordletctl doctor
{{- if .Values.manager.enabled }}

The policies that koord-manager keeps stay in force when it goes, also with the release, and so does
what nodes offer to batch and mid pods. docs/manager.md says how to remove both.
{{- end }}
"""
