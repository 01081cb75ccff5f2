"""The key types of metric kinds: the properties that distinguish the series of a kind.

A key type is a NamedTuple of text. An annotation of Literal is a closed set of values, and the text
of an Annotated explains the property. Everything else, for type checkers, for queries and
for the reference, follows from it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from koord.util.errors import KoordError
from koord.util.text import nearest


class UnknownSeries(KoordError):
    """A reader asked for a kind, a property or a value that cannot exist: a mistake in the code."""


PodUid = Annotated[str, "UID of the pod"]
ContainerId = Annotated[str, 'as in the status of the pod, "containerd://<64 hex>"']
NumaNodeId = Annotated[str, "number of the NUMA node, in decimal"]
AppName = Annotated[str, "name of the host application in the NodeSLO"]
Device = Annotated[str, "name of the network interface"]
GpuMinor = Annotated[str, "minor number of the GPU, in decimal"]
GpuUuid = Annotated[str, "UUID of the GPU"]
QosClass = Annotated[
    Literal["guaranteed", "burstable", "besteffort"], "Kubernetes QoS class, in lower case"
]
QosGroup = Annotated[
    Literal["kubepods", "burstable", "besteffort"],
    "cgroup of a Kubernetes QoS class; kubepods: of all pods",
]
CpiResource = Annotated[Literal["cycle", "instruction"], "what the CPU counts"]
ResctrlGroup = Annotated[Literal["LSR", "LS", "BE"], "QoS class; LSR: of LSE, too"]
CacheId = Annotated[str, "number of the L3 cache, in decimal"]
BandwidthType = Annotated[
    Literal["mbm_local_bytes", "mbm_total_bytes"], "local: to memory of the same NUMA node"
]
PsiResource = Annotated[Literal["cpu", "mem", "io"], "what tasks wait for"]
PsiPrecision = Annotated[Literal["10"], "seconds that the kernel averages over"]
PsiDegree = Annotated[Literal["some", "full"], "some: at least one task waits; full: all of them"]
BeResource = Annotated[Literal["cpu"], "resource of best-effort pods"]
BeAllocation = Annotated[
    Literal["request", "real-limit", "usage"], "what they asked for, may use, and use"
]


class PodKey(NamedTuple):
    """A pod."""

    pod_uid: PodUid


class ContainerKey(NamedTuple):
    """A container."""

    container_id: ContainerId


class PodContainerKey(NamedTuple):
    """A container with its pod."""

    pod_uid: PodUid
    container_id: ContainerId


class ContainerCpiKey(NamedTuple):
    """Cycles or instructions of a container."""

    pod_uid: PodUid
    container_id: ContainerId
    cpi_resource: CpiResource


class NumaKey(NamedTuple):
    """A NUMA node."""

    numa_node_id: NumaNodeId


class AppKey(NamedTuple):
    """A host application."""

    host_app_name: AppName


class DeviceKey(NamedTuple):
    """A network interface of the node."""

    device: Device


class GpuKey(NamedTuple):
    """A GPU of the node."""

    gpu_minor: GpuMinor
    gpu_device_uuid: GpuUuid


class PodGpuKey(NamedTuple):
    """A GPU that a pod uses."""

    pod_uid: PodUid
    gpu_minor: GpuMinor
    gpu_device_uuid: GpuUuid


class ContainerGpuKey(NamedTuple):
    """A GPU that a container uses."""

    container_id: ContainerId
    gpu_minor: GpuMinor
    gpu_device_uuid: GpuUuid


class ResctrlKey(NamedTuple):
    """A QoS class and an L3 cache."""

    qos: ResctrlGroup
    cache_id: CacheId


class ResctrlMbKey(NamedTuple):
    """A QoS class, an L3 cache, and one of its counters."""

    qos: ResctrlGroup
    cache_id: CacheId
    resctrl_mb_type: BandwidthType


class QosKey(NamedTuple):
    """A Kubernetes QoS class."""

    qos_class: QosClass


class BeKey(NamedTuple):
    """One figure of best-effort pods."""

    be_resource: BeResource
    be_allocation: BeAllocation


class PsiKey(NamedTuple):
    """Pressure of the node."""

    psi_resource: PsiResource
    psi_precision: PsiPrecision
    psi_degree: PsiDegree


class QosPsiKey(NamedTuple):
    """Pressure of the cgroup of a QoS class."""

    qos_class: QosGroup
    psi_resource: PsiResource
    psi_precision: PsiPrecision
    psi_degree: PsiDegree


class PodPsiKey(NamedTuple):
    """Pressure of a pod."""

    pod_uid: PodUid
    psi_resource: PsiResource
    psi_precision: PsiPrecision
    psi_degree: PsiDegree


class ContainerPsiKey(NamedTuple):
    """Pressure of a container."""

    pod_uid: PodUid
    container_id: ContainerId
    psi_resource: PsiResource
    psi_precision: PsiPrecision
    psi_degree: PsiDegree


def no_key() -> tuple[()]:
    """The key of a kind that has one series, such as those of the node as a whole."""
    return ()


@dataclass(frozen=True, slots=True)
class Property:
    """One part of a key."""

    name: str
    meaning: str = ""
    values: tuple[str, ...] = ()  # all that it may be; empty: any text

    def defect(self, value: object) -> str:
        """Return what is wrong with a value, "" for nothing."""
        if self.values:
            if isinstance(value, str) and value in self.values:
                return ""
            wanted = f"{self.name} one of {list(self.values)}, found {value!r}"
            return f"{wanted}; the nearest is {nearest(str(value), self.values)!r}"
        if isinstance(value, str):
            return ""
        about = f" ({self.meaning})" if self.meaning else ""
        return f"{self.name} as text{about}, found {value!r}"


def properties_of(key: Callable[..., Any]) -> tuple[Property, ...]:
    """Return the properties that a key type declares; none for a plain function.

    Raises:
        UnknownSeries: a property is neither text nor a choice of texts.
    """
    names: tuple[str, ...] = getattr(key, "_fields", ())
    hints = get_type_hints(key, include_extras=True) if names else {}
    return tuple(_property(name, hints[name]) for name in names)


def _property(name: str, hint: Any) -> Property:
    meaning = ""
    if get_origin(hint) is Annotated:
        hint, meaning = get_args(hint)[:2]
    if hint is str:
        return Property(name, meaning)
    values = get_args(hint) if get_origin(hint) is Literal else ()
    if not values or not all(isinstance(value, str) for value in values):
        raise UnknownSeries(
            f"{name}: wanted str or a Literal of texts in a key type, found {hint!r}"
        )
    return Property(name, meaning, values)
