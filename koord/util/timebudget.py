"""Limits of work: time budgets and slices, backoff, a token bucket, single flight."""

import asyncio
import random
import threading
import time
from collections.abc import (
    AsyncIterator,
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
