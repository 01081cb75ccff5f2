"""The stop signal of coroutines, and waits that end early."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine
from typing import TypeVar

from koord.util.clock import Clock, finish

T = TypeVar("T")


class Stop:
    """Asks a coroutine to return, and paces its rounds until then."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._event = asyncio.Event()
        self._sleepers: dict[asyncio.Future[None], None] = {}  # they wake in this order

    def set(self) -> None:
        """Ask for the end. Returns at once."""
        self._event.set()
        for timer in self._sleepers:
            finish(timer)

    def is_set(self) -> bool:
        """Whether the end was asked for."""
        return self._event.is_set()

    async def wait(self) -> None:
        """Return when the end was asked for."""
        await self._event.wait()

    async def sleep(self, seconds: float, wake: asyncio.Event | None = None) -> bool:
        """Sleep, but not beyond the stop signal, nor beyond the event when one is given.

        Returns True when stop was asked for.
        """
        if seconds <= 0 or self.is_set() or (wake is not None and wake.is_set()):
            await asyncio.sleep(0)
            return self.is_set()
        # One future and no tasks: there are dozens of sleeps a second.
        timer = self._clock.timer(seconds)
        waiting = None if wake is None else asyncio.ensure_future(wake.wait())
        if waiting is not None:
            waiting.add_done_callback(lambda _: finish(timer))
        self._sleepers[timer] = None
        try:
            await timer
        finally:
            del self._sleepers[timer]
            timer.cancel()
            if waiting is not None:
                waiting.cancel()
        return self.is_set()

    async def bound(self, work: Awaitable[T]) -> T | None:
        """Return what the work returns; None: stop was set first, and the work was cancelled."""
        working, stopped = asyncio.ensure_future(work), asyncio.ensure_future(self._event.wait())
        try:
            await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else None
        finally:
            stopped.cancel()
            working.cancel()
            await asyncio.wait({working})

    async def every(self, interval: float, wake: asyncio.Event | None = None) -> AsyncIterator[int]:
        """Yield the number of the round, at once and then every interval seconds, until stop.

        The pace is fixed: a round that takes longer than the interval skips the turns it missed.
        With an event there is also a round, with the number of the next one, as soon as it is set;
        it is cleared before each round.
        """
        start = self._clock.monotonic()
        turn = 0
        while not self.is_set():
            early = wake is not None and wake.is_set()
            if wake is not None:
                wake.clear()
            yield turn
            elapsed = self._clock.monotonic() - start
            turn = max(turn + (not early), int(elapsed / interval) + 1)
            if await self.sleep(start + turn * interval - self._clock.monotonic(), wake):
                return


class Alarm:
    """Wakes the one coroutine that waits for it, now or when it waits next."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """Wake the waiting coroutine. Returns at once; call it on the event loop."""
        self._event.set()

    async def wait(self, stop: Stop, seconds: float) -> bool:
        """Return after so many seconds, at stop, or as soon as the alarm is set.

        True: it was set; it is not any more.
        """
        if seconds > 0 and not self._event.is_set():
            await stop.sleep(seconds, wake=self._event)
        was_set = self._event.is_set()
        self._event.clear()
        return was_set


async def first_completed(*waits: Awaitable[object]) -> None:
    """Return when one of them is done, without its result.

    Coroutines that are not done by then are cancelled; tasks and futures go on.
    """
    own = [asyncio.ensure_future(wait) for wait in waits if isinstance(wait, Coroutine)]
    others = [wait for wait in waits if isinstance(wait, asyncio.Future)]
    try:
        await asyncio.wait([*own, *others], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in own:
            wait.cancel()
