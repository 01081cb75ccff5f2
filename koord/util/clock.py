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
    """What koordlet needs to know about time. Tests use koordlet.plugin.testing.SimulatedClock."""

    def wall(self) -> float:
        """Unix seconds. May step in both directions."""

    def monotonic(self) -> float:
        """Seconds that never go back and stop during suspend. For rates and deadlines."""

    def boottime(self) -> float:
        """Seconds since boot, suspend included. For windows of samples."""

    async def sleep(self, seconds: float) -> None:
        """Return after that many monotonic seconds."""


class SystemClock:
    """The clock of this machine."""

    def wall(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def boottime(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def stamp(clock: Clock) -> Stamp:
    """Return the present moment."""
    return Stamp(clock.wall(), clock.boottime())
