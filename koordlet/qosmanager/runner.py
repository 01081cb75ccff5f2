"""One plugin under supervision: started, watched, ended, and started again by a circuit breaker."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from koord.component.plugins.execution import Meter, RoundStop
from koord.component.plugins.registry import PluginBlocked
from koord.util.clock import Clock
from koord.util.errors import error_text
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.logs import get_logger
from koord.util.stop import Stop, first_completed
from koord.util.timebudget import Backoff
from koordlet.plugin.registry import Registration
from koordlet.qosmanager.admission import (
    Admission,
    ClaimScopes,
    FailedRunError,
    Outcome,
    PluginState,
    Quarantine,
)

if TYPE_CHECKING:
    from koordlet.metriccache.cache import MetricCache
    from koordlet.plugin.interfaces import Client
    from koordlet.statesinformer.informer import StatesInformer, Subscription


RECOVERED_AFTER = (
    300.0  # seconds that a run has to go well: the cool-down, so none fails more often
)
SEVERAL = 3  # good rounds that it has to make in that time or later
RARE = 3600.0  # seconds after which fewer rounds will do: they are an hour apart


class Breaker:
    """Doubles the pause after each failure in a row; after several, one trial per cool-down.

    Pauses are jittered, so that a fleet that broke at once does not retry at once.
    """

    def __init__(self, *, threshold: int = 5, cooldown: float = 300.0) -> None:
        """threshold failures in a row open it; cooldown is in seconds."""
        self._threshold = threshold
        self._retry = Backoff(initial=1.0, cap=cooldown)
        self._trial = Backoff(initial=cooldown, cap=cooldown)
        self.failures = 0  # in a row

    @property
    def open(self) -> bool:
        return self.failures >= self._threshold

    def failed(self) -> float:
        """Note a failure and return the seconds to wait before the next attempt."""
        self.failures += 1
        return self._trial.next() if self.open else self._retry.next()

    def worked(self, seconds: float, rounds: int | None) -> bool:
        """Note for how long a run has gone well, with so many rounds; None: it makes none.

        Returns whether that closes the breaker: several good rounds, over as long as the cool-down.
        One good round would not do: a plugin that always fails in its second one would never be
        given a rest.
        """
        if not self.failures or seconds < RECOVERED_AFTER:
            return False
        if rounds is not None and rounds < SEVERAL and seconds < RARE:
            return False
        self.reset()
        return True

    def reset(self) -> None:
        """Close it: all failures are forgotten."""
        self.failures = 0
        self._retry.reset()
        self._trial.reset()


CHECKS_PER_LIMIT = 4  # how often a limit is looked at while it passes
MAX_CHECK_INTERVAL = 60.0  # seconds between two looks at a run at most

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
        claim_scopes: ClaimScopes,
        ended: Callable[[], Awaitable[None]],
        breaker: Breaker | None = None,
    ) -> None:
        """ended: called after each run, however it ended, to undo what the plugin changed."""
        self.registration = registration
        self.name = registration.name
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
        self._admission = Admission(
            registration, meter=meter, quarantine=quarantine, claim_scopes=claim_scopes
        )
        self._ended = ended
        self._breaker = breaker or Breaker()
        self._subscription: Subscription | None = None
        self._callback_failure: FailedRunError | None = None  # one that the run has to end for
        self._was_off = False  # since the supervisor looked last
        self._began = 0.0  # monotonic seconds, of the present run
        self._good_rounds = 0  # of the present run
        self._logged: set[tuple[Outcome, type | None]] = set()  # failures whose stack the log has
        self._wake = asyncio.Event()

    @property
    def rejected(self) -> bool:
        """Whether it waits for another plugin that is on and may claim the same."""
        return self._admission.rejected

    def breaks(self, reason: str) -> None:
        """Leave the plugin out for the life of this process."""
        self._admission.disable(reason)
        self._mark_broken()

    def set_arguments(
        self, client: "Client", metric_cache: "MetricCache", states: "StatesInformer"
    ) -> None:
        """Keep the arguments of the plugin's setup."""
        self._subscription = states.subscribe(self.name, self._callback_failed)
        self._admission.set_arguments(client, metric_cache, self._subscription.states)

    def admit(self) -> bool:
        """Return whether the plugin may run now, having called its setup if it never was."""
        was_broken = bool(self._admission.error)
        rejected = self._admission.enter()
        if rejected is None:
            if not self._breaker.failures:
                self.reason = ""  # what kept it out holds no longer
            return True
        if self._admission.error and not was_broken:
            self._mark_broken()
        self._enter(*rejected)
        return False

    def want(self, wanted: bool) -> None:
        """Set whether the plugin's gates are on. Off ends its run, even if it is on again soon."""
        if wanted != self.wanted:
            self.wanted = wanted
            self._was_off = self._was_off or not wanted
            self.wake()

    def release(self) -> None:
        """End the plugin's quarantine: forget its failures, and try again at once."""
        self._breaker.reset()
        self.wake()

    def wake(self) -> None:
        """Wake the supervisor, which checks again whether the plugin is wanted."""
        self._wake.set()

    def health(self) -> PartHealth:
        """Degraded, never unhealthy: a broken plugin must not restart the agent."""
        detail: dict[str, object] = {"state": self.state.value, "rounds": self.rounds[Outcome.OK]}
        reason = self.reason
        if not reason and self._subscription and self._subscription.failing:
            failing = self._subscription.failing
            reason = "; ".join(f"callback {name}: {error}" for name, error in failing.items())
        if not reason:
            return PartHealth(OK.status, detail=detail)
        return PartHealth(HealthStatus.DEGRADED, f"{self.state}: {reason}", detail)

    async def supervise(self, stop: Stop) -> None:
        """Start and end the plugin as wanted until stop; wake() must follow stop.set()."""
        while not stop.is_set():
            self._wake.clear()
            pause = math.inf
            if not self._is_on:
                await self._reset_failures()
            if self.wanted and not self._is_idle and self.admit():
                pause = await self._attempt(stop)
            await self._pause(0 if self._was_off else pause)
        await self._end_callbacks()
        if self.state is not PluginState.BROKEN:
            self._enter(PluginState.DISABLED)

    def _mark_broken(self) -> None:
        self.errors += 1
        self._enter(PluginState.BROKEN, self._admission.error)
        if self._subscription is not None:
            self._subscription.end()

    @property
    def _is_on(self) -> bool:
        """Whether the plugin is wanted, and was all the time since the supervisor looked last."""
        return self.wanted and not self._was_off

    @property
    def _is_idle(self) -> bool:
        """Whether run has returned by itself, and nothing has failed since."""
        return self.state is PluginState.FINISHED and self._callback_failure is None

    async def _reset_failures(self) -> None:
        """Forget all failures: the plugin was switched off."""
        self._was_off = False
        await self._end_callbacks()
        self._admission.leave()
        self._breaker.reset()
        self._end_episode()
        if not self._admission.error:
            self._enter(PluginState.DISABLED)

    async def _attempt(self, stop: Stop) -> float:
        """Run the plugin until it ends. Returns the seconds after which to try again."""
        try:
            self._check_callbacks()
            await self._run(stop)
        except FailedRunError as failure:
            await self._end_callbacks()
            return self._failed(failure)
        if self._is_on and not stop.is_set():
            self._enter(PluginState.FINISHED)
            log.info("plugin.finished", plugin=self.name)
        return math.inf

    def _callback_failed(self, callback: str, error: str, cause: BaseException | None) -> None:
        """Charge a callback's failure; one that held the event loop ends the run, too."""
        if isinstance(cause, PluginBlocked):
            reason = f"callback {callback}: {cause}"
            self._callback_failure = FailedRunError(Outcome.BLOCKED, reason)
            self.wake()
        else:
            self.errors += 1

    def _check_callbacks(self) -> None:
        """Raise FailedRunError, once, when a callback failed so that the run has to end."""
        failure, self._callback_failure = self._callback_failure, None
        if failure is not None:
            raise failure

    async def _end_callbacks(self) -> None:
        """Call the plugin's callbacks no more, and return when none runs."""
        self._callback_failure = None
        if self._subscription is not None:
            for task in self._subscription.end():
                await self._end(task, 0)

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
        kind = (failure.outcome, type(failure.__cause__))
        known = failure.outcome is Outcome.BLOCKED or kind in self._logged  # the guard logs those
        self._logged.add(kind)
        log.error(
            "plugin.failed",
            plugin=self.name,
            outcome=failure.outcome.value,
            error=str(failure),
            failures_in_row=self._breaker.failures,
            retry_in_s=round(pause, 1),
            exc_info=None if known else failure.__cause__,
        )
        return pause

    async def _run(self, stop: Stop) -> None:
        """Run the plugin once, then stop it.

        Raises:
            FailedRunError: it raised or went over a limit.
        """
        self.meter.reset()
        self._began, self._good_rounds = self._clock.monotonic(), 0
        paced = RoundStop(self._clock, lambda seconds: self._round_done())
        self._enter(PluginState.RUNNING, self.reason)
        log.info("plugin.started", plugin=self.name)
        if self._subscription is not None:
            self._subscription.begin()
        task = self._start(self._plugin.run(paced), "run")
        grace = 0.0  # it had its time, unless it shall merely stop
        try:
            await self._watch(task, paced, stop)
            grace = self._limits.grace
        finally:
            self._enter(PluginState.STOPPING, self.reason)
            paced.set()
            await self._end(task, grace)
            if not (self._is_on and _ended_well(task)) or stop.is_set():
                await self._end_callbacks()
            await self._call_stop()
            await self._ended()
            log.info("plugin.stopped", plugin=self.name)
        _raise_failure(task)

    async def _watch(self, task: asyncio.Task[None], paced: RoundStop, stop: Stop) -> None:
        """Return when the run ended or shall end.

        Raises:
            FailedRunError: it went over a limit.
        """
        while self._is_on and not stop.is_set():
            self._wake.clear()
            self._check_callbacks()
            pause = self._check_limits(paced)
            if await self._first_of(task, min(pause, MAX_CHECK_INTERVAL)):
                return
            if paced.round_began is None:
                makes_rounds = paced.pausing or self._good_rounds > 0
                self._judge_rounds(self._good_rounds if makes_rounds else None)

    def _check_limits(self, paced: RoundStop) -> float:
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
            return limits.round / CHECKS_PER_LIMIT
        else:
            left = self.meter.last_step + limits.silence - now
            failure = FailedRunError(Outcome.SILENT, f"did nothing for {limits.silence:g} s")
        if left <= 0:
            raise failure
        return min(left, limits.round / CHECKS_PER_LIMIT)

    def _round_done(self) -> None:
        self.rounds[Outcome.OK] += 1
        self._good_rounds += 1
        self._judge_rounds(self._good_rounds)
        if self.meter.growth > self._limits.memory:
            self.wake()

    def _judge_rounds(self, rounds: int | None) -> None:
        """Check whether a plugin that has failed works again; rounds: good ones, None: has none."""
        if self._breaker.worked(self._clock.monotonic() - self._began, rounds):
            log.info("plugin.recovered", plugin=self.name)
            self.reason = ""
            self._end_episode()

    def _end_episode(self) -> None:
        """Log the next failure with its stack again."""
        self._logged.clear()
        self.meter.exclude_step()

    async def _call_stop(self) -> None:
        """Call the plugin's stop and end what it left behind; a failure is only reported."""
        task = self._start(self._plugin.stop(), "stop")
        in_time = await self._first_of(task, self._limits.stop, wakes=False)
        await self._end(task, 0)
        callbacks = self._subscription.running() if self._subscription else ()
        left = tuple(task for task in self.meter.tasks if task not in callbacks)
        for straggler in left:
            await self._end(straggler, 0)
        error = task.exception() if in_time and not task.cancelled() else None
        if error is not None or not in_time:
            self.errors += 1
            reason = error_text(error) if error else f"took longer than {self._limits.stop:g} s"
            log.error("plugin.stop_failed", plugin=self.name, error=reason)
        if left:
            log.warning("plugin.tasks_leaked", plugin=self.name, tasks=len(left))

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

    async def _pause(self, seconds: float) -> None:
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
        await first_completed(*waits)
        return task is not None and task.done()

    def _enter(self, state: PluginState, reason: str = "") -> None:
        self.state = state
        self.reason = reason


def _ended_well(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _raise_failure(task: asyncio.Task[None]) -> None:
    """Raise the failure that the run ended with as a FailedRunError; cancelling is none."""
    if task.cancelled():
        return
    error = task.exception()
    if isinstance(error, PluginBlocked):
        raise FailedRunError(Outcome.BLOCKED, str(error)) from error
    if error is not None:
        raise FailedRunError(Outcome.FAILED, error_text(error)) from error
