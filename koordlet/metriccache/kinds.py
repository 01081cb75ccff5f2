"""The metric kinds and samples: what is measured, unit, key, and how long it is kept."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar

from koord.util.text import nearest
from koordlet.metriccache.keys import (
    AppKey,
    BeKey,
    ContainerCpiKey,
    ContainerGpuKey,
    ContainerKey,
    ContainerPsiKey,
    DeviceKey,
    GpuKey,
    NumaKey,
    PodContainerKey,
    PodGpuKey,
    PodKey,
    PodPsiKey,
    Property,
    PsiKey,
    QosKey,
    QosPsiKey,
    ResctrlKey,
    ResctrlMbKey,
    UnknownSeries,
    no_key,
    properties_of,
)


class Cadence(Enum):
    """The cadence of a kind's samples or of a collector; the daemon maps each to seconds."""

    USAGE = "usage"  # --collect-res-used-interval
    PSI = "psi"  # --psi-collector-interval
    NETWORK = "network"  # --network-collector-interval
    CPI = "CPI"  # --cpi-collector-interval
    COLD_PAGE = "cold page"  # --coldpage-collector-interval
    RESCTRL = "resctrl"  # --resctrl-collector-interval
    NODE_INFO = "node info"  # --collect-node-cpu-info-interval; no kinds: topology, not usage
    STORAGE = "storage"  # --collect-node-storage-info-interval; no kinds either
    DEVICES = "devices"  # --node-topology-sync-interval; no kinds either


DEFAULT_INTERVALS = {
    Cadence.USAGE: 1.0,
    Cadence.PSI: 10.0,
    Cadence.NETWORK: 5.0,
    Cadence.CPI: 60.0,
    Cadence.COLD_PAGE: 5.0,
    Cadence.RESCTRL: 10.0,
    Cadence.NODE_INFO: 60.0,
    Cadence.STORAGE: 1.0,
    Cadence.DEVICES: 3.0,
}
"""Seconds between two samples, unless a flag says otherwise."""


class RetentionClass(Enum):
    """The reader that needs a kind longest; the daemon maps each to seconds."""

    NODE = "node"  # the percentile windows of the NodeMetric report (30 minutes)
    POD = "pod"  # the aggregate duration of the report (5 minutes)


P = ParamSpec("P")  # the properties of a kind, as parameters of its key type
K = TypeVar("K", bound=tuple[str, ...])  # its key type


@dataclass(frozen=True, slots=True)
class Kind(Generic[P, K]):
    """One kind of series. A series is a kind plus a key; the key type defines what may be in it.

    So a type checker knows which keys a kind has: `cache.last(NODE_PSI, "io", "10", "some")`.

    Source: Koordinator pkg/koordlet/metriccache; kinds marked "own" have no counterpart there.
    """

    name: str
    unit: str
    help: str  # what is measured, for the reference
    key: Callable[P, K]
    retention_class: RetentionClass = RetentionClass.NODE
    cadence: Cadence = Cadence.USAGE
    parts: tuple[Property, ...] = field(init=False, compare=False, repr=False)
    properties: tuple[str, ...] = field(init=False, compare=False)  # names of the parts

    def __post_init__(self) -> None:
        parts = properties_of(self.key)
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "properties", tuple(part.name for part in parts))

    def check(self, key: object) -> None:
        """Reject what cannot be the key of a series of this kind.

        Raises:
            UnknownSeries: no tuple, not one value per property, or a value that does not exist.
        """
        if not isinstance(key, tuple) or len(key) != len(self.parts):
            found = list(key) if isinstance(key, tuple) else key
            raise UnknownSeries(f"{self.name}: wanted {self._wanted()}, found {found!r}")
        for part, value in zip(self.parts, key, strict=True):
            if defect := part.defect(value):
                raise UnknownSeries(f"{self.name}: wanted {defect}")

    def made(self, *key: object, **named: object) -> K:
        """The checked key of the given values.

        Raises:
            UnknownSeries: as check.
        """
        if named:
            unknown = named.keys() - set(self.properties[len(key) :])
            if unknown or len(key) + len(named) != len(self.parts):
                found = [*map(repr, key), *(f"{name}={value!r}" for name, value in named.items())]
                raise UnknownSeries(
                    f"{self.name}: wanted {self._wanted()}, found {', '.join(found)}"
                )
            key = (*key, *(named[name] for name in self.properties[len(key) :]))
        self.check(key)
        return self.typed(key)

    def chosen(self, properties: Mapping[str, object]) -> list[tuple[int, object]]:
        """(place in the key, value) of the given properties.

        Raises:
            UnknownSeries: the kind has no such property, or it has no such value.
        """
        for name, value in properties.items():
            if name not in self.properties:
                raise UnknownSeries(
                    f"{self.name}: wanted some of {list(self.properties)}, found {name!r}; "
                    f"the nearest is {nearest(name, self.properties)!r}"
                )
            if defect := self.parts[self.properties.index(name)].defect(value):
                raise UnknownSeries(f"{self.name}: wanted {defect}")
        return [(self.properties.index(name), value) for name, value in properties.items()]

    def typed(self, key: tuple[object, ...]) -> K:
        """A checked key as its own type."""
        return self.key(*key)  # type: ignore[call-arg, arg-type]  # checked by value

    def _wanted(self) -> str:
        if not self.parts:
            return "no values: it has one series"
        count = "one value" if len(self.parts) == 1 else f"{len(self.parts)} values"
        return f"{count} ({', '.join(self.properties)})"


AnyKind = Kind[..., Any]
"""A kind whose key is not known to the type checker."""

_WAIT = "share of the last seconds in which tasks waited"

NODE_CPU_USAGE = Kind("node_cpu_usage", "cores", "CPU in use on the node", no_key)
NODE_MEMORY_USAGE = Kind(
    "node_memory_usage", "bytes", "memory in use on the node, without page cache", no_key
)
NODE_MEMORY_USAGE_WITH_PAGE_CACHE = Kind(
    "node_memory_usage_with_page_cache", "bytes", "the same with page cache", no_key
)
NODE_NUMA_CPU_USAGE = Kind(
    "node_numa_cpu_usage", "cores", "CPU in use on a NUMA node", NumaKey, RetentionClass.POD
)
NODE_NUMA_MEMORY_USAGE = Kind(
    "node_numa_memory_usage",
    "bytes",
    "memory in use on a NUMA node, without page cache",
    NumaKey,
    RetentionClass.POD,
)
SYS_CPU_USAGE = Kind(
    "sys_cpu_usage", "cores", "CPU in use outside of pods and host applications", no_key
)
SYS_MEMORY_USAGE = Kind(
    "sys_memory_usage",
    "bytes",
    "memory in use outside of pods and host applications, without page cache",
    no_key,
)
SYS_NUMA_CPU_USAGE = Kind(
    "sys_numa_cpu_usage",
    "cores",
    "CPU of a NUMA node in use outside of pods",
    NumaKey,
    RetentionClass.POD,
)
SYS_NUMA_MEMORY_USAGE = Kind(
    "sys_numa_memory_usage",
    "bytes",
    "memory of a NUMA node in use outside of pods",
    NumaKey,
    RetentionClass.POD,
)
NODE_BE = Kind("node_be", "milli-cores", "CPU of best-effort pods", BeKey)
POD_CPU_USAGE = Kind("pod_cpu_usage", "cores", "CPU that a pod uses", PodKey, RetentionClass.POD)
POD_MEMORY_USAGE = Kind(
    "pod_memory_usage",
    "bytes",
    "memory that a pod uses, without page cache",
    PodKey,
    RetentionClass.POD,
)
POD_MEMORY_USAGE_WITH_PAGE_CACHE = Kind(
    "pod_memory_usage_with_page_cache",
    "bytes",
    "the same with page cache",
    PodKey,
    RetentionClass.POD,
)
POD_CPU_THROTTLED = Kind(
    "pod_cpu_throttled",
    "ratio",
    "share of the CFS periods in which a pod was throttled, 0 to 1",
    PodKey,
    RetentionClass.POD,
)
CONTAINER_CPU_USAGE = Kind(
    "container_cpu_usage", "cores", "CPU that a container uses", ContainerKey, RetentionClass.POD
)
CONTAINER_MEMORY_USAGE = Kind(
    "container_memory_usage",
    "bytes",
    "memory that a container uses, without page cache",
    ContainerKey,
    RetentionClass.POD,
)
CONTAINER_MEMORY_USAGE_WITH_PAGE_CACHE = Kind(
    "container_memory_usage_with_page_cache",
    "bytes",
    "the same with page cache",
    ContainerKey,
    RetentionClass.POD,
)
CONTAINER_CPU_THROTTLED = Kind(
    "container_cpu_throttled",
    "ratio",
    "share of the CFS periods in which a container was throttled, 0 to 1",
    ContainerKey,
    RetentionClass.POD,
)
HOST_APP_CPU_USAGE = Kind(
    "host_application_cpu_usage",
    "cores",
    "CPU that a host application uses",
    AppKey,
    RetentionClass.POD,
)
HOST_APP_MEMORY_USAGE = Kind(
    "host_application_memory_usage",
    "bytes",
    "memory that a host application uses, without page cache",
    AppKey,
    RetentionClass.POD,
)
HOST_APP_MEMORY_USAGE_WITH_PAGE_CACHE = Kind(
    "host_application_memory_usage_with_page_cache",
    "bytes",
    "the same with page cache",
    AppKey,
    RetentionClass.POD,
)
POD_PSI = Kind(
    "pod_psi", "percent", f"{_WAIT}, of a pod", PodPsiKey, RetentionClass.POD, Cadence.PSI
)
POD_PSI_CPU_FULL_SUPPORTED = Kind(
    "pod_psi_cpu_full_supported",
    "0 or 1",
    'whether the kernel has "full" of the CPU for a pod',
    PodKey,
    RetentionClass.POD,
    Cadence.PSI,
)
CONTAINER_PSI = Kind(
    "container_psi",
    "percent",
    f"{_WAIT}, of a container",
    ContainerPsiKey,
    RetentionClass.POD,
    Cadence.PSI,
)
CONTAINER_PSI_CPU_FULL_SUPPORTED = Kind(
    "container_psi_cpu_full_supported",
    "0 or 1",
    'whether the kernel has "full" of the CPU for a container',
    PodContainerKey,
    RetentionClass.POD,
    Cadence.PSI,
)
CONTAINER_CPI = Kind(
    "container_cpi",
    "count",
    "cycles or instructions of a container in a window of --collect-cpi-timewindow",
    ContainerCpiKey,
    RetentionClass.POD,
    Cadence.CPI,
)


def _cold_page_size(subject: str, key: Callable[P, K]) -> Kind[P, K]:
    return Kind(
        f"{subject}_memory_cold_page_size",
        "bytes",
        "pages of files that were not used for 300 s",
        key,
        RetentionClass.POD,
        Cadence.COLD_PAGE,
    )


def _with_hot_page_usage(
    subject: str, key: Callable[P, K], retention_class: RetentionClass = RetentionClass.POD
) -> Kind[P, K]:
    return Kind(
        f"{subject}_memory_with_hot_page_usage",
        "bytes",
        "memory in use with page cache, less those pages",
        key,
        retention_class,
        Cadence.COLD_PAGE,
    )


NODE_MEMORY_COLD_PAGE_SIZE = _cold_page_size("node", no_key)
NODE_MEMORY_WITH_HOT_PAGE_USAGE = _with_hot_page_usage("node", no_key, RetentionClass.NODE)
POD_MEMORY_COLD_PAGE_SIZE = _cold_page_size("pod", PodKey)
POD_MEMORY_WITH_HOT_PAGE_USAGE = _with_hot_page_usage("pod", PodKey)
CONTAINER_MEMORY_COLD_PAGE_SIZE = _cold_page_size("container", ContainerKey)
CONTAINER_MEMORY_WITH_HOT_PAGE_USAGE = _with_hot_page_usage("container", ContainerKey)
HOST_APP_MEMORY_COLD_PAGE_SIZE = _cold_page_size("host_application", AppKey)
HOST_APP_MEMORY_WITH_HOT_PAGE_USAGE = _with_hot_page_usage("host_application", AppKey)
_CORE = "share of a GPU's cores in use"
NODE_GPU_CORE_USAGE = Kind("node_gpu_core_usage", "percent", f"{_CORE}, by all processes", GpuKey)
NODE_GPU_MEMORY_USAGE = Kind(
    "node_gpu_memory_usage", "bytes", "memory of a GPU in use by all processes", GpuKey
)
NODE_GPU_MEMORY_TOTAL = Kind(
    "node_gpu_memory_total", "bytes", "memory that a GPU has", GpuKey, RetentionClass.POD
)
POD_GPU_CORE_USAGE = Kind(
    "pod_gpu_core_usage", "percent", f"{_CORE}, by a pod", PodGpuKey, RetentionClass.POD
)
POD_GPU_MEMORY_USAGE = Kind(
    "pod_gpu_memory_usage",
    "bytes",
    "memory of a GPU in use by a pod",
    PodGpuKey,
    RetentionClass.POD,
)
CONTAINER_GPU_CORE_USAGE = Kind(
    "container_gpu_core_usage",
    "percent",
    f"{_CORE}, by a container",
    ContainerGpuKey,
    RetentionClass.POD,
)
CONTAINER_GPU_MEMORY_USAGE = Kind(
    "container_gpu_memory_usage",
    "bytes",
    "memory of a GPU in use by a container",
    ContainerGpuKey,
    RetentionClass.POD,
)
RESCTRL_LLC = Kind(
    "resctrl_resource_llc",
    "bytes",
    "what the pods of a QoS class have filled of an L3 cache",
    ResctrlKey,
    RetentionClass.POD,
    Cadence.RESCTRL,
)
RESCTRL_MB = Kind(
    "resctrl_resource_mb",
    "bytes",
    "what the pods of a QoS class have moved to and from memory since their group was made",
    ResctrlMbKey,
    RetentionClass.POD,
    Cadence.RESCTRL,
)
# Own kinds.
QOS_CPU_USAGE = Kind("qos_cpu_usage", "cores", "CPU that the pods of a QoS class use", QosKey)
QOS_MEMORY_USAGE = Kind(
    "qos_memory_usage",
    "bytes",
    "memory that the pods of a QoS class use, without page cache",
    QosKey,
)
NODE_PSI = Kind("node_psi", "percent", f"{_WAIT}, of the node", PsiKey, cadence=Cadence.PSI)
QOS_PSI = Kind(
    "qos_psi", "percent", f"{_WAIT}, of a QoS class", QosPsiKey, RetentionClass.POD, Cadence.PSI
)
NODE_NETWORK_RECEIVE = Kind(
    "node_network_receive",
    "bytes per second",
    "what a network interface receives",
    DeviceKey,
    cadence=Cadence.NETWORK,
)
NODE_NETWORK_TRANSMIT = Kind(
    "node_network_transmit",
    "bytes per second",
    "what a network interface sends",
    DeviceKey,
    cadence=Cadence.NETWORK,
)
POD_NETWORK_RECEIVE = Kind(
    "pod_network_receive",
    "bytes per second",
    "what a pod receives, beside its loopback",
    PodKey,
    RetentionClass.POD,
    Cadence.NETWORK,
)
POD_NETWORK_TRANSMIT = Kind(
    "pod_network_transmit",
    "bytes per second",
    "what a pod sends, beside its loopback",
    PodKey,
    RetentionClass.POD,
    Cadence.NETWORK,
)
NODE_TCP_RETRANSMITS = Kind(
    "node_tcp_retransmits",
    "segments per second",
    "TCP segments that the node sends again, those of pods with networks of their own not counted",
    no_key,
    RetentionClass.POD,
    Cadence.NETWORK,
)
POD_TCP_RETRANSMITS = Kind(
    "pod_tcp_retransmits",
    "segments per second",
    "TCP segments that a pod sends again, in its own network",
    PodKey,
    RetentionClass.POD,
    Cadence.NETWORK,
)

KINDS: dict[str, AnyKind] = {
    kind.name: kind for kind in list(globals().values()) if isinstance(kind, Kind)
}


class Sample(NamedTuple):
    """A value of one series; the time is that of the tick it belongs to.

    value is in kind.unit and finite; what could not be measured is not a sample.
    key holds one value per kind.properties, in that order.
    """

    kind: AnyKind
    value: float
    key: tuple[str, ...] = ()
