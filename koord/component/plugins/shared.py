"""Parts of plugins that exist once in a process, however many profiles name the plugin."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar, cast

from koord.component.plugins.code import PluginCode
from koord.component.plugins.errors import PluginError
from koord.component.plugins.meter import running_plugin
from koord.component.plugins.shape import defects
from koord.component.plugins.waits import STEP, PluginWaits
from koord.component.tasks import Run, supervise
from koord.util.clock import Clock
from koord.util.health import Health, PartHealth
from koord.util.stop import Stop

HEALTH = "plugin parts"  # the part of /readyz that says which are not ready


class SharedPart(Protocol):
    """Something that works beside the cycles for as long as this process leads."""

    async def run(self, stop: Stop) -> None:
        """Work until stop; called again when it has raised."""

    async def wait_ready(self) -> None:
        """Return when it knows enough for a cycle to begin; called while it runs.

        The first cycle waits a minute for it. Called again when it has raised.
        """

    def health(self) -> PartHealth:
        """Whether it does its work; asked while it runs."""


P = TypeVar("P", bound=SharedPart)


@dataclass(frozen=True, slots=True)
class _Owned:
    part: SharedPart
    plugin: str  # that has asked for it first


class SharedParts:
    """Parts by name. A part is made when its first plugin asks for it, and stays.

    The daemon runs them while it leads, from when the cluster is known on, and has the first cycle
    wait until they are ready.
    """

    def __init__(self) -> None:
        self._parts: dict[str, _Owned] = {}
        self._added = asyncio.Event()
        self._waits: PluginWaits | None = None  # None: they do not run
        self._running = asyncio.Event()

    def get(self, name: str, make: Callable[[], P]) -> P:
        """Return the part of that name; it is made the first time. Callable before parts run.

        Raises:
            PluginError: what was made is no SharedPart.
        """
        if name not in self._parts:
            self.put(name, make())
        return cast(P, self._parts[name].part)

    def put(self, name: str, part: SharedPart, plugin: str = "") -> None:
        """Take in a part that is made already; one of that name stays.

        plugin: whose it is; by default that whose code runs. Raises PluginError as get.
        """
        if name in self._parts:
            return
        plugin = plugin or running_plugin() or name
        for defect in defects(part, SharedPart):
            raise PluginError(f'shared part "{name}" of plugin {plugin}: {defect}', plugin)
        self._parts[name] = _Owned(part, plugin)
        self._added.set()

    async def wait_ready(self) -> None:
        """Return when all parts that there are now are ready, once they run, or a minute later."""
        await self._running.wait()
        assert self._waits is not None  # noqa: S101 - they run
        await self._waits.done()

    def late(self) -> Mapping[str, str]:
        """Plugins whose parts are not ready though they had their time, with what is not."""
        return {} if self._waits is None else self._waits.late()

    async def run(self, stop: Stop, clock: Clock, health: Health) -> None:
        """Run all parts supervised, those that are added meanwhile too, until stop."""
        tasks: dict[str, asyncio.Task[Any]] = {}
        waits = self._waits = PluginWaits(clock)
        health.register(HEALTH, waits.health, ready=True)
        try:
            while not stop.is_set():
                self._added.clear()
                for name, owned in self._parts.items():
                    if name not in tasks:
                        health.register(name, owned.part.health)
                        run = metered(owned.plugin, owned.part.run, clock)
                        work = supervise(name, run, stop, clock, health)
                        tasks[name] = asyncio.create_task(work, name=name)
                        waits.start(owned.plugin, f'its part "{name}"', owned.part.wait_ready)
                self._running.set()
                await stop.bound(self._added.wait())
            if tasks:
                await asyncio.wait(tasks.values())
        finally:
            self._running.clear()
            health.unregister(HEALTH)
            for name, task in tasks.items():
                health.unregister(name)
                task.cancel()
            if tasks:
                await asyncio.wait(tasks.values())
            await waits.close()


def metered(plugin: str, run: Run, clock: Clock) -> Run:
    """Return what runs a part of a plugin; a step that holds the event loop is interrupted."""
    code = PluginCode(plugin, clock, step_seconds=STEP)

    async def guarded(stop: Stop) -> None:
        await code.endless(partial(run, stop))

    return guarded
