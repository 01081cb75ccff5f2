"""Reconcile one job after the other: find its next step, do it, and evict its pod."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily

from koord.api.eviction import EvictionOutcome, EvictionResponse
from koord.api.podmigrationjob import (
    COMPLETE,
    SOFT_EVICTION,
    ConditionType,
    JobPhase,
    JobPod,
    JobReason,
    PodMigrationJob,
    time_text,
)
from koord.api.reservation import Reservation
from koord.plugin import KoordError, get_logger
from koord.plugin.args import duration_text
from koord.plugin.kube import (
    PODS,
    ApiError,
    Deadline,
    Event,
    EventType,
    KubeError,
    ObjectRef,
    PatchRejected,
)
from koord_descheduler.plugin import (
    ClusterPod,
    PodEvictions,
    Services,
    controller_of,
    read_rejection,
)
from koord_descheduler_plugins.migration.args import EvictionPolicy, JobMode
from koord_descheduler_plugins.migration.jobs import (
    COMPONENT,
    Outdated,
    Records,
    condition_event,
    is_waiting_for_a_node,
    reservation_body,
    reservation_name,
)
from koord_descheduler_plugins.migration.rules import EvictionRate, ObjectLimiters, ProfileRules

RECHECK = 3.0  # seconds


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Write the status that the job has here."""

    job: PodMigrationJob


@dataclass(frozen=True, slots=True)
class CreateReservation:
    """Create the Reservation that the job names."""


@dataclass(frozen=True, slots=True)
class LabelReservation:
    """Give the Reservation the label with its order."""


@dataclass(frozen=True, slots=True)
class DeleteReservation:
    """Delete the Reservation; one that is gone is none."""


@dataclass(frozen=True, slots=True)
class Evict:
    """Ask for the eviction of the pod, unless it is leaving already."""


Action = WriteStatus | CreateReservation | LabelReservation | DeleteReservation | Evict


@dataclass(frozen=True, slots=True)
class Step:
    """The actions to take now, in this order; each only if the one before succeeded."""

    actions: tuple[Action, ...] = ()
    pause: float | None = None  # seconds until the next look; None: when something changes


@dataclass(frozen=True, kw_only=True, slots=True)
class ObservedState:
    """The observed objects of a job. An absent one is known to be gone."""

    pod: ClusterPod | None = None  # the one that the job names
    reservation: Reservation | None = None  # the one that the job names
    new_pod: ClusterPod | None = None  # the one that has the Reservation
    limited: float = 0.0  # seconds until limiters let the pod be evicted
    asked: bool = False  # this process has asked for the eviction, and the response was yes


def next_step(job: PodMigrationJob, observed: ObservedState, now: float, default_mode: str) -> Step:
    """Return the next step of a job; now is Unix seconds."""
    if job.paused or not job.active:
        return Step()
    if 0 < job.ttl <= now - job.created:
        return _JobProgress(job, observed, now).fail(
            JobReason.TIMEOUT, "Abort job caused by timeout", whoever_made_it=True
        )
    step = _JobProgress(job, observed, now).step(job.mode or default_mode)
    return step if job.ttl <= 0 else _before(step, job.created + job.ttl - now)


def _before(step: Step, seconds: float) -> Step:
    """The step, looked at again at the latest when the job's time is over."""
    return replace(step, pause=seconds if step.pause is None else min(step.pause, seconds))


class _JobProgress:
    """One look at a job: goes on as far as it can, and collects what changes."""

    def __init__(self, job: PodMigrationJob, observed: ObservedState, now: float) -> None:
        self._before = job
        self._job = job
        self._seen = observed
        self._now = now
        self._label = False

    def step(self, mode: str) -> Step:
        job, observed = self._job, self._seen
        if not job.pod.namespace or not job.pod.name:
            return self.fail(JobReason.INVALID_POD_REF, "podRef needs a namespace and a name")
        if observed.pod is None and job.condition(ConditionType.EVICTION) is None:
            return self.fail(JobReason.MISSING_POD, f'Pod "{job.pod.key}" is not there')
        if not job.passed and not job.running:
            return Step()  # it is the arbitrator's
        if not job.running:
            self._job = replace(job, phase=JobPhase.RUNNING.value)
        if mode == JobMode.EVICT_DIRECTLY:
            return self._evict() or self._complete(f'Pod "{job.pod.key}" has been evicted')
        return self._reserve() or self._evict() or self._bind()

    def fail(self, reason: JobReason, message: str, *, whoever_made_it: bool = False) -> Step:
        """End the job, and its Reservation, unless that is a user's own."""
        job, found = self._job, self._seen.reservation
        ours = found is not None and (found.job_uid == job.uid or found.name == job.uid)
        failed = replace(
            self._job, phase=JobPhase.FAILED.value, reason=reason.value, message=message
        )
        deletes = ours or (whoever_made_it and job.reservation)
        return Step(((DeleteReservation(),) if deletes else ()) + (WriteStatus(failed),))

    def _reserve(self) -> Step | None:
        """Return the step towards reserved resources for the pod. None: it has them."""
        job, reservation = self._job, self._seen.reservation
        if job.new_pod.name:
            return None  # the resources are taken: the state of the Reservation does not matter
        if reservation is None:
            return self._without_reservation()
        if not reservation.ordered:
            self._label = True
        self._note(ConditionType.RESERVATION_CREATED, holds=True)
        if reservation.expired:
            return self.fail(
                JobReason.RESERVATION_EXPIRED, f'Reservation "{reservation.name}" expired'
            )
        if self._job.condition(ConditionType.EVICTION) is not None:
            return None
        return self._scheduled(reservation)

    def _without_reservation(self) -> Step:
        job, pod = self._job, self._seen.pod
        name = job.reservation or reservation_name(job)
        if job.holds(ConditionType.RESERVATION_CREATED) or name != reservation_name(job):
            return self.fail(JobReason.MISSING_RESERVATION, f'Reservation "{name}" is not there')
        if pod is not None and pod.node and controller_of(pod.owners) is None:
            text = "no controller would make a pod that could take its Reservation"
            return self.fail(JobReason.FORBIDDEN, f'Pod "{job.pod.key}" is bare: {text}')
        if pod is None:
            return self.fail(JobReason.MISSING_POD, f'Pod "{job.pod.key}" is not there')
        return Step((CreateReservation(),), RECHECK)

    def _scheduled(self, reservation: Reservation) -> Step | None:
        """See that the Reservation has a node. None: it has, and it is another one."""
        if not reservation.scheduled and reservation.unschedulable is not None:
            self._note(
                ConditionType.RESERVATION_SCHEDULED,
                holds=False,
                reason=JobReason.UNSCHEDULABLE,
                message=reservation.unschedulable,
            )
        if reservation.pending:
            return self._wait()
        if not reservation.scheduled:
            text = reservation.unschedulable or f'Reservation "{reservation.name}" has no node'
            return self.fail(JobReason.UNSCHEDULABLE, text)
        pod = self._seen.pod
        if not self._job.node:
            if pod is not None and pod.node == reservation.node and reservation.for_pod is None:
                text = f'Reservation "{reservation.name}" is on the node of Pod "{pod.key}"'
                return self.fail(JobReason.FORBIDDEN, text)
            self._job = replace(self._job, node=reservation.node)
        self._note(ConditionType.RESERVATION_SCHEDULED, holds=True)
        if reservation.for_pod is not None:
            return self._bound_itself(reservation)
        return None

    def _bound_itself(self, reservation: Reservation) -> Step:
        """Wait until the pod, which had no node, is bound to the one that is reserved."""
        pod, owner = self._seen.pod, reservation.owner
        if pod is not None and pod.node:
            self._note(ConditionType.POD_SCHEDULED, holds=True)
            return self._complete(f'Pod "{pod.key}" is bound to node "{pod.node}"')
        if owner is not None and owner.uid != self._job.pod.uid:
            return self.fail(JobReason.FORBIDDEN, "Reservation is already bound by another Pod")
        self._note(ConditionType.POD_SCHEDULED, holds=False)
        return self._wait()

    def _evict(self) -> Step | None:
        """See that the pod has left. None: it has."""
        job, observed = self._job, self._seen
        intended = job.condition(ConditionType.EVICTION)
        if intended is not None and intended.status == "True":
            return None
        pod = observed.pod
        if pod is not None and pod.finished and intended is None:
            return self.fail(JobReason.MISSING_POD, f'Pod "{job.pod.key}" has ended by itself')
        if pod is None or pod.finished:
            self._note(
                ConditionType.EVICTION,
                holds=True,
                reason=JobReason.EVICT_COMPLETE,
                message=f'Pod "{job.pod.key}" has been evicted',
            )
            return None
        if pod.deleting or observed.asked:
            return self._wait()
        reservation = observed.reservation
        if intended is None and reservation is not None and reservation.consumed:
            return self.fail(JobReason.FORBIDDEN, "Reservation is already bound by another Pod")
        if observed.limited and not job.forced:
            return self._wait(min(observed.limited, RECHECK))
        why = job.evict_reason or job.trigger or "NotSet"
        self._note(
            ConditionType.EVICTION,
            holds=False,
            reason=JobReason.EVICTING,
            message=f'Pod "{pod.key}" evicted from node "{pod.node}" by the reason "{why}"',
        )
        return Step((*self._changes(), Evict()), RECHECK)

    def _bind(self) -> Step:
        """Wait until the pod's successor has the reserved resources and is ready there."""
        reservation = self._seen.reservation
        owner = self._job.new_pod if self._job.new_pod.name else reservation and reservation.owner
        if not owner:
            if reservation is not None and reservation.phase == "Failed":
                text = f'Reservation "{reservation.name}" failed before a pod was bound'
                return self.fail(JobReason.RESERVATION_EXPIRED, text)
            self._note(
                ConditionType.POD_BOUND_RESERVATION,
                holds=False,
                reason=JobReason.WAIT_FOR_POD_BIND,
            )
            return self._wait()
        self._job = replace(self._job, new_pod=owner)
        self._note(ConditionType.RESERVATION_BOUND, holds=True)
        new_pod = self._seen.new_pod
        if new_pod is None:
            text = f'Pod "{owner.key}", which had the Reservation, is gone and was never ready'
            return self.fail(JobReason.MISSING_POD, text)
        if not new_pod.ready and new_pod.phase != "Succeeded":
            self._note(
                ConditionType.BOUND_POD_READY, holds=False, reason=JobReason.WAIT_FOR_POD_READY
            )
            return self._wait()
        self._note(ConditionType.BOUND_POD_READY, holds=True)
        self._note(ConditionType.POD_BOUND_RESERVATION, holds=True)
        return self._complete(f'Bind Pod "{owner.key}" in Reservation "{self._job.reservation}"')

    def _complete(self, message: str) -> Step:
        self._job = replace(
            self._job,
            phase=JobPhase.SUCCEEDED.value,
            status=COMPLETE,
            reason="",
            message=message,
        )
        return Step(self._changes())

    def _wait(self, seconds: float = RECHECK) -> Step:
        return Step(self._changes(), seconds)

    def _changes(self) -> tuple[Action, ...]:
        label: tuple[Action, ...] = (LabelReservation(),) if self._label else ()
        return label if self._job is self._before else (*label, WriteStatus(self._job))

    def _note(
        self, kind: ConditionType, *, holds: bool, reason: str = "", message: str = ""
    ) -> None:
        self._job = self._job.noting(kind, self._now, holds=holds, reason=reason, message=message)


PHASES = ("Pending", "Running", "Succeeded", "Failed", "Aborted")


class MigrationMetrics:
    """Jobs by phase, their ends and errors."""

    def __init__(
        self, registry: CollectorRegistry, phases: Callable[[], Mapping[str, int]]
    ) -> None:
        """phases returns how many jobs there are in each phase."""
        self._phases = phases
        registry.register(self)
        self.errors = Counter(
            "descheduler_migration_reconcile_errors_total",
            "Looks at PodMigrationJobs that failed and are repeated, by the kind of the error.",
            ["error"],
            registry=registry,
        )
        self.ended = Counter(
            "descheduler_migration_jobs_ended_total",
            "PodMigrationJobs that this process has brought to an end, by phase and reason.",
            ["phase", "reason"],
            registry=registry,
        )

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the number of jobs in each phase, for prometheus_client."""
        family = self._family()
        counts = self._phases()
        for phase in PHASES:
            family.add_metric([phase], counts.get(phase, 0))
        yield family

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Yield the family without counts, for prometheus_client."""
        yield self._family()

    def _family(self) -> GaugeMetricFamily:
        help_ = "PodMigrationJobs in the cluster, by phase."
        return GaugeMetricFamily("descheduler_migration_jobs", help_, labels=["phase"])


EVICTION_TIMEOUT = 10.0  # seconds for the whole of one request

Json = dict[str, Any]


class EvictionRejected(KoordError):
    """The pod was not evicted now, or that is not known; ask again later."""

    def __init__(self, response: EvictionResponse) -> None:
        super().__init__(response.message or response.outcome.value)
        self.certain = response.certain  # it was not evicted
        self.retry_after = response.retry_after  # seconds, as the server wants it


class Evictors:
    """Asks for evictions of exactly one pod: its uid is a precondition of each request."""

    def __init__(self, services: Services, evictions: PodEvictions) -> None:
        self._client = services.client
        self._clock = services.clock
        self._evictions = evictions

    async def evict(self, pod: Json, job: PodMigrationJob, policy: EvictionPolicy) -> bool:
        """Ask once, for a pod as the server has it; return whether it was there to be asked for.

        Raises:
            Refused: the server does not allow it now, or did not answer.
        """
        if policy is EvictionPolicy.EVICTION:
            response = await self._evictions.evict(_reference(pod), options=job.delete_options)
        else:
            response = await self._otherwise(pod, job, policy)
        if response.outcome is EvictionOutcome.GONE:
            return False
        if response.outcome is not EvictionOutcome.EVICTED:
            raise EvictionRejected(response)
        return True

    async def _otherwise(
        self, pod: Json, job: PodMigrationJob, policy: EvictionPolicy
    ) -> EvictionResponse:
        reference = _reference(pod)
        path = PODS.object(reference.name, namespace=reference.namespace)
        try:
            async with Deadline(self._clock, f"{policy} of {path}") as deadline:
                deadline.enter("an answer", EVICTION_TIMEOUT)
                if policy is EvictionPolicy.DELETE:
                    options = job.delete_options
                    await self._client.delete(path, uid=reference.uid, options=options)
                elif SOFT_EVICTION not in (pod["metadata"].get("annotations") or {}):
                    await self._client.json_patch(path, self._annotation(pod, job))
        except PatchRejected as err:  # another pod has the name, or other annotations
            return EvictionResponse(EvictionOutcome.FAILED, str(err))
        except KubeError as err:
            return read_rejection(err)
        return EvictionResponse(EvictionOutcome.EVICTED)

    def _annotation(self, pod: Json, job: PodMigrationJob) -> list[Json]:
        """The patch by which another agent is asked to end a pod."""
        text = {
            "timestamp": time_text(self._clock.wall()),
            **({"deleteOptions": dict(job.delete_options)} if job.delete_options else {}),
            "initiator": job.trigger,
            "reason": job.evict_reason,
        }
        metadata: Mapping[str, Any] = pod["metadata"]
        version = metadata["resourceVersion"]
        pointer = f"/metadata/annotations/{SOFT_EVICTION.replace('/', '~1')}"
        parent: list[Json] = [{"op": "add", "path": "/metadata/annotations", "value": {}}]
        return [
            {"op": "test", "path": "/metadata/uid", "value": metadata["uid"]},
            {"op": "test", "path": "/metadata/resourceVersion", "value": version},
            *([] if metadata.get("annotations") else parent),
            {"op": "add", "path": pointer, "value": json.dumps(text, separators=(",", ":"))},
        ]


def _reference(pod: Json) -> JobPod:
    metadata = pod["metadata"]
    return JobPod(metadata["namespace"], metadata["name"], metadata["uid"])


LAG = 0.5  # seconds until a watch should have shown what the server has
_MAX_STEPS = 8  # at one job in a row

log = get_logger("koord_descheduler.migration")


class _Lagging(Exception):
    """The watch has not shown yet what the server has."""


class Reconciler:
    """Belongs to the event loop. Two looks at one job never overlap."""

    def __init__(
        self,
        records: Records,
        services: Services,
        limiters: ObjectLimiters,
        metrics: MigrationMetrics,
        rules_of: Callable[[PodMigrationJob], ProfileRules | None],
        rate: Callable[[], EvictionRate],
    ) -> None:
        """rules_of returns the rules that a job follows; None: it is not ours, or none are."""
        self._records = records
        self._cluster = services.cluster
        self._services = services
        self._clock = services.clock
        self._limiters = limiters
        self._metrics = metrics
        self._rules_of = rules_of
        self._rate = rate
        self._evictions = PodEvictions(services.client, services.events, services.clock, COMPONENT)
        self._evictors = Evictors(services, self._evictions)
        self._asked: set[str] = set()  # uids of jobs whose evictions were answered with yes

    def forget(self, job: PodMigrationJob) -> None:
        """The job has ended, or is gone."""
        self._asked.discard(job.uid)

    async def reconcile(self, name: str) -> float | None:
        """Do what is to be done for a job; return the seconds until the next look.

        Raises:
            KubeError, Refused: it has to be tried again.
        """
        for _ in range(_MAX_STEPS):
            job = self._records.jobs.jobs.get(name)
            rules = None if job is None or not job.active else self._rules_of(job)
            if job is None or rules is None:
                return None
            try:
                observed = await self._observe(job, rules)
                step = next_step(job, observed, self._clock.wall(), rules.args.default_job_mode)
                if wait := self._must_wait(job, observed, step, rules):
                    return wait
                await self._do(job, observed, step, rules)
            except _Lagging:
                return LAG
            except Outdated:
                continue
            if Evict() in step.actions and job.uid not in self._asked:
                return LAG  # it was gone already
            if CreateReservation() not in step.actions:
                return step.pause
        return LAG

    async def _observe(self, job: PodMigrationJob, rules: ProfileRules) -> ObservedState:
        direct = (job.mode or rules.args.default_job_mode) == JobMode.EVICT_DIRECTLY
        evicted = job.holds(ConditionType.EVICTION)
        pod = None if evicted else await self._pod(job.pod)
        reservation = None
        if not direct and job.reservation:
            reservation = await self._records.reservation(job.reservation)
        owner = job.new_pod
        if not owner.name and reservation is not None and reservation.owner is not None:
            owner = reservation.owner
        return ObservedState(
            pod=pod,
            reservation=reservation,
            new_pod=await self._pod(owner) if owner.name and pod is None else None,
            limited=0.0 if pod is None else self._limiters.pause(rules.rate_limits(pod)),
            asked=job.uid in self._asked,
        )

    async def _pod(self, pod: JobPod) -> ClusterPod | None:
        """A pod; None: the server says that it is gone.

        Raises:
            _Lagging: it is there, but not yet in the cluster as it is known.
        """
        if not pod.name or not pod.namespace:
            return None
        known = self._cluster.pod(pod.key)
        if known is not None and pod.uid in ("", known.uid):
            return known
        if await self._records.pod(pod) is None:
            return None
        raise _Lagging

    def _must_wait(
        self, job: PodMigrationJob, observed: ObservedState, step: Step, rules: ProfileRules
    ) -> float:
        """Take what an eviction needs of all limiters, or return the seconds to wait."""
        if Evict() not in step.actions or observed.pod is None:
            return 0.0
        rate_limits = rules.rate_limits(observed.pod)
        if wait := self._limiters.take(rate_limits, force=job.forced):
            return wait
        if wait := self._rate().take():
            self._limiters.give_back(rate_limits)
        return wait

    async def _do(
        self, job: PodMigrationJob, observed: ObservedState, step: Step, rules: ProfileRules
    ) -> None:
        for action in step.actions:
            match action:
                case WriteStatus():
                    job = await self._write(job, action.job)
                case CreateReservation():
                    await self._reserve(job, rules)
                case LabelReservation():
                    await self._records.order_reservation(job.reservation)
                case DeleteReservation():
                    await self._records.delete_reservation(job.reservation)
                case Evict():
                    assert observed.pod is not None  # noqa: S101 - see next_step
                    await self._evict(job, observed.pod, rules)

    async def _write(self, old: PodMigrationJob, new: PodMigrationJob) -> PodMigrationJob:
        stored = await self._records.write_status(old, new)
        for condition in new.conditions:
            if condition not in old.conditions:
                self._records.announce(old, *condition_event(condition))
        if not new.active:
            self._metrics.ended.labels(new.phase, new.reason).inc()
            reason = new.reason or new.status
            self._records.announce(old, reason, new.message, warning=bool(new.reason))
            log.info(
                "migration.ended",
                job=old.name, pod=old.pod.key, phase=new.phase, reason=new.reason,
                message=new.message,
            )  # fmt: skip
        return stored

    async def _reserve(self, job: PodMigrationJob, rules: ProfileRules) -> None:
        """Create the job's Reservation, whose name the job has before it is there."""
        if not job.reservation:
            job = await self._records.begin(job, job.pod.uid, reservation_name(job))
        pod = await self._records.pod(job.pod)
        if pod is None:
            return  # the next look reports it
        if not (job.template or is_waiting_for_a_node(pod) or _has_controller(pod)):
            raise _Lagging  # else the step would have said that it is bare
        ttl = duration_text(job.ttl or rules.args.default_job_ttl)
        body = reservation_body(job, pod, ttl, self._clock.wall())
        try:
            await self._records.create_reservation(body)
        except ApiError as err:
            failed = replace(job, phase="Running").noting(
                ConditionType.RESERVATION_CREATED,
                self._clock.wall(),
                holds=False,
                reason=JobReason.FAILED_CREATE_RESERVATION,
                message=str(err),
            )
            await self._write(job, failed)
            raise

    async def _evict(self, job: PodMigrationJob, known: ClusterPod, rules: ProfileRules) -> None:
        rate_limits = rules.rate_limits(known)
        try:
            pod = await self._records.pod(job.pod)
            leaving = pod is not None and pod["metadata"].get("deletionTimestamp") is not None
        except KubeError:
            self._limiters.give_back(rate_limits)
            raise
        if pod is None or leaving:
            self._limiters.give_back(rate_limits)
            if leaving:
                self._asked.add(job.uid)
            return
        why = job.evict_reason or job.trigger or "NotSet"
        facts = {"strategy": job.trigger, "namespace": job.pod.namespace, "node": known.node}
        try:
            was_there = await self._evictors.evict(pod, job, rules.policy(job, known))
        except EvictionRejected as err:
            if err.certain:
                self._limiters.give_back(rate_limits)
            self._services.metrics.evicted.count(result="error", **facts)
            self._report(known, f"not evicted: {err}", warning=True)
            raise
        if not was_there:
            self._limiters.give_back(rate_limits)
            return
        self._asked.add(job.uid)
        self._services.metrics.evicted.count(result="success", **facts)
        log.info("pod.evicted", job=job.name, pod=job.pod.key, node=known.node, reason=why)
        self._report(known, f"evicted from node {known.node} by the reason {why}")

    def _report(self, pod: ClusterPod, message: str, *, warning: bool = False) -> None:
        """Record an event on a pod, and of an eviction one on its node."""
        reason = JobReason.FAILED_EVICT.value if warning else "Descheduled"
        text = f"Pod {pod.key} {message}"
        self._evictions.announce(pod, warning=warning, reason=reason, message=text)
        if not warning:
            node = ObjectRef("v1", "Node", pod.node, "", pod.node)
            event = Event(node, EventType.NORMAL, reason, text, COMPONENT)
            self._services.events.emit(event)


def _has_controller(pod: Mapping[str, Any]) -> bool:
    return any(one.get("controller") for one in pod["metadata"].get("ownerReferences") or ())
