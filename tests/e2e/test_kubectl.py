"""`kubectl koordlet`, with the real kubectl and the kubelet's own code for exec."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from koord.api.qos import KubeQoS
from koordlet.plugin.testing import FakeHost
from tests.support.kube.daemon_flags import host_flags
from tests.support.programs import POD_EXEC, Program

LABELS = {"app.kubernetes.io/name": "koordlet"}


def pod(name: str, node: str, phase: str = "Running", **labels: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "koordlet-system", "labels": {**LABELS, **labels}},
        "spec": {"nodeName": node, "containers": [{"name": "koordlet", "image": "x"}]},
        "status": {"phase": phase, "containerStatuses": []},
    }


@pytest.fixture
def run_dir(tmp_path: Path, koordlet: Any) -> Path:
    """That of a koordlet, which runs."""
    host = FakeHost(tmp_path / "host", version=2)
    host.add_pod("f2b9c1de-0000-4000-8000-000000000001", KubeQoS.BURSTABLE)
    daemon = koordlet("--standalone", "--node-name=n1", *host_flags(host.paths))
    daemon.wait_ready()
    return Path(daemon.run_dir)


@pytest.fixture
def kubectl(
    tmp_path: Path, run_dir: Path, go_program: Callable[[Program], Path]
) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Runs kubectl against a cluster in which koordlet runs on n1, and twice on n2."""
    if shutil.which("kubectl") is None:
        why = "there is no kubectl: apt-get install kubernetes-client"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(why)
    pods = [
        pod("koordlet-1", "n1"),
        pod("koordlet-0", "n1", "Failed"),
        *(pod(f"koordlet-{number}", "n2") for number in (2, 3)),
    ]
    listed = tmp_path / "pods.json"
    listed.write_text(json.dumps({"items": pods}))
    ctl = [sys.executable, "-m", "koordlet.cli.koordletctl", f"--run-dir={run_dir}"]
    server = subprocess.Popen(
        [go_program(POD_EXEC), listed, *ctl], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    address = server.stdout.readline().strip()
    config = tmp_path / "kubeconfig"
    config.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "it",
                "clusters": [{"name": "it", "cluster": {"server": f"http://{address}"}}],
                "users": [{"name": "it", "user": {}}],
                "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            }
        )
    )
    here = Path(sys.executable).parent

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["kubectl", *args],
            env={**os.environ, "KUBECONFIG": str(config), "HOME": str(tmp_path),
                 "PATH": f"{here}:{os.environ['PATH']}"},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    with server:
        yield run
        server.kill()


def test_a_nodes_agent_is_asked_from_afar(kubectl: Any) -> None:
    status = kubectl("koordlet", "status", "n1", "--output=json")
    assert status.returncode == 0, status.stderr
    assert json.loads(status.stdout)["node"] == "n1"

    top = kubectl("koordlet", "top", "n1")
    assert top.stdout.splitlines()[0].startswith("n1 ")

    explain = kubectl("koordlet", "--context=it", "explain", "n1")
    assert "dry-run    off" in explain.stdout


def test_what_koordletctl_says_of_a_wrong_question_arrives(kubectl: Any) -> None:
    """With its exit status."""
    wrong = kubectl("koordlet", "metrics", "n1", "node_cpu_usagee")
    assert wrong.returncode == 2
    assert "did you mean node_cpu_usage?" in wrong.stderr


@pytest.mark.parametrize(
    ("node", "found"), [("n7", "found none"), ("n2", "found 2: koordlet-2, koordlet-3")]
)
def test_no_one_pod_is_an_error_that_says_where_was_looked(
    kubectl: Any, node: str, found: str
) -> None:
    failed = kubectl("koordlet", "status", node)
    assert failed.returncode == 1
    assert f"on node {node} in namespace koordlet-system, {found}" in failed.stderr


def test_a_node_that_is_no_name_asks_nobody(kubectl: Any) -> None:
    failed = kubectl("koordlet", "status", "n1,status.phase=Failed")
    assert failed.returncode == 2
    assert "wanted a name as Kubernetes has them" in failed.stderr
