"""PodMigrationJob: one pod's migration to another node, as the cluster keeps it.

Source: Koordinator, apis/scheduling/v1alpha1/pod_migration_job_types.go.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum

from koord.api.fields import Fields
from koord.api.gojson import Json
from koord.util import goformat
from koord.util.errors import InvalidObject

API_VERSION = "scheduling.koordinator.sh/v1alpha1"
KIND = "PodMigrationJob"
PLURAL = "podmigrationjobs"

EVICT_REASON = "koordinator.sh/evict-reason"
EVICT_TRIGGER = "koordinator.sh/evict-trigger"
CREATED_BY = "koordinator.sh/job-created-by"
PASSED_ARBITRATION = "descheduler.koordinator.sh/passed-arbitration"
FORCED = "descheduler.alpha.kubernetes.io/evict"  # of jobs and of pods
EVICT_POLICY = "koordinator.sh/evict-policy"  # a label, of pods and of jobs
PROFILE = "descheduler.koordinator.sh/profile"  # own addition
SOFT_EVICTION = "scheduling.koordinator.sh/soft-eviction"  # an annotation of pods


class JobPhase(StrEnum):
    """How far a migration is. An empty one is Pending."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    ABORTED = "Aborted"  # by a user


ACTIVE_PHASES = frozenset({"", JobPhase.PENDING.value, JobPhase.RUNNING.value})


class ConditionType(StrEnum):
    """A step of a migration."""

    RESERVATION_CREATED = "ReservationCreated"
    RESERVATION_SCHEDULED = "ReservationScheduled"
    PREEMPTION = "Preemption"
    EVICTION = "Eviction"
    POD_SCHEDULED = "PodScheduled"
    POD_BOUND_RESERVATION = "PodBoundReservation"
    BOUND_POD_READY = "BoundPodReady"
    RESERVATION_BOUND = "ReservationBound"


class JobReason(StrEnum):
    """Why a migration, or a step of it, is where it is."""

    NONE = ""
    TIMEOUT = "Timeout"
    FAILED_CREATE_RESERVATION = "FailedCreateReservation"
    RESERVATION_EXPIRED = "ReservationExpired"
    UNSCHEDULABLE = "Unschedulable"
    FORBIDDEN = "ForbiddenMigratePod"
    MISSING_POD = "MissingPod"
    MISSING_RESERVATION = "MissingReservation"
    EVICTING = "Evicting"
    FAILED_EVICT = "FailedEvict"
    EVICT_COMPLETE = "EvictComplete"
    WAIT_FOR_POD_BIND = "WaitForPodBindReservation"
    WAIT_FOR_POD_READY = "WaitForBoundPodReady"
    INVALID_POD_REF = "InvalidPodRef"


COMPLETE = "Complete"  # status.status of a job that has succeeded


@dataclass(frozen=True, slots=True)
class JobPod:
    """A reference to a pod; uid "": whichever has the name."""

    namespace: str = ""
    name: str = ""
    uid: str = ""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class JobCondition:
    """A condition. Times are as their writer wrote them; "": null."""

    type: str
    status: str = ""  # True, False or Unknown
    reason: str = ""
    message: str = ""
    probed: str = ""
    changed: str = ""  # when its status became this one

    def to_json(self) -> Json:
        """Return the API form; empty fields are left out, except times, which are null."""
        texts = {"reason": self.reason, "message": self.message}
        return {
            "type": self.type,
            "status": self.status,
            "lastProbeTime": self.probed or None,
            "lastTransitionTime": self.changed or None,
            **{key: text for key, text in texts.items() if text},
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class PodMigrationJob:
    """A job, as far as its controller needs it."""

    name: str
    uid: str = ""
    version: str = ""  # resourceVersion
    created: float = 0.0  # Unix seconds
    evict_reason: str = ""  # a sentence for people
    trigger: str = ""  # the plugin that asked for the migration
    created_by: str = ""  # the descheduler that made it; "": a user
    profile: str = ""  # of the descheduler's configuration; "": not known
    passed: bool = False  # an arbitrator has let it begin
    forced: bool = False  # a user asks for it; limiters do not apply
    policy: str = ""  # Eviction, Delete or SoftEviction; "": the default
    paused: bool = False
    ttl: float = 0.0  # seconds since creation; 0: no end
    mode: str = ""  # "": the default
    pod: JobPod = JobPod()
    reservation: str = ""  # name; "": none yet
    template: Mapping[str, object] | None = None  # of the Reservation, with metadata and spec
    delete_options: Mapping[str, object] | None = None
    phase: str = ""
    status: str = ""  # type of the last condition, or Complete
    reason: str = ""
    message: str = ""
    conditions: tuple[JobCondition, ...] = ()
    node: str = ""  # where the Reservation is
    new_pod: JobPod = JobPod()  # the one that has the Reservation
    parents: frozenset[str] = frozenset()  # JSON pointers of optional objects that it has

    @property
    def key(self) -> str:
        return self.name

    @property
    def active(self) -> bool:
        """Whether it may still change: it is Pending or Running."""
        return self.phase in ACTIVE_PHASES

    @property
    def running(self) -> bool:
        return self.phase == JobPhase.RUNNING

    def condition(self, kind: ConditionType) -> JobCondition | None:
        """The condition of a type; None: it has none."""
        return next((one for one in self.conditions if one.type == kind), None)

    def holds(self, kind: ConditionType) -> bool:
        """Whether a condition is True."""
        found = self.condition(kind)
        return found is not None and found.status == "True"

    def noting(
        self,
        kind: ConditionType,
        now: float,
        *,
        holds: bool,
        reason: str = "",
        message: str = "",
    ) -> "PodMigrationJob":
        """Return the job with a condition, which its status then names; now is Unix seconds.

        When the condition is as it was, so is the job. The time of its last change stays unless
        its status is another one.
        """
        status, old = "True" if holds else "False", self.condition(kind)
        new = JobCondition(kind.value, status, reason, message, changed=time_text(now))
        if old is not None:
            new = replace(
                new,
                probed=old.probed,
                changed=old.changed if old.status == status else new.changed,
            )
            if new == old:
                return self
            conditions = tuple(new if one is old else one for one in self.conditions)
        else:
            conditions = (*self.conditions, new)
        return replace(
            self, conditions=conditions, status=kind.value, reason=reason, message=message
        )


def read_job(item: object) -> PodMigrationJob:
    """Return a job from its JSON. Of one that has ended only what still counts is kept.

    Raises:
        InvalidObject: a field has the wrong type.
    """
    fields = Fields(item, "podMigrationJob")
    meta, spec, status = (fields.nested(key) for key in ("metadata", "spec", "status"))
    annotations = meta.nested("annotations")
    options = spec.nested("reservationOptions")
    short = PodMigrationJob(
        name=meta.required_text("name"),
        uid=meta.text("uid"),
        version=meta.text("resourceVersion"),
        created=meta.time("creationTimestamp") or 0.0,
        ttl=_duration(spec, "ttl"),
        pod=_pod(spec.nested("podRef")),
        reservation=options.nested("reservationRef").text("name"),
        phase=status.text("phase"),
    )
    if not short.active:
        return short
    return replace(
        short,
        evict_reason=annotations.text(EVICT_REASON),
        trigger=annotations.text(EVICT_TRIGGER),
        created_by=annotations.text(CREATED_BY),
        profile=annotations.text(PROFILE),
        passed=annotations.text(PASSED_ARBITRATION) == "true",
        forced=annotations.get(FORCED) is not None,
        policy=meta.nested("labels").text(EVICT_POLICY),
        paused=spec.boolean("paused"),
        mode=spec.text("mode"),
        template=_object(options, "template"),
        delete_options=_object(spec, "deleteOptions"),
        status=status.text("status"),
        reason=status.text("reason"),
        message=status.text("message"),
        conditions=tuple(_condition(one) for one in status.objects("conditions")),
        node=status.text("nodeName"),
        new_pod=_pod(status.nested("podRef")),
        parents=frozenset(_parents(fields)),
    )


def new_job(
    name: str,
    pod: JobPod,
    *,
    mode: str,
    ttl: float,
    annotations: Mapping[str, str],
    delete_options: Mapping[str, object] | None = None,
) -> Json:
    """Return the JSON of a job to create. The server drops a status, so there is none."""
    spec: Json = {
        "podRef": {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid},
        "mode": mode,
        "ttl": goformat.format_duration(ttl),
    }
    if delete_options:
        spec["deleteOptions"] = dict(delete_options)
    given = {key: text for key, text in annotations.items() if text}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "annotations": given},
        "spec": spec,
    }


def begin_patch(job: PodMigrationJob, pod_uid: str, reservation: str) -> list[Json]:
    """Return the JSON patch by which a job passes arbitration.

    It also gets the uid of its pod, and the name of the Reservation that is about to be created
    ("": none), so that whoever takes the job over finds both.
    """
    operations = _the_same(job)
    operations += _within(job, "/metadata/annotations")
    pointer = f"/metadata/annotations/{PASSED_ARBITRATION.replace('/', '~1')}"
    operations.append(_add(pointer, "true"))
    if pod_uid and pod_uid != job.pod.uid:
        operations.append(_add("/spec/podRef/uid", pod_uid))
    if reservation and not job.reservation:
        operations += _within(job, "/spec/reservationOptions")
        reference = {
            "apiVersion": API_VERSION,
            "kind": "Reservation",
            "name": reservation,
        }
        operations.append(_add("/spec/reservationOptions/reservationRef", reference))
    return operations


def status_patch(old: PodMigrationJob, new: PodMigrationJob) -> list[Json]:
    """Return the JSON patch of the status, of exactly the version that old is; []: no change."""
    changes: list[Json] = []
    for key, before, after in (
        ("phase", old.phase, new.phase),
        ("status", old.status, new.status),
        ("reason", old.reason, new.reason),
        ("message", old.message, new.message),
        ("nodeName", old.node, new.node),
    ):
        if before != after:
            pointer = f"/status/{key}"
            changes.append(_add(pointer, after) if after else {"op": "remove", "path": pointer})
    if new.conditions != old.conditions:
        changes.append(_add("/status/conditions", [one.to_json() for one in new.conditions]))
    if new.new_pod != old.new_pod:
        pod = new.new_pod
        reference = {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
        changes.append(_add("/status/podRef", reference))
    if not changes:
        return []
    return [*_the_same(old), *_within(old, "/status"), *changes]


def time_text(seconds: float) -> str:
    """A time as Kubernetes writes it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


_OPTIONAL = (
    ("/metadata/annotations", "metadata", "annotations"),
    ("/spec/reservationOptions", "spec", "reservationOptions"),
    ("/status", "", "status"),
)


def _parents(fields: Fields) -> list[str]:
    found = []
    for pointer, parent, key in _OPTIONAL:
        holder = fields.nested(parent) if parent else fields
        if holder.get(key) is not None:
            found.append(pointer)
    return found


def _within(job: PodMigrationJob, pointer: str) -> list[Json]:
    """Return the operation that creates an absent parent object; empty if the parent exists."""
    return [] if pointer in job.parents else [_add(pointer, {})]


def _the_same(job: PodMigrationJob) -> list[Json]:
    """Tests that the job is the one, and in the version, that was looked at."""
    return [
        {"op": "test", "path": "/metadata/uid", "value": job.uid},
        {"op": "test", "path": "/metadata/resourceVersion", "value": job.version},
    ]


def _add(pointer: str, value: object) -> Json:
    return {"op": "add", "path": pointer, "value": value}


def _pod(fields: Fields) -> JobPod:
    return JobPod(fields.text("namespace"), fields.text("name"), fields.text("uid"))


def _condition(fields: Fields) -> JobCondition:
    return JobCondition(
        type=fields.text("type"),
        status=fields.text("status"),
        reason=fields.text("reason"),
        message=fields.text("message"),
        probed=fields.text("lastProbeTime"),
        changed=fields.text("lastTransitionTime"),
    )


def _duration(fields: Fields, key: str) -> float:
    text = fields.text(key)
    try:
        return goformat.parse_duration(text) if text else 0.0
    except ValueError as err:
        raise InvalidObject(fields.path(key), wanted="a duration like 5m0s", found=text) from err


def _object(fields: Fields, key: str) -> Mapping[str, object] | None:
    return fields.nested(key).raw or None
