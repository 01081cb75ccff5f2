"""LowNodeUtilization and HighNodeUtilization. Source: the Kubernetes descheduler's guide."""

from typing import Any

import pytest

from koord.util.errors import KoordError
from koord_descheduler.plugin import Action
from koord_descheduler.plugin.testing import FakeCluster, PluginHarness
from koord_descheduler_plugins.node_utilization import HighNodeUtilization, LowNodeUtilization

LOW = {"thresholds": {"cpu": 30, "pods": 30}, "targetThresholds": {"cpu": 50, "pods": 50}}
HIGH = {"thresholds": {"cpu": 30, "pods": 30}}


def cluster_of(**pods: list[int]) -> FakeCluster:
    """Nodes of 4 cores and 10 pods, with pods that request so many milli-cores each."""
    cluster = FakeCluster()
    for node, requests in pods.items():
        cluster.node(node, cpu=4, memory="16Gi", pods=10)
        for number, milli in enumerate(requests):
            cluster.pod(f"{node}-{number}", node, cpu=f"{milli}m")
    return cluster


async def verdicts(plugin: Any, cluster: FakeCluster, args: object) -> dict[str, str]:
    async with PluginHarness(plugin, cluster, args=args) as harness:
        await harness.cycle()
        return {one.node: one.verdict for one in harness.decisions.nodes()}


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        (LOW, {"full": "high", "empty": "low", "edge": "low"}),
        ({"thresholds": {"pods": 30}, "targetThresholds": {"pods": 50}},
         {"full": "high", "empty": "low", "half": "low", "edge": "low"}),
        ({"thresholds": {"cpu": 20}, "targetThresholds": {"cpu": 100}}, {"empty": "low"}),
        # the mean of 75, 50, 30 and 0 percent is 38.75
        ({"useDeviationThresholds": True, "thresholds": {"cpu": 10},
          "targetThresholds": {"cpu": 10}}, {"full": "high", "half": "high", "empty": "low"}),
        ({"useDeviationThresholds": True, "thresholds": {"cpu": 5},
          "targetThresholds": {"cpu": 30}}, {"full": "high", "edge": "low", "empty": "low"}),
    ],
)  # fmt: skip
async def test_low_is_below_all_thresholds_and_high_above_one(args, wanted):
    """A node at a threshold is below it, and at a target not above it."""
    cluster = cluster_of(full=[500] * 6, half=[1000] * 2, edge=[1200], empty=[])

    assert await verdicts(LowNodeUtilization, cluster, args) == wanted


async def test_pods_leave_until_the_target_is_met(round_of):
    """75 percent of 4 cores: two pods of 500m have to go."""
    cluster = cluster_of(full=[500] * 6, empty=[])
    gone, found = await round_of(LowNodeUtilization, cluster, LOW)

    assert gone == ["full-0", "full-1"]
    why = "its node has too many requests"
    assert found["full-0"] == (Action.EVICT, why)
    assert found["full-5"] == (Action.STAY, f"{why}, but enough others leave")


async def test_no_low_node_is_filled_beyond_its_target(round_of):
    """Both have room for 2 cores; the third pod of 1.5 cores finds none."""
    cluster = cluster_of(a=[1500, 1500], b=[1500, 1500], c=[], d=[400])
    gone, _ = await round_of(LowNodeUtilization, cluster, LOW)

    assert gone == ["a-0", "b-0"]
    cluster = cluster_of(a=[1500, 1500], b=[1500, 1500], c=[])
    gone, found = await round_of(LowNodeUtilization, cluster, LOW)
    assert gone == ["a-0"]
    assert found["b-0"][1].endswith("but it fits no node that could take it")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"numberOfNodes": 1}, "only 1 nodes are low, not more than numberOfNodes"),
        ({"thresholds": {"cpu": 1}, "targetThresholds": {"cpu": 90}}, "no node is high"),
    ],
)
async def test_nothing_is_done_and_said_why(change, reason):
    cluster = cluster_of(full=[500] * 6, empty=[])
    async with PluginHarness(LowNodeUtilization, cluster, args={**LOW, **change}) as harness:
        await harness.cycle()
        assert harness.evicted == []
        assert all(one.reason.endswith(reason) for one in harness.decisions.nodes())


async def test_a_cordoned_node_is_not_low(round_of):
    cluster = cluster_of(full=[500] * 6, empty=[])
    cluster.node("empty", unschedulable=True)

    assert (await round_of(LowNodeUtilization, cluster, LOW))[0] == []


async def test_the_least_important_pods_go_first(round_of):
    """By priority, none being the lowest, then by QoS class."""
    cluster = cluster_of(full=[], empty=[])
    for name, priority, qos in (
        ("high", 1000, "BestEffort"),
        ("guaranteed", 5, "Guaranteed"),
        ("burstable", 5, "Burstable"),
        ("none", None, "Guaranteed"),
    ):
        cluster.pod(name, "full", cpu=1, priority=priority, qos=qos)
    gone, _ = await round_of(LowNodeUtilization, cluster, LOW)

    assert gone == ["none", "burstable"]


async def test_protected_pods_and_namespaces_stay(round_of):
    cluster = cluster_of(full=[1000] * 2, empty=[])
    cluster.pod("system", "full", cpu=1, namespace="kube-system")
    args = {**LOW, "evictableNamespaces": {"exclude": ["kube-system"]}}
    gone, found = await round_of(LowNodeUtilization, cluster, args, protected=["default/full-0"])

    assert gone == ["full-1"]
    assert found["full-0"][0] is Action.REFUSED
    assert "system" not in found


async def test_eviction_limits_of_the_plugin(round_of):
    cluster = cluster_of(a=[500] * 8, b=[500] * 7, empty=[])
    args = {**LOW, "evictionLimits": {"node": 1}}

    assert (await round_of(LowNodeUtilization, cluster, args))[0] == ["a-0", "b-0"]


async def test_a_pod_that_fits_no_low_node_stays(round_of):
    """Kubernetes' plugin asks for taints alone there."""
    cluster = cluster_of(full=[500] * 6, empty=[])
    for number in range(6):
        spec = {"nodeSelector": {"disk": "ssd"}}
        cluster.pod(f"full-{number}", "full", cpu="500m", spec=spec)

    assert (await round_of(LowNodeUtilization, cluster, LOW))[0] == []


async def test_low_nodes_become_empty(round_of):
    """Pods go to the fullest node that has room for them."""
    cluster = cluster_of(lonely=[200, 300], most=[3000], half=[2000])
    async with PluginHarness(HighNodeUtilization, cluster, args=HIGH) as harness:
        await harness.cycle()
        assert [one.pod.name for one in harness.evicted] == ["lonely-0", "lonely-1"]
        assert {one.candidates for one in harness.decisions.pods()} == {("most",)}


async def test_the_emptiest_first_and_never_more_than_fits(round_of):
    cluster = cluster_of(a=[1000], b=[600], c=[3000])
    gone, found = await round_of(HighNodeUtilization, cluster, HIGH)

    assert gone == ["b-0"]
    assert found["a-0"][0] is Action.STAY


@pytest.mark.parametrize(
    ("modes", "goes"), [(["OnlyThresholdingResources"], ["a-0"]), (None, ["a-0"])]
)
async def test_by_default_only_pods_that_request_such_resources_go(round_of, modes, goes):
    cluster = cluster_of(a=[100, 0], c=[3000])
    args = HIGH if modes is None else {**HIGH, "evictionModes": modes}

    assert (await round_of(HighNodeUtilization, cluster, args))[0] == goes


async def test_without_eviction_modes_all_pods_go(round_of):
    cluster = cluster_of(a=[100, 0], c=[3000])

    args = {**HIGH, "evictionModes": []}

    assert sorted((await round_of(HighNodeUtilization, cluster, args))[0]) == ["a-0", "a-1"]


@pytest.mark.parametrize(
    ("change", "cluster"),
    [
        ({}, cluster_of(a=[100], b=[100])),  # all nodes are low
        ({"numberOfNodes": 1}, cluster_of(a=[100], b=[3000])),
        ({}, cluster_of(a=[2000], b=[2000])),  # none is
    ],
)
async def test_high_node_utilization_does_nothing(round_of, change, cluster):
    assert (await round_of(HighNodeUtilization, cluster, {**HIGH, **change}))[0] == []


async def test_extended_resources_count(round_of):
    cluster = FakeCluster()
    gpu = {"resources": {"requests": {"example.com/gpu": "1"}}}
    for name in ("a", "b"):
        cluster.node(name, allocatable={"example.com/gpu": 4})
    for number in range(3):
        cluster.pod(f"p{number}", "a", spec={"containers": [{"name": "c", **gpu}]})
    resource = "example.com/gpu"
    args = {"thresholds": {resource: 30}, "targetThresholds": {resource: 50}}

    assert (await round_of(LowNodeUtilization, cluster, args))[0] == ["p0"]


@pytest.mark.parametrize(
    ("plugin", "args"),
    [
        (LowNodeUtilization, {}),
        (LowNodeUtilization, {"thresholds": {"cpu": 60}, "targetThresholds": {"cpu": 50}}),
        (LowNodeUtilization, {"thresholds": {"cpu": 10}, "targetThresholds": {"memory": 50}}),
        (LowNodeUtilization, {**LOW, "evictableNamespaces": {"include": ["a"]}}),
        (HighNodeUtilization, {}),
        (HighNodeUtilization, {"thresholds": {"cpu": 101}}),
        (HighNodeUtilization, {"thresholds": {"cpu": 20}, "evictionModes": ["All"]}),
    ],
)
def test_bad_arguments(plugin, args):
    with pytest.raises(KoordError):
        PluginHarness(plugin, cluster_of(a=[]), args=args)
