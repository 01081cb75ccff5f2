"""The part of MigrationController that exists once in a process: work queue and workers."""

import asyncio
import heapq
import math
from collections.abc import Awaitable, Callable

from koord.api.podmigrationjob import PodMigrationJob
from koord.api.reservation import Reservation
from koord.plugin import Backoff, Clock, LimitedLog, PartHealth, Stop, get_logger
from koord.plugin.kube import KubeError
from koord_descheduler.plugin import Services
from koord_descheduler_plugins.migration.arbitrator import Arbitrator, Scavenger
from koord_descheduler_plugins.migration.jobs import Records
from koord_descheduler_plugins.migration.reconciler import MigrationMetrics, Reconciler
from koord_descheduler_plugins.migration.rules import EvictionRate, ObjectLimiters, ProfileRules
from koord_descheduler_plugins.migration.steps import RESERVATION_FIRST

INITIAL_BACKOFF, MAX_BACKOFF = 0.1, 30.0  # seconds

Handle = Callable[[str], Awaitable[float | None]]
"""Looks at a name; returns the seconds until the next look, None: when it is added again."""


class WorkQueue:
    """Belongs to the event loop. What is added while it is looked at is looked at once more."""

    def __init__(self, clock: Clock, failed: Callable[[str, Exception], float]) -> None:
        """failed is called with what a look has raised; the name is then due after a pause.

        It returns the longest pause in seconds, in which nothing else falls due for the name.
        """
        self._clock = clock
        self._failed = failed
        self._due: dict[str, float] = {}  # monotonic
        self._heap: list[tuple[float, str]] = []  # with entries that are not true any more
        self._working: dict[str, asyncio.Task[None]] = {}
        self._backoffs: dict[str, Backoff] = {}
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._due)

    def add(self, name: str, after: float = 0.0) -> None:
        """Make a name due after so many seconds; an earlier due time is kept."""
        due = self._clock.monotonic() + after
        if due < self._due.get(name, float("inf")):
            self._due[name] = due
            heapq.heappush(self._heap, (due, name))
            self._wake.set()

    def forget(self, name: str) -> None:
        """Remove a name and its backoff."""
        self._due.pop(name, None)
        self._backoffs.pop(name, None)

    async def run(self, stop: Stop, handle: Handle, workers: Callable[[], int]) -> None:
        """Look at what is due, at so many at once, until stop; then those looks are cancelled."""
        try:
            while not stop.is_set():
                self._wake.clear()
                self._begin(handle, workers())
                await stop.sleep(self._rest(workers()), wake=self._wake)
        finally:
            tasks = list(self._working.values())
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            self._working.clear()

    def _begin(self, handle: Handle, workers: int) -> None:
        now, busy = self._clock.monotonic(), []
        while self._heap and self._heap[0][0] <= now and len(self._working) < workers:
            due, name = heapq.heappop(self._heap)
            if self._due.get(name) != due:
                continue
            if name in self._working:
                busy.append((due, name))
                continue
            del self._due[name]
            work = self._reconcile(handle, name)
            self._working[name] = asyncio.create_task(work, name=f"migration {name}")
        for entry in busy:
            heapq.heappush(self._heap, entry)

    def _rest(self, workers: int) -> float:
        """Seconds until something is due; the end of a look wakes us as well."""
        if not self._heap or len(self._working) >= workers:
            return 3600.0
        due, name = self._heap[0]
        return 3600.0 if name in self._working else max(due - self._clock.monotonic(), 1e-6)

    async def _reconcile(self, handle: Handle, name: str) -> None:
        try:
            after = await handle(name)
        except Exception as err:
            self._due.pop(name, None)  # what was written before it failed is no news
            backoff = self._backoffs.setdefault(name, Backoff(INITIAL_BACKOFF, MAX_BACKOFF))
            after = max(backoff.next(), getattr(err, "retry_after", None) or 0.0)
            after = min(after, self._failed(name, err))
        else:
            self._backoffs.pop(name, None)
        finally:
            self._working.pop(name, None)
            self._wake.set()
        if after is not None:
            self.add(name, after)


NAME = "migrations"
READY_TIMEOUT = 30.0  # seconds that the first cycle waits for all jobs
_POLL_INTERVAL = 0.5  # seconds
_NO_RULES_DELAY = 0.5  # seconds

log = get_logger("koord_descheduler.migration")


class MigrationControl:
    """Job controller, arbitrator and scavenger; belongs to the event loop.

    A job follows the rules of the profile that made it; one of a user, or of a profile that is
    gone, those of the first. What there is only once (rate of evictions, number of workers,
    interval of the arbitrator) is the first profile's.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._clock = services.clock
        self._identity = services.identity
        self._rules: dict[str, ProfileRules] = {}  # by profile, in their order
        self.records = Records(services)
        self.limiters = ObjectLimiters(services.clock)
        self.creating = asyncio.Lock()  # check of quotas and creation of a job are one step
        self._rate: EvictionRate | None = None
        self._rate_of: tuple[float, int] | None = None
        self.metrics = MigrationMetrics(services.metrics.exposition, self.records.jobs.phases)
        self._log = LimitedLog(log, services.clock)
        self._queue = WorkQueue(services.clock, self._reconcile_failed)
        self._reconciler = Reconciler(
            self.records, services, self.limiters, self.metrics, self._rules_of, self._evictions
        )
        self._arbitrator = Arbitrator(
            self.records, services.cluster, services.clock, self._rules_of, self._queue.add
        )
        self._scavenger = Scavenger(self.records, services.clock)
        self.records.wants_reservations = self._wants_reservations
        self.records.on_job = self._job_changed
        self.records.on_job_deleted = self._job_deleted
        self.records.on_reservation = self._reservation_changed

    def enter(self, rules: ProfileRules) -> None:
        """Apply these rules to the jobs of a profile, from now on."""
        self._rules[rules.profile] = rules
        first = self._first()
        for other in self._rules.values():
            if first is not None and _of_process(other) != _of_process(first):
                log.warning(
                    "migration.settings_ignored", profile=other.profile, used_are_of=first.profile,
                    settings="evictQPS, evictBurst, maxConcurrentReconciles, arbitrationArgs",
                )  # fmt: skip
        for job in self.records.jobs.active.values():
            self._job_changed(job)

    def leave(self, rules: ProfileRules) -> None:
        """The profile is gone, unless it has other rules by now."""
        if self._rules.get(rules.profile) is rules:
            del self._rules[rules.profile]

    async def run(self, stop: Stop) -> None:
        """Carry out jobs until stop. Jobs in progress then are left for the next leader."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.records.run(stop), name="migration records")
            group.create_task(self._work(stop), name="migration jobs")

    async def wait_ready(self) -> None:
        """Return when all jobs are known, or cannot be for now: until then none is made.

        That is so where their definitions are not installed, and after READY_TIMEOUT; a dry-run can
        do without.
        """
        deadline = self._clock.monotonic() + READY_TIMEOUT
        known = asyncio.ensure_future(self.records.wait_synced())
        try:
            while not known.done():
                if self.records.undefined or self._clock.monotonic() >= deadline:
                    log.warning("migration.list_failed", why=self.health().reason)
                    return
                timer = self._clock.timer(_POLL_INTERVAL)
                await asyncio.wait({known, timer}, return_when=asyncio.FIRST_COMPLETED)
                timer.cancel()
        finally:
            known.cancel()

    def health(self) -> PartHealth:
        """Degraded while jobs cannot be followed."""
        return self.records.health()

    async def _work(self, stop: Stop) -> None:
        await stop.bound(self.records.wait_synced())
        async with asyncio.TaskGroup() as group:
            group.create_task(self._queue.run(stop, self._reconciler.reconcile, self._workers))
            group.create_task(self._arbitrator.run(stop, self._interval))
            group.create_task(self._scavenger.run(stop))

    def _first(self) -> ProfileRules | None:
        return next(iter(self._rules.values()), None)

    def _rules_of(self, job: PodMigrationJob) -> ProfileRules | None:
        """The rules that a job follows; None: it is another descheduler's, or none are known."""
        if job.created_by not in ("", self._identity):
            return None
        return self._rules.get(job.profile) or self._first()

    def _evictions(self) -> EvictionRate:
        first = self._first()
        assert first is not None  # noqa: S101 - a job that is carried out has rules
        wanted = first.args.evict_qps, first.args.evict_burst
        if self._rate is None or wanted != self._rate_of:
            self._rate, self._rate_of = EvictionRate(self._clock, *wanted), wanted
        return self._rate

    def _workers(self) -> int:
        first = self._first()
        return 1 if first is None else first.args.max_concurrent_reconciles

    def _interval(self) -> float:
        first = self._first()
        args = None if first is None else first.args.arbitration_args
        return _NO_RULES_DELAY if args is None else args.interval

    def _wants_reservations(self) -> bool:
        return any(
            rules.args.default_job_mode == RESERVATION_FIRST for rules in self._rules.values()
        )

    def _job_changed(self, job: PodMigrationJob) -> None:
        if not job.active:
            self._queue.forget(job.name)
            self._reconciler.forget(job)
        elif self._rules_of(job) is not None:
            self._queue.add(job.name)

    def _job_deleted(self, job: PodMigrationJob) -> None:
        self._queue.forget(job.name)
        self._reconciler.forget(job)
        self._scavenger.job_deleted(job)

    def _reservation_changed(self, reservation: Reservation) -> None:
        job = self.records.jobs.active.get(reservation.job_name)
        if job is not None:
            self._job_changed(job)

    def _reconcile_failed(self, name: str, err: Exception) -> float:
        """Note it; return the seconds until the job's time to live ends it."""
        self.metrics.errors.labels(type(err).__name__).inc()
        level = self._log.warning if isinstance(err, KubeError) else self._log.error
        level("job.failed", job=name, error=str(err) or repr(err))
        job = self.records.jobs.jobs.get(name)
        left = 0.0 if job is None else job.created + job.ttl - self._clock.wall()
        return left if left > 0.0 else math.inf


def _of_process(rules: ProfileRules) -> tuple[object, ...]:
    args = rules.args
    return args.evict_qps, args.evict_burst, args.max_concurrent_reconciles, args.arbitration_args
