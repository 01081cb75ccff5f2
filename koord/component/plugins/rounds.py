"""The stop signal of a plugin, which also records when each of the plugin's rounds runs."""

import asyncio
from collections.abc import AsyncIterator, Callable

from koord.util.clock import Clock
from koord.util.stop import Stop

RoundDone = Callable[[float], None]
"""Called after each round that ended well, with its seconds."""


class PacedStop(Stop):
    """A stop signal that keeps book of the rounds: one turn of `every` is one round."""

    def __init__(self, clock: Clock, on_round: RoundDone = lambda seconds: None) -> None:
        super().__init__(clock)
        self._on_round = on_round
        self._began: dict[object, float] = {}
        self._pausing = 0

    async def every(self, interval: float, wake: asyncio.Event | None = None) -> AsyncIterator[int]:
        """As Stop.every."""
        loop = object()
        turns = super().every(interval, wake)
        self._pausing += 1
        try:
            async for turn in turns:
                self._pausing -= 1
                self._began[loop] = self._clock.monotonic()
                try:
                    yield turn
                finally:
                    self._pausing += 1
                    began = self._began.pop(loop)
                self._on_round(self._clock.monotonic() - began)
        finally:
            self._pausing -= 1

    @property
    def round_began(self) -> float | None:
        """Monotonic seconds at which the oldest round that still runs began; None: no round."""
        return min(self._began.values(), default=None)

    @property
    def pausing(self) -> bool:
        """Whether the plugin waits in `every` for its next round."""
        return self._pausing > 0
