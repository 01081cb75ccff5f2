"""What the first cycle waits for, of plugins: so long and no longer, and health says for what."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from koord.component.plugins.code import PluginCode
from koord.component.plugins.failures import FailureLog
from koord.util.backoff import Backoff
from koord.util.clock import Clock
from koord.util.errors import error_text
from koord.util.firstof import first_of
from koord.util.health import OK, PartHealth, Status
from koord.util.logs import get_logger

PATIENCE = 60.0  # seconds that the first cycle waits for plugins
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


class PluginWaits:
    """Asks plugins whether they are ready, again where one raises, until each of them is.

    Whoever waits for all of them goes on after PATIENCE seconds without those that are not.
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
        timer = self._clock.timer(PATIENCE)
        while self._open and not timer.done():
            await first_of(asyncio.wait(tuple(self._open)), timer)
        timer.cancel()
        self._awaited = False
        for wait in self._open.values():
            facts = {"plugin": wait.plugin, "what": wait.what, "seconds": PATIENCE}
            log.error("plugin.not_ready", **facts, error=wait.error)

    def health(self) -> PartHealth:
        """Unhealthy while the first cycle waits; degraded once it goes on without some."""
        if not self._open:
            return OK
        now = self._clock.monotonic()
        status = Status.UNHEALTHY if self._awaited else Status.DEGRADED
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
