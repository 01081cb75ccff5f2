"""Lets waiting jobs begin, those with the cheapest pods first, as quotas allow.

Source: Koordinator, pkg/descheduler/controllers/migration/arbitrator.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from koord.api.podmigrationjob import JobPhase, JobReason, PodMigrationJob
from koord_descheduler.plugin import (
    ApiError,
    Clock,
    ClusterPod,
    ClusterState,
    KubeError,
    LimitedLog,
    LogState,
    Stop,
    TooManyRequests,
    controller_of,
    get_logger,
)
from koord_descheduler_plugins.migration.order import WaitingJob, arbitration_order
from koord_descheduler_plugins.migration.records import Outdated, Records
from koord_descheduler_plugins.migration.reservationbody import reservation_name
from koord_descheduler_plugins.migration.rules import ProfileRules
from koord_descheduler_plugins.migration.steps import EVICT_DIRECTLY

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
        look: Callable[[str], None],
    ) -> None:
        """look has a job looked at: it has begun, or will never."""
        self._records = records
        self._cluster = cluster
        self._clock = clock
        self._rules_of = rules_of
        self._look = look
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
            self._look(job.name)  # the server says whether it is gone
            return
        try:
            if reason := rules.lasting(pod):
                await self._forbid(job, pod, reason)
            elif not rules.passing(pod, arbitrating=True):
                mode = job.mode or rules.args.default_job_mode
                room = "" if mode == EVICT_DIRECTLY else reservation_name(job)
                await self._records.begin(job, pod.uid, room)
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
