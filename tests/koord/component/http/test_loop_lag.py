"""The event loop's own lag."""

import asyncio
import time

from prometheus_client import CollectorRegistry

from koord.component.eventloops import LoopLag
from koord.util.simulatedclock import SimulatedClock
from koord.util.stop import Stop


async def test_a_held_up_loop_shows_in_the_histogram():
    """Code that blocks for 30 ms makes a timer come about that late."""
    registry = CollectorRegistry()
    stop = Stop(SimulatedClock())
    probe = asyncio.create_task(LoopLag(registry, "koordlet", interval=0.001).run(stop))
    await asyncio.sleep(0)

    time.sleep(0.03)  # noqa: ASYNC251 - the misdeed that is to be seen
    await asyncio.sleep(0.001)  # the probe's timer is the older one and comes first
    stop.set()
    await probe

    assert registry.get_sample_value("koordlet_event_loop_lag_seconds_sum") >= 0.02
