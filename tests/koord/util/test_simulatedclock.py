"""The simulated clock does as the system clock does, where tests rely on it."""

import asyncio

import pytest

from koord.util.clock import Clock, SystemClock
from koord.util.simulatedclock import SimulatedClock


@pytest.mark.parametrize("clock", [SystemClock(), SimulatedClock()])
@pytest.mark.parametrize("seconds", [0.0, -1.0])
async def test_a_timer_of_no_time_is_done_at_once(clock: Clock, seconds: float) -> None:
    await asyncio.wait_for(clock.timer(seconds), 60)
    await asyncio.wait_for(clock.sleep(seconds), 60)


async def test_a_timer_that_was_ended_early_stays_so() -> None:
    clock = SimulatedClock()
    cancelled, finished = clock.timer(0.0), clock.timer(1.0)
    cancelled.cancel()
    finished.set_result(None)
    await clock.advance(2)
    assert cancelled.cancelled()
    assert finished.done()
