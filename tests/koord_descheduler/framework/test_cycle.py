"""Whole cycles: order over profiles, isolation, pace."""

import asyncio
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.exposition import generate_latest

from koord.api.labelselector import LabelSelector
from koord.cluster.facts import ClusterNode
from koord.component.http.exposition import TEXT
from koord.component.plugins.shared import READY_TIMEOUT
from koord.util.health import OK, Health, HealthStatus, PartHealth
from koord.util.stop import Stop
from koord_descheduler.framework.evictor import UNSUFFIXED_COUNTERS
from koord_descheduler.framework.profile import Descheduler, ProfilePlugins
from tests.support.descheduler.framework import NODES, Both, Kit, make_node, make_pod


def descheduler(
    kit: Kit, *profiles: ProfilePlugins, nodes: Sequence[ClusterNode] = NODES, **options: Any
) -> Descheduler:
    def listed() -> Sequence[ClusterNode]:
        return nodes

    options = {"interval": 10.0, "cpu": lambda: 0.0, **options}
    return Descheduler(
        profiles, listed, kit.limiter, kit.metrics, kit.clock, decisions=kit.decisions, **options
    )


async def test_all_deschedule_plugins_run_before_the_first_balance_plugin(kit: Kit) -> None:
    """Of all profiles, in the order of the file; each gets its profile's nodes."""
    calls: list[Any] = []
    args = {name: {"calls": calls} for name in "ABC"}
    one = await kit.profile("one", deschedule=("B", "A"), balance=("C",), args=args)
    two = await kit.profile(
        "two",
        deschedule=("A",),
        balance=("B",),
        args=args,
        node_selector=LabelSelector({"pool": "b"}),
    )
    result = await descheduler(kit, two, one).run_once()

    assert result.errors == []
    assert calls == [
        ("two", "A", "deschedule", ["n2"]),
        ("one", "B", "deschedule", ["n1", "n2"]),
        ("one", "A", "deschedule", ["n1", "n2"]),
        ("two", "B", "balance", ["n2"]),
        ("one", "C", "balance", ["n1", "n2"]),
    ]


async def test_an_error_of_a_profile_ends_neither_the_others_nor_the_balance_phase(
    kit: Kit,
) -> None:
    """Unlike Koordinator's; the result names the profile and the plugin."""
    calls: list[Any] = []

    async def raises(plugin: Both, nodes: Sequence[ClusterNode]) -> None:
        raise ValueError("broken")

    bad = await kit.profile(
        "bad", deschedule=("A",), balance=("B",),
        args={"A": {"deschedule": raises}, "B": {"calls": calls}},
    )  # fmt: skip
    good = await kit.profile("good", deschedule=("A",), args={"A": {"calls": calls}})
    result = await descheduler(kit, bad, good).run_once()

    assert [(profile, point) for profile, _, point, _ in calls] == [
        ("good", "deschedule"), ("bad", "balance"),
    ]  # fmt: skip
    assert result.errors == ["bad: plugin A: ValueError('broken')"]


@pytest.mark.parametrize(
    ("nodes", "selector"),
    [
        ((), None),
        (NODES[:1], None),
        ((NODES[0], make_node("n2", ready=False)), None),
        (NODES, LabelSelector({"pool": "a"})),
    ],
)
async def test_with_fewer_than_two_nodes_nothing_runs(
    kit: Kit, nodes: Sequence[ClusterNode], selector: LabelSelector | None
) -> None:
    """Ready ones that the configuration selects; a profile may have fewer."""
    calls: list[Any] = []
    profile = await kit.profile(balance=("A",), args={"A": {"calls": calls}})
    result = await descheduler(kit, profile, nodes=nodes, node_selector=selector).run_once()

    assert calls == []
    [error] = result.errors
    assert "the cluster size is 0 or 1" in error


async def test_limits_hold_over_all_profiles_and_begin_anew_with_each_cycle() -> None:
    """The result has the evictions of this cycle by profile and plugin."""
    kit = Kit(total=3)

    async def two(plugin: Both, nodes: Sequence[ClusterNode]) -> None:
        for name in ("one", "two"):
            await plugin.handle.evictor().evict(make_pod(name))

    args = {name: {"balance": two} for name in "AB"}
    first = await kit.profile("first", balance=("A",), args=args)
    second = await kit.profile("second", balance=("B", "A"), args=args, dry_run=True)
    cycles = descheduler(kit, first, second)

    expected = {"first": {"A": 2}, "second": {"B": 1}}
    assert (await cycles.run_once()).evictions == expected
    assert (await cycles.run_once()).evictions == expected
    assert kit.sample("descheduler_evictions_denied_total", limit="total") == 6


async def test_cycles_start_every_interval_and_never_overlap(kit: Kit) -> None:
    """A slow one is followed at once; stop ends the pause."""
    starts: list[float] = []
    lasts = iter([1.0, 25.0, 1.0, 1.0])

    async def act(plugin: Both, nodes: Sequence[ClusterNode]) -> None:
        starts.append(kit.clock.monotonic() - began)
        await kit.clock.sleep(next(lasts))

    profile = await kit.profile(balance=("A",), args={"A": {"balance": act}})
    stop, began = Stop(kit.clock), kit.clock.monotonic()
    running = asyncio.create_task(descheduler(kit, profile).run(stop))
    await kit.clock.advance(50.0)
    stop.set()
    await running

    assert starts == [0.0, 10.0, 35.0, 45.0]
    assert kit.sample("descheduler_cycle_duration_seconds_count") == 4
    assert kit.sample("descheduler_cycle_duration_seconds_sum") == pytest.approx(28.0)


async def test_interval_zero_is_one_cycle(kit: Kit) -> None:
    """The rest of the process goes on, and so do cycles when the interval is changed."""
    calls: list[Any] = []
    profile = await kit.profile(balance=("A",), args={"A": {"calls": calls}})
    cycles, stop = descheduler(kit, profile, interval=0.0), Stop(kit.clock)
    running = asyncio.create_task(cycles.run(stop))
    await kit.clock.advance(1000.0)
    assert len(calls) == 1

    cycles.change(profiles=[profile], interval=0.0, node_selector=None)
    await kit.clock.advance(1000.0)
    assert len(calls) == 1
    cycles.change(profiles=[profile], interval=60.0, node_selector=None)
    await kit.clock.advance(59.0)
    assert len(calls) == 2
    await kit.clock.advance(1.0)
    assert len(calls) == 3
    stop.set()
    await running


async def test_a_change_waits_for_the_cycle_that_runs(kit: Kit) -> None:
    """The next one begins after it, with what it has changed."""
    calls: list[Any] = []

    async def slow(plugin: Both, nodes: Sequence[ClusterNode]) -> None:
        await kit.clock.sleep(30.0)

    args = {"A": {"balance": slow, "calls": calls}, "B": {"calls": calls}}
    slowly = await kit.profile("slowly", balance=("A",), args=args)
    other = await kit.profile("other", balance=("B",), args=args)
    cycles, stop = descheduler(kit, slowly), Stop(kit.clock)
    running = asyncio.create_task(cycles.run(stop))
    await kit.clock.settle()

    async def change() -> None:
        async with cycles.between_cycles():
            calls.append("changed")
            cycles.change(profiles=[other], interval=10.0, node_selector=None)
            await kit.clock.sleep(5.0)

    changing = asyncio.create_task(change())
    await kit.clock.advance(29.0)
    assert "changed" not in calls
    await kit.clock.advance(3.0)
    assert calls[1:] == ["changed"]
    await kit.clock.advance(3.0)
    assert [call[0] for call in calls[2:]] == ["other"]
    stop.set()
    await running
    await changing


async def test_stop_ends_a_cycle_in_its_middle(kit: Kit) -> None:
    """The plugin is cancelled, later ones do not run."""
    calls: list[Any] = []
    ended: list[str] = []

    async def waits(plugin: Both, nodes: Sequence[ClusterNode]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("A")

    args = {"A": {"balance": waits}, "B": {"calls": calls}}
    profile = await kit.profile(balance=("A", "B"), args=args)
    stop = Stop(kit.clock)
    running = asyncio.create_task(descheduler(kit, profile).run(stop))
    await kit.clock.settle()
    stop.set()
    await running

    assert ended == ["A"]
    assert calls == []


async def test_the_log_has_start_and_end_of_each_cycle(
    kit: Kit, capsys: pytest.CaptureFixture[str]
) -> None:
    """With ISO times, wall and CPU seconds, and evictions by profile and plugin."""
    cpu = iter([10.0, 12.5])

    async def act(plugin: Both, nodes: Sequence[ClusterNode]) -> None:
        await kit.clock.sleep(4.0)
        await plugin.handle.evictor().evict(make_pod())

    profile = await kit.profile(balance=("A",), args={"A": {"balance": act}})
    cycle = asyncio.create_task(descheduler(kit, profile, cpu=lambda: next(cpu)).run_once())
    await kit.clock.advance(4.0)
    await cycle
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    started, ended = (event for event in events if event["event"].startswith("cycle."))

    assert started["event"] == "cycle.started"
    assert ended["event"] == "cycle.ended"
    assert datetime.fromisoformat(started["ts"]) <= datetime.fromisoformat(ended["ts"])
    assert (ended["seconds"], ended["cpu_seconds"]) == (4.0, 2.5)
    assert ended["evictions"] == {"p": {"A": 1}}
    assert ended["errors"] == []


async def test_a_profile_whose_plugin_is_not_ready_is_left_out(
    kit: Kit,
) -> None:
    """What it evicts would be a guess; the others have their rounds, and so has it later."""
    calls: list[Any] = []
    ready, clock = asyncio.Event(), kit.clock

    class Part:
        async def run(self, stop: Stop) -> None:
            await stop.wait()

        async def wait_ready(self) -> None:
            await ready.wait()

        def health(self) -> PartHealth:
            return OK

    bad = await kit.profile("bad", balance=("A",), args={"A": {"calls": calls}})
    good = await kit.profile("good", balance=("B",), args={"B": {"calls": calls}})
    kit.services.shared.put("jobs", Part(), "A")
    running = asyncio.create_task(kit.services.shared.run(Stop(clock), clock, Health()))
    waiting = asyncio.create_task(kit.services.shared.wait_ready())
    await clock.advance(READY_TIMEOUT)
    await waiting
    result = await descheduler(kit, bad, good).run_once()

    assert [profile for profile, *_ in calls] == ["good"]
    assert result.errors == ['bad: left out: plugin A: its part "jobs" is not ready after 60 s']
    ready.set()
    await clock.settle()
    await descheduler(kit, bad, good).run_once()
    assert [profile for profile, *_ in calls] == ["good", "bad", "good"]
    running.cancel()


async def test_health_names_what_went_wrong_in_the_last_cycle(kit: Kit) -> None:
    """Degraded, as the other plugins work; the next good cycle ends it."""
    fails = iter([True, False])

    async def act(plugin: Both, nodes: Sequence[ClusterNode]) -> None:
        if next(fails):
            raise ValueError("broken")

    profile = await kit.profile(balance=("A",), args={"A": {"balance": act}})
    cycles = descheduler(kit, profile)
    assert cycles.health().status is HealthStatus.OK
    await cycles.run_once()
    assert cycles.health().status is HealthStatus.DEGRADED
    assert cycles.health().reason == "the last cycle: p: plugin A: ValueError('broken')"
    await cycles.run_once()
    assert cycles.health().status is HealthStatus.OK


async def test_a_list_of_nodes_that_fails_costs_one_cycle(kit: Kit) -> None:
    """The next one has its chance."""
    calls: list[Any] = []
    answers: list[Any] = [ValueError("server gone"), NODES]
    profile = await kit.profile(balance=("A",), args={"A": {"calls": calls}})

    def listed() -> Sequence[ClusterNode]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        found: Sequence[ClusterNode] = answer
        return found

    cycles = Descheduler(
        [profile],
        listed,
        kit.limiter,
        kit.metrics,
        kit.clock,
        decisions=kit.decisions,
        interval=10.0,
    )
    assert (await cycles.run_once()).errors == ["ValueError('server gone')"]
    assert (await cycles.run_once()).errors == []
    assert len(calls) == 1


def test_evicted_pods_are_a_counter_without_total_in_their_name(kit: Kit) -> None:
    """As Koordinator's, in the text that its dashboards read."""
    count = {"result": "success", "strategy": "A", "namespace": "default", "node": "n1"}
    kit.metrics.evicted.count(**count)
    kit.metrics.evicted.count(**count)
    [family] = kit.metrics.evicted.collect()
    assert family.name in UNSUFFIXED_COUNTERS
    text = TEXT.encode(family, unsuffixed_counter=True).decode()

    assert "# TYPE descheduler_pods_evicted counter" in text
    line = 'result="success",strategy="A"} 2.0'
    labels = 'descheduler_pods_evicted{namespace="default",node="n1",'
    assert labels + line in text
    assert "descheduler_cycle_duration_seconds_bucket" in generate_latest(kit.exposition).decode()


def test_series_of_evicted_pods_are_bounded(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound they count under one namespace and node."""
    monkeypatch.setattr("koord_descheduler.framework.evictor.MAX_SERIES", 2)
    for node in ("n1", "n2", "n3", "n4", "n1"):
        kit.metrics.evicted.count(result="success", strategy="A", namespace="d", node=node)

    labels = {"result": "success", "strategy": "A"}
    found = kit.sample("descheduler_pods_evicted", namespace="other", node="other", **labels)
    assert found == 2
    assert kit.sample("descheduler_pods_evicted", namespace="d", node="n1", **labels) == 2


PLANS = st.lists(
    st.tuples(
        st.lists(st.sampled_from("ABC"), unique=True), st.lists(st.sampled_from("ABC"), unique=True)
    ),
    min_size=1,
    max_size=3,
)


@given(PLANS, st.sets(st.sampled_from("ABC")))
async def test_every_plugin_runs_once_in_order_whatever_fails(
    plans: list[tuple[list[str], list[str]]], broken: set[str]
) -> None:
    """Profiles and failures of any kind: the calls are those of the plain nested loops."""
    kit, calls = Kit(), list[Any]()

    async def fails(plugin: Both, nodes: Sequence[ClusterNode]) -> None:
        raise ValueError("broken")

    args = {
        name: {"calls": calls, "deschedule": fails, "balance": fails}
        if name in broken
        else {"calls": calls}
        for name in "ABC"
    }
    profiles = [
        await kit.profile(str(number), deschedule=tuple(first), balance=tuple(second), args=args)
        for number, (first, second) in enumerate(plans)
    ]
    await descheduler(kit, *profiles).run_once()

    expected = [
        (str(number), name, point)
        for index, point in enumerate(("deschedule", "balance"))
        for number, plan in enumerate(plans)
        for name in plan[index]
    ]
    assert [call[:3] for call in calls] == expected
