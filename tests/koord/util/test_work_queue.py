"""The work queue of controllers, and its workers."""

import asyncio
import math
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest

from koord.util.simulatedclock import SimulatedClock
from koord.util.stop import Stop
from koord.util.timebudget import WorkQueue


class Bench:
    """A running queue; looks do what a test says."""

    def __init__(self, *, holds_failed: bool = False, gather: float = 0.0) -> None:
        self.clock = SimulatedClock()
        self.stop = Stop(self.clock)
        self.looks: list[tuple[float, str]] = []
        self.answers: dict[str, list[float | Exception | None]] = {}
        self.failures: list[str] = []
        self.left = math.inf
        self.gate = asyncio.Event()
        self.gate.set()
        self.at_once = self.most_at_once = 0
        self.workers = 1
        self.queue = WorkQueue(self.clock, holds_failed=holds_failed, gather=gather)
        self.task = asyncio.create_task(
            self.queue.run(self.stop, self.reconcile, lambda: self.workers, self.failed),
            name="queue",
        )

    def failed(self, name: str, err: Exception, pause: float) -> float:
        self.failures.append(name)
        return min(pause, self.left)

    async def reconcile(self, name: str) -> float | None:
        self.looks.append((self.clock.monotonic(), name))
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        try:
            await self.gate.wait()
        finally:
            self.at_once -= 1
        answer = self.answers.get(name, []).pop(0) if self.answers.get(name) else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def names(self) -> list[str]:
        return [name for _, name in self.looks]


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    bench.stop.set()
    await bench.task


async def test_what_is_added_often_is_looked_at_once(bench: Bench) -> None:
    """In the order of their times."""
    bench.queue.add_after("b", 2.0)
    bench.queue.add_after("a", 1.0)
    bench.queue.add_after("b", 5.0)
    bench.queue.add_after("a", 1.0)
    await bench.clock.advance(10)

    assert bench.names == ["a", "b"]
    assert bench.looks[1][0] - bench.looks[0][0] == 1.0


async def test_what_is_added_during_its_look_is_looked_at_again(bench: Bench) -> None:
    """But never twice at a time."""
    bench.workers = 4
    bench.gate.clear()
    bench.queue.add("a")
    await bench.clock.settle()
    bench.queue.add("a")
    await bench.clock.advance(5)
    assert bench.names == ["a"]

    bench.gate.set()
    await bench.clock.settle()
    assert bench.names == ["a", "a"]
    assert bench.most_at_once == 1


@pytest.mark.parametrize("workers", [1, 3])
async def test_so_many_at_once(bench: Bench, workers: int) -> None:
    """maxConcurrentReconciles."""
    bench.workers = workers
    bench.gate.clear()
    for number in range(7):
        bench.queue.add(f"j{number}")
    await bench.clock.settle()
    assert len(bench.names) == workers

    bench.gate.set()
    await bench.clock.settle()
    assert len(bench.names) == 7
    assert bench.most_at_once == workers


async def test_a_look_says_when_the_next_one_is(bench: Bench) -> None:
    """None: when it is added."""
    bench.answers["a"] = [3.0, 2.0, None]
    bench.queue.add("a")
    await bench.clock.advance(60)
    moments = [at for at, _ in bench.looks]

    assert [round(at - moments[0], 6) for at in moments] == [0, 3, 5]


async def test_after_a_failure_nothing_that_falls_due_is_missed(bench: Bench) -> None:
    """The pause is no longer than is left, however long the failures have lasted."""
    bench.answers["a"] = [ValueError("no")] * 12
    bench.queue.add("a")
    await bench.clock.advance(60)
    before = len(bench.looks)
    bench.left = 2.0
    bench.answers["a"] = [ValueError("no"), None]
    await bench.clock.advance(60)

    late, last = (at for at, _ in bench.looks[before:])
    assert last - late == pytest.approx(2.0)


async def test_pauses_after_failures_grow_to_half_a_minute(bench: Bench) -> None:
    """And begin anew after a success."""
    bench.answers["a"] = [ValueError("no")] * 12 + [100.0, ValueError("again"), None]
    bench.queue.add("a")
    await bench.clock.advance(600)
    moments = [at for at, _ in bench.looks]
    pauses = [later - earlier for earlier, later in pairwise(moments)]

    assert len(bench.failures) == 13
    assert 0.1 <= pauses[0] <= 0.11
    assert 30 <= pauses[11] <= 33
    assert pauses[12] == pytest.approx(100)
    assert 0.1 <= pauses[13] <= 0.11


async def test_what_is_forgotten_is_not_looked_at(bench: Bench) -> None:
    """Its job has ended."""
    bench.queue.add_after("a", 1.0)
    bench.queue.remove("a")
    await bench.clock.advance(5)

    assert bench.names == []
    assert len(bench.queue) == 0


async def test_the_end_cancels_what_is_looked_at(bench: Bench) -> None:
    """A lost lead does not wait for a response."""
    bench.gate.clear()
    bench.queue.add("a")
    await bench.clock.settle()
    bench.stop.set()
    await bench.task

    assert bench.at_once == 0


async def test_an_item_in_work_holds_up_no_other(bench: Bench) -> None:
    """It is due again itself meanwhile, and its work takes long."""
    bench.workers = 2
    bench.gate.clear()
    bench.queue.add("slow")
    await bench.clock.settle()
    bench.queue.add("slow")
    bench.queue.add_after("b", 3.0)
    await bench.clock.advance(5)

    assert bench.names == ["slow", "b"]


async def test_a_queue_without_workers_waits_for_them(bench: Bench) -> None:
    """They are asked for each second, as nothing says when there are some."""
    bench.workers = 0
    bench.queue.add("a")
    await bench.clock.advance(60)
    assert bench.names == []

    bench.workers = 1
    await bench.clock.advance(1)
    assert bench.names == ["a"]


async def test_a_failed_item_may_be_held_until_its_pause_is_over() -> None:
    """News of it do not mend the failure; a success ends the pauses."""
    bench = Bench(holds_failed=True)
    bench.answers["a"] = [ValueError("no"), None, None]
    bench.queue.add("a")
    await bench.clock.settle()
    bench.queue.add("a")
    await bench.clock.advance(0.09)
    assert bench.names == ["a"]

    await bench.clock.advance(0.03)
    assert bench.names == ["a", "a"]
    bench.queue.add("a")
    await bench.clock.settle()
    assert bench.names == ["a", "a", "a"]
    bench.stop.set()
    await bench.task


async def test_items_that_are_added_one_by_one_may_be_begun_together() -> None:
    """The first at once, the next ones after the rest; workers that are all busy do not rest."""
    bench = Bench(gather=0.1)
    bench.workers = 3
    for name in "abcd":
        bench.queue.add(name)
        await bench.clock.advance(0.03)
    begun = [round(at - bench.looks[0][0], 2) for at, _ in bench.looks]
    assert (begun, bench.names) == ([0.0, 0.1, 0.1, 0.1], list("abcd"))

    await bench.clock.advance(1)
    del bench.looks[:]
    for name in "efghi":
        bench.queue.add(name)
    await bench.clock.settle()
    assert bench.names == list("efghi")
    bench.stop.set()
    await bench.task


async def test_without_run_an_item_is_taken_and_given_back() -> None:
    """get, done, add_rate_limited and forget, as in client-go."""
    clock = SimulatedClock()
    queue = WorkQueue(clock, first_pause=1.0, max_pause=3.0, jitter=0.0)
    queue.add("a")
    queue.add_after("b", 5.0)
    assert [queue.get(), queue.get(), len(queue)] == ["a", None, 1]
    queue.add("a")
    assert queue.get() is None
    queue.done("a")
    assert queue.get() == "a"
    queue.done("a")

    waits = []
    for _ in range(3):
        queue.add_rate_limited("a")
        before = clock.monotonic()
        while queue.get() is None:
            await clock.advance(0.5)
        waits.append(clock.monotonic() - before)
        queue.done("a")
        if len(waits) == 2:
            queue.forget("a")
    assert waits == [1.0, 2.0, 1.0]


async def test_memory_grows_with_items_not_with_adds() -> None:
    """An item that comes and goes thousands of times leaves nothing behind."""
    clock = SimulatedClock()
    queue = WorkQueue(clock)
    queue.add_after("other", 60.0)
    for turn in range(10_000):
        queue.add_after("a", 3600.0 - turn / 10)
        if turn % 2:
            queue.remove("a")

    assert len(queue._heap) < 200
    await clock.advance(60)
    assert [queue.get(), queue.get()] == ["other", None]
