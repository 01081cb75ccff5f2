"""Attempts that take too long, and pods that wait too long for an event."""

import asyncio

import pytest
from structlog.testing import capture_logs

from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord.util.stop import Stop
from koord_scheduler.framework.interfaces import PermitPlugin, PostFilterPlugin
from koord_scheduler.framework.status import (
    CycleState,
    NodeStatuses,
    PostFilterResult,
    Status,
    Wait,
)
from koord_scheduler.scheduling.failures import AttemptTimeouts
from tests.support.scheduler.loop import Loop

NAME = "scheduler_scheduling_timeout"


class Waits(PermitPlugin):
    def permit(self, state: CycleState, pod: ClusterPod, node_name: str) -> Wait | Status | None:
        return Wait(60.0)


async def test_an_attempt_that_takes_too_long_is_reported_once() -> None:
    """While it lasts, though it is looked at several times more."""
    loop = await Loop().build(
        permit={"Waits": Waits()}, timeouts=AttemptTimeouts(timeout=30.0, period=10.0)
    )
    loop.api.add_node("a")
    key = loop.api.add_pod("web")
    with capture_logs() as logs:
        await loop.start()
        await loop.advance(30.0)
        assert loop.sample(NAME, profile="p") is None
        for _ in range(2):
            await loop.advance(10.0)
        assert loop.sample(NAME, profile="p") == 1.0
        await loop.advance(30.0)
        assert loop.place(key) != "inFlight"
    assert loop.sample(NAME, profile="p") == 1.0
    [found] = [one for one in logs if one["event"] == "attempt.too_long"]
    assert (found["pod"], found["node"], found["timeout"]) == (key, "a", 30.0)


async def test_an_attempt_that_ends_between_two_looks_counts_too() -> None:
    loop = await Loop().build(
        permit={"Waits": Waits()}, timeouts=AttemptTimeouts(timeout=30.0, period=1000.0)
    )
    loop.api.add_node("a")
    loop.api.add_pod("web")
    await loop.start()
    await loop.advance(61.0)
    assert loop.sample(NAME, profile="p") == 1.0


async def test_attempts_in_time_are_not_counted() -> None:
    loop = await Loop().build()
    loop.api.add_node("a")
    loop.api.add_pod("web")
    await loop.start()
    await loop.advance(31.0)
    assert len(loop.api.bindings) == 1
    assert loop.sample(NAME, profile="p") is None
    await loop.end()


class Hangs(PostFilterPlugin):
    async def post_filter(
        self, state: CycleState, pod: ClusterPod, nodes: View, statuses: NodeStatuses
    ) -> PostFilterResult:
        await asyncio.Event().wait()
        raise AssertionError


async def test_an_attempt_that_the_end_of_the_lead_cut_off_is_under_way_no_more() -> None:
    """It is tried anew when this process leads again, and is not too long by the time between."""
    loop = await Loop().build(
        postFilter={"Hangs": Hangs()}, timeouts=AttemptTimeouts(timeout=30.0, period=1.0)
    )
    loop.api.add_node("a", cpu="1")
    key = loop.api.add_pod("web", cpu="2")
    await loop.start()
    assert loop.place(key) == "inFlight"
    await loop.end()
    await loop.advance(100.0)
    loop.api.delete_pod(key)
    loop.api.deliver()
    loop.stop = Stop(loop.clock)
    await loop.start()
    await loop.advance(5.0)
    assert loop.sample(NAME, profile="p") is None
    await loop.end()


@pytest.mark.parametrize(("longest", "tried"), [(60.0, True), (600.0, False)])
async def test_a_rejected_pod_is_tried_again_without_an_event_after_a_while(
    longest: float, tried: bool
) -> None:
    """--pod-max-in-unschedulable-pods-duration; it is looked at every 30 s."""
    loop = await Loop().build(max_in_unschedulable_pods=longest)
    loop.api.add_node("a", cpu="1")
    loop.api.add_pod("web", cpu="2")
    await loop.start()
    await loop.advance(91.0)
    await asyncio.sleep(0)
    assert len(loop.events) == (2 if tried else 1)
