"""Supervision: a component that crashes is started again, and health and log report it."""

import asyncio
from collections.abc import Awaitable, Callable

from koord.util.backoff import Backoff
from koord.util.clock import Clock
from koord.util.health import Health, PartHealth, Status
from koord.util.logs import LogState, get_logger
from koord.util.stop import Stop

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
        return PartHealth(Status.UNHEALTHY, f"crashed: {self._reason}", {"crashes": self._crashes})

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
