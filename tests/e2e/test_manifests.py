"""The manifests that users apply: rendered by kustomize, taken by a real API server."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.deploy.overlay import overlay
from tests.support.programs import REPOSITORY

DEPLOY = REPOSITORY / "deploy"


def named(objects: list[dict[str, Any]]) -> set[str]:
    return {f"{each['kind']}/{each['metadata']['name']}" for each in objects}


def test_what_is_applied_has_no_unknown_field(render: Any, problems: Any) -> None:
    """An API server of the version that the tests have takes all of it without a warning."""
    objects = render(DEPLOY)

    assert {"DaemonSet/koordlet", "ValidatingAdmissionPolicy/koordlet-own-node"} <= named(objects)
    assert problems(objects) == ""
    spoilt = {**objects[0], "metdata": {}}
    assert "metdata" in problems([spoilt])


def test_the_overlay_of_the_readme(render: Any, problems: Any, tmp_path: Path) -> None:
    """With both components, and the image where the reader put it."""
    [text] = re.findall(
        r"kustomization\.yaml <<EOF\n(.*?)EOF", (REPOSITORY / "README.md").read_text(), re.DOTALL
    )
    checkout = os.path.relpath(REPOSITORY, tmp_path)
    (tmp_path / "kustomization.yaml").write_text(text.replace("../koordlet/", f"{checkout}/"))

    objects = render(tmp_path)

    crds = {name for name in named(objects) if name.startswith("CustomResourceDefinition/")}
    assert len(crds) == 4
    assert "PodMonitor/koordlet" in named(objects)
    [daemonset] = [each for each in objects if each["kind"] == "DaemonSet"]
    [container] = daemonset["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example/koordlet:0.1.0"
    known = [each for each in objects if each["kind"] != "PodMonitor"]
    assert problems(known) == ""


def test_the_networkpolicy_follows_the_namespace(
    render: Any, problems: Any, tmp_path: Path
) -> None:
    """An overlay with the component, under another namespace, is admitted."""
    deploy = os.path.relpath(DEPLOY, tmp_path)
    overlay = {
        "namespace": "agents",
        "resources": [deploy],
        "components": [f"{deploy}/networkpolicy"],
    }
    (tmp_path / "kustomization.yaml").write_text(json.dumps(overlay))

    objects = render(tmp_path)

    assert problems(objects) == ""
    [policy] = [each for each in objects if each["kind"] == "NetworkPolicy"]
    assert policy["metadata"]["namespace"] == "agents"
    others = [peer for peer in policy["spec"]["ingress"][0]["from"] if "namespaceSelector" in peer]
    own = [peer for peer in policy["spec"]["ingress"][0]["from"] if peer not in others]
    assert len(others) == 2
    [scheduler] = [peer["podSelector"]["matchLabels"] for peer in own]
    assert scheduler == {"app.kubernetes.io/name": "koord-scheduler"}


@pytest.mark.parametrize(
    ("daemon", "own"),
    [
        ("descheduler", ["", "/crds", "/networkpolicy", "/patch-pods", "/delete-pods", "/cordon"]),
        (
            "scheduler",
            [
                "",
                "/networkpolicy",
                "/patch-pods",
                "/gangs",
                "/quotas",
                "/quota-admission",
                "/quota-profiles",
                "/revoke-quotas",
                "/crds",
                "/device-locks",
                "/reservations",
                "/reservation-admission",
            ],
        ),
    ],
)
def test_a_control_plane_daemon_follows_the_namespace(
    daemon: str, own: list[str], render: Any, problems: Any, tmp_path: Path
) -> None:
    """With all its components, and alone; its lease is where its pods are."""
    deploy = os.path.relpath(DEPLOY, tmp_path)
    overlay = {
        "namespace": "control",
        "components": [f"{deploy}/{daemon}{name}" for name in own],
    }
    (tmp_path / "kustomization.yaml").write_text(json.dumps(overlay))

    objects = render(tmp_path)

    assert problems(objects) == ""
    by_kind = {each["kind"]: each for each in objects}
    assert by_kind["Role"]["metadata"]["namespace"] == "control"
    for binding in ("RoleBinding", "ClusterRoleBinding"):
        assert [each["namespace"] for each in by_kind[binding]["subjects"]] == ["control"]
    [container] = by_kind["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert "--leader-elect-resource-namespace=$(POD_NAMESPACE)" in container["args"]


@pytest.mark.parametrize("field", ["namePrefix", "nameSuffix"])
@pytest.mark.parametrize(
    ("daemon", "named"),
    [
        ("descheduler", {"koord-descheduler", "koord-descheduler-ledger"}),
        ("scheduler", {"koord-scheduler"}),
    ],
)
def test_the_role_names_what_the_daemon_asks_for(
    daemon: str, named: set[str], field: str, render: Any, tmp_path: Path
) -> None:
    """Whatever kustomize makes of the names of objects: Lease and ledger are not among them."""
    objects = render(overlay(tmp_path, daemon, **{field: "-eu-"}))

    by_kind = {each["kind"]: each for each in objects}
    rules = by_kind["Role"]["rules"]
    assert {name for rule in rules for name in rule.get("resourceNames", [])} == named
    name = by_kind["ConfigMap"]["metadata"]["name"]
    assert name != f"koord-{daemon}-config"
    [volume] = by_kind["Deployment"]["spec"]["template"]["spec"]["volumes"]
    assert volume["configMap"]["name"] == name


@pytest.mark.parametrize(
    ("program", "said", "others"),
    [
        ("koordlet", "--feature-gates", {"koordletctl": "top"}),
        ("koord-descheduler", "--write-config-to", {}),
        ("koord-manager", "--write-config-to", {}),
        ("koord-scheduler", "--write-config-to", {}),
    ],
)
def test_an_image_s_steps_make_a_daemon_that_starts(
    program: str, said: str, others: dict[str, str], tmp_path: Path
) -> None:
    """COPY and RUN of the Containerfile, but for Debian's packages, with other directories."""
    text = (DEPLOY / "Containerfile").read_text()
    stages = dict(re.findall(r"^FROM \S+ AS (\S+)\n(.*?)(?=^FROM|\Z)", text, re.M | re.S))
    source, prefix = tmp_path / "source", tmp_path / program
    source.mkdir()
    lines = stages["python"] + stages[f"build-{program}"]
    for instruction, rest in re.findall(r"^(COPY|RUN) (.+)$", lines, re.MULTILINE):
        if instruction == "COPY":
            copy(*rest.split(), into=source)
        elif not rest.startswith("apt-get"):
            step = rest.replace("python3 -m venv", f"{sys.executable} -m venv")
            run(step.replace(f"/opt/{program}", str(prefix)), source)

    assert said in run(f"{prefix}/bin/{program} --help", tmp_path)
    for name, word in others.items():
        assert word in run(f"{prefix}/bin/{name} --help", tmp_path)
    installed = {path.name for path in (prefix / "bin").iterdir()}
    assert {each for each in installed if each.startswith("koord")} == {program, *others}
    assert "pip" not in installed
    if program == "koordlet":
        script = run(f"{prefix}/bin/koordletctl completion bash koordlet", tmp_path)
        assert "--feature-gates" in script


def copy(*words: str, into: Path) -> None:
    """What COPY does: the contents of a directory, or files into a directory."""
    *sources, target = words
    for name in sources:
        if (REPOSITORY / name).is_dir():
            unwanted = shutil.ignore_patterns("__pycache__")
            shutil.copytree(REPOSITORY / name, into / target, ignore=unwanted)
        else:
            (into / target).mkdir(exist_ok=True)
            shutil.copy(REPOSITORY / name, into / target)


def run(step: str, directory: Path) -> str:
    """Run a shell line; return all it printed."""
    done = subprocess.run(
        step, shell=True, cwd=directory, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, f"{step}\n{done.stderr}"
    return done.stdout + done.stderr
