"""The worked examples of Koordinator's formulas, in both forms."""

from typing import Any

import pytest

from koord.controlplane.testing import make_pod
from tests.support.scheduler.load_aware import THRESHOLDS, LoadKit, asks, scheduled

BIG = asks("16", "32Gi")
P95 = {"scoreAggregationType": "p95", "scoreAggregatedDuration": "5m"}


def pending(spec: dict[str, Any], **facts: Any) -> Any:
    return make_pod("new", phase="Pending", spec=spec, **facts)


def usage(cpu: Any, memory: Any) -> dict[str, Any]:
    return {"usage": {"cpu": cpu, "memory": memory}}


@pytest.mark.parametrize(
    ("used", "spec", "args", "score"),
    [
        (usage(0, 0), BIG, {}, 90),
        (usage(32, "10Gi"), BIG, {}, 72),
        (usage(0, 0), BIG, {"dominantResourceWeight": 10}, 85),
        (usage(0, 0), {}, {}, 99),
    ],
)
def test_scores(used: Any, spec: Any, args: Any, score: int) -> None:
    """Examples 1, 2, 4 and 5: a node of 96 cores and 512 GiB without pods."""
    kit = LoadKit(**args)
    kit.node()
    kit.report(**used)
    assert kit.score(pending(spec)) == score


def test_a_pod_that_was_assigned_just_now_is_estimated() -> None:
    """Example 3."""
    kit = LoadKit()
    kit.node()
    kit.report(**usage(32, "10Gi"))
    kit.pod("there", spec=BIG, phase="Pending")
    assert kit.score(pending(BIG)) == 63


def test_a_window_that_is_not_reported_is_estimated() -> None:
    """Example 6: 95th percentiles of 5 minutes, and a node that has none."""
    kit = LoadKit(aggregated=P95)
    kit.node()
    there = kit.pod("there", spec=BIG, status=scheduled(kit.now - 600))
    one_core = {"cpu": 1, "memory": 0}
    only_mean = {"nodeMetric": {"nodeUsage": {"resources": {"cpu": "1", "memory": "0"}}}}
    kit.report(usage=one_core, pods={there.key: one_core}, status={**only_mean})
    assert kit.score(pending(BIG)) == 81


def test_a_hot_node_without_the_window_is_hot() -> None:
    """Where Koordinator ignores its usage: 16 cores, 9 used, would score 88."""
    kit = LoadKit(aggregated=P95)
    kit.node(cpu=16, memory="64Gi")
    kit.report(status={"nodeMetric": {"nodeUsage": {"resources": {"cpu": "9", "memory": "40Gi"}}}})
    assert kit.score(pending(asks("1", "2Gi"))) == 36


@pytest.mark.parametrize(("ago", "score"), [(179, 90), (180, 0), (181, 0)])
def test_an_expired_report_scores_nothing(ago: float, score: int) -> None:
    """Example 7: from 180 seconds on."""
    kit = LoadKit()
    kit.node()
    kit.report(ago=ago)
    assert kit.score(pending(BIG)) == score


@pytest.mark.parametrize(
    ("used", "annotation", "reason"),
    [
        (usage(60, "256Gi"), "", ""),
        (usage(70, "256Gi"), "", "node(s) cpu usage exceed threshold"),
        (usage(30, "500Gi"), "", "node(s) memory usage exceed threshold"),
        (
            usage(30, "316Gi"),
            '{"usageThresholds":{"memory":60}}',
            "node(s) memory usage exceed threshold",
        ),
    ],
)
def test_filter(used: Any, annotation: str, reason: str) -> None:
    """Examples 8 to 11: a pod without requests."""
    kit = LoadKit()
    kit.node(annotations={THRESHOLDS: annotation} if annotation else None)
    kit.report(**used)
    assert kit.reason(pending({})) == reason


def test_prod_pods_are_scored_by_what_prod_pods_use() -> None:
    """Example 12."""
    kit = LoadKit(scoreAccordingProdUsage=True)
    kit.node()
    there = kit.pod("there", spec=asks("1", "1Gi"), status=scheduled(kit.now - 600))
    uses = {"resources": {"cpu": "30", "memory": "100Gi"}}
    metric = {
        "namespace": "default", "name": there.name, "priority": "koord-prod", "podUsage": uses,
    }  # fmt: skip
    kit.report(usage={"cpu": 40, "memory": "120Gi"}, status={"podsMetric": [metric]})
    assert kit.score(pending(asks("16000", "32Gi"))) == 38


SMALL = asks("1", "2Gi", limits=False)


def small_kit(cpu: Any = 9, pods: Any = None, **args: Any) -> LoadKit:
    kit = LoadKit(**args)
    kit.node(cpu=16, memory="64Gi")
    kit.report(usage={"cpu": cpu, "memory": "40Gi"}, pods=pods)
    return kit


@pytest.mark.parametrize(
    ("args", "score"),
    [
        ({}, 36),
        ({"resourceWeights": {"cpu": 2, "memory": 1}}, 37),
        ({"resourceWeights": {"cpu": 1, "memory": 1}, "dominantResourceWeight": 2}, 35),
    ],
)
def test_weights(args: Any, score: int) -> None:
    """The node of 16 cores and 64 GiB that uses 9 and 40."""
    kit = small_kit(**args)
    assert kit.reason(pending(SMALL)) == ""
    assert kit.score(pending(SMALL)) == score


@pytest.mark.parametrize(
    ("since", "reason", "score"),
    [(30, "node(s) cpu usage exceed threshold", 30), (600, "", 36)],
)
def test_a_pod_inside_the_window_counts_with_its_estimate(
    since: float, reason: str, score: int
) -> None:
    """2 cores and 4 GiB requested, 0.3 and 1 used: estimated while the report may lack it."""
    kit = LoadKit()
    kit.node(cpu=16, memory="64Gi")
    there = kit.pod("there", spec=asks("2", "4Gi", limits=False), status=scheduled(kit.now - since))
    used = {there.key: {"cpu": "300m", "memory": "1Gi"}}
    kit.report(usage={"cpu": 9, "memory": "40Gi"}, pods=used)
    assert kit.reason(pending(SMALL)) == reason
    assert kit.score(pending(SMALL)) == score


@pytest.mark.parametrize(("cpu", "passes"), [("9629m", True), ("9630m", False)])
def test_percentages_are_rounded(cpu: str, passes: bool) -> None:
    """65.49 is 65, which is allowed; 65.5 is 66."""
    assert (small_kit(cpu).reason(pending(SMALL)) == "") is passes
