"""A pod's request for a resource, over all its containers."""

from collections.abc import Iterator, Mapping

from koord.api.pods.pod import Container, Pod
from koord.api.pods.totals import is_sidecar, pod_total
from koord.api.priority import PriorityClass
from koord.api.quantity import Quantity

BATCH_CPU = "kubernetes.io/batch-cpu"  # milli-cores, as a plain number
BATCH_MEMORY = "kubernetes.io/batch-memory"  # bytes
MID_CPU = "kubernetes.io/mid-cpu"
MID_MEMORY = "kubernetes.io/mid-memory"

_CPU_BY_TIER = {PriorityClass.BATCH: BATCH_CPU, PriorityClass.MID: MID_CPU}
_MEMORY_BY_TIER = {PriorityClass.BATCH: BATCH_MEMORY, PriorityClass.MID: MID_MEMORY}


def cpu_resource(tier: PriorityClass) -> str:
    """Return the name of the CPU that pods of this priority class ask for."""
    return _CPU_BY_TIER.get(tier, "cpu")


def memory_resource(tier: PriorityClass) -> str:
    """Return the name of the memory that pods of this priority class ask for."""
    return _MEMORY_BY_TIER.get(tier, "memory")


def amount(name: str, text: str) -> int:
    """Return a quantity of this resource: milli-cores, bytes, or whole units of what it is."""
    quantity = Quantity.parse(text)
    return quantity.milli if name == "cpu" else quantity.integer


def pod_request(pod: Pod, name: str) -> int:
    """Return what a pod asks for; cpu in milli-cores, others as `amount`.

    Extended resources are those of containers and sidecars, without anything below zero.

    Source: Kubernetes, resourcehelpers.PodRequests; Koordinator, GetPodBEMilliCPURequest.
    """
    if "/" in name:
        return sum(max(_request(container, name), 0) for container in _lasting(pod))
    if name in pod.requests:
        asked = amount(name, pod.requests[name])
    else:
        asked = pod_total(pod, lambda container: _request(container, name))
    return asked + _of(pod.overhead, name)


def _lasting(pod: Pod) -> Iterator[Container]:
    """Regular containers and sidecars."""
    yield from pod.containers
    yield from (c for c in pod.init_containers if is_sidecar(c))


def _request(container: Container, name: str) -> int:
    return _of(container.requests, name)


def _of(quantities: Mapping[str, str], name: str) -> int:
    text = quantities.get(name)
    return amount(name, text) if text else 0
