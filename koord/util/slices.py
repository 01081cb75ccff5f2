"""Loops over many items that leave the event loop free for others in between."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

SLICE = 100  # items without a pause

T = TypeVar("T")


async def in_slices(items: Iterable[T], size: int = SLICE) -> AsyncIterator[T]:
    """Yield all, letting others run after every so many: a cluster has 10^5 pods."""
    for number, item in enumerate(items, 1):
        yield item
        if number % size == 0:
            await asyncio.sleep(0)
