"""`koord-manager plan` and `explain`: their tables and JSON."""

import json

import pytest

from koord.component.terminal import show
from koord_manager.cli import plan
from koord_manager.cli.explain import explanation_view
from koord_manager.command import main
from koord_manager.controllers.noderesource import insufficient_resources
from koord_manager.explanation import node_report
from tests.support.manager import (
    calculate,
    facts,
    node,
    pod,
    pod_usage,
    quantities,
    report,
    topology,
    usage,
)

BATCH_CPU = "kubernetes.io/batch-cpu"


@pytest.fixture
def dump(tmp_path):
    kinds = (
        ("v1", "Node", node(quantities(cpu=100, memory="100G"))),
        ("v1", "Pod", pod("prod", quantities(cpu=30, memory="10G"), qos="LS")),
        ("v1", "Pod", pod("be", {BATCH_CPU: "30000"}, qos="BE")),
        (
            "slo.koordinator.sh/v1alpha1",
            "NodeMetric",
            report(
                node=usage(30, "10G"),
                system=usage(0, 0),
                pods=[pod_usage("prod", 30, "10G")],
            ),
        ),
    )
    items = [{"apiVersion": version, "kind": kind, **item} for version, kind, item in kinds]
    path = tmp_path / "dump.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return path


def run(capsys, *argv):
    status = main(["plan", *map(str, argv)])
    return status, capsys.readouterr()


def test_a_plan_compares_two_strategies(dump, capsys):
    status, out = run(
        capsys, "--from", dump, "--set", "cpuReclaimThresholdPercent=50", "--output", "json"
    )

    assert status == 0, out.err
    found = json.loads(out.out)
    assert found["totals"][BATCH_CPU] == {"before": 30000, "after": 20000, "gained": -10000}
    assert found["nodes"][0]["short"][BATCH_CPU] == {
        "offered": 20000,
        "held": 30000,
        "pods": ["default/be"],
    }


def test_the_strategies_come_from_files(dump, capsys, tmp_path):
    config_map = tmp_path / "config.yaml"
    config_map.write_text(
        'kind: ConfigMap\ndata:\n  colocation-config: |\n    {"enable": true, '
        '"cpuReclaimThresholdPercent": 90}\n'
    )
    other = tmp_path / "other.json"
    other.write_text('{"enable": true, "cpuReclaimThresholdPercent": 100}')

    status, out = run(capsys, "--from", dump, "--config-map", config_map, "--what-if", other)

    assert status == 0, out.err
    assert "60k" in out.out
    assert "70k" in out.out
    assert "+10k" in out.out


def test_zones_devices_and_the_config_map_of_the_dump_count(dump, capsys):
    found = json.loads(dump.read_text())
    gpu = {"type": "gpu", "health": True, "resources": {"koordinator.sh/gpu-core": "100"}}
    others = [
        ("topology.node.k8s.io/v1alpha1", "NodeResourceTopology",
         topology((50, "50G"), (50, "50G"))),
        ("scheduling.koordinator.sh/v1alpha1", "Device",
         {"metadata": {"name": "n1"}, "spec": {"devices": [gpu]}}),
        ("v1", "ConfigMap",
         {"metadata": {"name": "slo-controller-config", "namespace": "koordinator-system"},
          "data": {"colocation-config": '{"enable":true,"cpuReclaimThresholdPercent":70}'}}),
        ("v1", "ConfigMap", {"metadata": {"name": "other", "namespace": "koordinator-system"}}),
    ]  # fmt: skip
    found["items"] += [{"apiVersion": at, "kind": kind, **item} for at, kind, item in others]
    dump.write_text(json.dumps(found))

    status, out = run(
        capsys, "--from", dump, "--set", "cpuReclaimThresholdPercent=50", "--output", "json"
    )

    assert status == 0, out.err
    plan = json.loads(out.out)
    assert plan["totals"][BATCH_CPU] == {"before": 40000, "after": 20000, "gained": -20000}
    assert plan["totals"]["koordinator.sh/gpu-core"]["after"] == 100
    zones = plan["nodes"][0]["zones"]
    assert {name: each[BATCH_CPU] for name, each in zones.items()} == {
        "node-0": "10k",
        "node-1": "10k",
    }


def test_a_strategy_that_is_rejected_is_an_error(dump, capsys):
    status, out = run(capsys, "--from", dump, "--set", "cpuReclaimThresholdPercent=-5")

    assert status == 2
    assert "cpuReclaimThresholdPercent" in out.err


def test_an_unknown_node_is_an_error(dump, capsys):
    status, out = run(capsys, "--from", dump, "--node", "n9")

    assert status == 2
    assert "--node" in out.err


def test_settings_are_fields_with_values():
    assert plan._setting("a=7") == ("a", 7)
    assert plan._setting("a=text") == ("a", "text")


def test_an_explanation_shows_what_takes_off(capsys):
    found = facts(
        node(quantities(cpu=100, memory="100G")),
        [pod("be", {BATCH_CPU: "90000"}, qos="BE")],
        report(node=usage(1, 1), system=usage(1, "1G")),
    )
    result = calculate(found)
    text = node_report(found, result, insufficient_resources(result, found))

    show(text, lambda: explanation_view(text), "table")

    out = capsys.readouterr().out
    assert "kubernetes.io/batch-cpu: 59k (on the node: none), by BatchResource" in out
    assert "safety margin" in out
    assert "none of koordinator.sh/gpu" in out
    assert "90000 held by 1 pods: default/be" in out
