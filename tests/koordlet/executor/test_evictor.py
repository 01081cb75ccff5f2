"""Evictions end pods once, within the budget, by the rules; and every one can be explained."""

import asyncio

import pytest
from structlog.testing import capture_logs

from koord.api.eviction import EvictionOutcome
from koord.util.health import OK, HealthStatus

REFUSED, FAILED = EvictionOutcome.REFUSED, EvictionOutcome.FAILED


async def test_an_eviction_is_requested_recorded_and_explained(bench) -> None:
    """In Koordinator's words, with its metrics, and with the plugin's own reason."""
    eviction = await bench.evict("crunch", uid="u1")

    assert eviction.outcome is EvictionOutcome.EVICTED
    assert (eviction.accepted, eviction.ending) == (True, True)
    assert bench.api.evicted == ["jobs/crunch"]
    [event] = bench.api.events
    assert (event.pod, event.warning, event.reason) == ("jobs/crunch", True, "evictPodSuccess")
    assert event.message == (
        "evict Pod:jobs/crunch, reason: evicted, message: trigger by koordlet feature MemoryEvict, "
        "kill pod: crunch, memory 92 %, above 70 %"
    )
    assert bench.decisions.explain("jobs/crunch") == [
        {
            "first": "2023-11-14T22:13:20Z",
            "last": "2023-11-14T22:13:20Z",
            "times": 1,
            "plugin": "MemoryEvict",
            "feature": "MemoryEvict",
            "action": "evict",
            "pod": "jobs/crunch",
            "uid": "u1",
            "outcome": "evicted",
            "reason": "memory 92 %, above 70 %",
            "message": "",
            "dryRun": False,
            "inputs": {},
            "candidates": [],
            "freed": {},
        }
    ]
    value = bench.registry.get_sample_value
    assert bench.count("evicted") == 1
    assert value("koordlet_pod_eviction", {"node": "n1", "reason": "evicted"}) == 1
    labels = {"node": "n1", "pod_namespace": "jobs", "pod_name": "crunch", "reason": "evicted"}
    assert value("koordlet_pod_eviction_detail", labels) == 1
    await bench.clock.advance(301)
    assert value("koordlet_pod_eviction_detail", labels) is None
    assert value("koordlet_pod_eviction", {"node": "n1", "reason": "evicted"}) == 1


async def test_a_pod_is_not_evicted_twice_while_it_ends(bench) -> None:
    """Neither while the server thinks, nor for two minutes after it has said yes."""
    bench.api.answer(EvictionOutcome.EVICTED, after=5.0)
    first = asyncio.ensure_future(bench.evictor.evict(bench.request("crunch")))
    await bench.clock.settle()
    second = await bench.evict("crunch", plugin="CPUEvict")
    await bench.clock.advance(5)
    await bench.clock.advance(119)
    third = await bench.evict("crunch")
    await bench.clock.advance(1)
    fourth = await bench.evict("crunch")

    outcomes = [each.outcome.value for each in (await first, second, third, fourth)]
    assert outcomes == ["evicted", "under_way", "under_way", "evicted"]
    assert (second.accepted, second.ending) == (False, True)
    assert len(bench.api.asked) == 2


async def test_a_new_pod_of_the_same_name_is_another_pod(bench) -> None:
    """The UID counts."""
    await bench.evict("crunch", uid="u1")
    await bench.evict("crunch", uid="u2")

    assert [asked.pod.uid for asked in bench.api.asked] == ["u1", "u2"]


async def test_a_disruption_budget_is_not_hammered(bench) -> None:
    """A plugin that looks each second asks the server rarely; others' pods are not affected."""
    bench.api.answer(REFUSED, message="needs 2 healthy pods and has 2", pod="jobs/crunch")
    for _ in range(120):
        eviction = await bench.evict("crunch")
        assert eviction.outcome is REFUSED
        assert not eviction.ending
        await bench.clock.advance(1)

    assert 3 <= len(bench.api.asked) <= 4
    assert 0 < eviction.retry_after <= 90
    [decision] = bench.decisions.explain()
    assert (decision["times"], decision["outcome"]) == (120, "refused")
    assert bench.count("refused") == len(bench.api.asked)
    assert {event.reason for event in bench.api.events} == {"evictPodFail"}
    assert bench.api.events[0].message.endswith(
        "above 70 %, error refused: needs 2 healthy pods and has 2"
    )
    assert bench.budget.used == 0
    assert (await bench.evict("sort")).accepted


async def test_retry_after_is_obeyed(bench) -> None:
    """It is longer than our own pause here."""
    bench.api.answer(REFUSED, retry_after=60.0)
    assert (await bench.evict("crunch")).retry_after == 60.0
    await bench.clock.advance(59)
    await bench.evict("crunch")
    assert len(bench.api.asked) == 1
    await bench.clock.advance(1)

    assert (await bench.evict("crunch")).accepted


async def test_a_busy_server_is_left_alone_by_all(bench) -> None:
    """Its load has nothing to do with one pod."""
    bench.api.answer(EvictionOutcome.RATE_LIMITED, retry_after=30.0)
    await bench.evict("crunch")
    other = await bench.evict("sort")

    assert other.outcome is EvictionOutcome.RATE_LIMITED
    assert len(bench.api.asked) == 1
    await bench.clock.advance(30)
    assert (await bench.evict("sort")).accepted


async def test_the_budget_ends_evictions_for_the_rest_of_the_hour(bench) -> None:
    """Across plugins; health and explain say so."""
    bench.limit = 2
    for name in ("a", "b"):
        assert (await bench.evict(name)).accepted
        await bench.clock.advance(600)
    over = await bench.evict("c", plugin="CPUEvict")
    again = await bench.evict("c", plugin="CPUEvict")

    assert over.outcome is again.outcome is EvictionOutcome.OVER_BUDGET
    assert over.retry_after == pytest.approx(2400)
    assert bench.api.evicted == ["jobs/a", "jobs/b"]
    assert bench.decisions.explain("c")[0]["message"] == (
        "2 in the past hour (--evict-budget-per-hour)"
    )
    assert bench.count("over_budget", "CPUEvict") == 1
    assert bench.api.events[-1].reason == "evictPodFail"
    assert bench.evictor.health().status is HealthStatus.DEGRADED
    assert "the next in 2400 s" in bench.evictor.health().reason
    await bench.clock.advance(2400)
    assert (await bench.evict("c")).accepted


async def test_a_limit_of_zero_is_none(bench) -> None:
    """As Koordinator's koordlet has it."""
    bench.limit = 0
    for number in range(30):
        assert (await bench.evict(f"pod-{number}")).accepted
    assert bench.evictor.health() == OK


async def test_the_limit_may_change(bench) -> None:
    """What was used before counts."""
    bench.limit = 0
    for name in ("a", "b"):
        await bench.evict(name)
    bench.limit = 2
    assert (await bench.evict("c")).outcome is EvictionOutcome.OVER_BUDGET
    bench.limit = 3
    assert (await bench.evict("c")).accepted


@pytest.mark.parametrize(("outcome", "used"), [(REFUSED, 0), (FAILED, 1)])
async def test_what_is_not_certain_counts(bench, outcome, used) -> None:
    """A pod may have been evicted although no response came."""
    bench.api.answer(outcome)
    await bench.evict("crunch")

    assert bench.budget.used == used


async def test_dry_run_takes_the_same_path_without_a_request(bench) -> None:
    """Recorded, reported and counted as "would"; the pod counts as ending."""
    bench.dry_run.add("MemoryEvict")
    first, second = await bench.evict("crunch"), await bench.evict("crunch")

    assert first.outcome is EvictionOutcome.WOULD_EVICT
    assert (first.accepted, first.ending) == (True, True)
    assert second.outcome is EvictionOutcome.UNDER_WAY
    assert bench.api.asked == []
    [decision] = bench.decisions.explain()
    assert (decision["outcome"], decision["dryRun"]) == ("would_evict", True)
    [event] = bench.api.events
    assert (event.warning, event.reason) == (False, "wouldEvictPod")
    assert bench.count("would_evict") == 1
    assert not bench.registry.get_sample_value(
        "koordlet_pod_eviction", {"node": "n1", "reason": "evicted"}
    )


async def test_dry_run_of_one_plugin_costs_another_nothing(bench) -> None:
    """Its evictions in dry-run end at the budget, too, but take nothing from it."""
    bench.limit = 2
    bench.dry_run.add("MemoryEvict")
    outcomes = [(await bench.evict(f"pod-{number}")).outcome.value for number in range(3)]
    real = await bench.evict("pod-0", plugin="CPUEvict")

    assert outcomes == ["would_evict", "would_evict", "over_budget"]
    assert real.outcome is EvictionOutcome.EVICTED
    bench.dry_run.clear()
    assert (await bench.evict("pod-1")).outcome is EvictionOutcome.EVICTED


@pytest.mark.parametrize(
    "annotations",
    [{"kubernetes.io/config.source": "file"}, {"kubernetes.io/config.mirror": "abc"}],
)
async def test_static_pods_stay(bench, annotations) -> None:
    """The API server could only delete their mirror."""
    eviction = await bench.evict("proxy", annotations=annotations)

    assert eviction.outcome is EvictionOutcome.NOT_ALLOWED
    assert bench.api.asked == []
    kept = await bench.evict("web", annotations={"kubernetes.io/config.source": "api"})
    assert kept.accepted


async def test_missing_rights_are_seen_in_health(bench) -> None:
    """Until an eviction is allowed again."""
    bench.api.answer(EvictionOutcome.NOT_ALLOWED, message="cannot create pods/eviction")
    await bench.evict("crunch")
    assert "cannot create pods/eviction" in bench.evictor.health().reason
    await bench.evict("sort")
    assert bench.evictor.health() == OK


async def test_a_gone_pod_is_no_event(bench) -> None:
    """There is no reader; the plugin may go on."""
    bench.api.answer(EvictionOutcome.GONE)
    eviction = await bench.evict("crunch")

    assert (eviction.accepted, eviction.ending) == (False, True)
    assert bench.api.events == []


async def test_a_cancelled_plugin_does_not_lose_what_became_of_it(bench) -> None:
    """The request goes on, and is recorded."""
    bench.api.answer(EvictionOutcome.EVICTED, after=5.0)
    task = asyncio.ensure_future(bench.evictor.evict(bench.request("crunch")))
    await bench.clock.settle()
    task.cancel()
    await bench.clock.advance(5)

    assert task.cancelled()
    assert [decision["outcome"] for decision in bench.decisions.explain()] == ["evicted"]


async def test_the_end_of_the_daemon_is_recorded_as_not_known(bench) -> None:
    """What was under way then is in the log, and counts as used."""
    bench.api.answer(EvictionOutcome.EVICTED, after=50.0)
    task = asyncio.ensure_future(bench.evictor.evict(bench.request("crunch")))
    await bench.clock.settle()
    with capture_logs() as logs:
        bench.stop.set()
        await bench.clock.settle()

    assert task.cancelled()
    [entry] = [entry for entry in logs if entry["event"] == "eviction.decided"]
    assert (entry["outcome"], entry["message"]) == ("failed", "koordlet ended meanwhile")
    assert bench.budget.used == 1


async def test_a_defect_in_the_client_is_a_failed_eviction(bench, monkeypatch) -> None:
    """The plugin gets a response, and may ask for another pod."""

    async def breaks(pod: object, grace_seconds: object) -> None:
        raise RuntimeError("bang")

    monkeypatch.setattr(bench.api, "evict", breaks)
    eviction = await bench.evict("crunch")

    assert (eviction.outcome, eviction.message) == (FAILED, "RuntimeError('bang')")


async def test_the_record_is_bounded(bench) -> None:
    """The latest decisions stay."""
    bench.limit = 0
    for number in range(300):
        await bench.evict(f"pod-{number}")

    decisions = bench.decisions.explain()
    assert len(decisions) == 256
    assert decisions[0]["pod"] == "jobs/pod-299"
    details = [
        sample
        for family in bench.registry.collect()
        if family.name == "koordlet_pod_eviction_detail"
        for sample in family.samples
    ]
    assert len(details) == 100


async def test_the_same_decision_much_later_is_a_new_one(bench) -> None:
    """After ten minutes it is reported again."""
    bench.limit = 1
    await bench.evict("a")
    for _ in range(2):
        await bench.evict("b")
        await bench.clock.advance(601)

    assert bench.count("over_budget") == 2
