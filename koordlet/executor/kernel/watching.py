"""Watches a few kernel values many times a second, in a thread of its own.

The event loop is notified only when it matters: waking it up for each look costs five times as much
as the look.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from koord.util.clock import Clock
from koordlet.executor.kernel.worker import Worker
from koordlet.host.errors import KernelFileError
from koordlet.host.host import Host
from koordlet.host.resource import Resource


class Reading(NamedTuple):
    """A value, and the monotonic seconds at which it was read."""

    value: Any
    at: float


Reads = Sequence[tuple[Resource[Any], str]]
Readings = list[Reading | None]
Notice = Callable[[Readings], bool]
"""Returns whether what was read matters. Called in another thread: it must be quick and pure."""


def read_now(host: Host, clock: Clock, reads: Reads) -> Readings:
    """Return the values; None for what is not supported, gone or unreadable right now."""
    return [_read(host, clock, *read) for read in reads]


def _read(host: Host, clock: Clock, resource: Resource[Any], group: str) -> Reading | None:
    try:
        value = host.read(resource, group)
    except KernelFileError:
        return None
    return Reading(value, clock.monotonic())


class Watcher:
    """One watch at a time; others wait for its end. host is used by the worker only."""

    def __init__(self, host: Host, worker: Worker, clock: Clock) -> None:
        self._host = host
        self._worker = worker
        self._clock = clock

    async def watch(self, reads: Reads, interval: float, notice: Notice, seconds: float) -> bool:
        """As Kernel.watch."""
        over = threading.Event()

        def look_again_and_again() -> bool:
            end = self._clock.monotonic() + seconds
            while self._clock.monotonic() < end and not over.wait(interval):
                if notice(read_now(self._host, self._clock, reads)):
                    return True
            return False

        try:
            return await self._worker.do(look_again_and_again)
        finally:
            over.set()  # also when the caller does not wait any more
