"""Supervised components: crash, pause, restart, recovery, cancellation."""

import asyncio

import pytest
import structlog.testing

from koord.component.supervisor import SETTLED_AFTER, supervise
from koord.util.health import OK, Health, HealthStatus, worst
from koord.util.simulatedclock import SimulatedClock
from koord.util.stop import Stop
from koord.util.timebudget import Backoff


class Component:
    """Crashes a given number of times, then runs until stopped."""

    def __init__(self, crashes: int = 0) -> None:
        self.crashes = crashes
        self.starts = 0
        self.cancelled = False

    async def run(self, stop: Stop) -> None:
        self.starts += 1
        if self.starts <= self.crashes:
            raise RuntimeError(f"crash {self.starts}")
        try:
            await stop.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise


class Supervised:
    def __init__(self, component: Component) -> None:
        self.clock = SimulatedClock()
        self.stop = Stop(self.clock)
        self.health = Health()
        backoff = Backoff(1.0, 60.0, draw=lambda: 0.0)
        self.task = asyncio.create_task(
            supervise("part", component.run, self.stop, self.clock, self.health, backoff=backoff)
        )

    @property
    def status(self) -> HealthStatus:
        return worst(self.health.parts())


async def test_a_component_that_returns_is_done():
    """Stop ends the component, and with it the supervision and its health entry."""
    component = Component()
    supervised = Supervised(component)
    await supervised.clock.advance(1)
    assert supervised.status is HealthStatus.OK
    supervised.stop.set()
    await supervised.task
    assert component.starts == 1
    assert supervised.health.parts() == {}


async def test_crashes_are_restarted_after_growing_pauses_and_logged_once():
    """Starts at 0, 1, 3 and 7 s; one line for the crashes, one for the recovery."""
    component = Component(crashes=3)
    with structlog.testing.capture_logs() as logs:
        supervised = Supervised(component)
        starts = []
        for _ in range(8):
            await supervised.clock.settle()
            starts.append(component.starts)
            await supervised.clock.advance(1)
        assert starts == [1, 2, 2, 3, 3, 3, 3, 4]
        assert supervised.status is HealthStatus.UNHEALTHY
        assert "crash 3" in supervised.health.parts()["component part"].reason
        await supervised.clock.advance(SETTLED_AFTER)
        assert supervised.status is HealthStatus.OK
    assert [entry["event"] for entry in logs] == ["component.crashed", "component.recovered"]
    supervised.stop.set()
    await supervised.task


async def test_the_component_s_own_check_is_left_alone():
    """It may count for liveness, and says more than that nothing crashed."""
    supervised = Supervised(Component(crashes=1))
    supervised.health.register("part", lambda: OK, live=True)
    await supervised.clock.settle()
    assert set(supervised.health.parts()) == {"part", "component part"}
    assert set(supervised.health.parts(live=True)) == {"part"}
    supervised.stop.set()
    await supervised.task
    assert set(supervised.health.parts()) == {"part"}


async def test_stop_ends_a_pause():
    """No backoff delays the exit."""
    component = Component(crashes=9)
    supervised = Supervised(component)
    await supervised.clock.settle()
    supervised.stop.set()
    await supervised.task
    assert component.starts == 1


async def test_cancelling_the_supervisor_cancels_the_component():
    component = Component()
    supervised = Supervised(component)
    await supervised.clock.settle()
    supervised.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await supervised.task
    assert component.cancelled
    assert supervised.health.parts() == {}


async def test_a_component_that_cancels_itself_has_crashed():
    """Only the supervisor's own cancellation ends it quietly."""
    starts = 0

    async def run(stop: Stop) -> None:
        nonlocal starts
        starts += 1
        if starts == 1:
            raise asyncio.CancelledError
        await stop.wait()

    clock = SimulatedClock()
    stop = Stop(clock)
    task = asyncio.create_task(supervise("part", run, stop, clock))
    await clock.advance(2)
    assert starts == 2
    stop.set()
    await task
