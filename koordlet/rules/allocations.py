"""Which allocations in the annotations of pods count on this node. Pure.

The scheduler writes resource-status and device-allocated, but so may whoever may write the pod.
What a pod was given counts only where its containers request as much, and no older pod has it.

Source: Koordinator, NodeNUMAResource (whole CPUs, each for one pod) and DeviceShare.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from koord.api.annotations import (
    DEVICE_ALLOCATED,
    RESOURCE_STATUS,
    allocated_cpus,
    annotation_fields,
)
from koord.api.machine import format_cpulist
from koord.api.pod import Pod, pod_request
from koord.util.errors import InvalidObject

ALLOCATIONS = (RESOURCE_STATUS, DEVICE_ALLOCATED)
RESERVATION_ALLOCATED = "scheduling.koordinator.sh/reservation-allocated"
OPERATING_MODE, RESERVATION = "scheduling.koordinator.sh/operating-mode", "Reservation"
MAX_ANNOTATION_LENGTH = 1 << 16  # of one annotation
_WHOLE_CPU = 100  # percent of one device
_MILLI = 1000


@dataclass(frozen=True, slots=True)
class RefusedAllocation:
    """An annotation that does not count. reason says what it gives that the pod cannot have."""

    annotation: str
    reason: str


@dataclass(frozen=True, slots=True)
class PodAllocation:
    """The allocation in a pod's annotations, as far as its containers request it.

    devices: percent by kind and name of each.
    """

    cpus: frozenset[int] = frozenset()
    devices: Mapping[tuple[str, str], float] = field(default_factory=dict)
    refused: tuple[RefusedAllocation, ...] = ()


def pod_allocation(pod: Pod) -> PodAllocation:
    """Return what the annotations of a pod give it, whatever other pods have.

    Malformed ones claim nothing; their reader rejects them.
    """
    cpus, cpus_refused = _cpus(pod)
    devices, devices_refused = _devices(pod)
    reasons = zip(ALLOCATIONS, (cpus_refused, devices_refused), strict=True)
    refused = tuple(RefusedAllocation(*each) for each in reasons if each[1])
    return PodAllocation(cpus, devices, refused)


def refused_allocations(
    claims: Iterable[tuple[Pod, PodAllocation]], by_kubelet: Mapping[str, frozenset[int]]
) -> dict[str, tuple[RefusedAllocation, ...]]:
    """Return the rejected allocations, by the UID of the pod.

    Of two pods with the same CPU or device the older one has it: the one that was started first,
    else created first, else with the lower UID. A pod that was given the resources of a reservation
    pod may have what that one has. by_kubelet: CPUs that the kubelet alone has given away, by the
    UID of the pod.
    """
    living = sorted((each for each in claims if not each[0].finished), key=_precedence)
    reservations = {pod.uid for pod, _ in living if pod.labels.get(OPERATING_MODE) == RESERVATION}
    held = _AllocatedSoFar()
    refused: dict[str, tuple[RefusedAllocation, ...]] = {}
    for pod, claim in living:
        found = {each.annotation: each for each in claim.refused}
        lender = _reservation_owner(pod) if reservations else ""
        held.lender = lender if lender in reservations else ""
        for annotation, problem in (
            (RESOURCE_STATUS, held.take_cpus(pod.uid, claim.cpus)),
            (DEVICE_ALLOCATED, held.take_devices(pod.uid, claim.devices)),
        ):
            if problem:
                found[annotation] = RefusedAllocation(annotation, problem)
        if not claim.cpus or RESOURCE_STATUS in found:
            held.take_cpus(pod.uid, by_kubelet.get(pod.uid, frozenset()))
        if found:
            refused[pod.uid] = tuple(found.values())
    return refused


class _AllocatedSoFar:
    """CPUs and devices that pods have already. lender: the UID of a pod whose are taken over."""

    def __init__(self) -> None:
        self.lender = ""
        self._cpus: dict[int, str] = {}  # UID
        self._devices: dict[tuple[str, str], dict[str, float]] = {}  # percent by UID

    def take_cpus(self, uid: str, cpus: frozenset[int]) -> str:
        """Take CPUs, or return why not."""
        missing = [cpu for cpu in cpus if self._cpus.get(cpu, self.lender) != self.lender]
        if missing:
            return f"CPUs {format_cpulist(missing)}, which an older pod has"
        self._cpus |= dict.fromkeys(cpus, uid)
        return ""

    def take_devices(self, uid: str, devices: Mapping[tuple[str, str], float]) -> str:
        """Take shares of devices, or return why not."""
        for (kind, name), percent in devices.items():
            shares = self._devices.get((kind, name), {})
            taken = sum(share for owner, share in shares.items() if owner != self.lender)
            if taken and taken + percent > _WHOLE_CPU:
                return f"{kind} {name}, of which older pods have {taken:g} percent"
        for place, percent in devices.items():
            shares = self._devices.setdefault(place, {})
            shares[uid] = percent
            if self.lender in shares:
                shares[self.lender] = max(shares[self.lender] - percent, 0)
        return ""


def _cpus(pod: Pod) -> tuple[frozenset[int], str]:
    """The CPUs in the annotation, or why it does not count."""
    nothing: frozenset[int] = frozenset()
    text = pod.annotations.get(RESOURCE_STATUS)
    if text is None:
        return nothing, ""
    if len(text) > MAX_ANNOTATION_LENGTH:
        return nothing, f"more than {MAX_ANNOTATION_LENGTH} characters"
    try:
        cpus = allocated_cpus(pod)
    except InvalidObject:
        return nothing, ""
    asked = pod_request(pod, "cpu") if cpus else 0
    if len(cpus) * _MILLI > asked or asked % _MILLI:
        found = f"{len(cpus)} CPUs of its own ({format_cpulist(cpus)})"
        return nothing, f"{found}: its containers request {asked} thousandths of a CPU"
    return cpus, ""


def _devices(pod: Pod) -> tuple[Mapping[tuple[str, str], float], str]:
    """The shares of devices in the annotation, or why it does not count."""
    text = pod.annotations.get(DEVICE_ALLOCATED)
    if text is None:
        return {}, ""
    if len(text) > MAX_ANNOTATION_LENGTH:
        return {}, f"more than {MAX_ANNOTATION_LENGTH} characters"
    # Most nodes have no devices, and do without the code.
    from koordlet.rules.device_requests import DevicesNotRequested, device_shares

    try:
        return device_shares(pod, text), ""
    except DevicesNotRequested as err:
        return {}, str(err)
    except InvalidObject:
        return {}, ""


def _precedence(each: tuple[Pod, object]) -> tuple[float, float, str]:
    pod = each[0]
    unknown = math.inf
    started = unknown if pod.start_time is None else pod.start_time
    return started, unknown if pod.created is None else pod.created, pod.uid


def _reservation_owner(pod: Pod) -> str:
    """The UID of the reservation that a pod was given; "" where there is none."""
    text = pod.annotations.get(RESERVATION_ALLOCATED, "")
    if not text or len(text) > MAX_ANNOTATION_LENGTH:
        return ""
    try:
        return annotation_fields(text, RESERVATION_ALLOCATED).text("uid")
    except InvalidObject:
        return ""
