"""A bound on how often something may be done."""

from koordlet.util.clock import Clock


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
        now = self._clock.monotonic()
        due = max(self._used_until, now)
        self._used_until = due + self._gap
        if due - self._slack > now:
            await self._clock.sleep(due - self._slack - now)
