"""Waiting for whichever comes first leaves nothing behind."""

import asyncio

import pytest

from koord.util.simulatedclock import SimulatedClock
from koord.util.stop import first_completed


async def test_the_first_one_ends_the_wait() -> None:
    """Coroutines that were not needed end, tasks go on."""
    clock, cancelled, go = SimulatedClock(), asyncio.Event(), asyncio.Event()

    async def patient() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    task = asyncio.create_task(go.wait())
    waiting = asyncio.create_task(first_completed(task, patient(), clock.sleep(5)))
    await clock.advance(4)
    assert not waiting.done()
    await clock.advance(1)

    assert waiting.done()
    assert cancelled.is_set()
    assert not task.done()
    go.set()
    assert await task


async def test_being_cancelled_cancels_what_it_waits_for() -> None:
    """But not tasks, which belong to the caller."""
    clock = SimulatedClock()
    task = asyncio.create_task(asyncio.Event().wait())
    waiting = asyncio.create_task(first_completed(task, clock.sleep(5)))
    await clock.settle()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await clock.settle()

    assert clock.sleepers == 0
    assert not task.done()
    task.cancel()


async def test_a_failure_is_left_where_it_is() -> None:
    """Who waits for the first does not ask what became of it."""
    task = asyncio.create_task(_fail())
    await first_completed(task, asyncio.Event().wait())

    with pytest.raises(ValueError, match="no"):
        await task


async def _fail() -> None:
    raise ValueError("no")
