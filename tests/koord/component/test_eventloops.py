"""Event loops in other threads."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from koord.component.eventloops import STUCK_SECONDS, LoopHandle, LoopThread
from koord.util.clock import SystemClock
from koord.util.health import HealthStatus
from koord.util.simulatedclock import SimulatedClock
from koord.util.stop import Stop


@pytest.fixture
async def other() -> AsyncIterator[LoopHandle]:
    thread = LoopThread("other", SystemClock())
    thread.start()
    yield thread.loop
    await thread.stop()


async def test_work_is_awaited_over_there(other: LoopHandle) -> None:
    """With its result, or what it raises; on its own loop at once."""

    async def where(argument: str) -> tuple[str, str]:
        return argument, threading.current_thread().name

    async def fails() -> None:
        raise LookupError("there")

    async def asks_itself() -> tuple[str, str]:
        return await other.call(where, "b")

    assert await other.call(where, "a") == ("a", "other")
    assert await other.call(asks_itself) == ("b", "other")
    with pytest.raises(LookupError, match="there"):
        await other.call(fails)


async def test_a_component_ends_with_our_stop(other: LoopHandle) -> None:
    """Its stop signal belongs to its own loop, and follows."""
    stop, began, ended = Stop(SystemClock()), threading.Event(), threading.Event()

    async def component(there: Stop) -> None:
        began.set()
        await there.wait()
        ended.set()

    running = asyncio.create_task(other.run(component, stop))
    await asyncio.to_thread(began.wait)
    assert not ended.is_set()
    stop.set()
    await running
    assert ended.is_set()


async def test_a_component_that_is_cancelled_has_ended(other: LoopHandle) -> None:
    """Whoever cancels it goes on only after its cleanup."""
    began, events = threading.Event(), list[str]()

    async def component(_: Stop) -> None:
        try:
            began.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            events.append("cleaned up")

    running = asyncio.create_task(other.run(component, Stop(SystemClock())))
    await asyncio.to_thread(began.wait)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert events == ["cleaned up"]


async def test_the_error_of_a_component_is_passed_on(other: LoopHandle) -> None:
    async def component(_: Stop) -> None:
        raise LookupError("part")

    with pytest.raises(LookupError, match="part"):
        await other.run(component, Stop(SystemClock()))


async def test_health_tells_a_loop_that_does_not_turn() -> None:
    """First that it computes for long, then that it is stuck; a turn ends both."""
    clock = SimulatedClock()
    loop, stop = LoopHandle(asyncio.get_running_loop(), clock), Stop(clock)
    assert loop.health().status is HealthStatus.OK
    clock.tick(STUCK_SECONDS - 1)
    assert (loop.health().status, loop.is_stuck) == (HealthStatus.DEGRADED, False)
    clock.tick(2)
    assert (loop.health().status, loop.is_stuck) == (HealthStatus.UNHEALTHY, True)
    assert loop.health().reason == "has computed for 61 s without a turn"
    watching = asyncio.create_task(loop.watch(stop))
    await clock.settle()
    assert (loop.health().status, loop.is_stuck) == (HealthStatus.OK, False)
    stop.set()
    await watching
