"""Shared parts of plugins, one per process, and the wait until plugins are ready."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar, cast

from koord.component.plugins.execution import FailureLog, PluginCode, running_plugin
from koord.component.plugins.registry import PluginError, interface_defects
from koord.component.supervisor import Run, supervise
from koord.util.clock import Clock
from koord.util.errors import error_text
from koord.util.health import OK, Health, HealthStatus, PartHealth
from koord.util.logs import get_logger
from koord.util.stop import Stop, first_completed
from koord.util.timebudget import Backoff

READY_TIMEOUT = 60.0  # seconds that the first cycle waits for plugins
STEP = 10.0  # real seconds that their code may hold the event loop

log = get_logger("koord.plugins")


@dataclass(slots=True)
class _Wait:
    """One wait that has not ended."""

    plugin: str
    what: str
    began: float  # monotonic seconds
    error: str = ""  # of the last attempt

    def text(self, now: float) -> str:
        why = f": {self.error}" if self.error else ""
        return f"plugin {self.plugin}: {self.what} is not ready after {now - self.began:.0f} s{why}"


class ReadinessWaits:
    """Asks plugins whether they are ready, again where one raises, until each of them is.

    Whoever waits for all of them goes on after READY_TIMEOUT seconds without those that are not.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures = FailureLog(log, clock)
        self._open: dict[asyncio.Task[None], _Wait] = {}
        self._awaited = True  # something waits for them still

    def start(self, plugin: str, what: str, ready: Callable[[], Awaitable[object]]) -> None:
        """Begin to wait; ready returns when a plugin's part of that name is."""
        wait = _Wait(plugin, what, self._clock.monotonic())
        task = asyncio.create_task(self._wait(wait, ready), name=f"plugin {plugin} {what}")
        self._open[task] = wait
        task.add_done_callback(self._open.pop)

    async def done(self) -> None:
        """Return when all are ready that were begun, or have had their time."""
        timer = self._clock.timer(READY_TIMEOUT)
        while self._open and not timer.done():
            await first_completed(asyncio.wait(tuple(self._open)), timer)
        timer.cancel()
        self._awaited = False
        for wait in self._open.values():
            facts = {"plugin": wait.plugin, "what": wait.what, "seconds": READY_TIMEOUT}
            log.error("plugin.not_ready", **facts, error=wait.error)

    def health(self) -> PartHealth:
        """Unhealthy while the first cycle waits; degraded once it goes on without some."""
        if not self._open:
            return OK
        now = self._clock.monotonic()
        status = HealthStatus.UNHEALTHY if self._awaited else HealthStatus.DEGRADED
        return PartHealth(status, "; ".join(wait.text(now) for wait in self._open.values()))

    def late(self) -> Mapping[str, str]:
        """Plugins that are not ready though they had their time, with what is not."""
        if self._awaited:
            return {}
        now = self._clock.monotonic()
        return {wait.plugin: wait.text(now) for wait in self._open.values()}

    async def close(self) -> None:
        """Wait for nothing any more."""
        tasks = tuple(self._open)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _wait(self, wait: _Wait, ready: Callable[[], Awaitable[object]]) -> None:
        backoff = Backoff(initial=1.0, cap=60.0)
        code = PluginCode(wait.plugin, self._clock, step_seconds=STEP)
        while True:
            try:
                await code.endless(ready)
            except Exception as err:
                wait.error = error_text(err)
                facts = {"what": wait.what}
                self._failures.failed("plugin.wait_failed", wait.plugin, err, **facts)
                await self._clock.sleep(backoff.next())
            else:
                return


HEALTH = "plugin parts"  # the part of /readyz that says which are not ready


class SharedPart(Protocol):
    """A part that runs in parallel to the cycles while this process leads."""

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
        self._waits: ReadinessWaits | None = None  # None: they do not run
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
        for defect in interface_defects(part, SharedPart):
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
        waits = self._waits = ReadinessWaits(clock)
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
