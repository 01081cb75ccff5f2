"""A pod that migrates counts where it goes: nothing else leaves in its place in later cycles."""

from typing import Any

import pytest

from koord_descheduler.plugin import Migration, Plugin
from koord_descheduler.plugin.testing import FakeCluster, PluginHarness, make_workload
from koord_descheduler_plugins.custom_priority import CustomPriority
from koord_descheduler_plugins.fragmentation_aware import FragmentationAware
from koord_descheduler_plugins.node_utilization import LowNodeUtilization
from koord_descheduler_plugins.remove_duplicates import RemoveDuplicates
from koord_descheduler_plugins.remove_pods_violating_inter_pod_anti_affinity import (
    RemovePodsViolatingInterPodAntiAffinity,
)
from koord_descheduler_plugins.remove_pods_violating_topology_spread_constraint import (
    RemovePodsViolatingTopologySpreadConstraint,
)

APP = {"app": "x"}
SELECTOR = {"labelSelector": {"matchLabels": APP}}
HOST = {"topologyKey": "kubernetes.io/hostname"}
SPREAD = {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **HOST, **SELECTOR}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
LEVELS = [
    {"name": name, "nodeSelector": {"matchLabels": {"kubernetes.io/hostname": node}}}
    for name, node in (("dear", "n0"), ("cheap", "n1"))
]
CASES: dict[type[Plugin], tuple[Any, dict[str, Any]]] = {
    LowNodeUtilization: (
        {"thresholds": {"cpu": 30}, "targetThresholds": {"cpu": 50}},
        {"cpu": "800m"},
    ),
    RemoveDuplicates: ({}, {"owner": make_workload("ReplicaSet", "web")}),
    RemovePodsViolatingInterPodAntiAffinity: (
        {},
        {"spec": {"affinity": {"podAntiAffinity": {REQUIRED: [{**HOST, **SELECTOR}]}}}},
    ),
    RemovePodsViolatingTopologySpreadConstraint: (
        {},
        {"spec": {"topologySpreadConstraints": [SPREAD]}},
    ),
    FragmentationAware: ({"resources": ["cpu", "memory"]}, {"cpu": "800m"}),
    CustomPriority: ({"evictionOrder": LEVELS}, {"cpu": "2500m"}),
}

PODS = {LowNodeUtilization: 3, RemovePodsViolatingTopologySpreadConstraint: 3}  # else 2
WHERE_TO = (RemovePodsViolatingTopologySpreadConstraint, CustomPriority)  # matters to them


@pytest.mark.parametrize(
    ("plugin", "target"),
    [
        *((one, "n1") for one in CASES),
        *((one, "") for one in CASES if one not in WHERE_TO),
    ],
)
async def test_one_move_is_enough(plugin: type[Plugin], target: str) -> None:
    """Without the migration one pod of n0 leaves; with it none, as n0 is well, or n1 is full."""
    args, facts = CASES[plugin]
    cluster = FakeCluster()
    for name in ("n0", "n1"):
        cluster.node(name)
    for number in range(PODS.get(plugin, 2)):
        cluster.pod(f"p{number}", "n0", labels=APP, **facts)

    async with PluginHarness(plugin, cluster, args=args) as alone:
        await alone.cycle()
        assert [one.key for one in alone.evicted] == ["default/p0"]
    cluster.pod("p0", "n0", labels=APP, **facts)
    async with PluginHarness(plugin, cluster, args=args, protected=["default/p0"]) as found:
        moving = Migration(pod="default/p0", uid="uid-default-p0", node="n0", target=target)
        found.services.migrations.put(moving)
        result = await found.cycle()
        assert not result.errors
        assert found.evicted == []
