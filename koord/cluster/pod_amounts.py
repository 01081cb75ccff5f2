"""Amounts of resources: what a pod requests and what its limits are."""

from collections.abc import Mapping

from koord.api.pod import Share, amount, running_total
from koord.cluster import wire
from koord.cluster.lenient_decoding import DecodingFaults, LenientDecoder

_SCALES = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_MAX_DIGITS = 18  # a number of so many is below 2**63; a longer text costs time to read
MAX_AMOUNT = 2**50  # of one resource in one object: larger ones count as this
MAX_ALLOCATABLE = MAX_AMOUNT - 1  # so that no pod fits that requests more than it says
NONZERO = {"cpu": 100, "memory": 200 << 20}
"""Milli-cores and bytes of a container that requests none, where loads are compared."""

_ANY_SIZE = 1 << 30  # requests always count: only the object as a whole is bounded
_RESOURCES: LenientDecoder[wire.Resources] = LenientDecoder("resources", wire.Resources, _ANY_SIZE)
_AMOUNTS: LenientDecoder[wire.Amounts] = LenientDecoder("amounts", wire.Amounts, _ANY_SIZE)
_INFEASIBLE = "Infeasible"

Effective = Mapping[str, Mapping[str, int]]
"""Requests that count in place of those in the spec, by container."""


def read_amount(name: str, text: str | int | float) -> int:
    """Return the amount of one resource, at most MAX_AMOUNT.

    Most are written like 250m or 512Mi, and a NodeMetric has dozens: those take a tenth of the
    time of the others.

    Raises:
        ValueError: it is no quantity, or below zero.
    """
    if isinstance(text, str):
        digits, scale = text, 1
        if name == "cpu":
            if text[-1:] == "m":
                digits = text[:-1]
            else:
                scale = 1000
        elif text[-1:] == "i":
            digits, scale = text[:-2], _SCALES.get(text[-2:], 0)
        if scale and digits.isdecimal() and len(digits) <= _MAX_DIGITS and digits.isascii():
            value = int(digits) * scale
            if value <= MAX_AMOUNT:
                return value
    value = amount(name, str(text))
    if value < 0:
        raise ValueError(f"an amount below zero: {text}")
    return min(value, MAX_AMOUNT)


def read_amounts(
    found: Mapping[str, str | int | float] | None, where: str, faults: DecodingFaults
) -> dict[str, int]:
    """Return amounts by name of the resource, without those that are malformed, which is noted."""
    amounts: dict[str, int] = {}
    for name, text in (found or {}).items():
        try:
            amounts[name] = value = read_amount(name, text)
        except ValueError as err:
            faults.note(f"{where}: {name}", str(err))
            continue
        if value == MAX_AMOUNT:
            faults.note(f"{where}: {name}", f"{text} counts as {MAX_AMOUNT}")
    return amounts


class PodAmounts:
    """The requests and limits of a pod.

    They include regular containers, init containers, sidecars, the pod as a whole and overhead.
    """

    def __init__(
        self, found: wire.PodSpecFields, effective: Effective, faults: DecodingFaults
    ) -> None:
        """effective: as effective_requests says. A malformed amount is noted and counts nothing."""
        regular, init = found.containers or (), found.init_containers or ()
        resources = [_RESOURCES.read(one.resources, faults) for one in (*regular, *init)]
        pod = _RESOURCES.read(found.resources, faults) or wire.Resources()
        self._sidecars = [is_sidecar(one) for one in init]
        self._overhead = read_amounts(_AMOUNTS.read(found.overhead, faults), "overhead", faults)
        requests = [
            effective[one.name]
            if one.name in effective
            else _requested(each, f"container {one.name}", faults)
            for one, each in zip((*regular, *init), resources, strict=True)
        ]
        self._requests, self._init_requests = requests[: len(regular)], requests[len(regular) :]
        self._pod_requests = read_amounts(pod.requests, "requests", faults)
        self.requests = self._totals(self._requests, self._init_requests)
        self.requests.update(self._pod_requests)
        for name, more in self._overhead.items():
            self.requests[name] = self.requests.get(name, 0) + more
        limited = [read_limits(one.limits if one else None) for one in resources]
        limits = self._totals(limited[: len(regular)], limited[len(regular) :])
        limits.update(read_limits(pod.limits))
        self.by_container = tuple(zip(requests, limited, strict=True))
        """Requests and limits of each regular container, then of each init container."""
        self.limits = {
            name: value + self._overhead.get(name, 0) for name, value in limits.items() if value
        }

    def nonzero(self, name: str) -> int:
        """The request in which a container without one has the default.

        Unless the pod has requests as a whole, and one of this resource somewhere.

        Source: Kubernetes, framework.PodInfo.CalculateResource.
        """
        if self._pod_requests and name in self.requests:
            return min(self.requests[name], MAX_AMOUNT)
        total = self._total(self._requests, self._init_requests, name, NONZERO[name])
        return min(total + self._overhead.get(name, 0), MAX_AMOUNT)

    def _totals(
        self, regular: list[Mapping[str, int]], init: list[Mapping[str, int]]
    ) -> dict[str, int]:
        names = {name for amounts in (*regular, *init) for name in amounts}
        return {name: self._total(regular, init, name, 0) for name in names}

    def _total(
        self,
        regular: list[Mapping[str, int]],
        init: list[Mapping[str, int]],
        name: str,
        default: int,
    ) -> int:
        shares = zip(init, self._sidecars, strict=True)
        return running_total(
            (one.get(name, default) for one in regular),
            (Share(one.get(name, default), sidecar) for one, sidecar in shares),
        )


def read_limits(found: Mapping[str, str | int | float] | None) -> Mapping[str, int]:
    """Return limits as read_amounts; one that is absurdly large is cut: it is as good as none."""
    return read_amounts(found, "limits", DecodingFaults())


def is_sidecar(found: wire.Container) -> bool:
    """Whether an init container runs as long as the pod."""
    return found.restart_policy == "Always"


def effective_requests(spec: wire.PodSpecFields, status: wire.PodStatus) -> Effective:
    """Return the requests of containers that are being resized, or could not be.

    Per resource the largest of what the spec has, what the kubelet has allocated, and what is in
    force; of a resize that the node can never have, the last two. Empty: all are as the spec says.

    Source: Kubernetes, component-helpers resource.determineEffectiveRequests.
    """
    if not status.container_statuses and not status.init_container_statuses:
        return {}
    told = {
        one.name: one
        for one in (*(status.container_statuses or ()), *(status.init_container_statuses or ()))
        if one.resources is not wire.NOTHING
    }
    if not told:
        return {}
    resized = {}
    for one in (*(spec.containers or ()), *filter(is_sidecar, spec.init_containers or ())):
        found = told.get(one.name)
        if found is None or _is_as_spec(one, found):
            continue
        if wire.is_given(found.resources):
            requests = _effective(one, found, infeasible=_is_infeasible(status))
            if requests is not None:
                resized[one.name] = requests
    return resized


def _is_as_spec(spec: wire.Container, status: wire.ContainerStatus) -> bool:
    """Whether both have the same JSON, as nearly always: nothing need be decoded then."""
    if spec.resources != status.resources:
        return False
    allocated = status.allocated_resources
    if allocated is wire.NOTHING:
        return True
    return bytes(spec.resources).endswith(b'"requests":%b}' % allocated)


def _effective(
    spec: wire.Container, status: wire.ContainerStatus, *, infeasible: bool
) -> dict[str, int] | None:
    """The requests that count; None: those of the spec."""
    faults = DecodingFaults()  # what is malformed in a status counts nothing
    wanted = _requested(_RESOURCES.read(spec.resources, faults), spec.name, faults)
    actual = _requested(_RESOURCES.read(status.resources, faults), spec.name, faults)
    allocated = read_amounts(_AMOUNTS.read(status.allocated_resources, faults), spec.name, faults)
    counted = (actual, allocated) if infeasible else (wanted, actual, allocated)
    names = {name for amounts in counted for name in amounts}
    found = {name: max(amounts.get(name, 0) for amounts in counted) for name in sorted(names)}
    return None if found == wanted else found


def _is_infeasible(status: wire.PodStatus) -> bool:
    """Source: Kubernetes, resource.IsPodResizeInfeasible, of 1.32 and older, too."""
    for one in status.conditions or ():
        if one.type == "PodResizePending":
            return one.reason == _INFEASIBLE
    return status.resize == _INFEASIBLE


def _requested(found: wire.Resources | None, where: str, faults: DecodingFaults) -> dict[str, int]:
    return read_amounts((found and found.requests) or {}, where, faults)
