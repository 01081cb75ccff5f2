"""The simulated clock wakes sleepers in order and lets them finish what they do."""

import asyncio

import pytest

from koord.util.stop import Stop
from koordlet.plugin.testing.scripted import SimulatedClock


async def test_sleepers_wake_in_the_order_of_their_deadlines():
    """One advance over many deadlines runs them one after another, at their own times."""
    clock = SimulatedClock(monotonic=0)
    seen: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        seen.append((name, clock.monotonic()))

    tasks = [asyncio.create_task(sleeper(n, s)) for n, s in (("c", 3), ("a", 1), ("b", 2))]
    await clock.advance(2.5)

    assert seen == [("a", 1), ("b", 2)]
    assert clock.monotonic() == 2.5
    await clock.advance(1)
    assert seen[-1] == ("c", 3)
    await asyncio.gather(*tasks)


async def test_a_loop_runs_once_per_interval():
    """Rounds paced by Stop.every see every turn of one long advance."""
    clock = SimulatedClock()
    stop = Stop(clock)
    turns: list[int] = []

    async def run() -> None:
        async for turn in stop.every(0.1):
            turns.append(turn)

    task = asyncio.create_task(run())
    await clock.advance(10.05)
    stop.set()
    await clock.settle()

    assert turns == list(range(101))
    assert task.done()


async def test_an_event_adds_rounds_and_takes_none_away():
    """A round that was woken is early; the next regular one keeps its time."""
    clock = SimulatedClock(monotonic=0)
    stop, wake = Stop(clock), asyncio.Event()
    rounds: list[float] = []

    async def run() -> None:
        async for _ in stop.every(10, wake):
            rounds.append(clock.monotonic())

    task = asyncio.create_task(run())
    for seconds in (3, 4, 14):
        await clock.advance(seconds)
        wake.set()
    await clock.advance(10)
    stop.set()
    await clock.settle()

    assert rounds == [0, 3, 7, 10, 20, 21, 30]
    assert task.done()


async def test_a_cancelled_sleeper_is_forgotten():
    """Cancelling a sleeping task leaves nothing to wake."""
    clock = SimulatedClock()
    task = asyncio.create_task(clock.sleep(5))
    await clock.settle()
    assert clock.sleepers == 1
    task.cancel()
    await clock.settle()
    assert clock.sleepers == 0
    await clock.advance(10)


async def test_steps_and_suspend_move_only_their_own_time_lines():
    """A wall step leaves the others alone; suspend stops monotonic time only."""
    clock = SimulatedClock(wall=100, monotonic=10, boottime=50)
    clock.step_wall(-60)
    clock.suspend(1000)
    assert (clock.wall(), clock.monotonic(), clock.boottime()) == (1040, 10, 1050)


async def test_tasks_that_never_rest_are_reported(monkeypatch: pytest.MonkeyPatch):
    """A busy loop ends the test with a message instead of hanging it."""
    monkeypatch.setattr("koord.util.simulatedclock.MAX_TURNS", 50)

    async def busy() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    task = asyncio.create_task(busy())
    with pytest.raises(AssertionError, match="still busy after 50"):
        await SimulatedClock().advance(1)
    task.cancel()


async def test_until_waits_for_a_thread():
    """What a worker thread finishes in real time can be awaited."""
    done: list[int] = []
    work = asyncio.create_task(asyncio.to_thread(done.append, 1))
    await SimulatedClock().until(lambda: bool(done))
    await work
