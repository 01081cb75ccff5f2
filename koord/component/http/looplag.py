"""Measures the lag of the event loop: the delay of everything that runs on it."""

import asyncio

from prometheus_client import CollectorRegistry, Histogram

from koord.util.stop import Stop

PROBE_SECONDS = 1.0  # waking an idle process for a probe costs about 0.2 ms

_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class LoopLag:
    """Probes the loop with timers and notes how late each one comes."""

    def __init__(
        self, registry: CollectorRegistry, prefix: str, interval: float = PROBE_SECONDS
    ) -> None:
        self._interval = interval
        self._histogram = Histogram(
            f"{prefix}_event_loop_lag_seconds",
            "How late a timer of the event loop came.",
            buckets=_BUCKETS,
            registry=registry,
        )
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, stop: Stop) -> None:
        """Probe until stop. On the loop's own time, which is what the figure is about."""
        self._schedule(asyncio.get_running_loop())
        try:
            await stop.wait()
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        due = loop.time() + self._interval
        self._timer = loop.call_at(due, self._probe, loop, due)

    def _probe(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self._histogram.observe(max(loop.time() - due, 0.0))
        self._schedule(loop)
