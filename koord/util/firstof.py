"""Waiting for whichever comes first."""

import asyncio
from collections.abc import Awaitable, Coroutine


async def first_of(*waits: Awaitable[object]) -> None:
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
