"""Flow control: backoff, a token bucket, and single flight for concurrent callers."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from koord.util.clock import Clock
from koord.util.ttlcache import TtlCache


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
