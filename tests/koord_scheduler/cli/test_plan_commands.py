"""place and simulate on the example dump, with the plugins that ship, as a user runs them."""

import json
from pathlib import Path
from typing import Any

import pytest

from koord_scheduler.cli.inputs import PlanOptions, plan_inputs
from koord_scheduler.command import main, with_plugin
from koord_scheduler.plugin import ClusterPod, CycleState, FilterPlugin, Handle, NodeInfo

EXAMPLES = Path(__file__).parents[3] / "docs/examples"
DUMP, PODS = str(EXAMPLES / "cluster-dump"), str(EXAMPLES / "pods.yaml")
Capture = pytest.CaptureFixture[str]


def answer(capsys: Capture, *argv: str) -> dict[str, Any]:
    assert main([*argv, "-o", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def pod(path: Path, **spec: Any) -> str:
    container = {"name": "main", "resources": {"requests": spec.pop("requests", {})}}
    manifest = {
        "kind": "Pod",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"schedulerName": "koord-scheduler", "containers": [container], **spec},
    }
    file = path / "pod.json"
    file.write_text(json.dumps(manifest))
    return str(file)


def test_place_shows_scores_by_plugin_and_why_other_nodes_are_excluded(capsys: Capture) -> None:
    report = answer(capsys, "place", PODS, "--from", DUMP)
    assert report["node"] == report["scores"][0]["node"]
    best = report["scores"][0]
    assert best["total"] == sum(best["plugins"].values())
    assert {"NodeResourcesFit", "NodeResourcesBalancedAllocation"} <= best["plugins"].keys()
    excluded = {one["node"]: (one["plugin"], one["reason"]) for one in report["excluded"]}
    assert excluded["worker-5"] == ("NodeUnschedulable", "node(s) were unschedulable")
    assert excluded["worker-6"][0] == "TaintToleration"
    assert report["input"]["objects"]["node"] == 8


def test_a_pod_without_a_node_has_the_cause_first(capsys: Capture, tmp_path: Path) -> None:
    large = pod(tmp_path, requests={"cpu": "40"})
    assert main(["place", large, "--from", DUMP]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "shop/web stays pending: 0 of 8 nodes are feasible"
    assert lines[2].startswith("0/8 nodes are available: ")
    assert "Insufficient cpu" in lines[2]
    assert "what would help" in lines
    assert any(line.startswith("- cpu: 40 is requested, the most that") for line in lines)


def test_simulate_fills_the_cluster_pod_by_pod(capsys: Capture) -> None:
    report = answer(capsys, "simulate", PODS, "--from", DUMP)
    assert (report["placed"], report["pending"]) == (3, 0)
    assert [one["pod"] for one in report["pods"]] == [f"shop/search-{at}" for at in range(3)]
    shares = report["utilization"]["cpu"]
    assert shares["after"]["mean"] > shares["before"]["mean"]
    again = answer(capsys, "simulate", PODS, "--from", DUMP)
    assert again == report


def test_simulate_as_tables(capsys: Capture) -> None:
    assert main(["simulate", PODS, "--from", DUMP]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "3 pods are placed, 0 stay pending"
    assert lines[3].startswith("REQUESTED")


@pytest.mark.parametrize(
    ("argv", "status", "message"),
    [
        (["place", "gone.yaml", "--from", DUMP], 2, "gone.yaml"),
        (["place", PODS, "--from", "gone"], 2, "gone"),
        (["place", PODS, "--from", DUMP, "--nodes", "0"], 2, "--nodes"),
        (["place", PODS, "--from", PODS], 2, "no node"),
    ],
)
def test_what_cannot_be_used_is_named(
    capsys: Capture, argv: list[str], status: int, message: str
) -> None:
    assert main(argv) == status
    assert message in capsys.readouterr().err


def test_place_is_about_one_kind_of_pods(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "pods.yaml"
    small = "kind: Pod\nmetadata: {name: small}\nspec: {schedulerName: koord-scheduler}\n"
    file.write_text(Path(PODS).read_text() + "---\n" + small)
    assert main(["place", str(file), "--from", DUMP]) == 2
    assert "use `koord-scheduler simulate`" in capsys.readouterr().err


def test_the_profiles_of_a_configuration_decide(capsys: Capture, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    plugins = {"multiPoint": {"disabled": [{"name": "NodeUnschedulable"}]}}
    profile = {"schedulerName": "koord-scheduler", "plugins": plugins}
    version = "kubescheduler.config.k8s.io/v1"
    document = {"apiVersion": version, "kind": "KubeSchedulerConfiguration", "profiles": [profile]}
    config.write_text(json.dumps(document))
    report = answer(capsys, "place", PODS, "--from", DUMP, "--config", str(config))
    assert "worker-5" in [one["node"] for one in report["scores"]]
    other = pod(tmp_path, schedulerName="other")
    assert main(["place", other, "--from", DUMP, "--config", str(config)]) == 1
    assert 'found "other"' in capsys.readouterr().err


def test_load_aware_scheduling_looks_at_the_reports_of_the_dump(
    capsys: Capture, tmp_path: Path
) -> None:
    """Hot nodes are excluded, idle ones score."""
    config = tmp_path / "config.json"
    args = {"usageThresholds": {"cpu": 70}}
    profile = {
        "schedulerName": "koord-scheduler",
        "plugins": {"multiPoint": {"enabled": [{"name": "LoadAwareScheduling"}]}},
        "pluginConfig": [{"name": "LoadAwareScheduling", "args": args}],
    }
    version = "kubescheduler.config.k8s.io/v1"
    document = {"apiVersion": version, "kind": "KubeSchedulerConfiguration", "profiles": [profile]}
    config.write_text(json.dumps(document))
    report = answer(capsys, "place", PODS, "--from", DUMP, "--config", str(config))
    excluded = {
        one["node"]: one["reason"]
        for one in report["excluded"]
        if one["plugin"] == "LoadAwareScheduling"
    }
    hot = "node(s) cpu usage exceed threshold"
    assert excluded == {
        "worker-1": hot,
        "worker-3": hot,
        "worker-8": "node(s) nodeMetric expired",
    }
    scores = [one["plugins"]["LoadAwareScheduling"] for one in report["scores"]]
    assert scores == [79, 31, 34]


async def test_what_plugins_do_at_the_start_is_done_before_a_decision(tmp_path: Path) -> None:
    """As in a scheduler that runs."""
    begun: list[int] = []

    class Begins(FilterPlugin):
        def __init__(self, args: Any, handle: Handle) -> None:
            async def begin() -> None:
                begun.append(len(handle.services.cluster.nodes()))

            handle.services.hooks.add("Begins", begin)

        def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> None:
            """Every node passes."""

    config = tmp_path / "config.json"
    plugins = {"filter": {"enabled": [{"name": "Begins"}]}}
    profile = {"schedulerName": "koord-scheduler", "plugins": plugins}
    version = "kubescheduler.config.k8s.io/v1"
    document = {"apiVersion": version, "kind": "KubeSchedulerConfiguration", "profiles": [profile]}
    config.write_text(json.dumps(document))
    options = PlanOptions(pods=Path(PODS), source=Path(DUMP), config=config)
    async with plan_inputs("test", options, (with_plugin("Begins", Begins),)):
        assert begun == [8]
