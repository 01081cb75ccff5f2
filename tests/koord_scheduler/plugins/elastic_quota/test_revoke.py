"""Revoking: who leaves a quota that uses more than it may, and when."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from koord.api.elasticquota import PREEMPTIBLE
from koord.api.podgroup import GROUP_LABEL, LIGHTWEIGHT_MIN_LABEL, LIGHTWEIGHT_NAME_LABEL
from koord.controlplane.testing import api_error_response
from koord.util.health import HealthStatus
from koord_scheduler_plugins.elastic_quota.plugin import POD_GROUPS
from koord_scheduler_plugins.elastic_quota.revoke import MAX_EVICTIONS, QuotaRevoker
from tests.koord_scheduler.plugins.elastic_quota.test_elastic_quota import World


class Evictions:
    """An API server that takes evictions, or answers with an error."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.code = 0
        self.then: Callable[[str], None] = lambda name: None

    async def post(self, path: str, body: Any) -> Any:
        assert path.endswith(f"/pods/{body['metadata']['name']}/eviction")
        assert body["deleteOptions"]["preconditions"]["uid"]
        self.asked.append(body["metadata"]["name"])
        if self.code:
            call: Any = type("Call", (), {"where": f"POST {path}"})()
            raise api_error_response(call, self.code, "No", "no")
        self.then(body["metadata"]["name"])
        return {}


@asynccontextmanager
async def revoking(**args: Any) -> AsyncIterator[tuple[World, Evictions, QuotaRevoker]]:
    """A world of one large node, in which use above the limit is tolerated for 10 seconds."""
    world, evictions = await World().begin(100, **args), Evictions()
    services = replace(world.services, client=evictions)  # type: ignore[arg-type]
    groups = world.plugin._pod_groups
    revoker = QuotaRevoker(
        services,
        world.plugin.tracker.current,
        "p",
        delay=10.0,
        interval=1.0,
        pod_groups=groups,
    )
    running = asyncio.create_task(revoker.run(world.stop))
    try:
        yield world, evictions, revoker
    finally:
        await world.end()
        await running


async def test_pods_leave_after_the_delay_the_least_important_first():
    async with revoking() as (world, evictions, _):
        world.quota("a", "4")
        for name, priority in (("low", 1), ("mid", 2), ("high", 3)):
            world.add(name, "a", cpu="2", bound="n0", priority=priority)
        world.add("other", bound="n0", cpu="9", priority=-1)
        await world.settle()
        evictions.then = lambda name: world.api.change(
            f"default/{name}", metadata={"deletionTimestamp": "2026-07-24T06:52:45Z"}
        )
        await world.advance(9.0)
        assert evictions.asked == []
        await world.advance(4.0)
        assert evictions.asked == ["low"]
        assert "used: cpu:6, runtime: cpu:4" in world.message("low")
        await world.advance(60.0)  # it takes its time to leave: nobody else has to
        assert evictions.asked == ["low"]


async def test_use_that_ends_in_time_is_tolerated():
    """Worked example 53."""
    async with revoking() as (world, evictions, _):
        world.quota("a", "2")
        world.add("p", "a", cpu="3", bound="n0")
        await world.settle()
        await world.advance(8.0)
        world.quota("a", "3")
        await world.advance(8.0)
        world.quota("a", "2")
        await world.advance(8.0)
        assert evictions.asked == []
        await world.advance(8.0)
        assert evictions.asked == ["p"]


async def test_pods_that_may_not_be_preempted_stay():
    async with revoking() as (world, evictions, _):
        world.quota("a", "1", "1")
        world.add("p", "a", cpu="3", bound="n0", labels={PREEMPTIBLE: "false"})
        await world.settle()
        await world.advance(30.0)
        assert evictions.asked == []


async def test_a_round_evicts_so_many_at_most_and_the_next_one_goes_on():
    async with revoking() as (world, evictions, _):
        world.quota("a", "0")
        for number in range(MAX_EVICTIONS + 3):
            world.add(f"p{number}", "a", bound="n0")
        await world.settle()
        evictions.then = lambda name: world.api.delete_pod(f"default/{name}")
        await world.advance(12.0)
        assert len(evictions.asked) == MAX_EVICTIONS
        await world.advance(1.0)
        assert len(evictions.asked) == MAX_EVICTIONS + 3


def of_gang(name: str, minimum: int) -> dict[str, str]:
    return {LIGHTWEIGHT_NAME_LABEL: name, LIGHTWEIGHT_MIN_LABEL: str(minimum)}


async def test_a_gang_keeps_its_minimum_while_others_suffice():
    """Of three members one is more than it needs; then a more important pod leaves."""
    async with revoking() as (world, evictions, _):
        world.quota("a", "2")
        for number in range(3):
            name = f"g{number}"
            world.add(name, "a", bound="n0", priority=1, labels=of_gang("g", 2))
        world.add("p", "a", bound="n0", priority=9)
        await world.settle()
        evictions.then = lambda name: world.api.delete_pod(f"default/{name}")
        await world.advance(12.0)
        assert len(evictions.asked) == 2
        assert "p" in evictions.asked
        await world.advance(30.0)
        assert len(evictions.asked) == 2


async def test_a_gang_leaves_as_a_whole_where_the_others_do_not_suffice():
    """The minimum is the PodGroup's; the other gang stays as a whole."""
    async with revoking(monitor_all_quotas=True) as (world, evictions, revoker):
        meta = {"namespace": "default", "name": "low"}
        world.services.informers.apply(POD_GROUPS, {"metadata": meta, "spec": {"minMember": 2}})
        assert revoker.health().status is HealthStatus.OK
        world.quota("a", "3")
        for number in range(2):
            labels = {GROUP_LABEL: "low"}
            world.add(f"low{number}", "a", bound="n0", priority=1, labels=labels)
            high = of_gang("high", 2)
            world.add(f"high{number}", "a", bound="n0", priority=2, labels=high)
        await world.settle()
        evictions.then = lambda name: world.api.delete_pod(f"default/{name}")
        await world.advance(12.0)
        assert sorted(evictions.asked) == ["low0", "low1"]
        await world.advance(30.0)
        assert len(evictions.asked) == 2


async def test_a_budget_that_forbids_it_is_no_error_but_a_missing_right_is():
    async with revoking() as (world, evictions, revoker):
        world.quota("a", "0")
        world.add("p", "a", bound="n0")
        await world.settle()
        evictions.code = 429
        await world.advance(12.0)
        assert (evictions.asked, revoker.health().status) == (["p"], HealthStatus.OK)
        evictions.code = 403
        await world.advance(12.0)
        assert revoker.health().status is HealthStatus.DEGRADED
        evictions.code = 0
        await world.advance(12.0)
        assert (len(evictions.asked), revoker.health().status) == (3, HealthStatus.OK)
