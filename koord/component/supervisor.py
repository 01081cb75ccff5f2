"""Supervised components of a daemon: restart after a crash, health, feature gates."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from koord.component.flags import FeatureGates
from koord.util.clock import Clock
from koord.util.health import OK, Health, HealthCheck, HealthStatus, PartHealth
from koord.util.logs import LogState, get_logger
from koord.util.stop import Stop, first_completed
from koord.util.timebudget import Backoff

SETTLED_AFTER = 30.0  # seconds without a crash after which a restarted component counts as well

Run = Callable[[Stop], Awaitable[None]]

log = get_logger("koord.tasks")


async def supervise(
    name: str,
    run: Run,
    stop: Stop,
    clock: Clock,
    health: Health | None = None,
    *,
    backoff: Backoff | None = None,
) -> None:
    """Run a component until it returns; start it again, after a growing pause, when it raises.

    Returns when run does, or during a pause when stop is set. While the component is broken, and
    until it has held SETTLED_AFTER seconds since, health has a part "component <name>" that says
    why; checks of the component's own are left alone. Only the first of a row of crashes is logged.
    Cancelling this coroutine cancels the component.
    """
    backoff = backoff or Backoff(initial=1.0, cap=60.0)
    supervisor = _Supervisor(name, stop, clock, health or Health(), backoff)
    try:
        await supervisor.keep_running(run)
    finally:
        supervisor.forget()


class _Supervisor:
    def __init__(
        self, name: str, stop: Stop, clock: Clock, health: Health, backoff: Backoff
    ) -> None:
        self._name = name
        self._stop = stop
        self._clock = clock
        self._health = health
        self._backoff = backoff
        self._failure = LogState(log)
        self._crashes = 0
        self._reason = ""

    def check(self) -> PartHealth:
        """The component's health from a crash until it has settled again."""
        return PartHealth(
            HealthStatus.UNHEALTHY, f"crashed: {self._reason}", {"crashes": self._crashes}
        )

    def forget(self) -> None:
        """Take the component's crashes off its health."""
        self._health.unregister(self._part)

    @property
    def _part(self) -> str:
        return f"component {self._name}"

    async def keep_running(self, run: Run) -> None:
        while True:
            error = await self._run_once(run)
            if error is None:
                return
            pause = self._crashed(error)
            if await self._stop.sleep(pause):
                return

    async def _run_once(self, run: Run) -> BaseException | None:
        """Run to the end; return what it raised. Raises CancelledError when we are cancelled."""
        tasks = [asyncio.create_task(_call(run, self._stop), name=self._name)]
        if self._crashes:
            tasks.append(asyncio.create_task(self._settle(), name=f"{self._name} settling"))
        try:
            await asyncio.wait(tasks[:1])
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        if tasks[0].cancelled():
            return RuntimeError("it was cancelled from within")
        return tasks[0].exception()

    async def _settle(self) -> None:
        await self._clock.sleep(SETTLED_AFTER)
        self._backoff.reset()
        self._failure.ended("component.recovered", component=self._name, crashes=self._crashes)
        self._crashes = 0
        self.forget()

    def _crashed(self, error: BaseException) -> float:
        """Note a crash; return the seconds to wait before the next start."""
        self._crashes += 1
        self._reason = f"{type(error).__name__}: {error}"
        self._health.register(self._part, self.check)
        pause = self._backoff.next()
        self._failure.failed(
            "component.crashed", component=self._name, retry_in_s=round(pause, 1), exc_info=error
        )
        return pause


async def _call(run: Run, stop: Stop) -> None:
    await run(stop)


class Component(Protocol):
    """Something that runs until stop, and knows its health."""

    async def run(self, stop: Stop) -> None: ...

    def health(self) -> PartHealth: ...


class ComponentSet:
    """Names what runs supervised, from before the plugins until after, and watches its health."""

    def __init__(self, health: Health) -> None:
        self.health = health
        self.runs: dict[str, Run] = {}

    def add(
        self, name: str, part: Component | None, *, live: bool = False, ready: bool = False
    ) -> None:
        """Take a part in; None: this daemon has none. live and ready as in Health.register."""
        if part is not None:
            self.health.register(name, part.health, live=live, ready=ready)
            self.runs[name] = part.run


class GatedComponent:
    """Starts the part when the gate is switched on, and stops it when it is switched off."""

    def __init__(
        self, gates: FeatureGates, gate: str, clock: Clock, run: Run, health: HealthCheck
    ) -> None:
        self._gates = gates
        self._gate = gate
        self._clock = clock
        self._run = run
        self._health = health
        self._switched = asyncio.Event()
        gates.subscribe(lambda changed: self._switched.set() if gate in changed else None)

    def health(self) -> PartHealth:
        """The part's health; a part that is off is well."""
        return self._health() if self._is_on else OK

    async def run(self, stop: Stop) -> None:
        """Follow the gate until stop. Raises what the part raises."""
        while not stop.is_set():
            self._switched.clear()
            if self._is_on:
                await self._run_until_switched(stop)
            else:
                await self._until_switched(stop)

    @property
    def _is_on(self) -> bool:
        return self._gates.enabled(self._gate)

    async def _run_until_switched(self, stop: Stop) -> None:
        own = Stop(self._clock)
        part = asyncio.ensure_future(self._run(own))
        try:
            await first_completed(part, self._until_switched(stop))
            own.set()
            await part
        finally:
            part.cancel()  # does nothing to a part that has ended
            await asyncio.wait({part})

    async def _until_switched(self, stop: Stop) -> None:
        await first_completed(self._switched.wait(), stop.wait())


class LazyComponent:
    """A part whose code is loaded when it runs for the first time: off it costs nothing."""

    def __init__(self, make: Callable[[], Component]) -> None:
        """make imports and makes the part."""
        self._make = make
        self._part: Component | None = None

    async def run(self, stop: Stop) -> None:
        """Run the part until stop."""
        if self._part is None:
            self._part = self._make()
        await self._part.run(stop)

    def health(self) -> PartHealth:
        """The part's health; one that has not run yet is well."""
        return OK if self._part is None else self._part.health()


class UnavailableComponent:
    """Stands for a part that cannot run here; its health says why."""

    def __init__(self, problem: str) -> None:
        self._problem = problem

    async def run(self, stop: Stop) -> None:
        """Wait for stop."""
        await stop.wait()

    def health(self) -> PartHealth:
        """Degraded."""
        return PartHealth(HealthStatus.DEGRADED, self._problem)
