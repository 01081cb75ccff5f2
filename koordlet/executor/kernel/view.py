"""Kernel values for plugins: read off the event loop, or watched many times a second."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar

from koord.util.clock import Clock
from koord.util.errors import Unavailable
from koordlet.executor.claims.claim import NO_KERNEL
from koordlet.host.cgroups.layout import Layout
from koordlet.host.errors import KernelFileError
from koordlet.host.host import Host
from koordlet.host.resource import Resource
from koordlet.host.resources import CPUSET_CPUS

T = TypeVar("T")


class Worker(Protocol):
    """Does one thing after the other."""

    async def do(self, work: Callable[[], T]) -> T:
        """Return what work returns, or raise what it raises."""


class ThreadWorker:
    """A thread of its own, so that a slow kernel file does not hold the event loop."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def do(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        """Let the thread end; does not wait for a kernel file that hangs."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class InlineWorker:
    """The caller's thread: for tests in simulated time and for commands."""

    async def do(self, work: Callable[[], T]) -> T:
        return work()


class WatchedValue(NamedTuple):
    """A value, and the monotonic seconds at which it was read."""

    value: Any
    at: float


WatchedResources = Sequence[tuple[Resource[Any], str]]
WatchedValues = list[WatchedValue | None]
OnWatchedValues = Callable[[WatchedValues], bool]
"""Returns whether what was read matters. Called in another thread: it must be quick and pure."""


def read_watched(host: Host, clock: Clock, reads: WatchedResources) -> WatchedValues:
    """Return the values; None for what is not supported, gone or unreadable right now."""
    return [_read(host, clock, *read) for read in reads]


def _read(host: Host, clock: Clock, resource: Resource[Any], group: str) -> WatchedValue | None:
    try:
        value = host.read(resource, group)
    except KernelFileError:
        return None
    return WatchedValue(value, clock.monotonic())


class ValueWatcher:
    """One watch at a time; others wait for its end. host is used by the worker only."""

    def __init__(self, host: Host, worker: Worker, clock: Clock) -> None:
        self._host = host
        self._worker = worker
        self._clock = clock

    async def watch(
        self, reads: WatchedResources, interval: float, notice: OnWatchedValues, seconds: float
    ) -> bool:
        """Read every interval until notice returns True, or so many seconds have passed.

        Returns whether notice returned True.
        """
        over = threading.Event()

        def look_again_and_again() -> bool:
            end = self._clock.monotonic() + seconds
            while self._clock.monotonic() < end and not over.wait(interval):
                if notice(read_watched(self._host, self._clock, reads)):
                    return True
            return False

        try:
            return await self._worker.do(look_again_and_again)
        finally:
            over.set()  # also when the caller does not wait any more


TICK = 1.0  # seconds after which a file counts as not read for one more tick; see Descriptors


class Kernel(Protocol):
    """The kernel as a plugin sees it."""

    @property
    def layout(self) -> Layout:
        """Names of pods' cgroups."""

    async def read(self, resource: Resource[T], group: str = "") -> T | None:
        """Return a value; None: not supported, gone or unreadable right now."""

    async def read_many(self, reads: WatchedResources) -> WatchedValues:
        """Read in one go, with files that stay open; None as with read."""

    async def watch(
        self, reads: WatchedResources, interval: float, notice: OnWatchedValues, seconds: float
    ) -> bool:
        """Read every interval until notice says that it matters, or so many seconds have passed.

        Returns whether it matters. notice gets what read_many returns, in another thread, and must
        be quick and pure. This is several times cheaper than read_many as often.
        """

    async def groups_below(self, group: str, depth: int) -> list[str]:
        """Return the cgroups up to so many levels below one, parents first."""

    async def supports(self, resource: Resource[Any], group: str = "") -> bool:
        """Return whether a group of this host should have the file."""


class NoKernel:
    """The kernel of a plugin that has none: whatever is asked raises Unavailable."""

    @property
    def layout(self) -> Layout:
        _refuse("layout")

    async def read(self, resource: Resource[T], group: str = "") -> T | None:
        _refuse("read")

    async def read_many(self, reads: WatchedResources) -> WatchedValues:
        _refuse("read_many")

    async def watch(
        self, reads: WatchedResources, interval: float, notice: OnWatchedValues, seconds: float
    ) -> bool:
        _refuse("watch")

    async def groups_below(self, group: str, depth: int) -> list[str]:
        _refuse("groups_below")

    async def supports(self, resource: Resource[Any], group: str = "") -> bool:
        _refuse("supports")


def _refuse(what: str) -> NoReturn:
    raise Unavailable(f"kernel.{what}: wanted to look at kernel values, found {NO_KERNEL}")


class KernelView:
    """The kernel of a host, looked at by a worker of its own: writes do not hold it up.

    A look is one hop to the worker's thread (0.1 ms), and 5 us for each file that is held open.
    """

    def __init__(
        self,
        host: Host,
        worker: Worker,
        clock: Clock,
        layout: Callable[[], Layout] | None = None,
        watcher: ValueWatcher | None = None,
    ) -> None:
        """host is used by the worker only. layout: as the pods' cgroups show it; None: as host's,
        which is that of the moment it was made. watcher None: watch with the worker.
        """
        self._host = host
        self._worker = worker
        self._clock = clock
        self._layout = layout or (lambda: host.layout)
        self._watcher = watcher
        self._known = self.layout
        self._tick = clock.monotonic()

    @property
    def layout(self) -> Layout:
        """Names of pods' cgroups."""
        return self._layout()

    async def read(self, resource: Resource[T], group: str = "") -> T | None:
        """Return a value; None: not supported, gone or unreadable right now."""
        [reading] = await self.read_many([(resource, group)])
        return None if reading is None else reading.value

    async def read_many(self, reads: WatchedResources) -> WatchedValues:
        """Read in one go, with files that stay open; None as with read."""
        return await self._look(lambda: read_watched(self._host, self._clock, reads))

    async def watch(
        self, reads: WatchedResources, interval: float, notice: OnWatchedValues, seconds: float
    ) -> bool:
        """Read every interval until notice returns True, or so many seconds have passed.

        Returns whether notice returned True.
        """
        if self._watcher is None:
            return await watch_with(self, self._clock, reads, interval, notice, seconds)
        return await self._watcher.watch(reads, interval, notice, seconds)

    async def groups_below(self, group: str, depth: int) -> list[str]:
        """Return the cgroups up to so many levels below one, parents first."""
        return await self._look(lambda: self._below(group, depth))

    async def supports(self, resource: Resource[Any], group: str = "") -> bool:
        """Return whether a group of this host should have the file."""
        return await self._look(lambda: self._host.supports(resource, group))

    async def _look(self, work: Callable[[], T]) -> T:
        return await self._worker.do(lambda: self._prepared(work))

    def _prepared(self, work: Callable[[], T]) -> T:
        """Keep the host's descriptors and its idea of the kubepods cgroup up to date."""
        now = self._clock.monotonic()
        if now - self._tick >= TICK:
            self._tick = now
            self._host.descriptors.begin_tick()
        if (layout := self.layout) != self._known:
            self._known = layout
            self._host.detect()
        return work()

    def _below(self, group: str, depth: int) -> list[str]:
        found: list[str] = []
        level = [group]
        for _ in range(depth):
            level = [
                child for parent in level for child in self._host.groups_below(CPUSET_CPUS, parent)
            ]
            found += level
        return found


async def watch_with(
    kernel: Kernel,
    clock: Clock,
    reads: WatchedResources,
    interval: float,
    notice: OnWatchedValues,
    seconds: float,
) -> bool:
    """Do Kernel.watch with read_many and the clock, for kernels that can be read at any pace."""
    end = clock.monotonic() + seconds
    while clock.monotonic() < end:
        await clock.sleep(interval)
        if notice(await kernel.read_many(reads)):
            return True
    return False
