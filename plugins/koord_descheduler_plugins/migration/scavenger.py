"""Removes jobs whose time is long over, and Reservations whose jobs are gone.

Source: Koordinator, pkg/descheduler/controllers/migration: doScavenge.
"""

import asyncio

from koord.api.podmigrationjob import PodMigrationJob
from koord.api.reservations import Reservation
from koord_descheduler.plugin import ApiError, Clock, KubeError, LimitedLog, Stop, get_logger
from koord_descheduler_plugins.migration.records import Records

INTERVAL = 60.0  # seconds
KEPT_AFTER_TTL, KEPT_WITHOUT_TTL = 300.0, 1800.0  # seconds
_SLICE = 200  # jobs without a pause for others

log = get_logger("koord_descheduler.migration")


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
        """Have the Reservation of a job that is gone removed soon."""
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
                self._log.warning("reservation.unremoved", reservation=name, error=str(err))

    async def _jobs(self) -> None:
        for number, job in enumerate(list(self._records.jobs.jobs.values()), 1):
            if is_over(job, self._clock.wall()):
                try:
                    for name in {job.reservation, job.uid}:
                        if name == job.reservation != "" or name in self._records.reservations:
                            await self._records.delete_reservation(name)
                    await self._records.delete_job(job)
                except ApiError as err:
                    self._log.warning("job.unremoved", job=job.name, error=str(err))
            if number % _SLICE == 0:
                await asyncio.sleep(0)

    async def _reservations(self) -> None:
        if not self._records.reservations_synced:
            return
        for reservation in [one for one in self._records.reservations.values() if self._lost(one)]:
            try:
                await self._records.delete_reservation(reservation.name)
            except ApiError as err:
                name = reservation.name
                self._log.warning("reservation.unremoved", reservation=name, error=str(err))

    def _lost(self, reservation: Reservation) -> bool:
        """Whether the job that owns it is gone."""
        if not reservation.job_uid:
            return False
        job = self._records.jobs.jobs.get(reservation.job_name)
        return job is None or job.uid != reservation.job_uid
