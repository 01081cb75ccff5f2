"""Attempts that take too long: logged and counted, while they last or when they end.

Source: Koordinator, pkg/scheduler/frameworkext/scheduler_monitor.go.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from koord.util.clock import Clock
from koord.util.logs import get_logger
from koord.util.stop import Stop
from koord_scheduler.scheduling.attempt import Attempt
from koord_scheduler.scheduling.metrics import SchedulingMetrics

log = get_logger("koord_scheduler.scheduling")


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """How long attempts may take, from leaving the queue to the end of their binding."""

    timeout: float = 30.0  # seconds of one attempt
    period: float = 10.0  # seconds between two looks at those that are under way


class AttemptMonitor:
    """Reports each attempt that exceeds the timeout once."""

    def __init__(self, patience: Patience, metrics: SchedulingMetrics, clock: Clock) -> None:
        self._patience = patience
        self._metrics = metrics
        self._clock = clock
        self._reported: set[Attempt] = set()  # of those that are under way

    async def run(self, stop: Stop, under_way: Callable[[], Iterable[Attempt]]) -> None:
        """Look at the attempts that are under way once in a period, until stop."""
        while not await stop.sleep(self._patience.period):
            for attempt in under_way():
                self._look_at(attempt)

    def ended(self, attempt: Attempt) -> None:
        """An attempt has ended, in whichever way."""
        self._look_at(attempt)
        self._reported.discard(attempt)

    def _look_at(self, attempt: Attempt) -> None:
        seconds = self._clock.monotonic() - attempt.began
        if seconds <= self._patience.timeout or attempt in self._reported:
            return
        self._reported.add(attempt)
        self._metrics.timed_out(attempt.profile.name)
        log.warning(
            "attempt.too_long",
            pod=attempt.pod.key,
            uid=attempt.uid,
            node=attempt.node,
            seconds=round(seconds, 3),
            timeout=self._patience.timeout,
        )
