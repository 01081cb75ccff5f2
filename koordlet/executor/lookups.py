"""Reads claimed values from the kernel on request, bounded in number and time."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from koord.util.clock import Clock
from koord.util.firstof import first_of
from koordlet.executor.claims.claim import Key
from koordlet.executor.claims.inforce import Seen
from koordlet.executor.claims.target import Level
from koordlet.executor.kernel.view import Kernel
from koordlet.host.resources import PROCESS_START

MOST = 2000  # values that one question reads; 5 us each while their files are held open
SLICE = 200  # in one go of the thread that also looks for the plugins
PATIENCE = 2.0  # seconds that a question waits for the kernel


async def look_at(kernel: Kernel, clock: Clock, keys: Sequence[Key]) -> dict[Key, Seen]:
    """Return what the kernel holds now; a value of None cannot be read.

    Off the event loop, the first MOST values, and those that could be read within PATIENCE.
    """
    seen: dict[Key, Seen] = {}
    reading = asyncio.create_task(_read(kernel, clock, keys[:MOST], seen), name="explain")
    await first_of(reading, clock.sleep(PATIENCE))
    if not reading.done():  # a kernel file hangs; what is there by now has to do
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading
    else:
        reading.result()
    return seen


async def _read(kernel: Kernel, clock: Clock, keys: Sequence[Key], seen: dict[Key, Seen]) -> None:
    for start in range(0, len(keys), SLICE):
        some = keys[start : start + SLICE]
        processes = [key for key in some if key.target.level is Level.PROCESS]
        reads = [(key.resource, _group(key)) for key in some]
        reads += [(PROCESS_START, key.target.place) for key in processes]
        readings = await kernel.read_many(reads)
        values = [None if reading is None else reading.value for reading in readings]
        starts = dict(zip(processes, values[len(some) :], strict=True))
        for key, value in zip(some, values[: len(some)], strict=True):
            other = key in starts and starts[key] != key.target.start_time
            seen[key] = Seen(None if other else value, clock.wall())


def _group(key: Key) -> str:
    return "" if key.target.level is Level.NODE else key.target.place
