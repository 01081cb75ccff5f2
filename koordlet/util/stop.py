"""The stop signal that every long-running coroutine watches."""

import asyncio
from collections.abc import AsyncIterator

from koordlet.util.clock import Clock


class Stop:
    """Asks a coroutine to return, and paces its rounds until then."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._event = asyncio.Event()

    def set(self) -> None:
        """Ask for the end. Returns at once."""
        self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self) -> None:
        """Return when the end was asked for."""
        await self._event.wait()

    async def sleep(self, seconds: float) -> bool:
        """Sleep, but not beyond the stop signal. Returns True when stop was asked for."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return self.is_set()
        sleeper = asyncio.ensure_future(self._clock.sleep(seconds))
        stopped = asyncio.ensure_future(self._event.wait())
        try:
            await asyncio.wait({sleeper, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeper.cancel()
            stopped.cancel()
        return self.is_set()

    async def every(self, interval: float) -> AsyncIterator[int]:
        """Yield the number of the round, at once and then every interval seconds, until stop.

        The pace is fixed: a round that takes longer than the interval skips the turns it missed.
        """
        start = self._clock.monotonic()
        turn = 0
        while not self.is_set():
            yield turn
            elapsed = self._clock.monotonic() - start
            turn = max(turn + 1, int(elapsed / interval) + 1)
            if await self.sleep(start + turn * interval - self._clock.monotonic()):
                return
