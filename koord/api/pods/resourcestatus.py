"""The allocation that Koordinator's scheduler wrote on a pod."""

from collections.abc import Mapping
from dataclasses import dataclass

from koord.api.decoding.annotation import place, pod_annotation
from koord.api.decoding.wire import shape_of, wire
from koord.api.pods.pod import Pod
from koord.api.pods.requests import BATCH_CPU
from koord.api.quantity import Quantity
from koord.util.cpulist import parse_cpulist
from koord.util.errors import InvalidObject

RESOURCE_STATUS = "scheduling.koordinator.sh/resource-status"  # annotation of a pod


@dataclass(frozen=True, slots=True)
class NumaAllocation:
    """The resources of a pod on one NUMA node."""

    node: int = wire("node", 0)
    resources: Mapping[str, Quantity] = wire("resources", factory=dict)

    @property
    def has_cpu(self) -> bool:
        """Whether CPU time is among it."""
        nothing = Quantity(0)
        batch = self.resources.get(BATCH_CPU, nothing).nano
        return self.resources.get("cpu", nothing).nano != 0 or batch > 0


@dataclass(frozen=True, slots=True)
class _OnWire:
    cpuset: str = wire("cpuset", "")
    numa: tuple[NumaAllocation, ...] = wire("numaNodeResources", ())


@dataclass(frozen=True, slots=True)
class ResourceStatus:
    """CPUs and NUMA nodes that were chosen for a pod; empty: none were."""

    cpus: frozenset[int] = frozenset()
    numa: tuple[NumaAllocation, ...] = ()


_STRUCT = shape_of(_OnWire)


def resource_status(pod: Pod) -> ResourceStatus:
    """Return what the scheduler has chosen for a pod.

    Raises:
        InvalidObject: the annotation is malformed.
    """
    found = pod_annotation(pod, RESOURCE_STATUS, _STRUCT) or _OnWire()
    try:
        return ResourceStatus(parse_cpulist(found.cpuset), found.numa)
    except ValueError as err:
        where = f"{place(pod, RESOURCE_STATUS)}.cpuset"
        raise InvalidObject(where, wanted="a list of CPUs", found=found.cpuset) from err


def is_pinned(pod: Pod) -> bool:
    """Return whether the scheduler has chosen CPUs or NUMA nodes for a pod."""
    try:
        status = resource_status(pod)
    except InvalidObject:
        return False
    return bool(status.cpus or status.numa)


def allocated_cpus(pod: Pod) -> frozenset[int]:
    """Return the CPUs that the scheduler has chosen for a pod; empty when it has chosen none.

    Raises:
        InvalidObject: the annotation is malformed.
    """
    return resource_status(pod).cpus
