"""Loops that leave the event loop free in between."""

import asyncio
from itertools import count

import pytest

from koord.util import timebudget
from koord.util.timebudget import in_slices


async def turns(items: int, **limits: float) -> list[int]:
    """How many items were done together."""
    done, found = 0, []

    async def loop() -> None:
        nonlocal done
        async for _ in in_slices(range(items), **limits):  # type: ignore[arg-type]
            done += 1

    running = asyncio.ensure_future(loop())
    while not running.done():
        before = done
        await asyncio.sleep(0)
        if done > before:
            found.append(done - before)
    return found


async def test_items_that_cost_little_are_counted() -> None:
    assert await turns(10, size=4, turn=3600.0) == [4, 4, 2]


async def test_items_that_take_long_are_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a millisecond here; a turn ends with the item that is over its time."""
    clock = count()
    monkeypatch.setattr(timebudget, "real_seconds", lambda: next(clock) * 0.001)
    assert await turns(10, size=100, turn=0.003) == [3, 3, 3, 1]
