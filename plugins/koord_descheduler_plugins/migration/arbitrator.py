"""Let waiting jobs begin, those with the cheapest pods first; remove jobs that are over."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from koord.api.podmigrationjob import JobPhase, JobReason, PodMigrationJob
from koord.api.reservation import Reservation
from koord.plugin import Clock, LimitedLog, LogState, Stop, get_logger
from koord.plugin.kube import ApiError, KubeError, TooManyRequests
from koord_descheduler.plugin import (
    ClusterPod,
    ClusterState,
    OrderKey,
    controller_of,
    eviction_order,
)
from koord_descheduler_plugins.migration.jobs import Outdated, Records
from koord_descheduler_plugins.migration.rules import ProfileRules
from koord_descheduler_plugins.migration.steps import EVICT_DIRECTLY, reservation_name

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
    together = _grouped_by_job(by_pod)
    counts = {uid: migrating(uid) for one in together if (uid := _batch_job(one))}
    return sorted(together, key=lambda one: -counts.get(_batch_job(one), 0))


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

log = get_logger("koord_descheduler.migration")


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
                reservation = "" if mode == EVICT_DIRECTLY else reservation_name(job)
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
