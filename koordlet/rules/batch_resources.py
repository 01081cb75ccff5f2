"""Batch resources: the requests of best-effort pods for the node's idle CPU and memory."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from koord.api.annotations import pod_annotation
from koord.api.gojson import shape_of, wire
from koord.api.pod import BATCH_CPU, BATCH_MEMORY, Container, Pod, Share, is_sidecar, running_total
from koord.api.quantity import Quantity

EXTENDED_RESOURCES = "node.koordinator.sh/extended-resource-spec"  # annotation of a pod


@dataclass(frozen=True, slots=True)
class BatchShare:
    """Batch resources of a container, or of a pod as a whole. None: no limit."""

    cpu_request: int = 0  # thousandths of a core
    cpu_limit: int | None = None  # thousandths of a core
    memory_limit: int | None = None  # bytes


@dataclass(frozen=True, slots=True)
class BatchResources:
    """Batch resources of a pod, and of those of its containers that have any, by name."""

    pod: BatchShare
    containers: Mapping[str, BatchShare]


@dataclass(frozen=True, slots=True)
class _Extended:
    requests: Mapping[str, Quantity] = wire("requests", factory=dict)
    limits: Mapping[str, Quantity] = wire("limits", factory=dict)


@dataclass(frozen=True, slots=True)
class _ExtendedSpec:
    containers: Mapping[str, _Extended] = wire("containers", factory=dict)


_STRUCT = shape_of(_ExtendedSpec)
_NO_EXTENDED = BatchShare()


def batch_resources(pod: Pod) -> BatchResources | None:
    """Return the requests of a pod's containers, or of its annotation when these have none.

    None: neither has any. A container that is missing has no limit, and so the pod has none. Init
    containers count as with Kubernetes; the annotation does not contain them.

    Raises:
        InvalidObject: the annotation is needed and malformed.
    """
    init: Sequence[Container] = pod.init_containers
    named = dict(_from_spec((*pod.containers, *init)))
    if not named:
        init, named = (), dict(_from_annotation(pod))
    return BatchResources(_total(pod, init, named), named) if named else None


def _from_spec(containers: Sequence[Container]) -> Iterator[tuple[str, BatchShare]]:
    for container in containers:
        if {BATCH_CPU, BATCH_MEMORY} & (container.requests.keys() | container.limits.keys()):
            yield container.name, _share(_parsed(container.requests), _parsed(container.limits))


def _from_annotation(pod: Pod) -> Iterator[tuple[str, BatchShare]]:
    found = pod_annotation(pod, EXTENDED_RESOURCES, _STRUCT) or _ExtendedSpec()
    for container in pod.containers:
        if entry := found.containers.get(container.name):
            yield container.name, _share(entry.requests, entry.limits)


def _parsed(quantities: Mapping[str, str]) -> Mapping[str, Quantity]:
    return {
        name: Quantity.parse(quantities[name])
        for name in (BATCH_CPU, BATCH_MEMORY)
        if name in quantities
    }


def _share(requests: Mapping[str, Quantity], limits: Mapping[str, Quantity]) -> BatchShare:
    return BatchShare(
        cpu_request=_amount(requests, BATCH_CPU),
        cpu_limit=_amount(limits, BATCH_CPU) or None,
        memory_limit=_amount(limits, BATCH_MEMORY) or None,
    )


def _total(pod: Pod, init: Sequence[Container], named: Mapping[str, BatchShare]) -> BatchShare:
    """The pod as a whole, overhead included."""
    everyone, overhead = (*pod.containers, *init), _parsed(pod.overhead)

    def share(container: Container) -> BatchShare:
        return named.get(container.name, _NO_EXTENDED)

    def total(resource: str, amount: Callable[[BatchShare], int | None]) -> int | None:
        if any(amount(share(one)) is None for one in everyone):
            return None
        before = (Share(amount(share(one)) or 0, is_sidecar(one)) for one in init)
        regular = (amount(share(one)) or 0 for one in pod.containers)
        return running_total(regular, before) + _amount(overhead, resource)

    return BatchShare(
        cpu_request=total(BATCH_CPU, lambda share: share.cpu_request) or 0,
        cpu_limit=total(BATCH_CPU, lambda share: share.cpu_limit),
        memory_limit=total(BATCH_MEMORY, lambda share: share.memory_limit),
    )


def _amount(quantities: Mapping[str, Quantity], name: str) -> int:
    """Whole units; what is absent or negative is nothing."""
    return max(quantities[name].integer, 0) if name in quantities else 0
