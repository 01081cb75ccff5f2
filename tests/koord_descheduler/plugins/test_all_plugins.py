"""The whole registry of Koordinator: every plugin is there, and all of them run in one profile."""

import re
from pathlib import Path
from typing import Any

import pytest

from koord_descheduler.plugin.testing import FakeCluster, ProfileHarness, make_workload
from tests.support.descheduler.shipped_plugins import IN_TREE

POINTS = {
    "deschedule": [
        "PodLifeTime",
        "RemoveFailedPods",
        "RemovePodsHavingTooManyRestarts",
        "RemovePodsViolatingInterPodAntiAffinity",
        "RemovePodsViolatingNodeAffinity",
        "RemovePodsViolatingNodeTaints",
    ],
    "balance": [
        "CustomPriority",
        "FragmentationAware",
        "HighNodeUtilization",
        "LowNodeLoad",
        "LowNodeUtilization",
        "RemoveDuplicates",
        "RemovePodsViolatingTopologySpreadConstraint",
        "ScaleDownBinPack",
    ],
    "evict": ["DefaultEvictor"],
    "filter": ["DefaultEvictor", "MigrationController"],
}
ARGS = {  # of those that need some
    "CustomPriority": {
        "evictionOrder": [
            {"name": "dear", "nodeSelector": {"matchLabels": {"cost": "dear"}}},
            {"name": "cheap", "nodeSelector": {"matchLabels": {"cost": "cheap"}}},
        ]
    },
    "HighNodeUtilization": {"thresholds": {"cpu": 20}},
    "LowNodeUtilization": {"thresholds": {"cpu": 20}, "targetThresholds": {"cpu": 50}},
    "PodLifeTime": {"maxPodLifeTimeSeconds": 86400},
    "RemovePodsHavingTooManyRestarts": {"podRestartThreshold": 100},
    "RemovePodsViolatingNodeAffinity": {
        "nodeAffinityType": ["requiredDuringSchedulingIgnoredDuringExecution"]
    },
}


def configuration(evict: str) -> dict[str, Any]:
    points = {**POINTS, "evict": [evict]}
    return {
        "apiVersion": "descheduler/v1alpha2",
        "kind": "DeschedulerConfiguration",
        "profiles": [
            {
                "name": "all",
                "plugins": {
                    point: {
                        "disabled": [{"name": "*"}],
                        "enabled": [{"name": one} for one in names],
                    }
                    for point, names in points.items()
                },
                "pluginConfig": [{"name": name, "args": args} for name, args in ARGS.items()],
            }
        ],
    }


def test_every_plugin_of_the_registry_is_at_its_points():
    found = {name: {str(one) for one in known.points} for name, known in IN_TREE.items()}
    wanted: dict[str, set[str]] = {}
    for point, names in POINTS.items():
        for name in names:
            wanted.setdefault(name, set()).add(point)
    wanted["MigrationController"].add("evict")

    assert found == wanted
    assert len(found) == 16


@pytest.mark.parametrize("evict", ["DefaultEvictor", "MigrationController"])
async def test_all_plugins_run_in_one_profile(evict: str):
    """Found by their entry points, as a third party's are."""
    cluster = FakeCluster()
    owner = make_workload("ReplicaSet", "web")
    for number in range(3):
        cluster.node(f"n{number}", labels={"cost": ("dear", "cheap", "")[number]})
        cluster.pod(f"p{number}", f"n{number}", cpu=1, owner=owner)
    cluster.report()
    async with ProfileHarness(configuration(evict), cluster, installed=True) as harness:
        result = await harness.cycle()

        assert result.errors == []
        rounds = {
            sample.labels["plugin"]
            for family in harness.exposition.collect()
            if family.name == "descheduler_plugin_rounds"
            for sample in family.samples
            if sample.name.endswith("_total")
        }
    assert rounds == {*POINTS["deschedule"], *POINTS["balance"]}


PAGE = (Path(__file__).parents[3] / "docs/descheduler-plugins.md").read_text()


def test_the_page_has_every_plugin():
    assert set(re.findall(r"^\| (\w+) \| (?:balance|deschedule|filter)", PAGE, re.M)) == set(
        IN_TREE
    )


async def test_the_example_of_the_page_runs():
    """Without a CRD of Koordinator."""
    [text] = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
    cluster = FakeCluster()
    for number in range(2):
        cluster.node(f"n{number}")
    cluster.priority_class("production", 1000)
    owner = make_workload("ReplicaSet", "web")
    long_ago = cluster.clock.wall() - 7200
    facts = {"created": long_ago, "status": {"startTime": "1970-01-01T00:00:00Z"}}
    for number, priority in enumerate((1000, 1, 1)):
        cluster.pod(f"p{number}", "n0", owner=owner, priority=priority, **facts)
    cluster.pod("failed", "n1", owner=owner, phase="Failed", **facts)
    async with ProfileHarness(text, cluster, installed=True) as harness:
        assert (await harness.cycle()).errors == []

        assert [pod.name for pod in harness.server.evicted] == ["failed", "p1"]
