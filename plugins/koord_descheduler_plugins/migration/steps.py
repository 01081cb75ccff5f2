"""The next step of a migration: pure, from what is known of job, pod and Reservation."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from koord.api.podmigrationjob import (
    API_VERSION,
    COMPLETE,
    ConditionType,
    JobPhase,
    JobReason,
    PodMigrationJob,
)
from koord.api.podmigrationjob import KIND as JOB_KIND
from koord.api.reservation import CREATED_BY_LABEL, KIND, ORDER_LABEL, Reservation
from koord_descheduler.plugin import ClusterPod, controller_of

CREATED_BY = "koord-descheduler"
Json = dict[str, Any]

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


RECHECK = 3.0  # seconds
RESERVATION_FIRST, EVICT_DIRECTLY = "ReservationFirst", "EvictDirectly"


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
        if mode == EVICT_DIRECTLY:
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
