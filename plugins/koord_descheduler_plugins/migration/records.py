"""Jobs and Reservations on the API server: followed by watches, written by patches of one version.

What a write was answered with counts at once, before the watch shows it.
"""

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from koord.api import podmigrationjob, reservations
from koord.api.podmigrationjob import (
    JobCondition,
    JobPod,
    PodMigrationJob,
    beginning,
    new_job,
    read_job,
    status_patch,
)
from koord.api.reservations import ORDER_LABEL, Reservation, read_reservation
from koord_descheduler.plugin import (
    OK,
    PODS,
    Absent,
    AlreadyExists,
    ApiError,
    Change,
    ChangeKind,
    ClusterPod,
    Conflict,
    Event,
    EventType,
    HealthStatus,
    KubeError,
    Migration,
    NotFound,
    ObjectRef,
    PartHealth,
    PatchRefused,
    Resource,
    Services,
    SharedInformer,
    Stop,
    Watched,
    get_logger,
)
from koord_descheduler_plugins.migration.jobtable import JobTable

JOBS = Resource(podmigrationjob.API_VERSION, podmigrationjob.PLURAL)
RESERVATIONS = Resource(reservations.API_VERSION, reservations.PLURAL)
COMPONENT = "koord-descheduler"
UNSEEN = 60.0  # seconds after which the watch should have shown a job of ours
_PAGE = 500
_MISSING = "install Koordinator's custom resource definitions (deploy/descheduler/crds)"

log = get_logger("koord_descheduler.migration")

Json = dict[str, Any]


class Records:
    """Jobs and Reservations. Belongs to the event loop."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._client = services.client
        self._clock = services.clock
        self.jobs = JobTable()
        self.reservations: dict[str, Reservation] = {}  # by name
        self._deleted_reservations: set[str] = set()  # uids, until the watch has shown it
        self.wants_reservations: Callable[[], bool] = lambda: True
        self.on_job: Callable[[PodMigrationJob], None] = lambda job: None
        self.on_job_deleted: Callable[[PodMigrationJob], None] = lambda job: None
        self.on_reservation: Callable[[Reservation], None] = lambda reservation: None
        self._job_informer: SharedInformer[PodMigrationJob] | None = None
        self._reservation_informer: SharedInformer[Reservation] | None = None
        self._synced = asyncio.Event()
        self._reservations_synced = asyncio.Event()

    @property
    def synced(self) -> bool:
        """Whether all jobs are known."""
        return self._synced.is_set()

    @property
    def reservations_synced(self) -> bool:
        """Whether all Reservations are known."""
        return self._reservations_synced.is_set()

    @property
    def undefined(self) -> bool:
        """Whether the server has said that it does not know these kinds."""
        return _MISSING in self.health().reason

    async def wait_synced(self) -> None:
        """Return when all jobs are known, and all Reservations if there will be any."""
        await self._synced.wait()
        if self.wants_reservations():
            await self._reservations_synced.wait()

    def health(self) -> PartHealth:
        """Degraded while the server does not answer."""
        for informer in (self._job_informer, self._reservation_informer):
            found = OK if informer is None else informer.health()
            wanted = informer is not self._reservation_informer or self.wants_reservations()
            if wanted and found.status is not HealthStatus.OK:
                return found
        return OK

    async def run(self, stop: Stop) -> None:
        """Follow the server until stop."""
        self._synced.clear()
        self._reservations_synced.clear()
        jobs = self._job_informer = self._follow(
            "podmigrationjob", JOBS, read_job, self._job_changed
        )
        rooms = self._reservation_informer = self._follow(
            "reservation", RESERVATIONS, read_reservation, self._reservation_changed
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(jobs.run(stop), name="follow jobs")
            group.create_task(rooms.run(stop), name="follow Reservations")

    async def create_job(
        self,
        pod: ClusterPod,
        *,
        mode: str,
        ttl: float,
        annotations: Mapping[str, str],
        delete_options: Mapping[str, object] | None,
    ) -> PodMigrationJob:
        """Create a job for a pod and return it.

        Raises:
            KubeError: there is none, as far as can be known.
        """
        name = str(uuid.uuid4())
        body = new_job(
            name,
            JobPod(pod.namespace, pod.name, pod.uid),
            mode=mode,
            ttl=ttl,
            annotations=annotations,
            delete_options=delete_options,
        )
        try:
            found = await self._client.create(JOBS.collection(), body)
        except AlreadyExists:  # the answer to an earlier attempt was lost
            found = await self._client.get(JOBS.object(name))
        except ApiError:
            raise
        except KubeError as err:
            found = await self._if_created(name, err)
        return self._take_job(found)

    async def begin(self, job: PodMigrationJob, pod_uid: str, reservation: str) -> PodMigrationJob:
        """Let a job pass arbitration; see podmigrationjob.beginning. Raises Outdated, KubeError."""
        return await self._patch(job, "", beginning(job, pod_uid, reservation))

    async def write_status(self, old: PodMigrationJob, new: PodMigrationJob) -> PodMigrationJob:
        """Write what differs, if anything does, and return the job as stored.

        Raises:
            Outdated: the job is another one by now.
        """
        operations = status_patch(old, new)
        if not operations:
            return old
        return await self._patch(old, "status", operations)

    async def refresh(self, job: PodMigrationJob) -> None:
        """Look at a job on the server itself."""
        try:
            self._take_job(await self._client.get(JOBS.object(job.name)))
        except NotFound:
            self._forget_job(job.name, job.uid)

    async def delete_job(self, job: PodMigrationJob) -> None:
        """Delete a job; one that is gone, or another one by now, is none."""
        with contextlib.suppress(NotFound, Conflict):
            await self._client.delete(JOBS.object(job.name), uid=job.uid)

    async def reservation(self, name: str) -> Reservation | None:
        """A Reservation, as the watch has it, else as the server does; None: there is none."""
        found = self.reservations.get(name)
        if found is not None:
            return found
        try:
            item = await self._client.get(RESERVATIONS.object(name))
        except NotFound:
            return None
        return self._take_reservation(item)

    async def create_reservation(self, body: Json) -> Reservation:
        """Create a Reservation, or return the one that has the name already."""
        try:
            item = await self._client.create(RESERVATIONS.collection(), body)
        except AlreadyExists:
            item = await self._client.get(RESERVATIONS.object(body["metadata"]["name"]))
        return self._take_reservation(item)

    async def order_reservation(self, name: str) -> None:
        """Give a Reservation the label with its order."""
        order = str(int(self._clock.wall() * 1000))
        body = {"metadata": {"labels": {ORDER_LABEL: order}}}
        self._take_reservation(await self._client.merge_patch(RESERVATIONS.object(name), body))

    async def delete_reservation(self, name: str) -> None:
        """Delete a Reservation; one that is gone is none."""
        known = self.reservations.get(name)
        uid = "" if known is None else known.uid
        with contextlib.suppress(NotFound, Conflict):
            await self._client.delete(RESERVATIONS.object(name), uid=uid)
        if known is not None:
            self._deleted_reservations.add(known.uid)
            if self.reservations.get(name) is known:
                del self.reservations[name]

    async def pod(self, pod: JobPod) -> Json | None:
        """A pod as the server has it; None: it is gone, or another one has its name."""
        try:
            item = await self._client.get(PODS.object(pod.name, namespace=pod.namespace))
        except NotFound:
            return None
        return item if pod.uid in ("", item.get("metadata", {}).get("uid")) else None

    def announce(
        self, job: PodMigrationJob, reason: str, message: str, *, warning: bool = False
    ) -> None:
        """Record an event on a job."""
        about = ObjectRef(podmigrationjob.API_VERSION, podmigrationjob.KIND, job.name, "", job.uid)
        kind = EventType.WARNING if warning else EventType.NORMAL
        self._services.events.emit(Event(about, kind, reason, message, COMPONENT))

    def track(self, job: PodMigrationJob) -> None:
        """Have other plugins know that a job's pod is on its way, or not any more."""
        migrations, uid = self._services.migrations, job.pod.uid
        if not uid:
            return
        active = next((one for one in self.jobs.of_pod(uid, "") if one.pod.uid == uid), None)
        if active is None:
            migrations.end(uid)
            return
        pod, known = self._services.cluster.pod(job.pod.key), migrations.by_uid.get(uid)
        node = known.node if known is not None else ""
        if pod is not None and pod.uid == uid:
            node = pod.node
        migrations.put(Migration(pod=job.pod.key, uid=uid, node=node, target=active.node))

    async def drop_unseen(self) -> None:
        """Look for jobs of ours that the watch has never shown: they may be gone."""
        for job in self.jobs.unseen(self._clock.monotonic() - UNSEEN):
            await self.refresh(job)

    async def _if_created(self, name: str, err: KubeError) -> Json:
        """The job whose creation had no answer. Raises that error: there is none."""
        try:
            return await self._client.get(JOBS.object(name))
        except KubeError:
            raise err from None

    async def _patch(
        self, job: PodMigrationJob, subresource: str, operations: list[Json]
    ) -> PodMigrationJob:
        path = JOBS.object(job.name, subresource=subresource)
        try:
            item = await self._client.json_patch(path, operations)
        except NotFound:
            self._forget_job(job.name, job.uid)
            raise Outdated(f"job {job.name}: it is gone") from None
        except (Conflict, PatchRefused) as err:
            await self.refresh(job)
            raise Outdated(f"job {job.name}: it has changed") from err
        return self._take_job(item)

    def _follow(
        self,
        name: str,
        resource: Resource,
        read: Callable[[Json], Any],
        on_change: Callable[[Change[Any]], None],
    ) -> SharedInformer[Any]:
        watched = Watched(
            name=name,
            path=resource.collection(),
            read=read,
            on_change=on_change,
            page_size=_PAGE,
            absent=Absent(pause=10.0, hint=_MISSING),
        )
        return SharedInformer(self._client, watched, self._clock)

    def _job_changed(self, change: Change[PodMigrationJob]) -> None:
        if change.kind is ChangeKind.SYNCED:
            self._listed()
        elif change.new is not None:
            if self.jobs.put(change.new):
                self.track(change.new)
                self.on_job(change.new)
        elif change.old is not None:
            self._forget_job(change.old.name, change.old.uid)

    def _listed(self) -> None:
        """Forget what a whole list does not have, but what was written a moment ago."""
        assert self._job_informer is not None  # noqa: S101 - it has synced
        listed = self._job_informer.objects
        fresh = {job.name for job in self.jobs.unseen(float("inf"))}
        old = {job.name for job in self.jobs.unseen(self._clock.monotonic() - UNSEEN)}
        for name in [name for name in self.jobs.jobs if name not in listed]:
            if name not in fresh or name in old:
                self._forget_job(name, self.jobs.jobs[name].uid)
        self._synced.set()

    def _reservation_changed(self, change: Change[Reservation]) -> None:
        if change.kind is ChangeKind.SYNCED:
            assert self._reservation_informer is not None  # noqa: S101 - it has synced
            listed = self._reservation_informer.objects
            for name in [name for name in self.reservations if name not in listed]:
                del self.reservations[name]  # asked for again when a job needs it
            self._deleted_reservations.clear()
            self._reservations_synced.set()
        elif change.new is not None:
            self._keep_reservation(change.new)
        elif change.old is not None:
            self._deleted_reservations.discard(change.old.uid)
            known = self.reservations.get(change.key)
            if known is not None and known.uid == change.old.uid:
                del self.reservations[change.key]
            self.on_reservation(change.old)

    def _take_job(self, item: Json) -> PodMigrationJob:
        job = read_job(item)
        if self.jobs.put(job, written_at=self._clock.monotonic()):
            self.track(job)
            self.on_job(job)
        return job

    def _forget_job(self, name: str, uid: str) -> None:
        job = self.jobs.remove(name, uid)
        if job is not None:
            self.track(job)
            self.on_job_deleted(job)

    def _take_reservation(self, item: Json) -> Reservation:
        found = read_reservation(item)
        self._keep_reservation(found)
        return found

    def _keep_reservation(self, new: Reservation) -> None:
        old = self.reservations.get(new.name)
        if new.uid in self._deleted_reservations:
            return
        if old is not None and old.uid == new.uid and _number(new.version) < _number(old.version):
            return
        self.reservations[new.name] = new
        self.on_reservation(new)


class Outdated(KubeError):
    """A job is not any more what a decision was made from: look again."""


def condition_event(condition: JobCondition) -> tuple[str, str]:
    """Reason and message of the event that a new condition is worth."""
    return condition.reason or condition.type, condition.message or condition.type


def _number(version: str) -> int:
    return int(version) if version.isdecimal() else 0
