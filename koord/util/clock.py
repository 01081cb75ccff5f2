"""Time, injected: code never asks the operating system for it directly."""

import asyncio
import time
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Stamp:
    """One moment on the two time lines that samples carry.

    wall is Unix seconds and may step; boot is seconds since boot (CLOCK_BOOTTIME), which never
    goes back, counts suspend, and means the same to every process until the next boot.
    """

    wall: float
    boot: float


class Clock(Protocol):
    """Wall, monotonic and boot time. Tests use koord.util.simulatedclock.SimulatedClock."""

    def wall(self) -> float:
        """Unix seconds. May step in both directions."""

    def monotonic(self) -> float:
        """Seconds that never go back and stop during suspend. For rates and deadlines."""

    def boottime(self) -> float:
        """Seconds since boot, suspend included. For windows of samples."""

    async def sleep(self, seconds: float) -> None:
        """Return after that many monotonic seconds."""

    def timer(self, seconds: float) -> "asyncio.Future[None]":
        """Return a future that is done after that many seconds: cheaper than a task that sleeps.

        Cancelling it, or finishing it early, ends the timer.
        """


class SystemClock:
    """The clock of this machine."""

    def wall(self) -> float:
        return time.time()

    monotonic = staticmethod(time.monotonic)  # by name: it is called 2000 times a second

    def boottime(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def timer(self, seconds: float) -> "asyncio.Future[None]":
        loop = asyncio.get_running_loop()
        timer = loop.create_future()
        handle = loop.call_later(seconds, finish, timer)
        timer.add_done_callback(lambda _: handle.cancel())
        return timer


def finish(timer: "asyncio.Future[None]") -> None:
    """Complete a timer now, unless it is done already."""
    if not timer.done():
        timer.set_result(None)


def stamp(clock: Clock) -> Stamp:
    """Return the present moment."""
    return Stamp(clock.wall(), clock.boottime())
