"""One plugin under supervision: started, watched, ended, and started again when it failed."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from koordlet.plugin.meter import Meter
from koordlet.plugin.registry import Registration
from koordlet.plugin.rounds import PacedStop
from koordlet.qosmanager.breaker import Breaker
from koordlet.qosmanager.guard import PluginBlocked
from koordlet.qosmanager.outcome import FailedRunError, Outcome, PluginState
from koordlet.qosmanager.quarantine import Quarantine
from koordlet.util.clock import Clock
from koordlet.util.firstof import first_of
from koordlet.util.health import OK, PartHealth, Status
from koordlet.util.logs import get_logger
from koordlet.util.stop import Stop

if TYPE_CHECKING:
    from koordlet.metriccache.cache import MetricCache
    from koordlet.plugin.client import Client
    from koordlet.plugin.states import States

SETTLED = 60.0  # seconds after which a run that makes no rounds counts as working
LOOKS = 4  # how often a limit is looked at while it passes

log = get_logger("koordlet.qosmanager")


class PluginRunner:
    """Runs one plugin while it is wanted. All methods belong to the event loop's thread."""

    def __init__(
        self,
        registration: Registration,
        *,
        clock: Clock,
        meter: Meter,
        quarantine: Quarantine,
        ended: Callable[[], Awaitable[None]],
        breaker: Breaker | None = None,
    ) -> None:
        """ended: called after each run, however it ended, to undo what the plugin changed."""
        self.registration = registration
        self.name = registration.feature
        self.meter = meter
        self.state = PluginState.DISABLED
        self.reason = ""  # why it does not work; empty: it does, or it is not meant to
        self.rounds = dict.fromkeys(Outcome, 0)
        self.errors = 0  # everything that went wrong, in stop() too
        self.wanted = False
        self._plugin = registration.plugin
        self._limits = registration.plugin.limits
        self._clock = clock
        self._quarantine = quarantine
        self._ended = ended
        self._breaker = breaker or Breaker()
        self._setup_error = ""
        self._wake = asyncio.Event()

    def breaks(self, reason: str) -> None:
        """Leave the plugin out for the life of this process."""
        self._setup_error = reason
        self.errors += 1
        self._enter(PluginState.BROKEN, reason)
        log.error("plugin.broken", plugin=self.name, source=self.registration.source, error=reason)

    def setup(self, client: "Client", metric_cache: "MetricCache", states: "States") -> None:
        """Call the plugin's setup, unless it is broken already; what it raises breaks it."""
        if self._setup_error:
            return
        try:
            with self.meter.step():
                self._plugin.setup(client, metric_cache, states)
        except (Exception, PluginBlocked) as err:
            self.breaks(f"setup: {err!r}")

    def want(self, wanted: bool) -> None:
        """Say whether the plugin's gates are on."""
        if wanted != self.wanted:
            self.wanted = wanted
            self.wake()

    def wake(self) -> None:
        """Have the supervisor look again at what is wanted."""
        self._wake.set()

    def health(self) -> PartHealth:
        """Degraded, never unhealthy: a broken plugin must not restart the agent."""
        detail: dict[str, object] = {"state": self.state.value, "rounds": self.rounds[Outcome.OK]}
        if not self.reason:
            return PartHealth(OK.status, detail=detail)
        return PartHealth(Status.DEGRADED, f"{self.state}: {self.reason}", detail)

    async def supervise(self, stop: Stop) -> None:
        """Start and end the plugin as wanted until stop; wake() must follow stop.set()."""
        while not stop.is_set():
            self._wake.clear()
            pause = math.inf
            if not self.wanted:
                self._forgive()
            elif self._may_run():
                pause = await self._attempt(stop)
            await self._rest(pause)
        if self.state is not PluginState.BROKEN:
            self._enter(PluginState.DISABLED)

    def _forgive(self) -> None:
        """Off means a clean slate when it is switched on again."""
        self._quarantine.clear(self.name)
        self._breaker.succeeded()
        if not self._setup_error:
            self._enter(PluginState.DISABLED)

    def _may_run(self) -> bool:
        sentence = self._quarantine.get(self.name, self.registration.version)
        if sentence is not None:
            hint = f"to try again: koordletctl plugins release {self.name}"
            self._enter(PluginState.QUARANTINED, f"{sentence.reason} at {sentence.at}; {hint}")
        return sentence is None and not self._setup_error

    async def _attempt(self, stop: Stop) -> float:
        """Run the plugin until it ends. Returns the seconds after which to try again."""
        try:
            await self._run(stop)
        except FailedRunError as failure:
            return self._failed(failure)
        if self.wanted and not stop.is_set():
            self._enter(PluginState.FINISHED)
            log.info("plugin.finished", plugin=self.name)
        return math.inf

    def _failed(self, failure: FailedRunError) -> float:
        self.rounds[failure.outcome] += 1
        self.errors += 1
        pause = self._breaker.failed()
        if failure.outcome is Outcome.MEMORY:
            self._quarantine.add(self.name, self.registration.version, str(failure))
            pause = 0.0
        self._enter(
            PluginState.BROKEN if self._breaker.open else PluginState.RETRYING, str(failure)
        )
        log.error(
            "plugin.failed",
            plugin=self.name,
            outcome=failure.outcome.value,
            error=str(failure),
            failures_in_row=self._breaker.failures,
            retry_in_s=round(pause, 1),
            exc_info=failure.__cause__,
        )
        return pause

    async def _run(self, stop: Stop) -> None:
        """Run the plugin once, then stop it.

        Raises:
            FailedRunError: it raised or went over a limit.
        """
        self.meter.reset()
        paced = PacedStop(self._clock, lambda seconds: self._round_done())
        self._enter(PluginState.RUNNING, self.reason)
        log.info("plugin.started", plugin=self.name)
        task = self._start(self._plugin.run(paced), "run")
        grace = 0.0  # it had its time, unless it shall merely stop
        try:
            await self._watch(task, paced, stop)
            grace = self._limits.grace
        finally:
            self._enter(PluginState.STOPPING, self.reason)
            paced.set()
            await self._end(task, grace)
            await self._call_stop()
            await self._ended()
            log.info("plugin.stopped", plugin=self.name)
        _raise_failure(task)

    async def _watch(self, task: asyncio.Task[None], paced: PacedStop, stop: Stop) -> None:
        """Return when the run ended or shall end.

        Raises:
            FailedRunError: it went over a limit.
        """
        began = self._clock.monotonic()
        while self.wanted and not stop.is_set():
            self._wake.clear()
            pause = self._check_limits(paced)
            if await self._first_of(task, pause):
                return
            if self._clock.monotonic() - began >= SETTLED and paced.round_began is None:
                self._works()

    def _check_limits(self, paced: PacedStop) -> float:
        """Seconds until the next look.

        Raises:
            FailedRunError: a limit is exceeded.
        """
        limits, now = self._limits, self._clock.monotonic()
        if self.meter.growth > limits.memory:
            grown = self.meter.growth / 2**20
            raise FailedRunError(
                Outcome.MEMORY,
                f"grew the process by {grown:.0f} MiB, its limit is {limits.memory / 2**20:g} MiB",
            )
        if paced.round_began is not None:
            left = paced.round_began + limits.round - now
            failure = FailedRunError(Outcome.LATE, f"a round took longer than {limits.round:g} s")
        elif paced.pausing:
            return limits.round / LOOKS
        else:
            left = self.meter.last_step + limits.silence - now
            failure = FailedRunError(Outcome.SILENT, f"did nothing for {limits.silence:g} s")
        if left <= 0:
            raise failure
        return min(left, limits.round / LOOKS)

    def _round_done(self) -> None:
        self.rounds[Outcome.OK] += 1
        self._works()
        if self.meter.growth > self._limits.memory:
            self.wake()

    def _works(self) -> None:
        self._breaker.succeeded()
        if self.reason:
            log.info("plugin.recovered", plugin=self.name)
            self.reason = ""

    async def _call_stop(self) -> None:
        """Call the plugin's stop and end what it left behind; a failure is only reported."""
        task = self._start(self._plugin.stop(), "stop")
        in_time = await self._first_of(task, self._limits.stop, wakes=False)
        await self._end(task, 0)
        left = tuple(self.meter.tasks)
        for straggler in left:
            await self._end(straggler, 0)
        error = task.exception() if in_time and not task.cancelled() else None
        if error is not None or not in_time:
            self.errors += 1
            reason = repr(error) if error else f"took longer than {self._limits.stop:g} s"
            log.error("plugin.stop_failed", plugin=self.name, error=reason)
        if left:
            log.warning("plugin.tasks_left", plugin=self.name, tasks=len(left))

    async def _end(self, task: asyncio.Task[Any], grace: float) -> None:
        """Return when the task has ended: by itself, cancelled, or, if it ignores that, dropped."""
        if await self._first_of(task, grace, wakes=False):
            return
        task.cancel()
        if not await self._first_of(task, self._limits.grace, wakes=False):
            log.warning("plugin.dropped", plugin=self.name, task=task.get_name())
            self.meter.drop(task)
            await asyncio.wait({task})

    def _start(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        return asyncio.create_task(self.meter.drive(work), name=f"plugin {self.name} {what}")

    async def _rest(self, seconds: float) -> None:
        """Wait for wake(), at most that long."""
        await self._first_of(None, seconds)

    async def _first_of(
        self, task: asyncio.Task[Any] | None, seconds: float, *, wakes: bool = True
    ) -> bool:
        """Wait for the task, wake() or the seconds to pass. Returns whether the task is done."""
        if task is not None and task.done():
            return True
        waits: list[Awaitable[object]] = [task] if task is not None else []
        if wakes:
            waits.append(self._wake.wait())
        if seconds < math.inf:
            waits.append(self._clock.sleep(seconds))
        await first_of(*waits)
        return task is not None and task.done()

    def _enter(self, state: PluginState, reason: str = "") -> None:
        self.state = state
        self.reason = reason


def _raise_failure(task: asyncio.Task[None]) -> None:
    """Raise what the run ended with as a FailedRunError; being cancelled is no failure."""
    if task.cancelled():
        return
    error = task.exception()
    if isinstance(error, PluginBlocked):
        raise FailedRunError(Outcome.BLOCKED, str(error)) from error
    if error is not None:
        raise FailedRunError(Outcome.FAILED, repr(error)) from error
