"""Parts of plugins that exist once in a process."""

import asyncio
import threading

import pytest

from koord.component.plugins.shared import HEALTH, READY_TIMEOUT, SharedParts
from koord.util.health import OK, Health, HealthStatus, PartHealth
from koord.util.simulatedclock import SimulatedClock
from koord.util.stop import Stop


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


class Part:
    """Counts its runs; fails as often as it is asked to."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.runs = 0
        self.running = False
        self.ready = asyncio.Event()

    async def run(self, stop: Stop) -> None:
        self.runs += 1
        if self.runs <= self.failures:
            raise ValueError("not yet")
        self.running = True
        await stop.wait()
        self.running = False

    async def wait_ready(self) -> None:
        await self.ready.wait()

    def health(self) -> PartHealth:
        return OK if self.ready.is_set() else PartHealth(HealthStatus.DEGRADED, "lists")


def test_a_part_is_made_once() -> None:
    """Two profiles that name a plugin share its part."""
    shared = SharedParts()
    first = shared.get("jobs", Part)

    assert shared.get("jobs", Part) is first
    assert shared.get("other", Part) is not first


def test_a_part_that_is_made_already_can_be_put_in_once() -> None:
    shared, part = SharedParts(), Part()
    shared.put("jobs", part)
    shared.put("jobs", Part())

    assert shared.get("jobs", Part) is part


async def test_parts_run_until_stop_and_later_ones_too(clock: SimulatedClock) -> None:
    """A configuration that is re-read may name a plugin for the first time while we lead."""
    shared, stop, health = SharedParts(), Stop(clock), Health()
    early = shared.get("early", Part)
    running = asyncio.create_task(shared.run(stop, clock, health))
    await clock.settle()
    late = shared.get("late", Part)
    await clock.settle()

    assert (early.running, late.running) == (True, True)
    assert set(health.parts()) == {"early", "late", HEALTH}

    stop.set()
    await running

    assert (early.running, late.running) == (False, False)
    assert health.parts() == {}


async def test_a_part_that_fails_is_run_again(clock: SimulatedClock) -> None:
    """Health has the reason until it holds."""
    shared, stop, health = SharedParts(), Stop(clock), Health()
    part = shared.get("jobs", lambda: Part(failures=1))
    running = asyncio.create_task(shared.run(stop, clock, health))
    await clock.settle()

    assert "not yet" in health.parts()["component jobs"].reason

    await clock.advance(2)

    assert part.running
    stop.set()
    await running


async def test_a_cycle_waits_until_all_parts_are_ready(clock: SimulatedClock) -> None:
    """wait_ready returns with the last one; until then health says which."""
    shared, health = SharedParts(), Health()
    one, two = shared.get("one", Part), shared.get("two", Part)
    running = asyncio.create_task(shared.run(Stop(clock), clock, health))
    waiting = asyncio.create_task(shared.wait_ready())
    one.ready.set()
    await clock.advance(2)

    assert not waiting.done()
    found = health.parts(ready=True)[HEALTH]
    assert found.status is HealthStatus.UNHEALTHY
    assert found.reason == 'plugin two: its part "two" is not ready after 2 s'

    two.ready.set()
    await waiting
    assert health.parts(ready=True)[HEALTH] == OK
    running.cancel()


async def test_who_is_late_is_not_waited_for_and_named(clock: SimulatedClock) -> None:
    """Until it is ready after all."""
    shared, health = SharedParts(), Health()
    part = Part()
    shared.put("jobs", part, "Gang")
    running = asyncio.create_task(shared.run(Stop(clock), clock, health))
    waiting = asyncio.create_task(shared.wait_ready())
    await clock.advance(READY_TIMEOUT - 1)
    assert (waiting.done(), shared.late()) == (False, {})
    await clock.advance(1)
    assert waiting.done()
    assert health.parts(ready=True)[HEALTH].status is HealthStatus.DEGRADED
    assert shared.late() == {"Gang": 'plugin Gang: its part "jobs" is not ready after 60 s'}

    part.ready.set()
    await clock.settle()
    assert (shared.late(), health.parts(ready=True)[HEALTH]) == ({}, OK)
    running.cancel()


async def test_a_part_that_holds_the_loop_is_interrupted(
    clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails as one that raises; the daemon would not answer its probes."""
    monkeypatch.setattr("koord.component.plugins.shared.STEP", 0.05)

    class Holds(Part):
        async def run(self, stop: Stop) -> None:
            threading.Event().wait()

    shared, health = SharedParts(), Health()
    shared.put("jobs", Holds(), "Gang")
    running = asyncio.create_task(shared.run(Stop(clock), clock, health))
    await clock.settle()

    assert "plugin Gang: wanted an end within 0.05 s" in health.parts()["component jobs"].reason
    running.cancel()


async def test_a_lost_lead_ends_all_parts(clock: SimulatedClock) -> None:
    """Who cancels run cancels the parts, and waits for them."""
    shared = SharedParts()
    part = shared.get("jobs", Part)
    running = asyncio.create_task(shared.run(Stop(clock), clock, Health()))
    await clock.settle()
    running.cancel()
    await asyncio.wait({running})

    assert part.runs == 1
    assert len(asyncio.all_tasks()) == 1
