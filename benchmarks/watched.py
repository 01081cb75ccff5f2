"""python -m benchmarks.watched RESULT SECONDS [FLAG...]: the daemon with its event loop watched.

On SIGUSR1 it watches for that many seconds and then writes its findings to RESULT, as JSON.
"""

import asyncio
import functools
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from koord.component.http.exposition import Exposition
from koord.component.plugins.discovery import discover
from koord.component.process import freeze_heap
from koord.util.clock import SystemClock
from koord.util.logs import configure, parse_levels
from koord.util.stop import Stop
from koordlet.cli.daemon import SWITCH_INTERVAL
from koordlet.daemon.run import run_daemon
from koordlet.daemon.settings import load_settings
from koordlet.server.app import FAMILIES

PROBE_SECONDS = 0.01


class LoopWatch:
    """Measures the lag of timers, and how long single callbacks hold the loop. In milliseconds."""

    def __init__(self) -> None:
        self.late: list[float] = []
        self.longest = {"cpu": (0.0, ""), "wall": (0.0, "")}

    async def run(self, seconds: float) -> None:
        """Watch the running loop for a while."""
        loop = asyncio.get_running_loop()
        run_handle = asyncio.Handle._run
        asyncio.Handle._run = self._timed(run_handle)  # type: ignore[method-assign]
        try:
            end = loop.time() + seconds
            while (due := loop.time() + PROBE_SECONDS) < end:
                probe = loop.create_future()
                loop.call_at(due, probe.set_result, None)
                await probe
                self.late.append((loop.time() - due) * 1e3)
        finally:
            asyncio.Handle._run = run_handle  # type: ignore[method-assign]

    def summary(self) -> dict[str, Any]:
        """Median, 99th percentile and maximum of the lag; the longest slices with callbacks."""
        late = sorted(self.late)
        return {
            "p50": late[len(late) // 2],
            "p99": late[len(late) * 99 // 100],
            "max": late[-1],
            "longest": self.longest,
        }

    def _timed(self, run_handle: Any) -> Any:
        @functools.wraps(run_handle)
        def run(handle: asyncio.Handle) -> None:
            cpu, wall = time.thread_time(), time.perf_counter()
            run_handle(handle)
            self._note("cpu", (time.thread_time() - cpu) * 1e3, handle)
            self._note("wall", (time.perf_counter() - wall) * 1e3, handle)

        return run

    def _note(self, clock: str, took: float, handle: asyncio.Handle) -> None:
        if took > self.longest[clock][0]:
            self.longest[clock] = took, repr(handle)[:200]


async def _main(result: Path, seconds: float, flags: Sequence[str]) -> None:
    clock = SystemClock()
    exposition = Exposition(FAMILIES, clock=clock)
    settings = load_settings(
        flags, os.environ, clock=clock, metrics=exposition.internal, discover=discover
    )
    configure("json", parse_levels(settings.options.log_level.value))
    stop, asked = Stop(clock), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGUSR1, asked.set)

    async def watch() -> None:
        await asked.wait()
        lags = LoopWatch()
        await lags.run(seconds)
        seen = lags.summary() | {"modules": sorted(sys.modules)}
        draft = result.with_suffix(".draft")
        draft.write_text(json.dumps(seen))
        draft.rename(result)

    freeze_heap()
    watching = asyncio.create_task(watch())
    await run_daemon(settings, exposition, clock, stop=stop)
    watching.cancel()


if __name__ == "__main__":
    sys.setswitchinterval(SWITCH_INTERVAL)
    asyncio.run(_main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
