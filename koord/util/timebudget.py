"""Work in turns: time budgets and slices, backoff, a token bucket, single flight, a work queue."""

import asyncio
import heapq
import random
import threading
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Hashable,
    Iterable,
    Iterator,
)
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar, Token
from typing import Any, Generic, TypeVar

from koord.util.clock import Clock
from koord.util.errors import KoordError
from koord.util.stop import Stop
from koord.util.ttlcache import TtlCache

T = TypeVar("T")

UNCHECKED_ITEMS = 16  # items that are gone through without a look at the time

_BUDGET: ContextVar["TimeBudget | None"] = ContextVar("time_budget", default=None)


class OutOfTime(KoordError):
    """A computation was ended, because it took longer than it may."""


class TimeBudget:
    """Seconds of one thread, spent inside of `with budget:`.

    Code in there that looks at the time has this one.
    """

    __slots__ = ("_now", "_seconds", "_since", "_spent", "_thread", "_token")

    def __init__(self, seconds: float, now: Callable[[], float] = time.thread_time) -> None:
        """now: seconds, by default those of CPU that this thread has used."""
        self._seconds = seconds
        self._now = now
        self._spent = 0.0
        self._since: float | None = None  # None: it does not run
        self._thread = 0
        self._token: Token[TimeBudget | None] | None = None

    @property
    def spent(self) -> float:
        """Seconds until now."""
        return self._spent + (0.0 if self._since is None else self._now() - self._since)

    @property
    def is_over(self) -> bool:
        return self.spent >= self._seconds

    def __enter__(self) -> None:
        self._token = _BUDGET.set(self)
        self._thread = threading.get_ident()
        self._since = self._now()

    def __exit__(self, *_: object) -> None:
        self._pause()
        assert self._token is not None  # noqa: S101 - it was entered
        _BUDGET.reset(self._token)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count what is inside: others on the event loop run meanwhile."""
        self._pause()
        try:
            yield
        finally:
            self._since = self._now()

    @property
    def counts_here(self) -> bool:
        """Whether this is the thread whose seconds it counts, and it counts now."""
        return threading.get_ident() == self._thread and self._since is not None

    def check(self) -> None:
        """Raise OutOfTime if it is over. Another thread than the one that it counts may go on."""
        if self.counts_here and self.is_over:
            raise OutOfTime(f"wanted an end within {self._seconds:g} s of computing")

    def _pause(self) -> None:
        self._spent, self._since = self.spent, None


def in_time(items: Collection[T]) -> Iterable[T]:
    """Return the items; a caller that goes through many stops when the time is used up.

    Going through them raises OutOfTime where the time is over.
    """
    budget = _BUDGET.get()
    if budget is None or len(items) <= UNCHECKED_ITEMS:
        return items
    return _checked(items, budget)


def check_time() -> None:
    """Raise OutOfTime if the time of the computation that runs is over; without one never."""
    budget = _BUDGET.get()
    if budget is not None:
        budget.check()


def is_time_over() -> bool:
    """Whether the computation that runs had better end with what it has."""
    budget = _BUDGET.get()
    return budget is not None and budget.is_over


def exempt() -> AbstractContextManager[None]:
    """Return a block that the computation that runs does not pay for: others cause its work."""
    budget = _BUDGET.get()
    if budget is None or not budget.counts_here:
        return nullcontext()
    return budget.paused()


async def remaining_time() -> None:
    """Let others on the event loop run; the computation that runs does not pay for it."""
    with exempt():
        await asyncio.sleep(0)


def _checked(items: Iterable[T], budget: TimeBudget) -> Iterator[T]:
    for number, item in enumerate(items):
        if number % UNCHECKED_ITEMS == 0:
            budget.check()
        yield item


SLICE = 100  # items without a pause
TURN = 0.004  # seconds without a pause

real_seconds = time.perf_counter  # the one source of real time here; tests put in another


class Turn:
    """The time that one coroutine has held the event loop, bounded."""

    def __init__(self, seconds: float = TURN) -> None:
        self._seconds = seconds
        self.begin()

    def begin(self) -> None:
        """Other tasks have just had the loop."""
        self._ends = real_seconds() + self._seconds

    @property
    def is_over(self) -> bool:
        """Whether it is others' turn."""
        return real_seconds() >= self._ends

    async def yield_if_over(self) -> None:
        """Let others run, if it is their turn."""
        if self.is_over:
            await self.end()

    async def end(self) -> None:
        """Let others run, and begin again."""
        await asyncio.sleep(0)
        self.begin()


async def in_slices(items: Iterable[T], size: int = SLICE, turn: float = TURN) -> AsyncIterator[T]:
    """Yield all, letting others run after every so many items or seconds: a cluster has 10^5 pods.

    How much is to be done about one item differs by a factor of a thousand.
    """
    held = Turn(turn)
    for number, item in enumerate(items, 1):
        yield item
        if number % size == 0 or held.is_over:
            await held.end()


class Backoff:
    """Seconds to wait before the next attempt: initial, then factor times more each time, to cap.

    Each pause is lengthened by a random share of up to jitter, so that a fleet that failed
    together does not come back together.
    """

    def __init__(
        self,
        initial: float,
        cap: float,
        *,
        factor: float = 2.0,
        jitter: float = 0.1,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._initial, self._cap = initial, cap
        self._factor, self._jitter = factor, jitter
        self._draw = draw  # a number from 0 to 1
        self._pause = initial

    def next(self) -> float:
        """Return the pause before the next attempt, in seconds."""
        pause = min(self._pause, self._cap)
        self._pause = min(pause * self._factor, self._cap)
        return pause * (1 + self._jitter * self._draw())

    def reset(self) -> None:
        """Begin again: an attempt has succeeded."""
        self._pause = self._initial


class TokenBucket:
    """Lets through rate turns a second on average, and burst at once after a quiet time.

    A rate of 0 or less sets no bound.
    """

    def __init__(self, clock: Clock, rate: float, burst: int) -> None:
        self._clock = clock
        self._gap = 1 / rate if rate > 0 else 0.0  # seconds that one turn uses up
        self._slack = self._gap * (max(burst, 1) - 1)
        self._used_until = 0.0  # monotonic; the time that the turns so far have used up

    async def take(self) -> None:
        """Return when it is our turn. Turns come in the order in which they were asked for."""
        wait = self._wait()
        self._use_turn()
        if wait > 0:
            await self._clock.sleep(wait)

    def take_now(self) -> bool:
        """Take a turn if it is ours at once; return whether it was."""
        if self._wait() > 0:
            return False
        self._use_turn()
        return True

    def _wait(self) -> float:
        """Seconds until the next turn is ours; 0 or less when it is now."""
        return self._used_until - self._slack - self._clock.monotonic()

    def _use_turn(self) -> None:
        self._used_until = max(self._used_until, self._clock.monotonic()) + self._gap


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SingleFlightCache(Generic[K, V]):
    """Values by key, at most size of them. Waiting callers share an error; it is not kept."""

    def __init__(self, clock: Clock, size: int, *, lasts: Callable[[V], float]) -> None:
        """lasts returns for how many seconds a value holds, from the moment it is made."""
        self._lasts = lasts
        self._known: TtlCache[K, V] = TtlCache(clock, size)
        self._making: dict[K, asyncio.Task[V]] = {}

    async def get(self, key: K, make: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """Return the value; make it unless it is known, or being made.

        A caller that is cancelled does not cost the others theirs.

        Raises:
            Exception: what make raises.
        """
        try:
            return self._known[key]
        except KeyError:
            pass
        making = self._making.get(key)
        if making is None:
            making = asyncio.create_task(self._make(key, make), name=f"make {key!r:.80}")
            making.add_done_callback(_retrieve)
            self._making[key] = making
        return await asyncio.shield(making)

    async def _make(self, key: K, make: Callable[[], Coroutine[Any, Any, V]]) -> V:
        try:
            value = await make()
            self._known.put(key, value, self._lasts(value))
            return value
        finally:
            del self._making[key]


def _retrieve(making: "asyncio.Task[Any]") -> None:
    """Look at an error that no task awaits any more, or asyncio complains of it."""
    if not making.cancelled():
        making.exception()


_IDLE = 3600.0  # seconds between looks at a queue with nothing due
_PAUSED = 1.0  # seconds between looks at whether there are workers again
_MAX_STALE = 64  # entries of the heap that are not true any more, beyond as many as there are items

Reconcile = Callable[[str], Awaitable[float | None]]
"""Bring one item in line; returns the seconds until it is due again, None: when it is added."""

Failed = Callable[[str, Exception, float], float]
"""Takes an item, what its reconcile raised and the rate-limited pause; returns the pause."""


class WorkQueue:
    """Items, each with the time from which it is due. Belongs to the event loop.

    An item is in it once, with the earliest time that was asked for, and is processed by one
    worker at a time: what is added meanwhile is due when that is done. Its memory grows with the
    number of different items, not with the number of calls.

    Source: client-go, util/workqueue (delaying and rate limiting queue).
    """

    def __init__(
        self,
        clock: Clock,
        *,
        first_pause: float = 0.1,
        max_pause: float = 30.0,
        jitter: float = 0.1,
        holds_failed: bool = False,
        gather: float = 0.0,
    ) -> None:
        """Pauses after failures of an item: the first and the longest in seconds; they double.

        holds_failed: an item that has failed is not due before its pause is over, whatever is
        added; else an add brings it forward. gather: seconds that run rests after it has begun
        work, so that items that are added one by one are begun together.
        """
        self._clock = clock
        self._first_pause, self._max_pause, self._jitter = first_pause, max_pause, jitter
        self._holds_failed = holds_failed
        self._gather = gather
        self._due: dict[str, float] = {}  # monotonic; of items that wait, also behind themselves
        self._heap: list[tuple[float, str]] = []  # with entries that are not true any more
        self._processing: set[str] = set()
        self._backoffs: dict[str, Backoff] = {}
        self._held: dict[str, float] = {}  # monotonic; of items that have failed
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        """How many items wait, due or not."""
        return len(self._due)

    def add(self, item: str) -> None:
        """Make an item due now."""
        self.add_after(item, 0.0)

    def add_after(self, item: str, seconds: float) -> None:
        """Make an item due after so many seconds; an earlier time is kept."""
        due = max(self._clock.monotonic() + seconds, self._held.get(item, 0.0))
        if due < self._due.get(item, float("inf")):
            self._due[item] = due
            if item not in self._processing:
                self._push(due, item)

    def add_rate_limited(self, item: str) -> None:
        """Make an item due after a pause that doubles from call to call, until it is forgotten."""
        self.add_after(item, self._pause(item))

    def forget(self, item: str) -> None:
        """End the pauses of an item: it has succeeded, or is given up."""
        self._backoffs.pop(item, None)
        self._held.pop(item, None)

    def remove(self, item: str) -> None:
        """Remove an item that waits, and forget it."""
        self._due.pop(item, None)
        self.forget(item)

    def get(self) -> str | None:
        """Return the item that is due longest, for a worker that calls done; None: none is due."""
        found = self._first()
        if found is None or found[0] > self._clock.monotonic():
            return None
        _, item = heapq.heappop(self._heap)
        del self._due[item]
        self._processing.add(item)
        return item

    def done(self, item: str) -> None:
        """End the processing of an item; what was added meanwhile falls due."""
        self._processing.discard(item)
        due = self._due.get(item)
        if due is not None:
            self._push(due, item)
        self._wake.set()

    async def run(
        self, stop: Stop, reconcile: Reconcile, workers: Callable[[], int], failed: Failed
    ) -> None:
        """Reconcile what is due until stop; then what is being reconciled is cancelled.

        workers returns how many items may be processed at once; 0 pauses the queue. After a
        failure the item is due again after the pause that failed returns.
        """
        running: set[asyncio.Task[None]] = set()
        try:
            while not stop.is_set():
                self._wake.clear()
                most, is_begun = workers(), False
                while len(self._processing) < most and (item := self.get()) is not None:
                    work = self._process(item, reconcile, failed)
                    task = asyncio.create_task(work, name=f"reconcile {item}")
                    running.add(task)
                    task.add_done_callback(running.discard)
                    is_begun = True
                if is_begun and self._gather and len(self._processing) < most:
                    await stop.sleep(self._gather)
                    continue
                await stop.sleep(self._rest(most), wake=self._wake)
        finally:
            ended = list(running)
            for task in ended:
                task.cancel()
            if ended:
                await asyncio.wait(ended)
            for item in list(self._processing):  # of tasks that had not begun
                self.done(item)

    async def _process(self, item: str, reconcile: Reconcile, failed: Failed) -> None:
        try:
            after = await reconcile(item)
        except Exception as err:
            self._due.pop(item, None)  # what it has written itself before it failed is no news
            after = failed(item, err, self._pause(item))
            if self._holds_failed:
                self._held[item] = self._clock.monotonic() + after
        else:
            self.forget(item)
        finally:
            self.done(item)
        if after is not None:
            self.add_after(item, after)

    def _pause(self, item: str) -> float:
        backoff = self._backoffs.get(item)
        if backoff is None:
            backoff = Backoff(self._first_pause, self._max_pause, jitter=self._jitter)
            self._backoffs[item] = backoff
        return backoff.next()

    def _rest(self, workers: int) -> float:
        """Seconds until something may be done; adds and ends of work wake earlier."""
        if len(self._processing) >= workers:
            return _IDLE if workers > 0 else _PAUSED
        found = self._first()
        return _IDLE if found is None else max(found[0] - self._clock.monotonic(), 1e-6)

    def _first(self) -> tuple[float, str] | None:
        heap = self._heap
        while heap and (self._due.get(heap[0][1]) != heap[0][0] or heap[0][1] in self._processing):
            heapq.heappop(heap)
        return heap[0] if heap else None

    def _push(self, due: float, item: str) -> None:
        heapq.heappush(self._heap, (due, item))
        if len(self._heap) > 2 * len(self._due) + _MAX_STALE:
            waiting = (each for each in self._due.items() if each[0] not in self._processing)
            self._heap = [(when, name) for name, when in waiting]
            heapq.heapify(self._heap)
        self._wake.set()
