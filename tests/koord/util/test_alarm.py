"""A pause that can be ended early."""

import asyncio

import pytest

from koord.util.simulatedclock import SimulatedClock
from koord.util.stop import Alarm, Stop


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
async def stop(clock: SimulatedClock) -> Stop:
    return Stop(clock)


async def test_a_pause_lasts_as_long_as_it_was_meant_to(clock, stop) -> None:
    """When nothing happens."""
    waiting = asyncio.ensure_future(Alarm().wait(stop, 10))
    await clock.advance(9)
    assert not waiting.done()

    await clock.advance(1)
    assert await waiting is False


async def test_an_alarm_ends_it(clock, stop) -> None:
    """Once: the next pause waits for the next alarm."""
    alarm = Alarm()
    waiting = asyncio.ensure_future(alarm.wait(stop, 10))
    await clock.settle()
    alarm.set()
    alarm.set()
    await clock.settle()
    assert await waiting is True

    waiting = asyncio.ensure_future(alarm.wait(stop, 10))
    await clock.advance(9)
    assert not waiting.done()
    await clock.advance(1)


async def test_an_alarm_is_not_lost(clock, stop) -> None:
    """It may come without a waiter, or while the waiter is busy."""
    alarm = Alarm()
    for seconds in (10, 0, -1):
        alarm.set()
        assert await alarm.wait(stop, seconds) is True
        assert await alarm.wait(stop, 0) is False
    assert clock.sleepers == 0


async def test_stop_ends_it(clock, stop) -> None:
    """Without an alarm."""
    waiting = asyncio.ensure_future(Alarm().wait(stop, 10))
    await clock.settle()
    stop.set()
    await clock.settle()
    assert await waiting is False
