"""Drives the sampling pass: on a thread of its own, replaced when the kernel does not let it go."""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Mapping

from koord.util.clock import Clock
from koord.util.firstof import first_of
from koord.util.health import OK, PartHealth, Status
from koord.util.logs import get_logger
from koord.util.stop import Stop
from koordlet.collectors.engine.lease import GivenUp, Lease
from koordlet.collectors.engine.metrics import CollectorMetrics
from koordlet.collectors.engine.reader import Reader
from koordlet.collectors.engine.sampling import SamplingPass
from koordlet.collectors.engine.schedule import Schedule
from koordlet.collectors.engine.skips import Skips
from koordlet.metriccache.kinds import Cadence

READ_LIMIT = 3.0  # seconds after which a kernel read counts as hung
CHECK_INTERVAL = 1.0  # seconds between looks at a pass that takes long
MAX_GIVEN_UP = 4  # threads that may hang in the kernel before sampling stops
PATIENCE = 3  # periods without a finished pass, after which sampling counts as broken

Due = frozenset[Cadence]
log = get_logger("koordlet.collectors")


class _Worker:
    """A thread that runs passes one by one, with descriptors that only it uses."""

    def __init__(self, sampling: SamplingPass, reader: Reader, number: int) -> None:
        self.reader = reader
        self._sampling = sampling
        self._loop = asyncio.get_running_loop()
        self._turns: queue.SimpleQueue[tuple[Due, asyncio.Future[None]] | None]
        self._turns = queue.SimpleQueue()
        # A daemon thread: one that hangs in the kernel must not keep the process from ending.
        name = f"sampling-{number}"
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def run(self, due: Due) -> asyncio.Future[None]:
        """Start a pass. The future is done when the pass is, or when the thread was given up."""
        done: asyncio.Future[None] = self._loop.create_future()
        self._turns.put((due, done))
        return done

    def end(self) -> None:
        """Let the thread end when its pass is done."""
        self._turns.put(None)

    def _work(self) -> None:
        while (turn := self._turns.get()) is not None:
            due, done = turn
            error: Exception | None = None
            try:
                self._sampling.run(due, self.reader)
            except GivenUp:
                self._answer(done, None)
                break
            except Exception as err:  # raised again where the pass is awaited
                error = err
            self._answer(done, error)
        self.reader.close()

    def _answer(self, done: "asyncio.Future[None]", error: Exception | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            self._loop.call_soon_threadsafe(_finish, done, error)


class Sampler:
    """Runs passes at a fixed rate, and gives up threads that hang in the kernel.

    What hung is skipped from then on, so the next thread gets past it. A thread that comes back
    ends without touching anything, and its file is tried again after a pause.
    """

    def __init__(
        self,
        sampling: SamplingPass,
        readers: Callable[[Lease, Skips], Reader],
        periods: Mapping[Cadence, float],
        clock: Clock,
        metrics: CollectorMetrics,
        *,
        read_limit: float = READ_LIMIT,
    ) -> None:
        """readers makes a reader with descriptors of its own, for each thread."""
        self._sampling = sampling
        self._readers = readers
        self._periods = dict(periods)
        self._clock = clock
        self._metrics = metrics
        self._read_limit = read_limit
        self._skips = Skips(clock)
        self._hung: list[str] = []
        self._threads = 0
        self._worker: _Worker | None = None
        self._finished_at: float | None = None
        self._started_at = clock.monotonic()

    async def run(self, stop: Stop) -> None:
        """Take turns until stop. The first pass comes at once."""
        self._started_at = self._clock.monotonic()
        schedule = Schedule(self._periods, self._started_at)
        try:
            while not await stop.sleep(schedule.next - self._clock.monotonic()):
                due, missed = schedule.take(self._clock.monotonic())
                self._metrics.missed_turns.inc(missed)
                if due:
                    await self._take_turn(due)
        finally:
            if self._worker is not None:
                self._worker.end()
                self._worker = None

    async def _take_turn(self, due: Due) -> None:
        if self._worker is None:
            if len(self._hung) >= MAX_GIVEN_UP:
                self._metrics.missed_turns.inc()
                return
            self._threads += 1
            reader = self._readers(Lease(self._clock), self._skips)
            self._worker = _Worker(self._sampling, reader, self._threads)
        done = self._worker.run(due)
        while not await self._is_done(done):
            what = self._worker.reader.give_up_if_hung(self._read_limit)
            if what is not None:
                self._give_up(what, done)
                return
        done.result()
        self._finished_at = self._clock.monotonic()

    async def _is_done(self, done: "asyncio.Future[None]") -> bool:
        """Wait a while for the pass. The stop signal does not cut it short: it is soon over."""
        timer = self._clock.timer(CHECK_INTERVAL)
        try:
            await first_of(done, timer)
        finally:
            timer.cancel()
        return done.done()

    def _give_up(self, what: str, done: "asyncio.Future[None]") -> None:
        self._worker = None
        self._skips.add(what)
        self._hung.append(what)
        self._metrics.threads_given_up.set(len(self._hung))
        self._metrics.reads.labels("hung").inc()
        self._sampling.blame(f"{what}: reading it does not return")
        log.warning("kernel_read.hung", what=what, limit_s=self._read_limit, hung=len(self._hung))
        done.add_done_callback(lambda _: self._came_back(what))

    def _came_back(self, what: str) -> None:
        self._hung.remove(what)
        self._metrics.threads_given_up.set(len(self._hung))
        self._skips.release(what)
        log.info("kernel_read.returned", what=what, hung=len(self._hung))

    def health(self) -> PartHealth:
        """Health of sampling as a whole; that of each collector is the pass's."""
        hung = ", ".join(self._hung)
        if len(self._hung) >= MAX_GIVEN_UP:
            reason = f"{len(self._hung)} threads hang in the kernel, reading {hung}; reboot helps"
            return PartHealth(Status.UNHEALTHY, reason)
        waited = self._clock.monotonic() - (self._finished_at or self._started_at)
        if waited > PATIENCE * min(self._periods.values()) + self._read_limit + CHECK_INTERVAL:
            return PartHealth(Status.UNHEALTHY, f"no sampling pass finished for {waited:.0f} s")
        if hung:
            return PartHealth(Status.DEGRADED, f"left alone because reading it hung: {hung}")
        return OK


def _finish(done: "asyncio.Future[None]", error: Exception | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
