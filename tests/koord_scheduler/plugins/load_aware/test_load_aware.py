"""LoadAwareScheduling in its life: arguments, time, restarts, pods and nodes that come and go."""

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from koord.api.annotations import AggregationType
from koord.api.reservation import RESERVE_POD
from koord.cluster.hypothetical import HypotheticalCluster
from koord.component.plugins.args import args_type_of
from koord.component.plugins.discovery import discover
from koord.controlplane.testing import make_pod, make_workload
from koord_scheduler.framework.nodes.adapters import filter_vector
from koord_scheduler.framework.status import CycleInput, CycleState
from koord_scheduler.framework.types import NotedRows
from koord_scheduler.plugin import HintedEvent, PluginRegistry, QueueingHint
from koord_scheduler.plugin.koordinator import PluginRequest
from koord_scheduler_plugins.load_aware import LoadAwareScheduling
from tests.support.scheduler.load_aware import (
    GI,
    RAW,
    THRESHOLDS,
    LoadKit,
    asks,
    make_args,
    scheduled,
)

HOT = {"cpu": 70, "memory": "10Gi"}
COLD = {"cpu": 10, "memory": "10Gi"}
TOO_HOT = "node(s) cpu usage exceed threshold"
EXPIRED = "node(s) nodeMetric expired"
POD = make_pod("new", phase="Pending")


def hot_kit(**args: Any) -> LoadKit:
    kit = LoadKit(**args)
    kit.node()
    kit.report(usage=HOT)
    return kit


def test_it_is_found_through_its_entry_point() -> None:
    """As a third party's."""
    registry = PluginRegistry()
    assert discover(registry) == []
    entry = registry.get("LoadAwareScheduling")
    assert entry is not None
    assert not entry.error


def test_default_arguments() -> None:
    """Koordinator's."""
    args = make_args()
    assert args.resources == ("cpu", "memory")
    assert args.resource_weights == {"cpu": 1, "memory": 1}
    assert args.usage_thresholds == {"cpu": 65, "memory": 95}
    assert args.estimated_scaling_factors == {"cpu": 85, "memory": 70}
    assert (args.node_metric_expiration_seconds, args.filter_expired_node_metrics) == (180, True)


def test_maps_that_are_given() -> None:
    """Thresholds and weights replace their defaults, scaling factors are merged into theirs."""
    args = make_args(
        usageThresholds={"memory": 80},
        estimatedScalingFactors={"cpu": 50},
        dominantResourceWeight=1,
    )
    assert args.usage_thresholds == {"memory": 80}
    assert args.estimated_scaling_factors == {"cpu": 50, "memory": 70}
    assert args.resource_weights == {}


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"nodeMetricExpirationSeconds": 0}, "nodeMetricExpirationSeconds"),
        ({"dominantResourceWeight": 101}, "dominantResourceWeight"),
        ({"resourceWeights": {"cpu": 0}}, "resourceWeights[cpu]"),
        ({"resourceWeights": {"gpu": 1}}, "resourceWeights[gpu]"),
        ({"usageThresholds": {"cpu": 101}}, "usageThresholds[cpu]"),
        ({"prodUsageThresholds": {"cpu": -1}}, "prodUsageThresholds[cpu]"),
        ({"estimatedScalingFactors": {"cpu": 0}}, "estimatedScalingFactors[cpu]"),
        ({"aggregated": {"usageThresholds": {"cpu": 101}}}, "aggregated.usageThresholds[cpu]"),
        ({"aggregated": {"usageAggregationType": "p42"}}, "aggregated.usageAggregationType"),
        ({"aggregated": {"scoreAggregatedDuration": "-5m"}}, "aggregated.scoreAggregatedDuration"),
        ({"nodeMetricExpiredSeconds": 5}, "nodeMetricExpiredSeconds"),
    ],
)
def test_wrong_arguments_are_named(fields: Any, place: str) -> None:
    """By the field that is wrong."""
    declared = args_type_of(LoadAwareScheduling)
    assert declared is not None
    args, faults = declared.read(fields, ())
    assert args is None
    assert [str(fault).split(":")[0] for fault in faults] == [place]


async def test_reports_expire() -> None:
    """Without a further event, from their time on; the node is neither good nor bad then."""
    kit = LoadKit()
    kit.node()
    kit.report(usage=COLD)
    assert kit.reason(POD) == ""
    changes = NotedRows(kit.plugin.filter_changes), NotedRows(kit.plugin.score_changes)
    await kit.clock.advance(179)
    assert kit.reason(POD) == ""
    assert [each.take() for each in changes] == [(), ()]
    await kit.clock.advance(1)
    assert (kit.reason(POD), kit.score(POD)) == (EXPIRED, 0)
    assert [each.take() for each in changes] == [{0}, {0}]
    kit.report(usage=COLD)
    assert (kit.reason(POD), kit.score(POD)) == ("", 93)


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ({}, EXPIRED),
        ({"enableScheduleWhenNodeMetricsExpired": True}, ""),
        ({"filterExpiredNodeMetrics": False}, ""),
        ({"usageThresholds": {"cpu": 0, "memory": 0}}, EXPIRED),
        ({"nodeMetricExpirationSeconds": 600}, TOO_HOT),
    ],
)
def test_what_an_expired_report_means(args: Any, reason: str) -> None:
    """It says nothing about usage, whatever it was."""
    kit = LoadKit(**args)
    kit.node()
    kit.report(usage=HOT, ago=300)
    assert kit.reason(POD) == reason


@pytest.mark.parametrize("status", [{"updateTime": None}, {"updateTime": None, "nodeMetric": None}])
def test_a_report_without_its_time_is_expired(status: Any) -> None:
    """As of an agent that has not reported yet."""
    kit = LoadKit()
    kit.node()
    kit.report(usage=COLD, status=status)
    assert (kit.reason(POD), kit.score(POD)) == (EXPIRED, 0)


def test_a_node_without_usage() -> None:
    """No report, or one without figures: the node passes, but is not preferred."""
    kit = LoadKit()
    kit.node("none")
    kit.node("cold")
    kit.report("cold", status={"nodeMetric": None})
    for name in ("none", "cold"):
        assert (kit.reason(POD, name), kit.score(POD, name)) == ("", 0)


def test_a_report_that_is_deleted() -> None:
    """Is as none."""
    kit = hot_kit()
    assert kit.reason(POD) == TOO_HOT
    kit.remove_report()
    assert kit.reason(POD) == ""


def test_a_report_from_before() -> None:
    """The last one counts, also if its clock went back."""
    kit = hot_kit()
    kit.report(usage=COLD, ago=50)
    assert kit.reason(POD) == ""


def test_pods_of_daemon_sets_pass() -> None:
    """They are for their node, however busy that is."""
    kit = hot_kit()
    pod = make_pod("agent", owner=make_workload("DaemonSet", "agent"))
    assert kit.reason(pod) == ""
    answer = kit.plugin.pre_filter(CycleState(), pod, kit.view())
    assert answer is not None
    assert answer.code.title == "Skip"
    assert kit.plugin.pre_filter(CycleState(), POD, kit.view()) is None


def test_assumed_pods_count_from_reserve_to_unreserve() -> None:
    """As they are on their node in the cluster state."""
    kit = LoadKit()
    kit.node(cpu=16)
    kit.report(usage={"cpu": 9, "memory": 0})
    waiting = kit.pod("other", "", spec=asks("2"), phase="Pending")
    assert kit.reason(POD) == ""
    assert kit.plugin.reserve(CycleState(), waiting, "n") is None
    kit.put(replace(waiting, node="n"))
    assert kit.reason(POD) == TOO_HOT
    kit.put(waiting)
    kit.plugin.unreserve(CycleState(), waiting, "n")
    assert kit.reason(POD) == ""


def test_usage_of_a_pod_that_has_gone_is_taken_off() -> None:
    """Until the next report, which does not have it."""
    kit = LoadKit()
    kit.node()
    there = kit.pod("there", spec=asks("10"), status=scheduled(kit.now - 600))
    used = {there.key: {"cpu": 10, "memory": 0}}
    kit.report(usage=HOT, pods=used)
    assert kit.reason(POD) == TOO_HOT
    kit.remove_pod(there)
    assert kit.reason(POD) == ""
    kit.report(usage=HOT)
    assert kit.reason(POD) == TOO_HOT


@pytest.mark.parametrize("seen_deletion", [True, False])
def test_a_pod_that_was_created_again_does_not_inherit(seen_deletion: bool) -> None:
    """Same name, other uid, after the report: its estimate counts in place of the old usage."""
    kit = LoadKit()
    kit.node(cpu=16)
    old = kit.pod("db-0", spec=asks("8"), status=scheduled(kit.now - 600))
    kit.report(usage={"cpu": 9, "memory": 0}, pods={old.key: {"cpu": 8, "memory": 0}}, ago=10)
    assert kit.score(POD) == (42 + 99) // 2
    if seen_deletion:
        kit.remove_pod(old)
    new = make_pod("db-0", node="n", spec=asks("8"), created=kit.now, phase="Pending")
    kit.put(replace(new, uid="another"))
    load = kit.plugin.table
    load.follow(kit.view())
    entry = load.known("n")
    assert entry is not None
    assert entry.load.of_node(AggregationType.NONE, 0.0)[0] == 9000 - 8000 + 6800


def test_usage_of_a_pod_without_memory_counts_for_cpu() -> None:
    """What the report has of it is not estimated again; what it lacks counts as 0."""
    kit = LoadKit(estimatedSecondsAfterPodScheduled=3600)
    kit.node(cpu=16)
    there = kit.pod("there", spec=asks("8", "8Gi"), status=scheduled(kit.now - 600))
    kit.report(usage={"cpu": 8, "memory": 0}, pods={there.key: {"cpu": "6"}})
    load = kit.plugin.table
    load.follow(kit.view())
    entry = load.known("n")
    assert entry is not None
    cpu, memory = entry.load.of_node(AggregationType.NONE, 0.0)
    assert cpu == 8000 + 6800 - 6000
    assert memory == round(0.7 * 8 * GI)


RESERVE = {"scheduling.koordinator.sh/reserve-pod": "true"}


def test_a_reserve_pod_is_not_estimated() -> None:
    """It stands for a Reservation, and uses nothing; in a what-if too."""
    kit = LoadKit()
    kit.node(cpu=16)
    kit.report(usage={"cpu": 9, "memory": 0})
    before = kit.score(POD)
    kit.pod("room", spec=asks("8"), annotations=RESERVE)
    assert (kit.reason(POD), kit.score(POD)) == ("", before)
    what_if = HypotheticalCluster(kit.view())
    what_if.add(make_pod("more", spec=asks("8"), annotations=RESERVE), "n")
    assert (kit.reason(POD, view=what_if.view()), kit.score(POD, view=what_if.view())) == (
        "",
        before,
    )
    kit.pod("other", spec=asks("8"), annotations={**RESERVE, next(iter(RESERVE)): "false"})
    assert kit.reason(POD) == TOO_HOT


@pytest.mark.parametrize("duration", ["0s", "5m"])
def test_of_two_windows_of_one_length_the_last_counts(duration: str) -> None:
    """As in Koordinator, where it replaces the other one."""
    aggregated = {
        "usageThresholds": {"cpu": 65},
        "usageAggregationType": "p95",
        "usageAggregatedDuration": duration,
    }
    kit = LoadKit(aggregated=aggregated)
    kit.node()
    windows = [
        {"duration": "5m0s", "usage": {"p95": {"resources": {"cpu": cpu, "memory": "0"}}}}
        for cpu in ("10", "70")
    ]
    usage = {"resources": {"cpu": "10", "memory": "0"}}
    metric = {"nodeUsage": usage, "aggregatedNodeUsages": windows}
    kit.report(status={"nodeMetric": metric})
    assert kit.reason(POD) == "node(s) cpu aggregated usage exceed threshold"


def test_a_finished_pod_is_not_estimated() -> None:
    """It uses nothing any more."""
    kit = LoadKit()
    kit.node(cpu=16)
    kit.report(usage={"cpu": 9, "memory": 0})
    kit.pod("job", spec=asks("8"), phase="Pending")
    assert kit.reason(POD) == TOO_HOT
    kit.pod("job", spec=asks("8"), phase="Succeeded")
    assert kit.reason(POD) == ""


def test_a_node_that_is_deleted_and_comes_back() -> None:
    """With its pods and its report, in whichever row."""
    kit = hot_kit()
    kit.node("other")
    kit.report("other", usage=COLD)
    assert (kit.reason(POD), kit.reason(POD, "other")) == (TOO_HOT, "")
    kit.remove_node()
    assert kit.reason(POD, "other") == ""
    kit.node()
    assert (kit.reason(POD), kit.reason(POD, "other")) == (TOO_HOT, "")


def test_a_report_for_a_node_that_is_not_there_yet() -> None:
    """Is there when the node comes."""
    kit = LoadKit()
    kit.report(usage=HOT)
    kit.node()
    assert kit.reason(POD) == TOO_HOT


def test_capacity_is_what_was_there_before_it_was_amplified() -> None:
    """Of each resource that the annotation has."""
    kit = LoadKit()
    kit.node(cpu=192, annotations={RAW: '{"cpu": "96"}'})
    kit.report(usage=HOT)
    assert kit.reason(POD) == TOO_HOT


@pytest.mark.parametrize(
    ("annotation", "reason"),
    [
        ('{"usageThresholds":{"cpu":80}}', ""),
        ('{"usageThresholds":{"cpu":-1}}', TOO_HOT),
        ('{"usageThresholds":{"gpu":1}}', ""),
        ("{", TOO_HOT),
        (
            '{"aggregatedUsage":{"usageThresholds":{"cpu":50},"usageAggregationType":"p95"}}',
            "node(s) cpu aggregated usage exceed threshold",
        ),
        ('{"aggregatedUsage":{"usageThresholds":{"cpu":50}}}', TOO_HOT),
        ('{"prodUsageThresholds":{"cpu":50}}', ""),
    ],
)
def test_thresholds_of_a_node(annotation: str, reason: str) -> None:
    """Each part replaces that of the arguments; the pod is a prod pod."""
    kit = LoadKit()
    kit.node(annotations={THRESHOLDS: annotation})
    kit.report(usage=HOT)
    assert kit.reason(POD) == reason


FOREIGN = {"ephemeral-storage": 90}


@pytest.mark.parametrize(
    ("args", "annotation", "reason"),
    [
        ({}, {"prodUsageThresholds": FOREIGN}, TOO_HOT),
        ({"prodUsageThresholds": {"cpu": 50}}, {"prodUsageThresholds": FOREIGN}, TOO_HOT),
        ({}, {"prodUsageThresholds": {"cpu": 0}}, TOO_HOT),
        ({}, {"prodUsageThresholds": {"cpu": 99, **FOREIGN}}, ""),
        ({"supportedResources": ["ephemeral-storage"]}, {"prodUsageThresholds": FOREIGN}, ""),
        ({}, {"usageThresholds": FOREIGN}, ""),
        ({}, {"aggregatedUsage": {"usageThresholds": FOREIGN, "usageAggregationType": "p95"}}, ""),
    ],
)
def test_thresholds_of_other_resources(args: Any, annotation: Any, reason: str) -> None:
    """A part without resources of the plugin bounds nothing; prod pods have the defaults."""
    kit = LoadKit(**args)
    kit.node(annotations={THRESHOLDS: json.dumps(annotation)})
    kit.report(usage=HOT)
    assert kit.reason(POD) == reason


@pytest.mark.parametrize(("labels", "reason"), [({}, TOO_HOT), ({"x": "batch"}, "")])
def test_prod_thresholds_are_for_prod_pods(labels: Any, reason: str) -> None:
    """Others have the default ones."""
    kit = LoadKit(prodUsageThresholds={"cpu": 20}, usageThresholds={"cpu": 90})
    kit.node()
    there = kit.pod("there", spec=asks("1"), status=scheduled(kit.now - 600))
    used = {
        "namespace": "default",
        "name": there.name,
        "priority": "koord-prod",
        "podUsage": {"resources": {"cpu": "30", "memory": "0"}},
    }
    kit.report(usage=HOT, status={"podsMetric": [used]})
    qos = "BestEffort" if labels else "Burstable"
    assert kit.reason(make_pod("new", phase="Pending", qos=qos)) == reason


@pytest.mark.parametrize(
    ("duration", "reported", "reason"),
    [
        ("0s", "10m0s", "node(s) cpu aggregated usage exceed threshold"),
        ("10m", "10m0s", "node(s) cpu aggregated usage exceed threshold"),
        ("10m", "5m0s", ""),
    ],
)
def test_percentiles(duration: str, reported: str, reason: str) -> None:
    """Of the window that is asked for, 0 for the longest; without it the mean counts."""
    aggregated = {
        "usageThresholds": {"cpu": 65},
        "usageAggregationType": "p95",
        "usageAggregatedDuration": duration,
    }
    kit = LoadKit(aggregated=aggregated)
    kit.node()
    kit.report(usage=COLD, p95=HOT, window=reported)
    assert kit.reason(POD) == reason


def test_a_resource_that_a_node_lacks_is_not_its_scarcest() -> None:
    """It would force every score to 0."""
    kit = LoadKit(supportedResources=["example.com/gpu"], dominantResourceWeight=1)
    kit.node()
    kit.report(usage={"cpu": 0, "memory": 0})
    assert kit.score(POD) == 99


def test_further_resources() -> None:
    """Their usage is as reported."""
    gpu = "example.com/gpu"
    kit = LoadKit(usageThresholds={gpu: 50}, estimatedScalingFactors={gpu: 100})
    kit.node(allocatable={gpu: 4})
    usage = {"resources": {"cpu": "1", "memory": "1Gi", gpu: "2"}}
    kit.report(status={"nodeMetric": {"nodeUsage": usage}})
    assert kit.reason(POD) == ""
    wants = {"containers": [{"name": "m", "resources": {"requests": {gpu: "1"}}}]}
    assert kit.reason(make_pod("new", spec=wants)) == f"node(s) {gpu} usage exceed threshold"


def test_a_restart_changes_nothing() -> None:
    """All that counts is in the cluster."""
    kit = LoadKit()
    kit.node(cpu=16)
    kit.pod("there", spec=asks("2"), status=scheduled(kit.now - 5))
    kit.report(usage={"cpu": 9, "memory": 0})
    assert kit.reason(POD) == TOO_HOT
    before = kit.score(POD)
    kit.plugin = kit.another()
    assert (kit.reason(POD), kit.score(POD)) == (TOO_HOT, before)


async def test_at_the_start_nodes_are_counted_some_at_a_time() -> None:
    """Also those that come meanwhile; all else goes on in between."""
    kit = LoadKit()
    for at in range(50):
        kit.node(f"n{at}")
        kit.report(f"n{at}", usage=HOT)
    turns: list[int] = []

    async def others() -> None:
        while True:
            await kit.clock.sleep(0)
            turns.append(sum(kit.plugin.table.known(f"n{at}") is not None for at in range(51)))
            if len(turns) == 1:
                kit.node("n50")
                kit.report("n50", usage=HOT)

    extra_plugins = asyncio.ensure_future(others())
    await kit.services.hooks.run()
    extra_plugins.cancel()
    assert 0 < turns[0] < 50
    assert all(kit.plugin.table.known(f"n{at}") for at in range(51))
    assert all(kit.reason(POD, f"n{at}") for at in range(51))


def test_in_a_what_if_added_pods_count_and_removed_ones_too() -> None:
    """Load does not go with a pod at once, so it is no reason to evict one."""
    kit = LoadKit()
    kit.node("m", cpu=16)
    kit.node(cpu=16)
    there = kit.pod("there", spec=asks("2"), phase="Pending")
    kit.report(usage={"cpu": 6, "memory": 0})
    view = kit.view()
    added = make_pod("nominated", spec=asks("3"), phase="Pending")
    what_if = HypotheticalCluster(view)
    what_if.add(added, "n")
    assert kit.reason(POD, view=what_if.view()) == TOO_HOT
    assert kit.score(POD, view=what_if.view()) < kit.score(POD, view=view)
    keys = [kit.plugin.filter_reuse_key(CycleState(), POD, each) for each in (view, what_if.view())]
    assert keys[0] == keys[1]  # but the pod's own row, nothing is another one
    keys = [kit.plugin.score_reuse_key(CycleState(), POD, each) for each in (view, what_if.view())]
    assert keys[0] == keys[1]
    assert kit.reason(POD) == ""
    other = HypotheticalCluster(view)
    other.remove(there.key, "n")
    assert kit.score(POD, view=other.view()) == kit.score(POD)


def test_a_what_if_before_anything_else() -> None:
    """Its rows are not taken for those of the cluster."""
    kit = LoadKit()
    kit.node(cpu=16)
    kit.report(usage={"cpu": 9, "memory": 0})
    what_if = HypotheticalCluster(kit.view())
    what_if.add(make_pod("nominated", spec=asks("3"), phase="Pending"), "n")
    assert kit.reason(POD, view=what_if.view()) == TOO_HOT
    assert kit.reason(POD) == ""


def test_statuses_of_several_nodes() -> None:
    """Each has its own reason; those that pass have none."""
    kit = LoadKit()
    reports = {"cpu": HOT, "memory": {"cpu": 1, "memory": "510Gi"}, "good": COLD}
    for name, usage in reports.items():
        kit.node(name)
        kit.report(name, usage=usage)
    kit.node("old")
    kit.report("old", usage=COLD, ago=500)
    view = kit.view()
    verdicts = filter_vector(kit.plugin, CycleInput(CycleState(), POD, view))
    found = {
        view.node(row).name: verdicts.rejections[number - 1].message if number else ""
        for row, number in enumerate(verdicts.numbers.tolist())
    }
    assert found == {
        "cpu": TOO_HOT,
        "memory": "node(s) memory usage exceed threshold",
        "good": "",
        "old": EXPIRED,
    }


def hints(kit: LoadKit) -> Iterable[HintedEvent]:
    return kit.plugin.events_to_register()


def test_a_report_helps_if_its_node_passes_then() -> None:
    """Also when usage has grown, but the report is fresh again."""
    kit = hot_kit()
    assert kit.reason(POD) == TOO_HOT
    (hint,) = (one.hint for one in hints(kit) if one.event.resource.startswith("nodemetrics"))
    assert hint is not None
    reports = kit.state.reports
    old = reports["n"]
    kit.report(usage={"cpu": 66, "memory": 0})
    assert hint(POD, old, reports["n"]) is QueueingHint.SKIP
    old = reports["n"]
    kit.report(usage={"cpu": 50, "memory": 0})
    assert hint(POD, old, reports["n"]) is QueueingHint.QUEUE
    assert hint(POD, reports["n"], None) is QueueingHint.QUEUE
    kit.report("unknown", usage=HOT)
    assert hint(POD, None, reports["unknown"]) is QueueingHint.QUEUE


def test_the_deletion_of_a_pod_that_had_a_node_helps() -> None:
    """Of one that waits, it does not."""
    kit = hot_kit()
    (hint,) = (one.hint for one in hints(kit) if one.event.resource == "Pod")
    assert hint is not None
    assert hint(POD, make_pod("x", node="n"), None) is QueueingHint.QUEUE
    assert hint(POD, make_pod("x"), None) is QueueingHint.SKIP


async def test_the_document_of_a_node() -> None:
    """Its pods, the oldest first, and what is counted of them; by the plugin's REST endpoint."""
    kit = LoadKit()
    kit.node()
    old = kit.pod("old", spec=asks("2", "1Gi"), status=scheduled(kit.now - 600))
    kit.pod("new", spec=asks("1"), phase="Pending")
    (endpoint,) = kit.plugin.endpoints()

    async def document(node: str = "n") -> Any:
        parameters = endpoint.match("GET", f"node/{node}")
        assert parameters is not None
        return await endpoint.answer(PluginRequest(parameters=parameters))

    assert (await document()).keys() == {"pods"}
    kit.report(usage=COLD, pods={old.key: {"cpu": 1, "memory": 0}})
    found = await document()
    assert [one["pod"]["metadata"]["name"] for one in found["pods"]] == ["old", "new"]
    assert found["pods"][0]["timestamp"] == "2023-11-14T22:03:20Z"
    assert "timestamp" not in found["pods"][1]
    assert found["nodeDelta"] == {"cpu": "850m", "memory": str(200 << 20)}
    assert found["nodeEstimated"]["cpu"] == "2550m"
    assert found["prodUsage"] == {"cpu": "0m", "memory": "0"}
    assert found["prodDelta"]["cpu"] == "2550m"
    assert found["nodeDeltaPods"] == ["default/new"]
    assert found["prodDeltaPods"] == ["default/new", "default/old"]
    assert found["nodeEstimatedPods"] == ["default/new", "default/old"]
    busy = kit.pod("busy", spec=asks("1", "1Gi"), status=scheduled(kit.now - 5))
    kit.report(usage=COLD, pods={busy.key: {"cpu": 2, "memory": "2Gi"}})
    assert (await document())["nodeDeltaPods"] == ["default/new", "default/old"]
    assert await document("gone") == {}


def test_a_node_without_its_reserve_pod_is_judged_as_it_is() -> None:
    """Such a what-if lasts from cycle to cycle: what comes to the node meanwhile counts."""
    kit = LoadKit()
    kit.node(cpu=16)
    annotations = ((RESERVE_POD, "true"),)
    reserve = kit.put(replace(make_pod("r", node="n", spec=asks("8")), annotations=annotations))
    kit.report(usage={"cpu": 2, "memory": 0})
    what_if = HypotheticalCluster(kit.view())
    what_if.remove(reserve.key, "n")

    def keys() -> list[object]:
        views = kit.view(), what_if.view()
        return [kit.plugin.score_reuse_key(CycleState(), POD, each) for each in views]

    before = kit.score(POD)
    assert kit.score(POD, view=what_if.view()) == before
    assert keys()[0] == keys()[1]
    for at in range(3):
        kit.pod(f"more{at}", spec=asks("2"), phase="Pending")
        what_if.rebase(kit.view())
        now = kit.score(POD, view=what_if.view())
        assert now == kit.score(POD) < before
        before = now
    kit.report(usage={"cpu": 15, "memory": 0})
    assert kit.reason(POD, view=what_if.view()) == TOO_HOT == kit.reason(POD)
