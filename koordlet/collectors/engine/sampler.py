"""The sampling pass: schedule, collectors that are due in a fixed order, on a thread of its own."""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from koord.api.nodeslo import NodeSLO
from koord.util.clock import Clock, Stamp, stamp
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.logs import get_logger
from koord.util.stop import Stop, first_completed
from koordlet.collectors.engine.collector import Collector
from koordlet.collectors.engine.reader import LeaseRevoked, Reader, ReadLease, SkippedReads
from koordlet.collectors.engine.rounds import CollectorMetrics, Round, RoundOutcome, Rounds
from koordlet.metriccache.kinds import Cadence, Sample
from koordlet.statesinformer.podmeta import PodMeta

_DUE_TOLERANCE = 1e-6  # seconds by which a timer may wake early and still count as on time


class Schedule:
    """Turns of several periods that all start together at `start` (monotonic seconds).

    A turn that could not be taken in time is skipped, never made up for.
    """

    def __init__(self, periods: Mapping[Cadence, float], start: float) -> None:
        self._periods = dict(periods)
        self._start = start
        self._next = dict.fromkeys(periods, start)

    @property
    def next(self) -> float:
        """Return the time of the next turn."""
        return min(self._next.values())

    def take(self, now: float) -> tuple[frozenset[Cadence], int]:
        """Return the cadences that are due, and how many earlier turns were missed over all."""
        due = frozenset(cadence for cadence, at in self._next.items() if at <= now + _DUE_TOLERANCE)
        return due, sum(self._advance(cadence, now) for cadence in due)

    def _advance(self, cadence: Cadence, now: float) -> int:
        period = self._periods[cadence]
        missed = int((now + _DUE_TOLERANCE - self._next[cadence]) / period)
        turn = round((self._next[cadence] - self._start) / period) + missed + 1
        self._next[cadence] = self._start + turn * period
        return missed


log = get_logger("koordlet.collectors")


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingContext:
    """The inputs of the pass. All of them may be called on any thread."""

    enabled: Callable[[str], bool]  # whether a feature gate is on
    pods: Callable[[], tuple[PodMeta, ...]]
    slo: Callable[[], NodeSLO | None]
    append: Callable[[Stamp, Iterable[Sample]], object]  # stores samples


class SamplingPass:
    """Runs collectors. One thread at a time; families and health may be asked on any."""

    def __init__(
        self,
        collectors: Sequence[Collector],
        periods: Mapping[Cadence, float],
        context: SamplingContext,
        clock: Clock,
        metrics: CollectorMetrics,
    ) -> None:
        self._rounds = [Rounds(c, periods[c.cadence], metrics) for c in collectors]
        self._context = context
        self._clock = clock
        self._metrics = metrics
        self._running: Rounds | None = None

    def run(self, due: Collection[Cadence], reader: Reader) -> None:
        """Run the collectors of these cadences that are switched on.

        Raises:
            LeaseRevoked: the calling thread was given up while it waited for the kernel.
        """
        started = self._clock.monotonic()
        pods = tuple(pod for pod in self._context.pods() if not pod.pod.finished)
        reader.begin(stamp(self._clock), pods, self._context.slo())
        for rounds in self._rounds:
            if not self._is_on(rounds.collector):
                rounds.disable()
            elif rounds.collector.cadence in due:
                rounds.enable(started)
                self._run_one(rounds, reader)
        self._running = None
        reader.finish(self._metrics)
        self._metrics.pass_seconds.observe(self._clock.monotonic() - started)

    def mark_late(self, error: str) -> None:
        """Count as late the round of a thread that was given up."""
        rounds, self._running = self._running, None
        if rounds is not None:
            now = self._clock.monotonic()
            rounds.record(Round(RoundOutcome.LATE, error, now, rounds.period, returned=False))

    def sources(self) -> list[Collector]:
        """The collectors whose latest figures still count: what a scrape asks for families."""
        now = self._clock.monotonic()
        return [rounds.collector for rounds in self._rounds if rounds.fresh(now)]

    def health(self) -> dict[str, PartHealth]:
        """Health by collector name, of those that are switched on."""
        now = self._clock.monotonic()
        return {r.collector.name: r.health(now) for r in self._rounds if r.is_on}

    def _is_on(self, collector: Collector) -> bool:
        return not collector.gates or any(map(self._context.enabled, collector.gates))

    def _run_one(self, rounds: Rounds, tick: Reader) -> None:
        self._running = rounds
        before = self._clock.monotonic()
        tick.start_round()
        try:
            samples = list(rounds.collector.collect(tick))
            self._context.append(tick.at, samples)
        except Exception as err:  # one broken collector must not stop the others
            now = self._clock.monotonic()
            rounds.record(Round(RoundOutcome.FAILED, repr(err), now, now - before, returned=False))
            return
        outcome, error = tick.outcome(sampled=bool(samples))
        now = self._clock.monotonic()
        if now - before > rounds.period and outcome is RoundOutcome.OK:
            outcome, error = RoundOutcome.LATE, f"took {now - before:.3f} s of {rounds.period:g} s"
        rounds.record(Round(outcome, error, now, now - before))


READ_TIMEOUT = 3.0  # seconds after which a kernel read counts as hung
CHECK_INTERVAL = 1.0  # seconds between looks at a pass that takes long
MAX_ABANDONED_THREADS = 4  # threads that may hang in the kernel before sampling stops
PASS_TIMEOUT = 3  # periods without a finished pass, after which sampling counts as broken

Due = frozenset[Cadence]


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
            except LeaseRevoked:
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
        readers: Callable[[ReadLease, SkippedReads], Reader],
        periods: Mapping[Cadence, float],
        clock: Clock,
        metrics: CollectorMetrics,
        *,
        read_limit: float = READ_TIMEOUT,
    ) -> None:
        """readers makes a reader with descriptors of its own, for each thread."""
        self._sampling = sampling
        self._readers = readers
        self._periods = dict(periods)
        self._clock = clock
        self._metrics = metrics
        self._read_limit = read_limit
        self._skips = SkippedReads(clock)
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
                    await self._run_pass(due)
        finally:
            if self._worker is not None:
                self._worker.end()
                self._worker = None

    async def _run_pass(self, due: Due) -> None:
        if self._worker is None:
            if len(self._hung) >= MAX_ABANDONED_THREADS:
                self._metrics.missed_turns.inc()
                return
            self._threads += 1
            reader = self._readers(ReadLease(self._clock), self._skips)
            self._worker = _Worker(self._sampling, reader, self._threads)
        done = self._worker.run(due)
        while not await self._is_done(done):
            what = self._worker.reader.abandon_if_hung(self._read_limit)
            if what is not None:
                self._abandon(what, done)
                return
        done.result()
        self._finished_at = self._clock.monotonic()

    async def _is_done(self, done: "asyncio.Future[None]") -> bool:
        """Wait a while for the pass. The stop signal does not cut it short: it is soon over."""
        timer = self._clock.timer(CHECK_INTERVAL)
        try:
            await first_completed(done, timer)
        finally:
            timer.cancel()
        return done.done()

    def _abandon(self, what: str, done: "asyncio.Future[None]") -> None:
        self._worker = None
        self._skips.add(what)
        self._hung.append(what)
        self._metrics.threads_abandoned.set(len(self._hung))
        self._metrics.reads.labels("hung").inc()
        self._sampling.mark_late(f"{what}: reading it does not return")
        log.warning("kernel_read.hung", what=what, limit_s=self._read_limit, hung=len(self._hung))
        done.add_done_callback(lambda _: self._returned(what))

    def _returned(self, what: str) -> None:
        self._hung.remove(what)
        self._metrics.threads_abandoned.set(len(self._hung))
        self._skips.release(what)
        log.info("kernel_read.returned", what=what, hung=len(self._hung))

    def health(self) -> PartHealth:
        """Health of sampling as a whole; that of each collector is the pass's."""
        hung = ", ".join(self._hung)
        if len(self._hung) >= MAX_ABANDONED_THREADS:
            reason = f"{len(self._hung)} threads hang in the kernel, reading {hung}; reboot helps"
            return PartHealth(HealthStatus.UNHEALTHY, reason)
        waited = self._clock.monotonic() - (self._finished_at or self._started_at)
        if waited > PASS_TIMEOUT * min(self._periods.values()) + self._read_limit + CHECK_INTERVAL:
            return PartHealth(
                HealthStatus.UNHEALTHY, f"no sampling pass finished for {waited:.0f} s"
            )
        if hung:
            return PartHealth(HealthStatus.DEGRADED, f"left alone because reading it hung: {hung}")
        return OK


def _finish(done: "asyncio.Future[None]", error: Exception | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
