"""koord-scheduler with plugins that no package has installed."""

import json
from pathlib import Path
from typing import Any

import pytest

from koord_scheduler.command import new_scheduler_command, with_plugin
from koord_scheduler.plugin import ClusterPod, CycleState, Handle, NodeInfo, ScorePlugin

EXAMPLES = Path(__file__).parents[2] / "docs/examples"
CONFIG = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
  - schedulerName: koord-scheduler
    plugins:
      score: {enabled: [{name: LastNode, weight: 50}]}
"""


class LastNode(ScorePlugin):
    """Prefers worker-7."""

    def __init__(self, args: Any, handle: Handle) -> None: ...

    def score(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
        return 100 if node.name == "worker-7" else 0


def test_place_has_the_plugin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    pods, dump = str(EXAMPLES / "pods.yaml"), str(EXAMPLES / "cluster-dump")
    arguments = ["place", pods, "--from", dump, "--config", str(tmp_path / "config.yaml")]
    main = new_scheduler_command(with_plugin("LastNode", LastNode))

    assert main([*arguments, "-o", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["node"] == "worker-7"
    assert report["scores"][0]["plugins"]["LastNode"] == 5000


def test_the_daemon_has_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its configuration is good with the plugin, and without it names what is missing."""
    (tmp_path / "config.yaml").write_text(CONFIG)
    arguments = [f"--config={tmp_path / 'config.yaml'}", "--kubeconfig=/nowhere/kubeconfig"]

    assert new_scheduler_command()(arguments) == 2
    assert 'plugin "LastNode" does not exist' in capsys.readouterr().err
    assert new_scheduler_command(with_plugin("LastNode", LastNode))(arguments) == 1
    assert "/nowhere/kubeconfig: wanted a kubeconfig" in capsys.readouterr().err


def test_a_name_that_is_taken_ends_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    main = new_scheduler_command(with_plugin("ImageLocality", LastNode))

    assert main(["--kubeconfig=/nowhere"]) == 1
    assert "ImageLocality" in capsys.readouterr().err
    pods, dump = str(EXAMPLES / "pods.yaml"), str(EXAMPLES / "cluster-dump")
    assert main(["place", pods, "--from", dump]) != 0
    assert "ImageLocality" in capsys.readouterr().err
