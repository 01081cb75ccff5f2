"""PodMigrationJobs and Reservations on the API server: followed by watches, written by patches."""

import asyncio
import contextlib
import copy
import uuid
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from koord.api import podmigrationjob
from koord.api import reservation as reservations
from koord.api.podmigrationjob import (
    API_VERSION,
    JobCondition,
    JobPhase,
    JobPod,
    PodMigrationJob,
    begin_patch,
    new_job,
    read_job,
    status_patch,
)
from koord.api.podmigrationjob import KIND as JOB_KIND
from koord.api.reservation import CREATED_BY_LABEL, KIND, ORDER_LABEL, Reservation, read_reservation
from koord.plugin import OK, HealthStatus, PartHealth, Stop, get_logger
from koord.plugin.kube import (
    PODS,
    AlreadyExists,
    ApiError,
    ApiResource,
    Change,
    ChangeKind,
    Conflict,
    Event,
    EventType,
    KubeError,
    MissingKind,
    NotFound,
    ObjectRef,
    PatchRejected,
    SharedInformer,
    Watched,
)
from koord_descheduler.plugin import ClusterPod, Migration, Services

_REMEMBERED = 4096  # uids of jobs that were deleted
_NONE: Mapping[str, PodMigrationJob] = MappingProxyType({})


class JobTable:
    """All jobs by name. Belongs to the event loop.

    Takes what the watch shows and what our own writes were answered with, in any order: an older
    version of a job never replaces a newer one, and a deleted one does not come back.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, PodMigrationJob] = {}
        self.jobs: Mapping[str, PodMigrationJob] = MappingProxyType(self._jobs)  # live
        self._active: dict[str, PodMigrationJob] = {}
        self.active: Mapping[str, PodMigrationJob] = MappingProxyType(self._active)  # live
        self._waiting: dict[str, PodMigrationJob] = {}
        self.waiting: Mapping[str, PodMigrationJob] = MappingProxyType(self._waiting)  # live
        self._by_pod_uid: dict[str, dict[str, PodMigrationJob]] = {}
        self._by_pod_key: dict[str, dict[str, PodMigrationJob]] = {}
        self._by_namespace: dict[str, dict[str, PodMigrationJob]] = {}
        self._begun: Counter[str] = Counter()  # of active jobs, by namespace
        self._deleted: OrderedDict[str, None] = OrderedDict()
        self._unconfirmed: dict[str, float] = {}  # names of jobs that only our writes have shown
        self._phases: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._jobs)

    def phases(self) -> Mapping[str, int]:
        """How many jobs there are in each phase."""
        return self._phases

    def put(self, job: PodMigrationJob, *, written_at: float | None = None) -> bool:
        """Take over a version of a job; return whether it is news.

        written_at: it is the response to a write of ours, at that monotonic time.
        """
        old = self._jobs.get(job.name)
        if written_at is None:
            self._unconfirmed.pop(job.name, None)
        if job.uid in self._deleted:
            return False
        if old is not None and old.uid == job.uid and not _is_newer(job.version, old.version):
            return False
        if old is not None:
            self._phases[_phase(old)] -= 1
            self._take_out(old)
        elif written_at is not None:
            self._unconfirmed[job.name] = written_at
        self._jobs[job.name] = job
        self._phases[_phase(job)] += 1
        if job.active:
            self._put_in(job)
        return True

    def remove(self, name: str, uid: str) -> PodMigrationJob | None:
        """Forget a job that was deleted; return it. Of another uid it is not forgotten."""
        if uid:
            self._deleted[uid] = None
            if len(self._deleted) > _REMEMBERED:
                self._deleted.popitem(last=False)
        job = self._jobs.get(name)
        if job is None or uid not in ("", job.uid):
            return None
        del self._jobs[name]
        self._phases[_phase(job)] -= 1
        self._unconfirmed.pop(name, None)
        self._take_out(job)
        return job

    def unseen(self, since: float) -> list[PodMigrationJob]:
        """Jobs that a write before that monotonic time made, and that no watch has shown."""
        names = [name for name, at in self._unconfirmed.items() if at < since]
        return [self._jobs[name] for name in names]

    def of_pod(self, uid: str, key: str) -> Iterator[PodMigrationJob]:
        """The active jobs of a pod, by its uid or its namespace/name."""
        found = self._by_pod_uid.get(uid, _NONE)
        yield from found.values()
        for job in self._by_pod_key.get(key, _NONE).values():
            if job.name not in found:
                yield job

    def of_namespace(self, namespace: str) -> Collection[PodMigrationJob]:
        """The active jobs of pods of a namespace."""
        return self._by_namespace.get(namespace, _NONE).values()

    def count(self, *, begun: bool, namespace: str | None = None) -> int:
        """How many jobs are active; begun: only those that have passed arbitration."""
        if namespace is None:
            return self._begun.total() if begun else len(self._active)
        return self._begun[namespace] if begun else len(self.of_namespace(namespace))

    def has(self, pod: ClusterPod, *, begun: bool) -> bool:
        """Whether a pod has an active job; begun as for count."""
        if not self._active:
            return False
        if pod.uid not in self._by_pod_uid and pod.key not in self._by_pod_key:
            return False
        return not begun or any(map(has_begun, self.of_pod(pod.uid, pod.key)))

    def _put_in(self, job: PodMigrationJob) -> None:
        name, pod = job.name, job.pod
        self._active[name] = job
        for table, key in self._places(job):
            table.setdefault(key, {})[name] = job
        if has_begun(job):
            self._begun[pod.namespace] += 1
        else:
            self._waiting[name] = job

    def _take_out(self, job: PodMigrationJob) -> None:
        if self._active.pop(job.name, None) is None:
            return
        self._waiting.pop(job.name, None)
        for table, key in self._places(job):
            bucket = table[key]
            del bucket[job.name]
            if not bucket:
                del table[key]
        if has_begun(job):
            self._begun[job.pod.namespace] -= 1
            if not self._begun[job.pod.namespace]:
                del self._begun[job.pod.namespace]

    def _places(
        self, job: PodMigrationJob
    ) -> Iterable[tuple[dict[str, dict[str, PodMigrationJob]], str]]:
        pod = job.pod
        if pod.uid:
            yield self._by_pod_uid, pod.uid
        yield self._by_pod_key, pod.key
        yield self._by_namespace, pod.namespace


def has_begun(job: PodMigrationJob) -> bool:
    """Whether an arbitrator has let a job begin."""
    return job.running or job.passed


def _phase(job: PodMigrationJob) -> str:
    return job.phase or JobPhase.PENDING.value


def _is_newer(version: str, than: str) -> bool:
    """Whether a resourceVersion is newer; of what cannot be compared the later to come is."""
    if version.isdecimal() and than.isdecimal():
        return int(version) > int(than)
    return version != than


JOBS = ApiResource(podmigrationjob.API_VERSION, podmigrationjob.PLURAL)
RESERVATIONS = ApiResource(reservations.API_VERSION, reservations.PLURAL)
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
        informer = self._reservation_informer = self._follow(
            "reservation", RESERVATIONS, read_reservation, self._reservation_changed
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(jobs.run(stop), name="follow jobs")
            group.create_task(informer.run(stop), name="follow Reservations")

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
        except AlreadyExists:  # the response to an earlier attempt was lost
            found = await self._client.get(JOBS.object(name))
        except ApiError:
            raise
        except KubeError as err:
            found = await self._if_created(name, err)
        return self._take_job(found)

    async def begin(self, job: PodMigrationJob, pod_uid: str, reservation: str) -> PodMigrationJob:
        """Let a job pass arbitration; see podmigrationjob.beginning. Raises Outdated, KubeError."""
        return await self._patch(job, "", begin_patch(job, pod_uid, reservation))

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
        """Notify other plugins that a job's pod is being migrated, or no longer is."""
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
        """The job whose creation had no response. Raises that error: there is none."""
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
        except (Conflict, PatchRejected) as err:
            await self.refresh(job)
            raise Outdated(f"job {job.name}: it has changed") from err
        return self._take_job(item)

    def _follow(
        self,
        name: str,
        resource: ApiResource,
        read: Callable[[Json], Any],
        on_change: Callable[[Change[Any]], None],
    ) -> SharedInformer[Any]:
        watched = Watched(
            name=name,
            path=resource.collection(),
            read=read,
            on_change=on_change,
            page_size=_PAGE,
            absent=MissingKind(pause=10.0, hint=_MISSING),
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


CREATED_BY = "koord-descheduler"

_NOT_OF_A_TEMPLATE = (
    "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "generation",
    "managedFields", "resourceVersion", "selfLink",
)  # fmt: skip


def reservation_name(job: PodMigrationJob) -> str:
    """The name of a job's Reservation: that of its template, by default the job's uid."""
    metadata = (job.template or {}).get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return name if isinstance(name, str) and name else job.uid


def is_waiting_for_a_node(pod: Mapping[str, Any]) -> bool:
    """Whether the scheduler has found no node for a pod, as JSON, so far."""
    status = pod.get("status") or {}
    conditions = status.get("conditions") or ()
    return status.get("phase") == "Pending" and any(
        one.get("type") == "PodScheduled" and one.get("status") == "False" for one in conditions
    )


def reservation_body(job: PodMigrationJob, pod: Mapping[str, Any], ttl: str, now: float) -> Json:
    """Return the Reservation for a pod, which is JSON of the API server; now is Unix seconds.

    ttl is a duration as Go writes it. The job owns the Reservation, so that it ends with the job
    even when no descheduler is there to delete it.
    """
    template = job.template or {}
    metadata: Json = copy.deepcopy(dict(template.get("metadata") or {}))  # type: ignore[call-overload]
    spec: Json = copy.deepcopy(dict(template.get("spec") or {}))  # type: ignore[call-overload]
    metadata["name"] = reservation_name(job)
    labels = {CREATED_BY_LABEL: CREATED_BY, ORDER_LABEL: str(int(now * 1000))}
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
    metadata["ownerReferences"] = [
        {"apiVersion": API_VERSION, "kind": JOB_KIND, "name": job.name, "uid": job.uid}
    ]
    spec.setdefault("template", _pod_template(pod))
    _keep_off(spec["template"], (pod.get("spec") or {}).get("nodeName") or "")
    spec.setdefault("owners", [_owner(pod)])
    spec["allocateOnce"] = True
    if not spec.get("ttl") and not spec.get("expires"):
        spec["ttl"] = ttl
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


def _pod_template(pod: Mapping[str, Any]) -> Json:
    metadata = {
        key: value for key, value in pod["metadata"].items() if key not in _NOT_OF_A_TEMPLATE
    }
    spec = {key: value for key, value in (pod.get("spec") or {}).items() if key != "nodeName"}
    return {"metadata": copy.deepcopy(metadata), "spec": copy.deepcopy(spec)}


def _owner(pod: Mapping[str, Any]) -> Json:
    """Return the owner of the Reservation: the pod while it has no node, else its successors."""
    metadata = pod["metadata"]
    if is_waiting_for_a_node(pod):
        reference = {key: metadata[key] for key in ("uid", "name", "namespace") if key in metadata}
        return {"object": {**reference, "kind": "Pod"}}
    owners = metadata.get("ownerReferences") or ()
    controller = next(one for one in owners if one.get("controller"))
    return {"controller": {**controller, "namespace": metadata.get("namespace", "default")}}


def _keep_off(template: Json, node: str) -> None:
    """Add to each required node affinity term that it is not this node."""
    if not node:
        return
    elsewhere = {"key": "metadata.name", "operator": "NotIn", "values": [node]}
    spec = template.setdefault("spec", {})
    affinity = spec["affinity"] = dict(spec.get("affinity") or {})
    by_node = affinity["nodeAffinity"] = dict(affinity.get("nodeAffinity") or {})
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    required = by_node[key] = dict(by_node.get(key) or {})
    terms = required.get("nodeSelectorTerms") or [{}]
    required["nodeSelectorTerms"] = [
        {**term, "matchFields": [*(term.get("matchFields") or ()), elsewhere]} for term in terms
    ]
