"""Memory eviction: who goes, after which signals, one at a time, and what may go wrong."""

from pathlib import Path
from typing import Any

import pytest

from koord.api.eviction import EvictionOutcome
from koord.plugin import OptionError
from koordlet.plugin import kinds
from koordlet.plugin.testing import make_pod
from koordlet_plugins.eviction.memory import MemoryEvict, Signals, parse_signals
from koordlet_plugins.eviction.plan import EVICTION_POLICY

from .evictionbench import OFFERED, EvictionBench, ScriptedKiller, batch, be_pod

G = 10**9
BE_ONLY = ("BEMemoryEvict",)


@pytest.fixture
def make_bench(tmp_path: Path):
    def make(*args: str, **options: Any) -> EvictionBench:
        bench = EvictionBench(MemoryEvict(), tmp_path, *args, use=kinds.POD_MEMORY_USAGE, **options)
        bench.size(memory="120G")
        bench.hold(kinds.NODE_MEMORY_USAGE, 115 * G)
        bench.host.set_pressure("memory", 40.0)
        bench.run_pods(
            b5=(be_pod("b5", 100), 5 * G),
            b10=(be_pod("b10", 120), 10 * G),
            b20=(be_pod("b20", 100), 20 * G),
        )
        return bench

    return make


@pytest.mark.parametrize(
    ("thresholds", "victims"),
    [
        ({"memoryEvictThresholdPercent": 82}, ["b20"]),
        ({"memoryEvictThresholdPercent": 80}, ["b20", "b5"]),
        ({"memoryEvictThresholdPercent": 82, "memoryEvictLowerPercent": 74}, ["b20", "b5", "b10"]),
        ({"memoryEvictThresholdPercent": 96}, []),
    ],
)
async def test_best_effort_victims(make_bench, thresholds, victims):
    """Low priority first, then the largest; as many as the amount needs. Here in dry-run."""
    bench = make_bench(gates=BE_ONLY, dry_run=True)
    bench.configure(**thresholds)
    async with bench:
        await bench.rounds(3)
        would = [each["pod"] for each in reversed(bench.explain()) if each["pod"]]
        assert would == [f"default/{name}" for name in victims]
        assert bench.asked == []


async def test_one_victim_after_the_other(make_bench):
    """The next one is not asked for before the first is gone and its memory is back."""
    bench = make_bench(gates=BE_ONLY)
    bench.configure(memoryEvictThresholdPercent=80)
    async with bench:
        await bench.advance(10)
        assert bench.asked == ["b20"]
        bench.end("b20")
        await bench.advance(3)
        assert bench.asked == ["b20"]  # it is gone, but usage has not fallen
        bench.hold(kinds.NODE_MEMORY_USAGE, 95.5 * G)
        await bench.advance(3)
        assert bench.asked == ["b20", "b5"]
        [gone] = bench.explain("b20")
        assert gone["freed"] == {
            "end": "gone",
            "after_s": pytest.approx(10, abs=1),
            "expected_memory": 20 * G,
            "freed_memory": pytest.approx(19.5 * G),
        }
        assert bench.metric("victims_total", end="gone") == 1


async def test_what_an_explanation_holds(make_bench):
    """The trigger with its numbers, the candidates in order, and why this one."""
    bench = make_bench(gates=BE_ONLY)
    bench.configure(memoryEvictThresholdPercent=80)
    async with bench:
        await bench.rounds(2)
        [found] = bench.explain("b20")
        assert found["feature"] == "BEMemoryEvict"
        assert found["reason"] == (
            "node memory 95 % used, threshold 80 %, down to 78 %; number 1 of 3 by priority and "
            "usage"
        )
        assert found["inputs"] == {
            "used": 115 * G,
            "capacity": 120 * G,
            "used_percent": 95,
            "threshold_percent": 80,
            "lower_percent": 78,
            "release": 20_400_000_000,
        }
        assert found["candidates"] == [
            "default/b20 (priority 100, 18.63 GiB memory)",
            "default/b5 (priority 100, 4.66 GiB memory)",
            "default/b10 (priority 120, 9.31 GiB memory)",
        ]


async def test_it_ends_when_enough_is_back(make_bench):
    """Although the first victim has released less than expected: the node's usage decides."""
    bench = make_bench(gates=BE_ONLY)
    bench.configure(memoryEvictThresholdPercent=80)
    async with bench:
        await bench.rounds(2)
        bench.end("b20")
        bench.hold(kinds.NODE_MEMORY_USAGE, 93 * G)
        await bench.advance(30)
        assert bench.asked == ["b20"]


async def test_usage_alone_is_not_enough(make_bench):
    """No pod is evicted while no task waits for memory; reported once, with both figures."""
    bench = make_bench(gates=BE_ONLY)
    bench.configure()
    bench.host.set_pressure("memory", 4.9)
    async with bench:
        await bench.rounds(20)
        assert bench.asked == []
        [held] = bench.explain()
        assert (held["pod"], held["outcome"]) == ("", "no_pressure")
        assert "95 % used" in held["reason"]
        assert "4.9 % of the last 10 s, wanted 5 %" in held["message"]
        labels = {"plugin": "MemoryEvict", "reason": "BEMemoryEvict", "outcome": "no_pressure"}
        assert bench.registry.get_sample_value("koordlet_evictions_total", labels) == 1
        bench.host.set_pressure("memory", 5.0)
        await bench.rounds(2)
        assert bench.asked == ["b20"]


async def test_pressure_is_for_the_first_victim(make_bench):
    """It falls with the first one; the amount that was decided is still wanted."""
    bench = make_bench(gates=BE_ONLY)
    bench.configure()
    async with bench:
        await bench.rounds(2)
        bench.host.set_pressure("memory", 0.0)
        bench.end("b20")
        bench.hold(kinds.NODE_MEMORY_USAGE, 95 * G)
        await bench.advance(5)
        assert bench.asked == ["b20", "b5"]


@pytest.mark.parametrize("args", [(), ("--memory-evict-signals=usage",)])
async def test_where_usage_alone_decides(make_bench, args):
    """Where that is asked for, or the kernel has no PSI."""
    bench = make_bench(*args, gates=BE_ONLY)
    bench.configure()
    if args:
        bench.host.set_pressure("memory", 0.0)
    else:
        (bench.host.paths.proc / "pressure/memory").unlink()
    async with bench:
        await bench.rounds(2)
        assert bench.asked == ["b20"]


async def test_offered_victims(make_bench):
    """Up to a priority, with the label, unless their policy says otherwise."""
    bench = make_bench(gates=("MemoryEvict",))
    bench.configure(memoryEvictThresholdPercent=82, evictEnabledPriorityThreshold=3000)

    def offered(name: str, priority: int, **more: Any):
        labels = {**OFFERED, **more.pop("labels", {})}
        return make_pod(name, priority=priority, labels=labels, **more)

    bench.run_pods(
        large=(offered("large", 100), 11 * G),
        small=(offered("small", 100), 10 * G),
        high=(offered("high", 9000), 50 * G),
        mine=(make_pod("mine", priority=100), 50 * G),
        kept=(offered("kept", 1, annotations={EVICTION_POLICY: "[]"}), 50 * G),
        unknown=offered("unknown", 1),
    )
    async with bench:
        await bench.rounds(2)
        bench.end("large")
        bench.hold(kinds.NODE_MEMORY_USAGE, 104 * G)
        await bench.advance(5)
        assert bench.asked == ["large", "small"]


@pytest.mark.parametrize(
    ("allocatable", "victims"), [("100Gi", ["b"]), ("200Gi", []), (None, ["b", "a"])]
)
async def test_victims_by_requests(make_bench, allocatable, victims):
    """Without any pressure: batch pods ask for more than there is."""
    bench = make_bench(gates=("MemoryAllocatableEvict",))
    bench.configure(
        memoryAllocatableEvictThresholdPercent=80,
        memoryAllocatableEvictLowerPercent=70,
        allocatableEvictPriorityThreshold=5999,
    )
    bench.host.set_pressure("memory", 0.0)
    found = {"kubernetes.io/batch-memory": allocatable} if allocatable else {}
    bench.size(memory="120G", allocatable=found)
    bench.run_pods(
        a=(be_pod("a", 5500, labels=OFFERED, containers=batch("c", memory="40Gi")), G),
        b=(be_pod("b", 5500, labels=OFFERED, containers=batch("c", memory="45Gi")), G),
        low=(make_pod("low", priority=100, labels=OFFERED), 50 * G),
    )
    async with bench:
        for name in ("b", "a"):
            await bench.advance(5)
            bench.end(name)
        await bench.advance(5)
        assert bench.asked == victims


async def test_the_pause_after_evictions(make_bench):
    """By monotonic time: a clock that is stepped in the middle changes nothing."""
    bench = make_bench("--memory-evict-cool-time-seconds=60", gates=BE_ONLY)
    bench.configure(memoryEvictThresholdPercent=82)
    async with bench:
        await bench.rounds(2)
        bench.end("b20")
        bench.hold(kinds.NODE_MEMORY_USAGE, 90 * G)
        await bench.advance(5)
        bench.hold(kinds.NODE_MEMORY_USAGE, 119 * G)
        bench.clock.step_wall(86_400)
        await bench.advance(25)
        bench.clock.step_wall(-2 * 86_400)
        await bench.advance(25)
        assert bench.asked == ["b20"]
        await bench.advance(10)
        assert bench.asked == ["b20", "b5"]


async def test_a_victim_that_ignores_its_eviction(make_bench):
    """It is waited for until its grace period is over; then it is reported, and the next goes."""
    bench = make_bench(gates=BE_ONLY)
    bench.configure(memoryEvictThresholdPercent=82)
    async with bench:
        await bench.advance(44)
        assert bench.asked == ["b20"]
        await bench.advance(4)
        assert bench.asked == ["b20", "b5"]
        assert "ignored" in {each["outcome"] for each in bench.explain("b20")}
        assert bench.metric("victims_total", end="ignored") == 1


async def test_a_victim_that_ignores_its_eviction_is_killed_where_asked_for(make_bench):
    """Then its memory has to come back like that of any other victim."""
    killer = ScriptedKiller()
    bench = make_bench(gates=BE_ONLY, killer=killer)
    bench.configure(memoryEvictThresholdPercent=82)
    async with bench:
        await bench.advance(47)
        assert killer.killed == ["b20"]
        bench.hold(kinds.NODE_MEMORY_USAGE, 95 * G)
        await bench.advance(5)
        assert bench.asked == ["b20"]
        assert bench.metric("victims_total", end="gone") == 1


async def test_a_victim_with_a_long_grace_does_not_hold_the_others_up(make_bench):
    """Half a node that is out of memory cannot wait for an hour."""
    bench = make_bench(gates=BE_ONLY)
    bench.configure(memoryEvictThresholdPercent=80)
    bench.mark("b20", grace_seconds=3600)
    async with bench:
        await bench.advance(80)
        assert bench.asked == ["b20", "b5"]
        assert bench.metric("victims_total", end="slow") == 1


async def test_a_budget_that_says_no(make_bench):
    """The next candidate goes in its place, and the refusal is there to be seen."""
    bench = make_bench(gates=BE_ONLY)
    bench.configure(memoryEvictThresholdPercent=82)
    bench.evictions.answer(EvictionOutcome.REFUSED, message="needs 2 pods", pod="default/b20")
    async with bench:
        await bench.rounds(2)
        assert bench.asked == ["b20", "b5"]
        assert bench.outcomes()["b20"] == "refused"


@pytest.mark.parametrize(
    ("outcome", "asked"),
    [
        (EvictionOutcome.GONE, ["b20"]),
        (EvictionOutcome.FAILED, ["b20", "b5"]),
        (EvictionOutcome.NOT_ALLOWED, ["b20", "b5"]),
        (EvictionOutcome.RATE_LIMITED, ["b20"]),
    ],
)
async def test_other_answers(make_bench, outcome, asked):
    """One that is gone gives its memory back; a busy server is not asked for others."""
    bench = make_bench(gates=BE_ONLY)
    bench.configure(memoryEvictThresholdPercent=82)
    bench.evictions.answer(outcome)
    async with bench:
        await bench.rounds(3)
        assert bench.asked == asked


async def test_a_server_that_hangs(make_bench):
    """The round waits for its response, and is not repeated meanwhile."""
    bench = make_bench(gates=BE_ONLY)
    bench.configure(memoryEvictThresholdPercent=82)
    bench.evictions.answer(EvictionOutcome.FAILED, after=10.0, message="no answer")
    async with bench:
        await bench.advance(9)
        assert bench.asked == []
        await bench.advance(3)
        assert bench.asked == ["b20", "b5"]


async def test_no_pod_to_evict(make_bench):
    """All candidates refused, or none there: reported once, and looked at again."""
    bench = make_bench(gates=BE_ONLY)
    bench.configure(memoryEvictThresholdPercent=82)
    bench.set_pods()
    async with bench:
        await bench.rounds(30)
        [held] = bench.explain()
        assert (held["outcome"], held["feature"]) == ("no_victim", "BEMemoryEvict")
        assert held["message"] == ("16.76 GiB memory more wanted, but of 0 candidates none is left")
        bench.run_pods(late=(be_pod("late"), 20 * G))
        await bench.rounds(2)
        assert bench.asked == ["late"]


async def test_figures_that_are_too_old(make_bench):
    """Neither the last usage counts, nor what it led to."""
    bench = make_bench(gates=BE_ONLY)
    bench.configure(memoryEvictThresholdPercent=96)
    async with bench:
        await bench.rounds(2)
        bench.configure(memoryEvictThresholdPercent=70)
        bench.drop(kinds.NODE_MEMORY_USAGE)
        bench.clock.suspend(60.0)
        await bench.rounds(8)
        assert bench.asked == []
        assert bench.outcomes() == {"": "no_data"}


@pytest.mark.parametrize("capacity", [{}, {"memory": "0"}])
async def test_a_node_without_capacity(make_bench, capacity):
    """Nothing is evicted for a percentage of nothing."""
    bench = make_bench()
    bench.configure(
        evictEnabledPriorityThreshold=9000,
        memoryAllocatableEvictThresholdPercent=0,
        memoryAllocatableEvictLowerPercent=0,
        allocatableEvictPriorityThreshold=5999,
    )
    bench.size(**capacity)
    async with bench:
        await bench.rounds(8)
        assert bench.asked == []
        assert "no_data" in {each["outcome"] for each in bench.explain()}


async def test_what_the_nodeslo_lacks(make_bench):
    """A gate alone does nothing; what is missing is named once."""
    bench = make_bench(gates=("MemoryEvict", "MemoryAllocatableEvict"))
    bench.configure()
    async with bench:
        await bench.rounds(10)
        assert bench.asked == []
        assert {each["feature"]: each["message"] for each in bench.explain()} == {
            "MemoryEvict": "resourceUsedThresholdWithBE.evictEnabledPriorityThreshold of the "
            "NodeSLO is not set",
            "MemoryAllocatableEvict": "resourceUsedThresholdWithBE."
            "memoryAllocatableEvictThresholdPercent of the NodeSLO is not set",
        }


@pytest.mark.parametrize("switch", ["nodeslo", "strategy", "gate"])
async def test_what_is_off_does_nothing(make_bench, switch):
    """Without a NodeSLO, with the strategy off, or without the gate."""
    bench = make_bench(gates=() if switch == "gate" else None)
    bench.configure(enable=switch != "strategy")
    if switch == "nodeslo":
        bench.set_node_slo(None)
    async with bench:
        await bench.rounds(5)
        assert bench.asked == []
        assert bench.explain() == []


async def test_an_interval_of_zero_switches_it_off(make_bench):
    """As in Koordinator."""
    bench = make_bench("--memory-evict-interval-seconds=0")
    bench.configure()
    async with bench:
        await bench.advance(30)
        assert bench.asked == []


async def test_pods_that_end_anyway_are_counted(make_bench):
    """A pod that another client has deleted releases its memory; no pod is evicted in its place."""
    bench = make_bench(gates=BE_ONLY)
    bench.configure(memoryEvictThresholdPercent=82)
    bench.mark("b20", gone_by=bench.clock.wall() + 30)
    async with bench:
        await bench.advance(44)
        assert bench.asked == []
        await bench.advance(4)  # and the other way round: it does not end
        assert bench.asked == ["b20"]


async def test_without_kubernetes_no_pod_is_evicted(make_bench):
    """Which is recorded; in dry-run the same plugin shows what it would do."""
    bench = make_bench(gates=BE_ONLY, standalone=True)
    bench.configure(memoryEvictThresholdPercent=82)
    async with bench:
        await bench.rounds(5)
        assert bench.outcomes() == {"b20": "not_allowed"}
        assert len(bench.log.named("eviction.unavailable")) == 1
        bench.dry_run = True
        await bench.rounds(2)
        assert bench.outcomes()["b20"] == "would_evict"


async def test_without_kubernetes_victims_can_be_killed(make_bench):
    """Where that is asked for."""
    killer = ScriptedKiller()
    bench = make_bench(gates=BE_ONLY, standalone=True, killer=killer)
    bench.configure(memoryEvictThresholdPercent=82)
    async with bench:
        await bench.rounds(2)
        assert killer.killed == ["b20"]
        assert bench.outcomes() == {"b20": "killed"}


@pytest.mark.parametrize(
    ("text", "signals"),
    [
        ("usage", Signals.USAGE),
        ("usage,pressure", Signals.BOTH),
        (" pressure, usage", Signals.BOTH),
    ],
)
def test_signals(text, signals):
    assert parse_signals(text) is signals


@pytest.mark.parametrize("text", ["", "pressure", "usage,psi", "usage,,"])
def test_bad_signals(text):
    """Usage is always one of them."""
    with pytest.raises(OptionError, match="use usage,pressure or usage"):
        parse_signals(text)


@pytest.mark.parametrize("percent", ["0", "101", "-5"])
async def test_bad_pressure(make_bench, percent):
    """Found before the first round."""
    with pytest.raises(OptionError, match="memory-evict-pressure"):
        async with make_bench(f"--memory-evict-pressure={percent}"):
            pass


async def test_rounds_cost_little(make_bench):
    """With 150 pods and nothing to do."""
    bench = make_bench()
    bench.configure(memoryEvictThresholdPercent=96, evictEnabledPriorityThreshold=9000)
    bench.run_pods(**{f"p{n}": (be_pod(f"p{n}"), G) for n in range(150)})
    async with bench:
        await bench.rounds(20)
        assert bench.cost.longest_step < 0.1
