"""The audit log as the daemon's parts see it: note an event, and go on."""

import asyncio
from collections import deque
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter

from koord.util.atomicfile import FileWriteError
from koord.util.clock import Clock
from koord.util.firstof import first_of
from koord.util.health import OK, PartHealth, Status
from koord.util.logs import LogState, get_logger
from koord.util.stop import Stop
from koordlet.executor.audit.event import AuditEvent, encode
from koordlet.executor.audit.writer import AuditWriter

PENDING_BYTES = 1 << 20  # of events that could not be written yet; then the oldest are lost
BATCH_LINES = 256  # written at a time
PAUSE = 1.0  # seconds between two writes: what comes together is written together
RETRY = 5.0  # seconds after a write that failed

log = get_logger("koordlet.executor")


class AuditLog:
    """Takes events, and writes them off the event loop, soon. All methods belong to the loop."""

    def __init__(
        self,
        writer: AuditWriter,
        clock: Clock,
        registry: CollectorRegistry,
        *,
        enabled: Callable[[], bool],
        verbose: int,
    ) -> None:
        """enabled is asked at each event; more verbose ones than verbose are left out, 0: none."""
        self.enabled = enabled
        self.problem = ""  # why events are not on disk; empty: they are
        self._writer = writer
        self._clock = clock
        self._verbose = verbose
        self._pending: deque[bytes] = deque()
        self._pending_bytes = 0
        self._arrived = asyncio.Event()
        self._writing = asyncio.Lock()
        self._trouble = LogState(log)
        self._counter = Counter(
            "koordlet_audit_events_total",
            "Events of the audit log by outcome: written, or lost because they could not be.",
            ["outcome"],
            registry=registry,
        )

    def note(self, event: AuditEvent) -> None:
        """Take an event that has just happened. Never waits, never fails."""
        if not self.enabled() or 0 < self._verbose < event.verbosity:
            return
        self._keep(encode(event, self._clock.wall()))
        self._arrived.set()

    async def run(self, stop: Stop) -> None:
        """Write what comes until stop, and then what is left."""
        while not stop.is_set():
            await first_of(self._arrived.wait(), stop.wait())
            self._arrived.clear()
            await self.flush()
            if self.problem:
                self._arrived.set()
            await stop.sleep(RETRY if self.problem else PAUSE)
        await self.flush()

    async def flush(self) -> None:
        """Have everything on disk that was noted before; if it cannot be, problem has why."""
        async with self._writing:
            while self._pending:
                batch = self._take_batch()
                try:
                    await asyncio.to_thread(self._writer.append, batch)
                except FileWriteError as err:
                    self._failed(batch, str(err))
                    return
                self._written(batch)

    def close(self) -> None:
        """Write what was noted after the end of run. Blocks; for the end of the process."""
        batch = list(self._pending)
        self._pending.clear()
        if batch:
            try:
                self._writer.append(batch)
            except FileWriteError as err:
                self._failed(batch, str(err))

    def health(self) -> PartHealth:
        """Degraded while events shall be written but cannot."""
        if not self.problem or not self.enabled():
            return OK
        return PartHealth(Status.DEGRADED, f"{self.problem} (--audit-log-dir)")

    def _keep(self, line: bytes) -> None:
        self._pending.append(line)
        self._pending_bytes += len(line)
        while self._pending and self._pending_bytes > PENDING_BYTES:
            self._pending_bytes -= len(self._pending.popleft())
            self._counter.labels("lost").inc()

    def _take_batch(self) -> list[bytes]:
        return [self._pending.popleft() for _ in range(min(len(self._pending), BATCH_LINES))]

    def _written(self, batch: list[bytes]) -> None:
        self._pending_bytes -= sum(map(len, batch))
        self._counter.labels("written").inc(len(batch))
        self.problem = ""
        self._trouble.ended("audit.written_again")

    def _failed(self, batch: list[bytes], problem: str) -> None:
        self._pending.extendleft(reversed(batch))
        self.problem = problem
        self._trouble.failed("audit.not_written", error=problem)
