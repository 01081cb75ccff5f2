"""Kernel values as plugins may look at them, read off the event loop."""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from koordlet.executor.worker import Worker
from koordlet.host.errors import KernelFileError
from koordlet.host.host import Host
from koordlet.host.layout import Layout
from koordlet.host.resource import Resource
from koordlet.host.resources import CPUSET_CPUS
from koordlet.util.clock import Clock

T = TypeVar("T")


class Reading(NamedTuple):
    """A value, and the monotonic seconds at which it was read."""

    value: Any
    at: float


class Kernel(Protocol):
    """What a plugin sees of the kernel."""

    @property
    def layout(self) -> Layout:
        """Names of pods' cgroups."""

    async def read(self, resource: Resource[T], group: str = "") -> T | None:
        """Return a value; None: not supported, gone or unreadable right now."""

    async def read_many(self, reads: Sequence[tuple[Resource[Any], str]]) -> list[Reading | None]:
        """Read in one go, with files that stay open; None as with read."""

    async def groups_below(self, group: str, depth: int) -> list[str]:
        """Return the cgroups up to so many levels below one, parents first."""

    async def supports(self, resource: Resource[Any], group: str = "") -> bool:
        """Return whether a group of this host should have the file."""


class KernelView:
    """The kernel of a host. host is used by the worker only."""

    def __init__(self, host: Host, worker: Worker, clock: Clock) -> None:
        self._host = host
        self._worker = worker
        self._clock = clock

    @property
    def layout(self) -> Layout:
        """As Kernel.layout."""
        return self._host.layout

    async def read(self, resource: Resource[T], group: str = "") -> T | None:
        """As Kernel.read."""
        [reading] = await self.read_many([(resource, group)])
        return None if reading is None else reading.value

    async def read_many(self, reads: Sequence[tuple[Resource[Any], str]]) -> list[Reading | None]:
        """As Kernel.read_many."""
        return await self._worker.do(lambda: [self._read(*read) for read in reads])

    async def groups_below(self, group: str, depth: int) -> list[str]:
        """As Kernel.groups_below."""
        return await self._worker.do(lambda: self._below(group, depth))

    async def supports(self, resource: Resource[Any], group: str = "") -> bool:
        """As Kernel.supports."""
        return await self._worker.do(lambda: self._host.supports(resource, group))

    def _read(self, resource: Resource[Any], group: str) -> Reading | None:
        try:
            at = self._clock.monotonic()
            return Reading(self._host.read(resource, group), at)
        except KernelFileError:
            return None

    def _below(self, group: str, depth: int) -> list[str]:
        version = self._host.version(CPUSET_CPUS)
        root = self._host.cgroups.hierarchy("cpuset", version)
        found: list[str] = []
        level = [group]
        for _ in range(depth):
            level = [f"{parent}/{name}" for parent in level for name in _children(root / parent)]
            found += level
        return found


def _children(directory: os.PathLike[str]) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []
