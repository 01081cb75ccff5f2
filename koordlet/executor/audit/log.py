"""The audit log of the daemon: append, rotate, pages for clients. A caller never waits."""

import asyncio
import os
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter

from koord.util.clock import Clock
from koord.util.errors import KoordError
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.logs import LogState, get_logger
from koord.util.ownedfiles import FileWriteError, OwnedDirectory, OwnedPath
from koord.util.stop import Stop, first_completed
from koordlet.executor.audit.files import (
    CURRENT,
    AuditEvent,
    AuditReader,
    LogBudget,
    encode_event,
    rotated_files,
    rotated_name,
)

_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT


class AuditWriter:
    """Writes to a directory of its own. Blocks: not for the event loop.

    Directory and file are opened for each call: so they may be removed by hand, and a restart goes
    on with them. A group may write to what is above the directory: /var/log is so on some hosts.
    """

    def __init__(self, directory: Path, budget: LogBudget, clock: Clock) -> None:
        self.directory = directory
        self._budget = budget
        self._clock = clock

    def append(self, lines: Sequence[bytes]) -> None:
        """Append whole lines, all or none; rotate when the file has become large enough.

        Raises:
            FileWriteError: it did not work.
        """
        try:
            directory = OwnedDirectory.open(self.directory, shared_parents=True)
            try:
                size = _append(directory / CURRENT, b"".join(lines))
                if size >= self._budget.file_bytes:
                    self._rotate(directory)
            finally:
                directory.close()
        except OSError as err:
            raise FileWriteError(self.directory / CURRENT, err) from err

    def _rotate(self, directory: OwnedDirectory) -> None:
        (directory / CURRENT).rename(rotated_name(self.directory, self._clock.wall()))
        for name in rotated_files(self.directory)[self._budget.rotated :]:
            (directory / name).unlink()


def _append(file: OwnedPath, data: bytes) -> int:
    """Append in one piece and return the size of the file."""
    fd = file.open(_FLAGS)
    try:
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            data = b"\n" + data  # a crash left half a line
        try:
            _write(fd, data)
        except OSError:
            os.ftruncate(fd, size)
            raise
        return size + len(data)
    finally:
        os.close(fd)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


IDLE_TIMEOUT = 600.0  # seconds without a request after which a reader is closed
MAX_PAGE_EVENTS = 100_000  # events that a flag may allow a client to ask for at once
IDLE_CHECK_INTERVAL = 60.0  # seconds between two looks for such


class UnknownPageToken(KoordError):
    """The token is of no reader, or of one that was closed."""

    def __init__(self, token: str) -> None:
        super().__init__(f"invalid pageToken {token[:60]}")


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Events, newest first, and the token for the next page; "" when there is none."""

    events: list[dict[str, Any]]
    next_token: str


@dataclass(slots=True)
class _OpenPage:
    reader: AuditReader
    used: float  # monotonic


class AuditPages:
    """Keeps a bounded number of readers, each under a token that is its name, not a secret.

    All methods belong to the event loop; the files are read in worker threads.
    """

    def __init__(self, make_reader: Callable[[], AuditReader], clock: Clock, *, most: int) -> None:
        """most is the number of readers at a time."""
        self._make_reader = make_reader
        self._clock = clock
        self._most = most
        self._open: dict[str, _OpenPage] = {}  # by token; the one unused for longest first

    async def page(self, token: str, size: int) -> AuditPage:
        """Return the next events of the reader of a token, or with "" the newest ones.

        Raises:
            UnknownPageToken: there is no such reader, any more or at all.
        """
        token, reader = self._find(token) if token else self._begin()
        events = await asyncio.to_thread(reader.page, size)
        if reader.ended:
            self._close(token)
            token = ""
        return AuditPage(events, token)

    async def run(self, stop: Stop) -> None:
        """Close readers that are not used any more, until stop; then all."""
        async for _ in stop.every(IDLE_CHECK_INTERVAL):
            self._close_idle()
        for token in list(self._open):
            self._close(token)

    def _find(self, token: str) -> tuple[str, AuditReader]:
        self._close_idle()
        found = self._open.pop(token, None)
        if found is None:
            raise UnknownPageToken(token)
        found.used = self._clock.monotonic()
        self._open[token] = found
        return token, found.reader

    def _begin(self) -> tuple[str, AuditReader]:
        token, reader = str(uuid.uuid4()), self._make_reader()
        self._close_idle()
        self._open[token] = _OpenPage(reader, self._clock.monotonic())
        while len(self._open) > self._most:
            self._close(next(iter(self._open)))
        return token, reader

    def _close_idle(self) -> None:
        since = self._clock.monotonic() - IDLE_TIMEOUT
        for token in [token for token, each in self._open.items() if each.used < since]:
            self._close(token)

    def _close(self, token: str) -> None:
        closing = self._open.pop(token, None)
        if closing is not None:  # in a thread, as it may be reading
            asyncio.get_running_loop().run_in_executor(None, closing.reader.close)


MAX_PENDING_BYTES = 1 << 20  # of events that could not be written yet; then the oldest are lost
BATCH_LINES = 256  # written at a time
FLUSH_INTERVAL = 1.0  # seconds between two writes: what comes together is written together
RETRY_INTERVAL = 5.0  # seconds after a write that failed

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

    def record(self, event: AuditEvent) -> None:
        """Record an event at the current time. Never waits, never fails."""
        if not self.enabled() or 0 < self._verbose < event.verbosity:
            return
        self._keep(encode_event(event, self._clock.wall()))
        self._arrived.set()

    async def run(self, stop: Stop) -> None:
        """Write what comes until stop, and then what is left."""
        while not stop.is_set():
            await first_completed(self._arrived.wait(), stop.wait())
            self._arrived.clear()
            await self.flush()
            if self.problem:
                self._arrived.set()
            await stop.sleep(RETRY_INTERVAL if self.problem else FLUSH_INTERVAL)
        await self.flush()

    async def flush(self) -> None:
        """Write all earlier events to disk; on an error, problem has the reason."""
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
        return PartHealth(HealthStatus.DEGRADED, f"{self.problem} (--audit-log-dir)")

    def _keep(self, line: bytes) -> None:
        self._pending.append(line)
        self._pending_bytes += len(line)
        while self._pending and self._pending_bytes > MAX_PENDING_BYTES:
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
