"""MigrationController: an evict and filter plugin that moves pods by PodMigrationJobs.

MigrationControl exists once in a process: work queue, workers, arbitrator and scavenger.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from koord.api.podmigrationjob import (
    CREATED_BY,
    EVICT_REASON,
    EVICT_TRIGGER,
    PROFILE,
    JobPhase,
    JobPod,
    JobReason,
    PodMigrationJob,
)
from koord.api.reservation import Reservation
from koord.plugin import (
    Clock,
    LimitedLog,
    LogState,
    PartHealth,
    Stop,
    WorkQueue,
    get_logger,
)
from koord.plugin.args import takes_args
from koord.plugin.kube import ApiError, KubeError, TooManyRequests
from koord_descheduler.plugin import (
    EVICTOR_FILTER_FIELDS,
    GROUP_VERSION,
    POD_ORDER_FIELDS,
    ClusterPod,
    ClusterState,
    EvictOptions,
    Evictor,
    Handle,
    Mask,
    OrderKey,
    PluginRegistry,
    Services,
    View,
    controller_of,
    eviction_order,
    reads,
)
from koord_descheduler_plugins.migration.args import JobMode, MigrationControllerArgs
from koord_descheduler_plugins.migration.jobs import JobTable, Outdated, Records, reservation_name
from koord_descheduler_plugins.migration.reconciler import (
    MigrationMetrics,
    Reconciler,
)
from koord_descheduler_plugins.migration.rules import EvictionRate, ObjectLimiters, ProfileRules

_BATCH_JOB = "Job"


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A job that has not passed arbitration, and its pod; None: it is gone."""

    job: PodMigrationJob
    pod: ClusterPod | None


def arbitration_order(
    waiting: Iterable[WaitingJob], migrating: Callable[[str], int]
) -> list[WaitingJob]:
    """Return jobs in the order in which they are judged.

    migrating returns how many pods of a batch Job, by its uid, are on their way. Four stable
    sorts, of which the last one decides first: newest job, order of pods (none first), pods of one
    batch Job together, Jobs with most pods on their way.
    """
    by_age = sorted(waiting, key=lambda one: (-int(one.job.created), one.job.name))
    by_pod = sorted(by_age, key=_pod_order)
    grouped = _grouped_by_job(by_pod)
    counts = {uid: migrating(uid) for one in grouped if (uid := _batch_job(one))}
    return sorted(grouped, key=lambda one: -counts.get(_batch_job(one), 0))


def _pod_order(one: WaitingJob) -> tuple[bool, OrderKey]:
    return (False, ()) if one.pod is None else (True, eviction_order(one.pod))


def _grouped_by_job(jobs: list[WaitingJob]) -> list[WaitingJob]:
    """Move pods of a batch Job next to the first one of it."""
    groups: dict[object, list[WaitingJob]] = {}
    for one in jobs:
        groups.setdefault(_batch_job(one) or id(one), []).append(one)
    return [one for group in groups.values() for one in group]


def _batch_job(one: WaitingJob) -> str:
    """The uid of the batch Job that controls the pod; "": none does."""
    owner = None if one.pod is None else controller_of(one.pod.owners)
    return owner.uid if owner is not None and owner.kind == _BATCH_JOB else ""


_SLICE = 50  # jobs without a pause for others
_IN_A_THREAD = 2000  # jobs, from which on sorting takes milliseconds
_SERVER_ERROR = 500  # statuses from here on are about the server, not about a job
_SHARE = 0.1  # of the time that rounds may take at most, with 10^5 jobs that wait


class Arbitrator:
    """Belongs to the event loop."""

    def __init__(
        self,
        records: Records,
        cluster: ClusterState,
        clock: Clock,
        rules_of: Callable[[PodMigrationJob], ProfileRules | None],
        reconcile: Callable[[str], None],
    ) -> None:
        """look has a job looked at: it has begun, or will never."""
        self._records = records
        self._cluster = cluster
        self._clock = clock
        self._rules_of = rules_of
        self._reconcile = reconcile
        self._trouble = LogState(log)
        self._refused = LimitedLog(log, clock)

    async def run(self, stop: Stop, interval: Callable[[], float]) -> None:
        """Judge waiting jobs every interval seconds, until stop."""
        while not stop.is_set():
            began = self._clock.monotonic()
            try:
                await stop.bound(self.round())
                self._trouble.ended("arbitration.recovered")
            except KubeError as err:  # the same for all others
                self._trouble.failed("arbitration.failed", error=str(err))
            took = self._clock.monotonic() - began
            await stop.sleep(max(interval(), took / _SHARE))

    async def round(self) -> None:
        """Judge all waiting jobs once.

        Raises:
            KubeError: the server did not take what was decided; what waits still waits.
        """
        for number, one in enumerate(await self._ordered(), 1):
            # Of one whose turn comes later the fresh version counts.
            job = self._records.jobs.waiting.get(one.job.name)
            if job is not None and not job.paused:
                await self._judge_alone(job)
            if number % _SLICE == 0:
                await asyncio.sleep(0)

    async def _ordered(self) -> list[WaitingJob]:
        waiting = []
        for number, job in enumerate(list(self._records.jobs.waiting.values()), 1):
            if not job.paused and self._rules_of(job) is not None:
                waiting.append(WaitingJob(job, self._pod(job)))
            if number % _SLICE == 0:
                await asyncio.sleep(0)
        if len(waiting) < _IN_A_THREAD:
            return arbitration_order(waiting, self._migrating_of(waiting))
        return await asyncio.to_thread(arbitration_order, waiting, self._migrating_of(waiting))

    def _pod(self, job: PodMigrationJob) -> ClusterPod | None:
        pod = self._cluster.pod(job.pod.key)
        return pod if pod is not None and job.pod.uid in ("", pod.uid) else None

    def _migrating_of(self, waiting: list[WaitingJob]) -> Callable[[str], int]:
        """How many pods of a controller have begun to move, by its uid."""
        counts: dict[str, int] = {}
        owners = {
            owner.uid
            for one in waiting
            if one.pod is not None and (owner := controller_of(one.pod.owners)) is not None
        }
        for job in self._records.jobs.active.values():
            if job.name in self._records.jobs.waiting:
                continue
            pod = self._pod(job)
            owner = None if pod is None else controller_of(pod.owners)
            if owner is not None and owner.uid in owners:
                counts[owner.uid] = counts.get(owner.uid, 0) + 1
        return lambda uid: counts.get(uid, 0)

    async def _judge_alone(self, job: PodMigrationJob) -> None:
        """Judge a job; what the server has against this one keeps no other."""
        try:
            await self._judge(job, self._pod(job))
        except ApiError as err:
            if err.status >= _SERVER_ERROR or isinstance(err, TooManyRequests):
                raise
            self._refused.warning("job.refused", job=job.name, error=str(err))

    async def _judge(self, job: PodMigrationJob, pod: ClusterPod | None) -> None:
        rules = self._rules_of(job)
        if rules is None:
            return
        if pod is None:
            self._reconcile(job.name)  # the server says whether it is gone
            return
        try:
            if reason := rules.lasting(pod):
                await self._forbid(job, pod, reason)
            elif not rules.passing(pod, arbitrating=True):
                mode = job.mode or rules.args.default_job_mode
                reservation = "" if mode == JobMode.EVICT_DIRECTLY else reservation_name(job)
                await self._records.begin(job, pod.uid, reservation)
        except Outdated:
            return  # the next round sees the new version

    async def _forbid(self, job: PodMigrationJob, pod: ClusterPod, reason: str) -> None:
        text = f'Pod "{pod.key}" is forbidden to migrate because it does not meet the requirements'
        failed = replace(
            job,
            phase=JobPhase.FAILED.value,
            reason=JobReason.FORBIDDEN.value,
            message=text,
        )
        await self._records.write_status(job, failed)
        self._records.announce(job, JobReason.FORBIDDEN, f"{text}: {reason}", warning=True)
        log.info("migration.forbidden", job=job.name, pod=pod.key, reason=reason)


INTERVAL = 60.0  # seconds
KEPT_AFTER_TTL, KEPT_WITHOUT_TTL = 300.0, 1800.0  # seconds
_JOBS_PER_SLICE = 200  # jobs without a pause for others


def is_over(job: PodMigrationJob, now: float) -> bool:
    """Whether a job, of any phase, is so old that it serves no purpose; now is Unix seconds."""
    kept = job.ttl + KEPT_AFTER_TTL if job.ttl > 0 else KEPT_WITHOUT_TTL
    return now - job.created >= kept


class Scavenger:
    """Belongs to the event loop."""

    def __init__(self, records: Records, clock: Clock) -> None:
        self._records = records
        self._clock = clock
        self._log = LimitedLog(log, clock)
        self._left: set[str] = set()  # names of Reservations whose jobs were deleted
        self._wake = asyncio.Event()

    def job_deleted(self, job: PodMigrationJob) -> None:
        """Schedule the removal of a deleted job's Reservation."""
        known = self._records.reservations
        names = {name for name in (job.reservation, job.uid) if name in known}
        if names:
            self._left |= names
            self._wake.set()

    async def run(self, stop: Stop) -> None:
        """Remove what is over, every minute, and what is left of deleted jobs, until stop."""
        due = self._clock.monotonic()
        while not stop.is_set():
            self._wake.clear()
            await stop.bound(self._remove_left())
            if self._clock.monotonic() >= due:
                due = self._clock.monotonic() + INTERVAL
                await stop.bound(self.round())
            await stop.sleep(due - self._clock.monotonic(), wake=self._wake)

    async def round(self) -> None:
        """Remove what is over now. What fails is left for the next time, and the rest is done."""
        if not self._records.synced:
            return
        try:
            await self._records.drop_unseen()
            await self._jobs()
            await self._reservations()
        except KubeError as err:  # the server does not answer: it would not answer the rest either
            self._log.warning("scavenging.failed", error=str(err))

    async def _remove_left(self) -> None:
        while self._left:
            name = self._left.pop()
            try:
                await self._records.delete_reservation(name)
            except KubeError as err:  # the next round looks for it
                self._log.warning("reservation.delete_failed", reservation=name, error=str(err))

    async def _jobs(self) -> None:
        for number, job in enumerate(list(self._records.jobs.jobs.values()), 1):
            if is_over(job, self._clock.wall()):
                try:
                    for name in {job.reservation, job.uid}:
                        if name == job.reservation != "" or name in self._records.reservations:
                            await self._records.delete_reservation(name)
                    await self._records.delete_job(job)
                except ApiError as err:
                    self._log.warning("job.delete_failed", job=job.name, error=str(err))
            if number % _JOBS_PER_SLICE == 0:
                await asyncio.sleep(0)

    async def _reservations(self) -> None:
        if not self._records.reservations_synced:
            return
        for reservation in [one for one in self._records.reservations.values() if self._lost(one)]:
            try:
                await self._records.delete_reservation(reservation.name)
            except ApiError as err:
                name = reservation.name
                self._log.warning("reservation.delete_failed", reservation=name, error=str(err))

    def _lost(self, reservation: Reservation) -> bool:
        """Whether the job that owns it is gone."""
        if not reservation.job_uid:
            return False
        job = self._records.jobs.jobs.get(reservation.job_name)
        return job is None or job.uid != reservation.job_uid


NAME = "migrations"
READY_TIMEOUT = 30.0  # seconds that the first cycle waits for all jobs
_POLL_INTERVAL = 0.5  # seconds
_NO_RULES_DELAY = 0.5  # seconds


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
        self._queue = WorkQueue(services.clock)
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
            group.create_task(
                self._queue.run(
                    stop, self._reconciler.reconcile, self._workers, self._reconcile_failed
                )
            )
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
            rules.args.default_job_mode == JobMode.RESERVATION_FIRST
            for rules in self._rules.values()
        )

    def _job_changed(self, job: PodMigrationJob) -> None:
        if not job.active:
            self._queue.remove(job.name)
            self._reconciler.forget(job)
        elif self._rules_of(job) is not None:
            self._queue.add(job.name)

    def _job_deleted(self, job: PodMigrationJob) -> None:
        self._queue.remove(job.name)
        self._reconciler.forget(job)
        self._scavenger.job_deleted(job)

    def _reservation_changed(self, reservation: Reservation) -> None:
        job = self.records.jobs.active.get(reservation.job_name)
        if job is not None:
            self._job_changed(job)

    def _reconcile_failed(self, name: str, err: Exception, pause: float) -> float:
        """Record it; return the pause in seconds, which ends when the job's time to live does."""
        self.metrics.errors.labels(type(err).__name__).inc()
        level = self._log.warning if isinstance(err, KubeError) else self._log.error
        level("job.failed", job=name, error=str(err) or repr(err))
        job = self.records.jobs.jobs.get(name)
        left = 0.0 if job is None else job.created + job.ttl - self._clock.wall()
        pause = max(pause, getattr(err, "retry_after", None) or 0.0)
        return min(pause, left) if left > 0.0 else pause


def _of_process(rules: ProfileRules) -> tuple[object, ...]:
    args = rules.args
    return args.evict_qps, args.evict_burst, args.max_concurrent_reconciles, args.arbitration_args


log = get_logger("koord_descheduler.migration")


@takes_args(MigrationControllerArgs, group_version=GROUP_VERSION)
@reads(EVICTOR_FILTER_FIELDS, POD_ORDER_FIELDS)
class MigrationController(Evictor):
    """One for each profile; all share the MigrationControl of the process."""

    def __init__(self, args: MigrationControllerArgs | None, handle: Handle) -> None:
        services = handle.services
        self._args = (args or MigrationControllerArgs()).complete()
        self._services = services
        self._profile = handle.profile
        self._log = LimitedLog(log, services.clock)
        self._control = services.shared.get(NAME, lambda: MigrationControl(services))
        self._rules = ProfileRules(
            handle.profile,
            self._args,
            self._control.records.jobs,
            services.cluster,
            services.hardware.fits,
        )
        self._control.enter(self._rules)
        self._rehearsal: Rehearsal | None = None  # of the last cycle in dry-run

    async def close(self) -> None:
        self._control.leave(self._rules)

    def filter(self, pod: ClusterPod) -> bool:
        return not self._rules.reject_reason(pod)

    def reject_reason(self, pod: ClusterPod) -> str:
        return self._rules.reject_reason(pod)

    def pre_eviction_filter(self, pod: ClusterPod) -> bool:
        return not self.pre_eviction_reject_reason(pod)

    def pre_eviction_reject_reason(self, pod: ClusterPod) -> str:
        return self._rules.unschedulable(pod)

    def rehearse(self, pod: ClusterPod, options: EvictOptions) -> str:
        """Return why no job would be created; "": one would. Quotas count jobs of the cycle."""
        if self._args.dry_run:
            return ""
        cycles = self._services.decisions.cycles
        began = cycles[-1].began if cycles else 0.0
        if self._rehearsal is None or self._rehearsal.began != began:
            jobs, cluster = self._control.records.jobs, self._services.cluster
            self._rehearsal = Rehearsal(
                began, self._profile, self._args, jobs, cluster, self._services.hardware.fits
            )
        return self._rehearsal.migrate(pod)

    async def evict(self, pod: ClusterPod, options: EvictOptions) -> bool:
        """Create a PodMigrationJob for the pod; return whether there is one now."""
        facts = {"pod": pod.key, "plugin": options.plugin_name, "reason": options.reason}
        if self._args.dry_run:
            log.info("migration.planned", node=pod.node, dry_run=True, **facts)
            return True
        control = self._control
        if not control.records.synced:
            self._log.warning("migration.refused", why="not all jobs are known yet", **facts)
            return False
        async with control.creating:
            why = self._rules.reject_reason(pod)
            if not why and control.limiters.pause(self._rules.rate_limits(pod)):
                why = "pods of its workload or namespace were evicted a short while ago"
            if why:
                log.debug("migration.refused", why=why, **facts)
                return False
            try:
                job = await control.records.create_job(
                    pod,
                    mode=self._args.default_job_mode,
                    ttl=self._args.default_job_ttl,
                    annotations={
                        EVICT_REASON: options.reason,
                        EVICT_TRIGGER: options.plugin_name,
                        CREATED_BY: self._services.identity,
                        PROFILE: self._profile,
                    },
                    delete_options=options.delete_options or self._args.default_delete_options,
                )
            except KubeError as err:
                self._log.warning("job.create_failed", error=str(err), **facts)
                return False
        log.info("migration.created", job=job.name, node=pod.node, **facts)
        return True


class Rehearsal:
    """The rules of a profile as if pods were migrated: nothing of it is seen elsewhere."""

    def __init__(
        self,
        began: float,
        profile: str,
        args: MigrationControllerArgs,
        jobs: JobTable,
        cluster: ClusterState,
        hardware: Callable[[ClusterPod, View], Mask | None],
    ) -> None:
        """began is when its cycle began, in Unix seconds. jobs are those that there are."""
        self.began = began
        self._jobs = JobTable()
        for job in jobs.active.values():
            self._jobs.put(job)
        self._rules = ProfileRules(profile, args, self._jobs, cluster, hardware)

    def migrate(self, pod: ClusterPod) -> str:
        """Let a pod have a job from now on; return why it may not leave, "": it may."""
        reject_reason = self._rules.reject_reason(pod)
        if not reject_reason:
            reference = JobPod(pod.namespace, pod.name, pod.uid)
            self._jobs.put(PodMigrationJob(name=f"rehearsed {pod.key}", pod=reference))
        return reject_reason


def register(registry: PluginRegistry) -> None:
    """Register the plugin under the name that profiles use."""
    registry.register("MigrationController", MigrationController)
