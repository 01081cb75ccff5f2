"""Loops over many items that leave the event loop free for others in between."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

SLICE = 100  # items without a pause
TURN = 0.004  # seconds without a pause

T = TypeVar("T")


async def in_slices(items: Iterable[T], size: int = SLICE, turn: float = TURN) -> AsyncIterator[T]:
    """Yield all, letting others run after every so many items or seconds: a cluster has 10^5 pods.

    How much is to be done about one item differs by a factor of a thousand.
    """
    ends = time.perf_counter() + turn
    for number, item in enumerate(items, 1):
        yield item
        if number % size == 0 or time.perf_counter() >= ends:
            await asyncio.sleep(0)
            ends = time.perf_counter() + turn
