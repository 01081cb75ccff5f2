"""Real time for connections whose two ends are in one event loop."""

import asyncio
import time

CHECKS = 2  # a millisecond apart: a busy machine may deliver late
LONGEST = 5.0  # seconds for a connection that is never quiet


async def network_is_quiet() -> None:
    """Return when nothing is under way any more between client and server, however slow they are.

    What a server holds back on purpose is not under way.
    """
    loop = asyncio.get_running_loop()
    # asyncio offers no public way to ask whether its loop is idle.
    ready, selector = getattr(loop, "_ready"), getattr(loop, "_selector")  # noqa: B009
    quiet, end = 0, time.monotonic() + LONGEST
    while quiet < CHECKS and time.monotonic() < end:
        await asyncio.sleep(0.001)
        quiet = 0 if ready or selector.select(0) else quiet + 1
