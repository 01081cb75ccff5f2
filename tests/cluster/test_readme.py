"""README.md, "In a cluster", executed: what it says is what happens.

Its commands for Helm are executed in test_helm.py, those that remove an installation at its end.
"""

import subprocess
import urllib.request
from pathlib import Path

from tests.support.real_cluster.client import Cluster
from tests.support.real_cluster.readme import commands, environ, shell
from tests.support.real_cluster.traces import Traces


def test_its_commands_install_the_agent(cluster: Cluster, pristine: Traces, checkout: Path) -> None:
    """With its images built beforehand; a NodeMetric of the real node follows."""
    said = shell(commands().apply, checkout)
    assert 'daemon set "koordlet" successfully rolled out' in said
    cluster.until(cluster.report, "the agent has reported")


def test_its_questions_are_answered(cluster: Cluster, checkout: Path) -> None:
    """By the API server, by a command in the pod, and through a forwarded port."""
    assert "worker-1" in shell(commands().get, checkout)
    assert "koordlet-system/koordlet-" in shell(commands().execute, checkout)
    forward = f"exec {commands().forward}"
    with subprocess.Popen(["bash", "-c", forward], env=environ()) as forwarding:
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
