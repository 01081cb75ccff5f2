"""Work on many items that leaves the event loop free for others in between."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

SLICE = 100  # items without a pause
TURN = 0.004  # seconds without a pause

T = TypeVar("T")

real_seconds = time.perf_counter  # the one source of real time here; tests put in another


class Turn:
    """The time that one coroutine has held the event loop, bounded."""

    def __init__(self, seconds: float = TURN) -> None:
        self._seconds = seconds
        self.begin()

    def begin(self) -> None:
        """Others have just had the loop."""
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
