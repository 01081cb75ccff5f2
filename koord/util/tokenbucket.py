"""A bound on how often something may be done."""

from koord.util.clock import Clock


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
