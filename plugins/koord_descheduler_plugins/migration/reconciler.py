"""Reconcile one job after the other: do its next step, and evict its pod."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily

from koord.api.eviction import EvictionOutcome, EvictionResponse
from koord.api.podmigrationjob import (
    SOFT_EVICTION,
    ConditionType,
    JobPod,
    JobReason,
    PodMigrationJob,
    time_text,
)
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
from koord_descheduler.plugin import ClusterPod, PodEvictions, Services, read_rejection
from koord_descheduler_plugins.migration.args import EvictionPolicy
from koord_descheduler_plugins.migration.jobs import COMPONENT, Outdated, Records, condition_event
from koord_descheduler_plugins.migration.rules import EvictionRate, ObjectLimiters, ProfileRules
from koord_descheduler_plugins.migration.steps import (
    EVICT_DIRECTLY,
    CreateReservation,
    DeleteReservation,
    Evict,
    LabelReservation,
    ObservedState,
    Step,
    WriteStatus,
    is_waiting_for_a_node,
    next_step,
    reservation_body,
    reservation_name,
)

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
        direct = (job.mode or rules.args.default_job_mode) == EVICT_DIRECTLY
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
