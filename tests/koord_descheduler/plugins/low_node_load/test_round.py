"""Rounds of the plugin: what exact does that no scenario of spec 06 has, bad figures, dry-run."""

import json
import threading
from typing import Any

import pytest

from koord.cluster import kinds
from koord.kube.client import NODE_TOPOLOGIES
from koord_descheduler.plugin import (
    Action,
    HypotheticalCluster,
    Migration,
    NodeDecision,
    PodDecision,
)
from koord_descheduler.plugin.testing import (
    FakeCluster,
    PluginHarness,
    RecordingEvictor,
    make_report,
)
from tests.support.descheduler.low_node_load import (
    N,
    P,
    build,
    cpu,
    harness,
    load_args,
    names,
    report,
)

ARGS = load_args(**cpu(30, 60))
HOT = {"n1": N({"a": 3000, "b": 3000, "c": 3000}), "n2": N({"z": 500})}


async def evicted(cluster: FakeCluster, args: Any = ARGS, **more: Any) -> list[str]:
    """Names of the pods that one round evicts."""
    async with harness(cluster, args, **more) as found:
        result = await found.cycle()
        assert not result.errors
        return names(found)


def decided(found: PluginHarness) -> tuple[dict[str, NodeDecision], dict[str, PodDecision]]:
    decisions = found.decisions
    return {one.node: one for one in decisions.nodes()}, {one.pod: one for one in decisions.pods()}


async def test_a_node_is_acted_on_once_for_a_report() -> None:
    """n1 stays high, as one pod may go in a cycle; the next report is acted on again."""
    nodes = {"n1": N(dict.fromkeys("abcd", 2200)), "n2": N({"z": 500})}
    cluster = build(nodes)
    async with harness(cluster, ARGS, maxNoOfPodsToEvictPerNode=1) as found:
        await found.cycle()
        assert names(found) == ["a"]
        await cluster.clock.advance(10)
        await found.cycle()
        assert names(found) == ["a"]
        assert "still have pods that have left" in decided(found)[0]["n1"].reason
        report(cluster, {"n1": N(dict.fromkeys("bcd", 2200)), "n2": N({"z": 500})})
        await found.cycle()
        assert names(found) == ["a", "b"]


async def test_a_percentile_is_acted_on_again_when_its_window_has_passed() -> None:
    """For so long it has what a used; b and c are not more than n1 should have."""
    percentile = {"cpu": "9", "memory": "3Gi"}
    cluster = build(HOT)
    args = {**ARGS, "usageAggregationType": "p95"}
    async with harness(cluster, args) as found:
        left = []
        for passed in range(0, 480, 60):
            pods = [one for one in "abc" if one not in names(found)]
            cluster.state.put(
                kinds.NODE_METRIC,
                make_report(
                    "n1",
                    at=cluster.clock.wall(),
                    usage=percentile,
                    system={"cpu": 0, "memory": 0},
                    pods={f"default/{pod}": {"cpu": "3", "memory": "1Gi"} for pod in pods},
                    window="5m0s",
                ),
            )
            report(cluster, {"n2": N({"z": 500})})
            await found.cycle()
            left += [passed] * (len(names(found)) - len(left))
            await cluster.clock.advance(60)
        assert left == [0, 360]


async def test_in_dry_run_each_round_says_the_same() -> None:
    """No pod has moved, so nothing is waited for."""
    for args, settings in (({**ARGS, "dryRun": True}, {}), (ARGS, {"dryRun": True})):
        async with harness(build(HOT), args, **settings) as found:
            said = []
            for _ in range(2):
                await found.cycle()
                pods = decided(found)[1].values()
                said.append([(one.pod, one.action, one.candidates) for one in pods])
            assert names(found) == []
            assert said[0] == said[1]
            assert ("default/a", Action.EVICT, ("n2",)) in said[0]


@pytest.mark.parametrize("planner", ["exact", "koordinator"])
@pytest.mark.parametrize(
    ("own", "top", "counted"),
    [(True, False, 0), (False, True, 1)],
)
async def test_dry_run_and_the_limits(planner: str, own: bool, top: bool, counted: int) -> None:
    """The plugin's does not ask the evictor; that of the process does, and limits count."""
    args = {**ARGS, "dryRun": own, "planner": planner}
    async with harness(build(HOT), args, dryRun=top) as found:
        result = await found.cycle()
        assert sum(result.evictions.get("test", {}).values()) == counted
        assert found.evicted == []


async def test_paused() -> None:
    assert await evicted(build(HOT), {**ARGS, "paused": True}) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, ["a"]),
        ({"evictableNamespaces": {"exclude": ["default"]}}, []),
        ({"evictableNamespaces": {"include": ["other"]}}, []),
        ({"podSelectors": [{"selector": {"matchLabels": {"app": "x"}}}]}, []),
        ({"podSelectors": [{"name": "none"}]}, ["a"]),
    ],
)
@pytest.mark.parametrize("planner", ["exact", "koordinator"])
async def test_pods_that_are_chosen(change: Any, expected: list[str], planner: str) -> None:
    """By namespace and label; an entry without a selector is ignored."""
    assert await evicted(build(HOT), {**ARGS, **change, "planner": planner}) == expected


async def test_new_pods_count_by_their_requests() -> None:
    """n2 has got a pod of 3 cores that no NodeMetric has: a does not fit any more."""
    fresh = P(0, measured=False, facts={"cpu": "3"})
    nodes = {**HOT, "n2": N({"z": 500, "fresh": fresh})}
    assert await evicted(build(nodes)) == []
    nodes = {**HOT, "n2": N({"z": 500, "fresh": P(0, measured=False, facts={"cpu": "2"})})}
    assert await evicted(build(nodes)) == ["a"]


@pytest.mark.parametrize("planner", ["exact", "koordinator"])
async def test_requests_of_a_new_pod_evict_nothing(planner: str) -> None:
    """n0 uses 40 %; a pod that requests half of it, and uses little, comes between two reports."""
    nodes = {"n0": N({name: P(1600) for name in "abcd"}, cpu=16), "n1": N({}, cpu=16)}
    cluster = build(nodes)
    cluster.pod("fresh", "n0", priority=9000, cpu="8")
    args = {
        **cpu(30, 65),
        "anomalyCondition": {"consecutiveAbnormalities": 5},
        "planner": planner,
    }
    async with harness(cluster, args) as found:
        for _ in range(8):
            await found.cycle()
            await cluster.clock.advance(10)
        assert names(found) == []


async def test_a_pod_on_its_way_makes_its_target_no_source() -> None:
    """n2 uses 50 %, and with a it will use 80 %: z stays until that has been measured."""
    nodes = {"n1": N({"a": 3000}), "n2": N({"y": 2500, "z": 2500}), "n3": N({"x": 500})}
    cluster = build(nodes)
    async with harness(cluster, ARGS) as found:
        found.services.migrations.put(
            Migration(pod="default/a", uid="uid-default-a", node="n1", target="n2")
        )
        await found.cycle()
        assert names(found) == []


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("n2", []),  # a is gone from n1, and n2 is full with it
        ("", []),  # it would go to n2
        ("elsewhere", []),
    ],
)
async def test_pods_on_their_way_are_gone_and_come(target: str, expected: list[str]) -> None:
    """n1 is at its limit without a; b fits n2 only without a."""
    nodes = {"n1": N({"a": 3000, "b": 3000, "c": 3000}), "n2": N({"z": 500})}
    cluster = build(nodes)
    async with harness(cluster, ARGS) as found:
        found.services.migrations.put(
            Migration(pod="default/a", uid="uid-default-a", node="n1", target=target)
        )
        await found.cycle()
        assert names(found) == expected


async def test_room_that_a_pod_on_its_way_takes() -> None:
    """n1 is high without a, too; with a on n2 or n3, only one of b and c finds room."""
    nodes = {
        "n1": N({"a": 3000, "b": 3500, "c": 3500, "d": 3000}),
        "n2": N({"y": 500}),
        "n3": N({"z": 2900}),
    }
    for target in ("n2", ""):
        cluster = build(nodes)
        async with harness(cluster, ARGS) as found:
            found.services.migrations.put(
                Migration(pod="default/a", uid="uid-default-a", node="n1", target=target)
            )
            await found.cycle()
            assert names(found) == ["d"]
            assert decided(found)[1]["default/a"].reason == "it is on its way already"


def being_deleted(name: str, node: str) -> dict[str, Any]:
    return {
        "kind": "pod",
        "metadata": {
            "name": name,
            "uid": f"uid-default-{name}",
            "namespace": "default",
            "deletionTimestamp": "2026-07-24T06:52:45Z",
        },
        "spec": {"nodeName": node, "containers": []},
        "status": {"phase": "Running"},
    }


async def test_a_pod_that_is_being_deleted_counts_as_gone() -> None:
    cluster = build(HOT)
    cluster.apply(being_deleted("a", "n1"))
    assert await evicted(cluster) == []


@pytest.mark.parametrize(("leaves", "expected"), [(1000, ["a"]), (3000, [])])
async def test_a_pod_that_leaves_a_target_takes_its_room_until_it_is_gone(
    leaves: int, expected: list[str]
) -> None:
    """n2 can take 5.5 cores beside z: with 3 that are still used, a is too much."""
    pods = {"z": 500, "old": leaves}
    cluster = build({**HOT, "n2": N(pods)})
    cluster.apply(being_deleted("old", "n2"))
    assert await evicted(cluster) == expected

    cluster = build({**HOT, "n2": N(pods)})
    async with harness(cluster, ARGS) as found:
        found.services.migrations.put(
            Migration(pod="default/old", uid="uid-default-old", node="n2", target="elsewhere")
        )
        await found.cycle()
        assert names(found) == expected


async def test_budgets_are_looked_at_and_counted() -> None:
    """One of app x may go, so the second pod is one of another app."""
    labels = {"labels": {"app": "x"}}
    pods = {name: P(1500, facts=labels) for name in ("a", "b", "c")}
    nodes = {"n1": N({**pods, "d": 1400, "e": 3000}), "n2": N({}), "n3": N({})}
    cluster = build(nodes)
    cluster.budget("x", {"app": "x"}, allowed=1)
    async with harness(cluster, ARGS, protected=["default/e"]) as found:
        await found.cycle()
        assert names(found) == ["a", "d"]
        reasons = {pod: one.reason for pod, one in decided(found)[1].items()}
    assert reasons["default/b"] == "the PodDisruptionBudget x allows no eviction now"


@pytest.mark.parametrize(("system", "host"), [(7000, 0), (0, 7000)])
async def test_high_by_what_is_no_pods(system: int, host: int) -> None:
    """Pods would leave in vain."""
    nodes = {"n1": N({"a": 1000}, system=system, host=host), "n2": N({"z": 500})}
    async with harness(build(nodes), ARGS) as found:
        await found.cycle()
        assert names(found) == []
        assert decided(found)[0]["n1"].reason.endswith("nothing to move")


async def test_a_pod_that_relieves_next_to_nothing_stays() -> None:
    """1 % of the excess is not worth a restart."""
    nodes = {"n1": N({"a": 20, "b": 8000}), "n2": N({"z": 500})}
    async with harness(build(nodes), ARGS) as found:
        await found.cycle()
        assert names(found) == []
        pods = decided(found)[1]
    assert pods["default/a"].reason == "it takes too little of what its node has too much of"
    assert "no low node would stay below" in pods["default/b"].reason


async def test_data_that_a_move_costs() -> None:
    """Of equal pods the one without data on its node goes."""
    volumes = {"spec": {"volumes": [{"name": "d", "emptyDir": {}}]}}
    nodes = {"n1": N({"a": P(4000, facts=volumes), "b": 4000}), "n2": N({"z": 500})}
    assert await evicted(build(nodes)) == ["b"]


async def test_the_prod_limit_of_a_target_bounds_prod_pods_only() -> None:
    """n2 can take 3500m of prod pods: a and f, but not b, d or e with a; c is none."""
    prod = {"prodLowThresholds": {"cpu": 30}, "prodHighThresholds": {"cpu": 40}}
    batch = P(500, facts={"priority": 5500})
    pods = {"a": 2000, "b": 2000, "c": batch, "d": 2000, "e": 1900, "f": 1500}
    nodes = {"n1": N(pods), "n2": N({"z": 500})}
    assert await evicted(build(nodes), load_args(**cpu(30, 70), **prod)) == ["c", "a", "f"]


@pytest.mark.parametrize("planner", ["exact", "koordinator"])
async def test_without_thresholds_nothing_is_high(planner: str) -> None:
    """As in the shipped configuration of Koordinator."""
    assert await evicted(build(HOT), {"planner": planner}) == []


async def test_requests_of_pods_that_come_count() -> None:
    """n2 has room for the requests of one more pod."""
    big = {"cpu": "3"}
    nodes = {
        "n1": N({name: P(1500, facts=big) for name in ("a", "b")} | {"c": 6000}),
        "n2": N({"z": P(500, facts={"cpu": "5"})}),
    }
    assert await evicted(build(nodes), protected=["default/c"]) == ["a"]
    without = {**ARGS, "nodeFit": False}
    assert await evicted(build(nodes), without, protected=["default/c"]) == ["a", "b"]


async def test_pods_go_where_the_load_is_least() -> None:
    nodes = {"n1": N({"a": 1000, "b": 7000}), "n2": N({"y": 2000}), "n3": N({"z": 1000})}
    async with harness(build(nodes), {**ARGS, "highThresholds": {"cpu": 75}}) as found:
        await found.cycle()
        assert decided(found)[1]["default/a"].candidates == ("n3", "n2")


@pytest.mark.parametrize(
    ("age", "reason"),
    [
        (180.0, "its NodeMetric is 180 s old"),
        (-61.0, "its NodeMetric is 61 s from the future"),
    ],
)
async def test_old_figures_and_those_of_the_future(age: float, reason: str) -> None:
    """The node is left alone, and is no target."""
    nodes = {**HOT, "n2": N({"z": 500}, age=age)}
    async with harness(build(nodes), ARGS) as found:
        await found.cycle()
        assert names(found) == []
        node = decided(found)[0]["n2"]
    assert (node.verdict, node.reason) == ("left alone", reason)


async def test_clocks_may_differ_by_half_a_minute() -> None:
    nodes = {**HOT, "n2": N({"z": 500}, age=-30)}
    assert await evicted(build(nodes)) == ["a"]


@pytest.mark.parametrize("planner", ["exact", "koordinator"])
async def test_a_node_without_usable_figures_harms_nobody(planner: str) -> None:
    """No NodeMetric, an empty one, one of a deleted node, absurd usage, no capacity."""
    nodes = {
        **HOT,
        "absurd": N({"x": 900_000}),
        "empty": N({"v": 100}, cpu=0),
        "none": N({"u": 100}),
        "void": N({}),
    }
    cluster = build(nodes)
    cluster.delete("NodeMetric", "none")
    cluster.apply({"kind": "NodeMetric", "metadata": {"name": "void"}})
    cluster.apply({"kind": "NodeMetric", "metadata": {"name": "deleted"}})
    async with harness(cluster, {**ARGS, "planner": planner}) as found:
        assert not (await found.cycle()).errors
        assert "a" in names(found)
        verdicts = {name: one.verdict for name, one in decided(found)[0].items()}
    left_alone = {"none", "void", "absurd", "empty"} if planner == "exact" else {"none", "void"}
    assert {name for name, verdict in verdicts.items() if verdict == "left alone"} == left_alone
    assert "deleted" not in verdicts


async def test_what_is_said_of_nodes_and_pods() -> None:
    """Figures, thresholds in effect, and the threshold that would change the plan."""
    async with harness(build({**HOT, "n3": N({"y": 4000})}), ARGS) as found:
        await found.cycle()
        nodes, pods = decided(found)
    assert {name: one.verdict for name, one in nodes.items()} == {
        "n1": "high",
        "n2": "low",
        "n3": "normal",
    }
    assert nodes["n1"].facts == {
        "cpu_usage_percent": 90.0,
        "cpu_low_percent": 30.0,
        "cpu_high_percent": 60.0,
    }
    assert nodes["n1"].reason == (
        "cpu 90% (low 30%, high 60%); high no more without the pods that leave"
    )
    assert nodes["n1"].hint == "would not be high with highThresholds: cpu 90"
    assert nodes["n3"].hint == (
        "would be high with highThresholds below cpu 40; would be low with lowThresholds: cpu 40"
    )
    assert pods["default/a"].action is Action.EVICT
    assert pods["default/a"].candidates == ("n2",)
    assert pods["default/b"].action is Action.STAY
    assert pods["default/b"].reason == "its node is high no more without it"


async def test_why_nothing_is_done() -> None:
    """On the node that is high."""
    outcomes = {}
    for name, nodes, args in (
        ("none is low", {"n1": HOT["n1"], "n2": N({"z": 4000})}, ARGS),
        ("too few", HOT, {**ARGS, "numberOfNodes": 1}),
        (
            "duration",
            HOT,
            {**ARGS, "anomalyCondition": {"consecutiveAbnormalities": 2}},
        ),
    ):
        async with harness(build(nodes), args) as found:
            await found.cycle()
            assert names(found) == []
            outcomes[name] = decided(found)[0]["n1"].reason.rpartition("; ")[2]
    assert outcomes == {
        "none is low": "no node is low",
        "too few": "1 nodes are low, more than 1 must be",
        "duration": "not for long enough",
    }


async def test_the_relief_is_what_was_measured() -> None:
    async with harness(build(HOT), ARGS) as found:
        await found.cycle()
        relief = found.evicted[0].options.relief
    assert relief is not None
    assert (relief.cpu, relief.memory) == (3.0, 1024 << 20)


@pytest.mark.parametrize("planner", ["exact", "koordinator"])
async def test_percentages_are_rounded_as_in_koordinator(planner: str) -> None:
    """100 * 854 / 1600 is 53.375, which is printed as 53.38; 854 / 1600 * 100 is a bit less."""
    nodes = {"n1": N({"a": 400, "b": 454}, raw='{"cpu":"1600m","memory":"40Gi"}'), "n2": N({})}
    args = {**load_args(**cpu(30, 40)), "planner": planner}
    async with harness(build(nodes), args) as found:
        await found.cycle()
        assert found.evicted[0].options.reason == (
            "node is overutilized, node cpu usage(53.38%)>threshold(40.00%)"
        )


async def test_the_effective_threshold_is_printed() -> None:
    """The mean is 47.5 %, so the limit is 62.5 %."""
    args = load_args(**cpu(10, 15), useDeviationThresholds=True)
    async with harness(build(HOT), args) as found:
        await found.cycle()
        assert found.evicted[0].options.reason == (
            "node is overutilized, node cpu usage(90.00%)>threshold(62.50%)"
        )


@pytest.mark.parametrize("planner", ["exact", "koordinator"])
async def test_long_work_is_done_in_other_threads_and_filters_on_the_loop(
    planner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where pods exclude each other, all pods are looked at; b finds a free node, a does not."""
    threads: dict[str, set[str]] = {"fits": set(), "filter": set()}

    def watch(owner: type, method: str, what: str) -> None:
        original = getattr(owner, method)

        def watched(*args: Any) -> Any:
            threads[what].add(threading.current_thread().name)
            return original(*args)

        monkeypatch.setattr(owner, method, watched)

    watch(HypotheticalCluster, "fits", "fits")
    watch(RecordingEvictor, "filter", "filter")
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"app": "x"}},
    }
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    alone = {"labels": {"app": "x"}, "spec": {"affinity": {"podAntiAffinity": required}}}
    nodes = {
        "n1": N({"a": P(3500, facts=alone), "b": P(3500, facts={"labels": {"app": "x"}})}),
        "n2": N({"y": P(500, facts=alone)}),
        "n3": N({"z": 2000}),
    }
    assert await evicted(build(nodes), {**ARGS, "planner": planner}) == ["a"]
    main = threading.main_thread().name
    assert threads["filter"] == {main}
    assert main not in threads["fits"]


async def test_a_pod_moves_within_its_pool() -> None:
    """n3 is low, but not of the pool gpu; the default pool has no node that is high."""
    pool = {"name": "gpu", "nodeSelector": {"matchLabels": {"pool": "gpu"}}, **cpu(10, 50)}
    gpu = {"pool": "gpu"}
    nodes = {
        "n1": N({"a": 3000, "b": 3000}, labels=gpu),
        "n2": N({"y": 2000}, labels=gpu),
        "n3": N({"z": 500}),
    }
    assert await evicted(build(nodes), {**ARGS, "nodePools": [pool]}) == []
    nodes["n2"] = N({"y": 900}, labels=gpu)
    assert await evicted(build(nodes), {**ARGS, "nodePools": [pool]}) == ["a"]


@pytest.mark.parametrize("planner", ["exact", "koordinator"])
async def test_a_pod_stays_whose_cpus_no_low_node_has(planner: str) -> None:
    """With nodeFit. Pod a has CPUs of its own; n2 has as much CPU, but not as many CPUs."""
    status = {"scheduling.koordinator.sh/resource-status": json.dumps({"cpuset": "0-1"})}
    bound = P(3000, facts={"cpu": "2", "annotations": status})
    nodes = {"n1": N({"a": bound, "b": 3000, "c": 3000}), "n2": N({"z": 500})}
    args = {**ARGS, "planner": planner}
    for cpus, gone in ((1, False), (2, True)):
        cluster = build(nodes)
        async with harness(cluster, args) as found:
            for name in nodes:
                detail = [{"id": one} for one in range(cpus)]
                annotations = {"node.koordinator.sh/cpu-topology": json.dumps({"detail": detail})}
                found.informers.apply(
                    NODE_TOPOLOGIES, {"metadata": {"name": name, "annotations": annotations}}
                )
            await found.cycle()
            assert ("a" in names(found)) == gone
