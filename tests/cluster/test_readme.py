"""README.md, "In a cluster", executed: what it says is what happens."""

import os
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusterclient import Cluster
from programs import KUBERNETES, REPOSITORY

# What kind of object an operator brings that README.md supposes to be there.
_POD_MONITOR = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "podmonitors.monitoring.coreos.com"},
    "spec": {
        "group": "monitoring.coreos.com",
        "names": {"kind": "PodMonitor", "plural": "podmonitors"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1", "served": True, "storage": True,
                "schema": {"openAPIV3Schema": {
                    "type": "object", "x-kubernetes-preserve-unknown-fields": True,
                }},
            },
        ],
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def blocks() -> dict[str, str]:
    """The commands of that section, by the program that each block is about."""
    section = (REPOSITORY / "README.md").read_text().split("\n## In a cluster\n")[1]
    found = re.findall(r"^```\n(.*?)^```$", section.split("\n## ")[0], re.DOTALL | re.MULTILINE)
    build, apply, helm, ask = found
    assert build.startswith("podman build")
    assert helm.startswith("helm install")  # test_helm.py
    return {"apply": apply, "ask": ask}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """This checkout, called as a clone is: koordlet, beside directories of the user's."""
    directory = tmp_path_factory.mktemp("home") / "koordlet"
    directory.mkdir()
    subprocess.run(["mount", "--bind", REPOSITORY, directory], check=True)
    yield directory
    subprocess.run(["umount", "--lazy", directory], check=True)


def environ() -> dict[str, str]:
    """With kubectl on PATH."""
    path = KUBERNETES.called("kubectl").parent
    return {**os.environ, "PATH": f"{path}:{os.environ['PATH']}"}


def shell(script: str, where: Path) -> str:
    """What a script prints; it ends at the first command that fails."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=where,
        env={**environ(), "PWD": str(where)},  # else bash takes the other name of the directory
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_commands_install_the_agent(
    cluster: Cluster, namespaces: None, blocks: dict[str, str], checkout: Path
) -> None:
    """With its images built beforehand; a NodeMetric of the real node follows."""
    cluster.apply(_POD_MONITOR)
    cluster.kubectl("wait", "--for=condition=Established", "crd/podmonitors.monitoring.coreos.com")
    said = shell(blocks["apply"], checkout)
    assert 'daemon set "koordlet" successfully rolled out' in said
    cluster.until(cluster.report, "the agent has reported")


def test_its_questions_are_answered(
    cluster: Cluster, blocks: dict[str, str], checkout: Path
) -> None:
    """By the API server, by a command in the pod, and through a forwarded port."""
    get, execute, forward = blocks["ask"].splitlines()
    assert "worker-1" in shell(get, checkout)
    assert "koordlet-system/koordlet-" in shell(execute, checkout)
    with subprocess.Popen(["bash", "-c", f"exec {forward}"], env=environ()) as forwarding:
        text = cluster.until(lambda: fetch("http://127.0.0.1:9316/healthz?verbose"), "it answers")
        forwarding.terminate()
    assert "ok" in text


def fetch(url: str) -> str:
    """What is there; empty when nothing is."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return str(answer.read(), "utf-8")
    except OSError:
        return ""
