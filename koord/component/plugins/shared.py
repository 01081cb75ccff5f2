"""Parts of plugins that exist once in a process, however many profiles name the plugin."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

from koord.component.tasks import supervise
from koord.util.clock import Clock
from koord.util.health import Health, PartHealth
from koord.util.stop import Stop


class SharedPart(Protocol):
    """Something that works beside the cycles for as long as this process leads."""

    async def run(self, stop: Stop) -> None:
        """Work until stop; called again when it has raised."""

    async def wait_ready(self) -> None:
        """Return when it knows enough for a cycle to begin; called while it runs."""

    def health(self) -> PartHealth:
        """Whether it does its work; asked while it runs."""


P = TypeVar("P", bound=SharedPart)


class SharedParts:
    """Parts by name. A part is made when its first plugin asks for it, and stays.

    The daemon runs them while it leads, from when the cluster is known on, and has the first cycle
    wait until they are ready.
    """

    def __init__(self) -> None:
        self._parts: dict[str, SharedPart] = {}
        self._added = asyncio.Event()

    def get(self, name: str, make: Callable[[], P]) -> P:
        """Return the part of that name; it is made the first time. Callable before parts run."""
        if name not in self._parts:
            self.put(name, make())
        return cast(P, self._parts[name])

    def put(self, name: str, part: SharedPart) -> None:
        """Take in a part that is made already; one of that name stays."""
        if name not in self._parts:
            self._parts[name] = part
            self._added.set()

    async def wait_ready(self) -> None:
        """Return when all parts that there are now are ready; others must be running them."""
        await asyncio.gather(*(part.wait_ready() for part in self._parts.values()))

    async def run(self, stop: Stop, clock: Clock, health: Health) -> None:
        """Run all parts supervised, those that are added meanwhile too, until stop."""
        tasks: dict[str, asyncio.Task[Any]] = {}
        try:
            while not stop.is_set():
                self._added.clear()
                for name, part in self._parts.items():
                    if name not in tasks:
                        health.register(name, part.health)
                        work = supervise(name, part.run, stop, clock, health)
                        tasks[name] = asyncio.create_task(work, name=name)
                await stop.bound(self._added.wait())
            if tasks:
                await asyncio.wait(tasks.values())
        finally:
            for name, task in tasks.items():
                health.unregister(name)
                task.cancel()
            if tasks:
                await asyncio.wait(tasks.values())
