"""CPU eviction: who goes and when, by satisfaction, by usage and by requests."""

from pathlib import Path
from typing import Any

import pytest

from koordlet.plugin import kinds
from koordlet.plugin.testing import make_pod
from koordlet_plugins.eviction.cpu import CPUEvict

from .evictionbench import OFFERED, EvictionBench, batch, be_pod

QUIET = 21  # seconds after which the first look is due
USAGE = {"cpuEvictThresholdPercent": 80, "evictEnabledPriorityThreshold": 3000}
SATISFACTION = {
    "cpuEvictBESatisfactionLowerPercent": 30,
    "cpuEvictBESatisfactionUpperPercent": 40,
}
REQUESTS = {
    "cpuAllocatableEvictThresholdPercent": 80,
    "cpuAllocatableEvictLowerPercent": 70,
    "allocatableEvictPriorityThreshold": 7999,
}


@pytest.fixture
def make_bench(tmp_path: Path):
    def make(*gates: str, **options: Any) -> EvictionBench:
        bench = EvictionBench(
            CPUEvict(), tmp_path, use=kinds.POD_CPU_USAGE, gates=gates or None, **options
        )
        bench.size(cpu="100", allocatable={"kubernetes.io/batch-cpu": "100k"})
        return bench

    return make


def offered(name: str, priority: int, label: str = "", **more: Any):
    labels = {**OFFERED, **({"koordinator.sh/priority": label} if label else {})}
    return make_pod(name, priority=priority, labels=labels, **more)


def satisfy(bench: EvictionBench, request: float, limit: float, used: float) -> None:
    """CPU of best-effort pods in milli-cores."""
    figures = {"request": request, "real-limit": limit, "usage": used}
    for allocation, milli in figures.items():
        bench.hold(kinds.NODE_BE, milli, "cpu", allocation)


async def test_victims_by_usage(make_bench):
    """Five cores are wanted: the first four in order have nine, the first three only four."""
    bench = make_bench("CPUEvict")
    bench.configure(**USAGE | {"cpuEvictThresholdPercent": 78})
    bench.hold(kinds.NODE_CPU_USAGE, 81.0)
    bench.run_pods(
        a=(offered("a", 100), 2.0),
        b=(offered("b", 100), 1.0),
        c=(offered("c", 120, "2000"), 1.0),
        d=(offered("d", 120, "3000"), 5.0),
        e=(offered("e", 120, "4000"), 2.0),
        high=(offered("high", 3001), 50.0),
        unmeasured=offered("unmeasured", 1),
    )
    async with bench:
        await bench.advance(QUIET)
        for name, left in {"a": 79.0, "b": 78.0, "c": 77.0, "d": 72.0}.items():
            assert bench.asked[-1] == name
            bench.end(name)
            bench.hold(kinds.NODE_CPU_USAGE, left)
            await bench.advance(14)
        assert bench.asked == list("abcd")
        assert bench.explain("a")[0]["inputs"]["release"] == 5000


async def test_victims_by_usage_in_dry_run(make_bench):
    """Without a measured effect what they use is counted."""
    bench = make_bench("CPUEvict", dry_run=True)
    bench.configure(**USAGE | {"cpuEvictThresholdPercent": 78})
    bench.hold(kinds.NODE_CPU_USAGE, 81.0)
    bench.run_pods(
        a=(offered("a", 100), 2.0),
        b=(offered("b", 100), 1.0),
        c=(offered("c", 120, "2000"), 1.0),
        d=(offered("d", 120, "3000"), 5.0),
        e=(offered("e", 120, "4000"), 2.0),
    )
    async with bench:
        await bench.advance(QUIET)
        would = [each["pod"] for each in reversed(bench.explain())]
        assert would == [f"default/{name}" for name in "abcd"]


async def test_the_first_seconds_are_quiet(make_bench):
    """As long as a cool-down; and after an eviction again."""
    bench = make_bench("CPUEvict")
    bench.configure(**USAGE)
    bench.hold(kinds.NODE_CPU_USAGE, 81.0)
    bench.run_pods(a=(offered("a", 1), 4.0), b=(offered("b", 2), 4.0))
    async with bench:
        await bench.advance(19)
        assert bench.asked == []
        await bench.advance(1)
        assert bench.asked == ["a"]
        bench.end("a")
        bench.hold(kinds.NODE_CPU_USAGE, 77.0)
        await bench.advance(5)
        bench.hold(kinds.NODE_CPU_USAGE, 85.0)
        await bench.advance(14)
        assert bench.asked == ["a"]
        await bench.advance(2)
        assert bench.asked == ["a", "b"]


async def test_a_window_ends_bursts(make_bench):
    """The mean counts; and after an eviction only what was measured since."""
    bench = make_bench("CPUEvict")
    bench.configure(**USAGE, cpuEvictTimeWindowSeconds=120)
    bench.hold(kinds.NODE_CPU_USAGE, 10.0)
    bench.run_pods(a=(offered("a", 1), 4.0), b=(offered("b", 2), 4.0))
    async with bench:
        await bench.advance(60)
        bench.hold(kinds.NODE_CPU_USAGE, 95.0)
        await bench.advance(60)
        assert bench.asked == []  # 95 for half of the window
        await bench.advance(60)
        assert bench.asked == ["a"]
        bench.end("a")
        bench.hold(kinds.NODE_CPU_USAGE, 50.0)
        await bench.advance(60)
        assert bench.asked == ["a"]  # although the mean of the whole window is above 80 for long


async def test_victims_by_satisfaction(make_bench):
    """Those of lower priority first, then those who use most of what they asked for."""
    bench = make_bench("BECPUEvict")
    bench.configure(**SATISFACTION)
    satisfy(bench, 50_000, 14_000, 13_500)  # 6 cores are missing
    bench.run_pods(
        idle=(be_pod("idle", 5500, containers=batch("c", cpu="4000")), 0.1),
        busy=(be_pod("busy", 5500, containers=batch("c", cpu="4000")), 3.9),
        high=(be_pod("high", 5600, containers=batch("c", cpu="4000")), 4.0),
        ls=(make_pod("ls", priority=100, labels=OFFERED), 9.0),
    )
    async with bench:
        await bench.advance(QUIET)
        assert bench.asked == ["busy"]
        bench.end("busy")
        satisfy(bench, 46_000, 14_000, 13_500)
        await bench.advance(5)
        assert bench.asked == ["busy", "idle"]
        bench.end("idle")
        await bench.advance(60)
        assert bench.asked == ["busy", "idle"]
        assert bench.explain("busy")[0]["freed"]["end"] == "gone"


@pytest.mark.parametrize(
    ("figures", "more", "release"),
    [
        ((50_000, 14_000, 13_500), {}, 6000),
        ((50_000, 14_000, 9_000), {}, None),  # they do not use what they may
        ((50_000, 14_000, 9_000), {"cpuEvictBEUsageThresholdPercent": 60}, 6000),
        ((50_000, 25_000, 24_900), {}, None),  # they have enough
        ((50_000, 9_000, 8_900), {"cpuEvictPolicy": "evictByAllocatable"}, None),
    ],
)
async def test_satisfaction(make_bench, figures, more, release):
    """By default against what they really may use, else against what the node has for them."""
    bench = make_bench("BECPUEvict")
    bench.configure(**SATISFACTION, **more)
    satisfy(bench, *figures)
    bench.run_pods(a=(be_pod("a", containers=batch("c", cpu="9000")), 3.0))
    async with bench:
        await bench.advance(QUIET)
        found = bench.explain()
        assert [each["inputs"]["release"] for each in found] == ([release] if release else [])


async def test_half_a_window_is_not_enough(make_bench):
    """A third of its samples must be there, of each of the three figures."""
    bench = make_bench("BECPUEvict")
    bench.configure(**SATISFACTION, cpuEvictTimeWindowSeconds=90)
    bench.run_pods(a=(be_pod("a", containers=batch("c", cpu="9000")), 3.0))
    async with bench:
        satisfy(bench, 50_000, 14_000, 13_500)
        await bench.advance(28)
        assert bench.asked == []
        await bench.advance(3)
        assert bench.asked == ["a"]


async def test_victims_by_requests(make_bench):
    """By tier; what pods of Kubernetes' own resources ask for is not theirs to give back."""
    bench = make_bench("CPUAllocatableEvict")
    bench.configure(**REQUESTS)
    bench.run_pods(
        a=(be_pod("a", 5500, labels=OFFERED, containers=batch("c", cpu="40k")), 1.0),
        b=(be_pod("b", 5500, labels=OFFERED, containers=batch("c", cpu="45k")), 1.0),
        native=(offered("native", 100), 9.0),
    )
    async with bench:
        await bench.advance(QUIET)
        [found] = bench.explain("b")
        assert found["inputs"]["release kubernetes.io/batch-cpu"] == 15_000
        assert found["candidates"] == [
            "default/b (priority 5500, 45 cores kubernetes.io/batch-cpu)",
            "default/a (priority 5500, 40 cores kubernetes.io/batch-cpu)",
        ]
        bench.end("b")
        await bench.advance(40)
        assert bench.asked == ["b"]


async def test_one_pod_counts_for_two_features(make_bench):
    """What it asked for and what it used are both given back by one eviction."""
    bench = make_bench("CPUAllocatableEvict", "CPUEvict")
    bench.configure(**REQUESTS, **USAGE | {"evictEnabledPriorityThreshold": 9000})
    bench.hold(kinds.NODE_CPU_USAGE, 82.0)
    bench.run_pods(
        a=(be_pod("a", 5500, labels=OFFERED, containers=batch("c", cpu="85k")), 8.0),
        b=(offered("b", 100), 8.0),
    )
    async with bench:
        await bench.advance(QUIET)
        assert bench.asked == ["a"]
        bench.end("a")
        bench.hold(kinds.NODE_CPU_USAGE, 74.0)
        await bench.advance(60)
        assert bench.asked == ["a"]


async def test_what_is_missing_is_named(make_bench):
    """A NodeSLO without thresholds, a node without CPU, metrics that stopped."""
    bench = make_bench("BECPUEvict", "CPUEvict", "CPUAllocatableEvict")
    bench.configure()
    async with bench:
        await bench.advance(QUIET)
        reported = {each["feature"]: each["outcome"] for each in bench.explain()}
        assert set(reported.values()) == {"not_configured"}
        assert len(reported) == 3
        bench.configure(**USAGE, **SATISFACTION)
        await bench.advance(2)
        reported = {each["feature"]: each["message"] for each in reversed(bench.explain())}
        assert reported["CPUEvict"] == "wanted the node's CPU usage, found none of late"
        assert reported["BECPUEvict"].startswith(
            "wanted request, limit and usage of best-effort pods"
        )
        bench.size(memory="1Gi")
        await bench.advance(2)
        reported = {each["feature"]: each["message"] for each in reversed(bench.explain())}
        assert set(reported.values()) == {"wanted capacity.cpu of the Node, found none"}
        assert bench.asked == []


@pytest.mark.parametrize(
    ("thresholds", "message"),
    [
        ({**SATISFACTION, "cpuEvictBESatisfactionLowerPercent": 0}, "LowerPercent: wanted 1 to 60"),
        (
            {"cpuEvictBESatisfactionLowerPercent": 61, "cpuEvictBESatisfactionUpperPercent": 70},
            "LowerPercent: wanted 1 to 60, found 61",
        ),
        ({**SATISFACTION, "cpuEvictBESatisfactionUpperPercent": 100}, "wanted 30 to 99, found 100"),
        ({**USAGE, "cpuEvictLowerPercent": 80}, "wanted less than cpuEvictThresholdPercent"),
        ({**REQUESTS, "allocatableEvictPriorityThreshold": 8000}, "wanted at most 7999"),
        ({**REQUESTS, "cpuAllocatableEvictLowerPercent": 80}, "wanted less than cpuAllocatable"),
    ],
)
async def test_thresholds_that_cannot_be_used(make_bench, thresholds, message):
    """The feature stays away, the others work."""
    bench = make_bench()
    bench.configure(**thresholds)
    async with bench:
        await bench.advance(QUIET)
        assert any(message in each["message"] for each in bench.explain())
        assert bench.asked == []
