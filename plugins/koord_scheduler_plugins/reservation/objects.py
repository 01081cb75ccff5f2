"""Reservations as the scheduler reads them: objects, and pods in operating mode Reservation.

Source: Koordinator, apis/scheduling/v1alpha1/reservation_types.go, apis/extension/reservation.go
and operating_pod.go.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

from koord.api.fields import Fields
from koord.api.gojson import DURATION, parse_json
from koord.api.machine import parse_cpulist
from koord.api.node import NODE_RESERVATION
from koord.api.reservation import (
    CURRENT_OWNER,
    OPERATING_MODE,
    ORDER_LABEL,
    OWNERS,
    PRE_ALLOCATION_REQUIRED,
    RESIZE_ALLOCATABLE,
    RESTRICTED_OPTIONS,
)
from koord.plugin import InvalidObject
from koord_scheduler.plugin import ClusterPod
from koord_scheduler.plugin.koordinator import Taint
from koord_scheduler_plugins.reservation.amounts import (
    Amounts,
    read_amounts,
    template_requests,
)
from koord_scheduler_plugins.reservation.owners import (
    Owner,
    PodReference,
    bounded_objects,
    bounded_texts,
    read_owners,
)

_MAX_TEXT = 256 * 1024  # characters of an annotation
_MAX_DIGITS = 19  # of an order

T = TypeVar("T")


class AllocatePolicy(StrEnum):
    """How consumers share a reservation with the rest of its node."""

    DEFAULT = ""
    ALIGNED = "Aligned"
    RESTRICTED = "Restricted"


class Phase(StrEnum):
    """Phases that are terminal or in which it has a node; all else is Pending."""

    AVAILABLE = "Available"
    WAITING = "Waiting"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class ReservationSpec:
    """The specification of a Reservation, its annotations included."""

    owners: tuple[Owner, ...]
    ttl: float | None = None  # seconds; 0: it never expires; None: not said
    expires: float | None = None  # Unix seconds
    pre_allocation: bool = False
    pre_allocation_by_cluster: bool = False  # candidates are pods with a label, not the owners
    pre_allocation_multiple: bool = False
    allocate_once: bool = True
    policy: AllocatePolicy = AllocatePolicy.DEFAULT
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()
    requests: Amounts  # of the template
    inner: Amounts  # kept back inside of it
    restricted: tuple[str, ...] = ()  # resources that Restricted limits; (): all
    resized: Amounts  # replaces allocatable when it becomes available


NOMINATED = "Nominated"
"""The type of the condition whose message is the node that preemption has made room on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """A condition of its status. Times are Unix seconds; None: not said."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    probed: float | None = None
    changed: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Reservation:
    """A Reservation. raw is its JSON, which nobody changes."""

    name: str
    uid: str = ""
    labels: Mapping[str, str]
    created: float | None = None  # Unix seconds
    deleting: bool = False
    spec: ReservationSpec | None  # None: it makes no sense; problems say why
    phase: str = ""
    node: str = ""
    allocatable: Amounts | None = None  # None: its status says none that makes sense
    allocated: Amounts
    conditions: tuple[Condition, ...] = ()
    problems: tuple[str, ...] = ()
    has_owner: bool = False  # a pod in operating mode whose workload says who has its room
    raw: Mapping[str, object]

    @property
    def key(self) -> str:
        return self.name

    @property
    def active(self) -> bool:
        return bool(self.node) and self.phase in (Phase.AVAILABLE, Phase.WAITING)

    @property
    def available(self) -> bool:
        return bool(self.node) and self.phase == Phase.AVAILABLE

    @property
    def usable(self) -> tuple[object, ...]:
        """The facts about an available one for whose change rejected pods may wait."""
        return self.uid, self.node, self.spec, self.labels, self.allocatable, self.deleting

    @property
    def terminated(self) -> bool:
        return self.phase in (Phase.SUCCEEDED, Phase.FAILED)

    @property
    def unassigned(self) -> bool:
        """Whether it is still to be scheduled."""
        return not self.node and not self.terminated

    @property
    def expired(self) -> bool:
        ready = next((one for one in self.conditions if one.type == "Ready"), None)
        return (
            self.phase == Phase.FAILED
            and ready is not None
            and (ready.status, ready.reason) == ("False", "Expired")
        )

    @property
    def nominated(self) -> str:
        """The node on which preemption makes room for it; "": none."""
        found = next((one for one in self.conditions if one.type == NOMINATED), None)
        is_so = found is not None and found.status == "True" and self.unassigned
        return found.message if found is not None and is_so else ""

    @property
    def order(self) -> int | None:
        """Its place among others, the smallest first; None: it has none."""
        text = self.labels.get(ORDER_LABEL, "")
        digits = text[1:] if text[:1] in ("+", "-") else text
        if not (digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS):
            return None
        number = int(text)
        return number if number and -(2**63) <= number < 2**63 else None

    @property
    def pre_allocation_required(self) -> bool:
        return self.labels.get(PRE_ALLOCATION_REQUIRED) == "true"


def read_reservation(item: object) -> Reservation:
    """Return a Reservation from its JSON. One with an absurd spec has none, and says why.

    Raises:
        InvalidObject: it has no name, or its metadata or status have the wrong type.
    """
    fields = Fields(item, "reservation")
    meta, status = fields.nested("metadata"), fields.nested("status")
    problems: list[str] = []
    labels, annotations = (_texts(meta, key) for key in ("labels", "annotations"))
    spec = _tried(lambda: _spec(fields, annotations), problems)
    allocatable = None
    if status.get("allocatable") is not None:
        allocatable = _tried(lambda: read_amounts(status, "allocatable"), problems)
    return Reservation(
        name=meta.required_text("name"),
        uid=meta.text("uid"),
        labels=labels,
        created=_tried(lambda: meta.time("creationTimestamp"), problems),
        deleting=meta.get("deletionTimestamp") is not None,
        spec=spec,
        phase=status.text("phase"),
        node=status.text("nodeName"),
        allocatable=allocatable,
        allocated=_tried(lambda: read_amounts(status, "allocated"), problems) or {},
        conditions=tuple(_condition(one, problems) for one in status.objects("conditions")),
        problems=tuple(problems),
        raw=fields.raw,
    )


def last_good(known: Reservation | None, found: Reservation) -> Reservation:
    """Return the reservation that counts after found has been read.

    Phase, node, labels and problems are those of found; a spec or allocatable that makes no sense
    is what it was before, and so is the template then.
    """
    if known is None or known.uid != found.uid:
        return found
    spec, raw = found.spec, found.raw
    if spec is None and known.spec is not None:
        spec, raw = known.spec, {**raw, "spec": known.raw.get("spec")}
    allocatable = found.allocatable
    if allocatable is None and found.node == known.node and _has_allocatable(found):
        allocatable = known.allocatable
    return replace(found, spec=spec, allocatable=allocatable, raw=raw)


def _has_allocatable(found: Reservation) -> bool:
    status = found.raw.get("status")
    return isinstance(status, Mapping) and status.get("allocatable") is not None


def _spec(fields: Fields, annotations: Mapping[str, str]) -> ReservationSpec:
    """Raises InvalidObject. The first texts are Koordinator's."""
    spec = fields.nested("spec")
    if spec.get("template") is None:
        raise _Missing("the reservation misses the template spec")
    owners = read_owners(spec, "owners")
    if not owners:
        raise _Missing("the reservation misses the owner spec")
    if spec.get("ttl") is None and spec.get("expires") is None:
        raise _Missing("the reservation misses the expiration spec")
    once = spec.get("allocateOnce")
    pre_allocation = spec.nested("preAllocationPolicy")
    mode = _one_of(pre_allocation, "mode", ("", "Default", "Cluster"))
    return ReservationSpec(
        owners=owners,
        ttl=_duration(spec, "ttl"),
        expires=spec.time("expires"),
        pre_allocation=spec.boolean("preAllocation"),
        pre_allocation_by_cluster=mode == "Cluster",
        pre_allocation_multiple=pre_allocation.boolean("enableMultiple"),
        allocate_once=True if once is None else spec.boolean("allocateOnce"),
        policy=AllocatePolicy(_one_of(spec, "allocatePolicy", tuple(AllocatePolicy))),
        unschedulable=spec.boolean("unschedulable"),
        taints=_taints(spec),
        requests=template_requests(spec.nested("template").nested("spec")),
        inner=inner_amounts(annotations),
        restricted=restricted_resources(annotations),
        resized=_resources(annotations, RESIZE_ALLOCATABLE),
    )


class _Missing(InvalidObject):
    """A part of the spec is missing. Its text is as Koordinator has it."""

    def __init__(self, text: str) -> None:
        super().__init__("reservation.spec", wanted=text, found="nothing")
        self.args = (text,)


def _duration(spec: Fields, key: str) -> float | None:
    text = spec.text(key)
    if not text:
        return None
    seconds = DURATION.load(DURATION.read(text, spec.path(key)))
    if not isinstance(seconds, float):
        return None
    if seconds < 0:
        raise InvalidObject(spec.path(key), wanted="0 or more", found=text)
    return seconds


def _one_of(fields: Fields, key: str, known: tuple[str, ...]) -> str:
    text = fields.text(key)
    if text not in known:
        wanted = f"one of {', '.join(filter(None, known))}"
        raise InvalidObject(fields.path(key), wanted=wanted, found=text)
    return text


def _taints(spec: Fields) -> tuple[Taint, ...]:
    return tuple(
        Taint(
            one.required_text("key"),
            _one_of(one, "effect", ("NoSchedule", "PreferNoSchedule", "NoExecute")),
            one.text("value"),
        )
        for one in bounded_objects(spec, "taints")
    )


def _annotation(annotations: Mapping[str, str], key: str) -> Fields:
    """The object of an annotation; without fields where there is none."""
    text = annotations.get(key)
    if not text:
        return Fields({}, key)
    if len(text) > _MAX_TEXT:
        raise InvalidObject(key, wanted=f"at most {_MAX_TEXT} characters", found=len(text))
    return Fields(parse_json(text, key), key)


def _resources(annotations: Mapping[str, str], key: str) -> Amounts:
    return read_amounts(_annotation(annotations, key), "resources")


def inner_amounts(annotations: Mapping[str, str]) -> Amounts:
    """Return what is kept back inside of a reservation.

    A list of CPUs replaces the amount of cpu by their number. Raises InvalidObject.
    """
    fields = _annotation(annotations, NODE_RESERVATION)
    amounts = read_amounts(fields, "resources")
    cpus = fields.text("reservedCPUs")
    if cpus:
        try:
            amounts["cpu"] = 1000 * len(parse_cpulist(cpus))
        except ValueError as err:
            where = fields.path("reservedCPUs")
            raise InvalidObject(where, wanted="a list of CPUs", found=cpus) from err
    return amounts


def restricted_resources(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Return the resources that alone are limited; (): all. Raises InvalidObject."""
    names = bounded_texts(_annotation(annotations, RESTRICTED_OPTIONS), "resources")
    return tuple(dict.fromkeys(names))


def _condition(fields: Fields, problems: list[str]) -> Condition:
    return Condition(
        type=fields.text("type"),
        status=fields.text("status"),
        reason=fields.text("reason"),
        message=fields.text("message"),
        probed=_tried(lambda: fields.time("lastProbeTime"), problems),
        changed=_tried(lambda: fields.time("lastTransitionTime"), problems),
    )


def _tried(read: Callable[[], T], problems: list[str]) -> T | None:
    try:
        return read()
    except InvalidObject as err:
        problems.append(str(err))
        return None


def _texts(meta: Fields, key: str) -> dict[str, str]:
    values = meta.nested(key).raw
    return {str(name): value for name, value in values.items() if isinstance(value, str)}


_MODE = "Reservation"
RESERVATION_LABELS = frozenset((OPERATING_MODE,))  # of pods that may act as reservations


def is_operating(pod: ClusterPod) -> bool:
    """Whether a pod acts as a reservation."""
    return pod.label_set.labels.get(OPERATING_MODE) == _MODE


def operating_reservation(pod: ClusterPod) -> Reservation:
    """Return a pod in operating mode as a reservation; with absurd annotations it has no spec.

    It is available while the pod runs and is ready. It never expires: it lives as long as its pod.
    """
    requests = dict(pod.spec.requests)
    annotations = dict(pod.annotations)
    spec, problems = None, []
    try:
        spec = ReservationSpec(
            owners=read_owners(_list(annotations.get(OWNERS, "")), "owners"),
            ttl=0.0,
            policy=AllocatePolicy.ALIGNED,
            requests=requests,
            inner=inner_amounts(annotations),
            restricted=restricted_resources(annotations),
            resized={},
        )
    except InvalidObject as err:
        problems.append(str(err))
    owner = _tried(lambda: current_owner(pod), problems)
    is_ready = pod.phase == "Running" and pod.ready
    phase = pod.phase if pod.finished else str(Phase.AVAILABLE) if is_ready else ""
    return Reservation(
        name=pod.name,
        uid=pod.uid,
        labels=pod.labels,
        created=pod.created,
        deleting=pod.deleting,
        spec=spec,
        phase=phase,
        node=pod.node,
        allocatable=requests,
        allocated={},
        problems=tuple(problems),
        has_owner=owner is not None,
        raw={},
    )


def current_owner(pod: ClusterPod) -> PodReference | None:
    """Return the pod that has the room of one in operating mode, as its workload says.

    None: nobody has it.

    Raises:
        InvalidObject: its annotation is malformed.
    """
    text = next((value for key, value in pod.annotations if key == CURRENT_OWNER), "")
    if not text:
        return None
    fields = Fields(parse_json(text, CURRENT_OWNER), CURRENT_OWNER)
    found = PodReference(fields.text("uid"), fields.text("namespace"), fields.text("name"))
    return None if found == PodReference() else found


def _list(text: str) -> Fields:
    if len(text) > _MAX_TEXT:
        raise InvalidObject(OWNERS, wanted=f"at most {_MAX_TEXT} characters", found=len(text))
    return Fields({"owners": parse_json(text, OWNERS) if text else []}, OWNERS)
