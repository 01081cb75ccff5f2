"""Reservation: resources of a node that are reserved for a future pod."""

from dataclasses import dataclass

from koord.api.fields import Fields
from koord.api.podmigrationjob import KIND as JOB_KIND
from koord.api.podmigrationjob import JobPod

API_VERSION = "scheduling.koordinator.sh/v1alpha1"
KIND = "Reservation"
PLURAL = "reservations"

CREATED_BY_LABEL = "app.kubernetes.io/created-by"
PREFIX = "scheduling.koordinator.sh/"
ORDER_LABEL = f"{PREFIX}reservation-order"
RESERVE_POD = f"{PREFIX}reserve-pod"
"""An annotation, "true" on a pod that only stands for a Reservation, as schedulers make them."""

RESERVE_POD_NAME = "reservation:"
"""Begins the names of these pods in a scheduler's cache: no pod of the API server can have it."""

# Annotations of pods
ALLOCATED = f"{PREFIX}reservation-allocated"
"""The reservation that a pod consumes, as {"name", "uid"}."""
AFFINITY = f"{PREFIX}reservation-affinity"
EXACT_MATCH = f"{PREFIX}exact-match-reservation"
PRE_ALLOCATABLE_PRIORITY = "pod.koordinator.sh/pre-allocatable-priority"
OWNERS = f"{PREFIX}reservation-owners"
CURRENT_OWNER = f"{PREFIX}reservation-current-owner"

# Annotations of pods that stand for a Reservation
RESERVATION_NAME = f"{PREFIX}reservation-name"
RESERVATION_NODE = f"{PREFIX}reservation-node"
IS_PRE_ALLOCATION = f"{PREFIX}is-pre-allocation"

# Labels of pods
IGNORED = f"{PREFIX}reservation-ignored"
DISABLE_PREEMPTIBLE = f"{PREFIX}disable-preemptible"
IS_PRE_ALLOCATABLE = "pod.koordinator.sh/is-pre-allocatable"
OPERATING_MODE = f"{PREFIX}operating-mode"

# Annotations of Reservations
RESTRICTED_OPTIONS = f"{PREFIX}reservation-restricted-options"
RESIZE_ALLOCATABLE = f"{PREFIX}reservation-resize-allocatable"

# Labels of Reservations
PRE_ALLOCATION_REQUIRED = f"{PREFIX}pre-allocation-required"
PRIORITY = "koordinator.sh/priority"


@dataclass(frozen=True, kw_only=True, slots=True)
class Reservation:
    """A Reservation, as far as a migration needs it."""

    name: str
    uid: str = ""
    version: str = ""  # resourceVersion
    job_uid: str = ""  # of the PodMigrationJob that owns it; "": none does
    job_name: str = ""
    ordered: bool = False  # it has the label with its order
    for_pod: JobPod | None = None  # the pending pod that it is for; None: pods of a controller
    phase: str = ""
    node: str = ""
    scheduled_by_condition: bool = False
    unschedulable: str | None = None  # the scheduler's message; None: it did not say so
    expired_by_condition: bool = False
    owner: JobPod | None = None  # the pod that has it now

    @property
    def key(self) -> str:
        return self.name

    @property
    def pending(self) -> bool:
        return self.phase in ("", "Pending")

    @property
    def scheduled(self) -> bool:
        return bool(self.node) and self.scheduled_by_condition

    @property
    def expired(self) -> bool:
        return self.phase == "Failed" and self.expired_by_condition

    @property
    def consumed(self) -> bool:
        """Whether a pod has taken it for good."""
        return self.phase == "Succeeded"


def read_reservation(item: object) -> Reservation:
    """Return a Reservation from its JSON.

    Raises:
        InvalidObject: a field has the wrong type.
    """
    fields = Fields(item, "reservation")
    meta, spec, status = (fields.nested(key) for key in ("metadata", "spec", "status"))
    job = next(
        (one for one in meta.objects("ownerReferences") if one.text("kind") == JOB_KIND), None
    )
    conditions = {
        one.text("type"): (one.text("status"), one.text("reason"), one.text("message"))
        for one in status.objects("conditions")
    }
    scheduled = conditions.get("Scheduled", ("", "", ""))
    return Reservation(
        name=meta.required_text("name"),
        uid=meta.text("uid"),
        version=meta.text("resourceVersion"),
        job_uid=job.text("uid") if job is not None else "",
        job_name=job.text("name") if job is not None else "",
        ordered=ORDER_LABEL in meta.nested("labels").raw,
        for_pod=_bare_pod(spec),
        phase=status.text("phase"),
        node=status.text("nodeName"),
        scheduled_by_condition=scheduled[:2] == ("True", "Scheduled"),
        unschedulable=scheduled[2] if scheduled[1] == "Unschedulable" else None,
        expired_by_condition=conditions.get("Ready", ("", "", ""))[1] == "Expired",
        owner=next((_pod(one) for one in status.objects("currentOwners")), None),
    )


def _bare_pod(spec: Fields) -> JobPod | None:
    """The pod that is an owner by itself, and not by its controller."""
    found = (one.nested("object") for one in spec.objects("owners"))
    return next((_pod(one) for one in found if one.text("kind") == "Pod"), None)


def _pod(fields: Fields) -> JobPod:
    return JobPod(fields.text("namespace"), fields.text("name"), fields.text("uid"))
