"""Lets plugins read kernel values, off the event loop."""

from collections.abc import Callable
from typing import Any, NoReturn, Protocol, TypeVar

from koord.util.clock import Clock
from koord.util.errors import Unavailable
from koordlet.executor.claims.claim import NO_KERNEL
from koordlet.executor.kernel.watching import Notice, Reading, Readings, Reads, Watcher, read_now
from koordlet.executor.kernel.worker import Worker
from koordlet.host.cgroups.layout import Layout
from koordlet.host.host import Host
from koordlet.host.resource import Resource
from koordlet.host.resources import CPUSET_CPUS

__all__ = ["Kernel", "KernelView", "NoKernel", "Reading", "watch_with"]

T = TypeVar("T")

TICK = 1.0  # seconds after which a file counts as not read for one more tick; see Descriptors


class Kernel(Protocol):
    """The kernel as a plugin sees it."""

    @property
    def layout(self) -> Layout:
        """Names of pods' cgroups."""

    async def read(self, resource: Resource[T], group: str = "") -> T | None:
        """Return a value; None: not supported, gone or unreadable right now."""

    async def read_many(self, reads: Reads) -> Readings:
        """Read in one go, with files that stay open; None as with read."""

    async def watch(self, reads: Reads, interval: float, notice: Notice, seconds: float) -> bool:
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

    async def read_many(self, reads: Reads) -> Readings:
        _refuse("read_many")

    async def watch(self, reads: Reads, interval: float, notice: Notice, seconds: float) -> bool:
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
        watcher: Watcher | None = None,
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
        """As Kernel.layout."""
        return self._layout()

    async def read(self, resource: Resource[T], group: str = "") -> T | None:
        """As Kernel.read."""
        [reading] = await self.read_many([(resource, group)])
        return None if reading is None else reading.value

    async def read_many(self, reads: Reads) -> Readings:
        """As Kernel.read_many."""
        return await self._look(lambda: read_now(self._host, self._clock, reads))

    async def watch(self, reads: Reads, interval: float, notice: Notice, seconds: float) -> bool:
        """As Kernel.watch."""
        if self._watcher is None:
            return await watch_with(self, self._clock, reads, interval, notice, seconds)
        return await self._watcher.watch(reads, interval, notice, seconds)

    async def groups_below(self, group: str, depth: int) -> list[str]:
        """As Kernel.groups_below."""
        return await self._look(lambda: self._below(group, depth))

    async def supports(self, resource: Resource[Any], group: str = "") -> bool:
        """As Kernel.supports."""
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
    kernel: Kernel, clock: Clock, reads: Reads, interval: float, notice: Notice, seconds: float
) -> bool:
    """As Kernel.watch, for kernels that can be read at any pace, with the time of the clock."""
    end = clock.monotonic() + seconds
    while clock.monotonic() < end:
        await clock.sleep(interval)
        if notice(await kernel.read_many(reads)):
            return True
    return False
