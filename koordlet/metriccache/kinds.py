"""The metric kinds: what is measured, in which unit, per what, and how long it is kept."""

from dataclasses import dataclass
from enum import Enum


class Cadence(Enum):
    """How often a kind gets a sample, or a collector works; the daemon maps each to seconds."""

    USAGE = "usage"  # --collect-res-used-interval
    PSI = "psi"  # --psi-collector-interval
    NETWORK = "network"  # --network-collector-interval
    NODE_INFO = "node info"  # --collect-node-cpu-info-interval; no kinds: topology, not usage
    STORAGE = "storage"  # --collect-node-storage-info-interval; no kinds either


class Keep(Enum):
    """Which reader needs a kind longest; the daemon maps each to seconds."""

    NODE = "node"  # the percentile windows of the NodeMetric report (30 minutes)
    POD = "pod"  # the aggregate duration of the report (5 minutes)


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of series. A series is a kind plus one value per property, in this order.

    Source: Koordinator pkg/koordlet/metriccache; kinds marked "own" have no counterpart there.
    """

    name: str
    unit: str
    properties: tuple[str, ...] = ()
    keep: Keep = Keep.NODE
    cadence: Cadence = Cadence.USAGE


_POD = ("pod_uid",)
_CONTAINER = ("container_id",)
_NUMA = ("numa_node_id",)
_APP = ("host_app_name",)
_PSI = ("psi_resource", "psi_precision", "psi_degree")

NODE_CPU_USAGE = Kind("node_cpu_usage", "cores")
NODE_MEMORY_USAGE = Kind("node_memory_usage", "bytes")
NODE_MEMORY_USAGE_WITH_PAGE_CACHE = Kind("node_memory_usage_with_page_cache", "bytes")
NODE_NUMA_CPU_USAGE = Kind("node_numa_cpu_usage", "cores", _NUMA, Keep.POD)
NODE_NUMA_MEMORY_USAGE = Kind("node_numa_memory_usage", "bytes", _NUMA, Keep.POD)
SYS_CPU_USAGE = Kind("sys_cpu_usage", "cores")
SYS_MEMORY_USAGE = Kind("sys_memory_usage", "bytes")
SYS_NUMA_CPU_USAGE = Kind("sys_numa_cpu_usage", "cores", _NUMA, Keep.POD)
SYS_NUMA_MEMORY_USAGE = Kind("sys_numa_memory_usage", "bytes", _NUMA, Keep.POD)
NODE_BE = Kind("node_be", "milli-cores", ("be_resource", "be_allocation"), Keep.POD)
POD_CPU_USAGE = Kind("pod_cpu_usage", "cores", _POD, Keep.POD)
POD_MEMORY_USAGE = Kind("pod_memory_usage", "bytes", _POD, Keep.POD)
POD_MEMORY_USAGE_WITH_PAGE_CACHE = Kind("pod_memory_usage_with_page_cache", "bytes", _POD, Keep.POD)
POD_CPU_THROTTLED = Kind("pod_cpu_throttled", "ratio", _POD, Keep.POD)
CONTAINER_CPU_USAGE = Kind("container_cpu_usage", "cores", _CONTAINER, Keep.POD)
CONTAINER_MEMORY_USAGE = Kind("container_memory_usage", "bytes", _CONTAINER, Keep.POD)
CONTAINER_MEMORY_USAGE_WITH_PAGE_CACHE = Kind(
    "container_memory_usage_with_page_cache", "bytes", _CONTAINER, Keep.POD
)
CONTAINER_CPU_THROTTLED = Kind("container_cpu_throttled", "ratio", _CONTAINER, Keep.POD)
HOST_APP_CPU_USAGE = Kind("host_application_cpu_usage", "cores", _APP, Keep.POD)
HOST_APP_MEMORY_USAGE = Kind("host_application_memory_usage", "bytes", _APP, Keep.POD)
HOST_APP_MEMORY_USAGE_WITH_PAGE_CACHE = Kind(
    "host_application_memory_usage_with_page_cache", "bytes", _APP, Keep.POD
)
POD_PSI = Kind("pod_psi", "percent", ("pod_uid", *_PSI), Keep.POD, Cadence.PSI)
POD_PSI_CPU_FULL_SUPPORTED = Kind(
    "pod_psi_cpu_full_supported", "0 or 1", _POD, Keep.POD, Cadence.PSI
)
CONTAINER_PSI = Kind(
    "container_psi", "percent", ("pod_uid", "container_id", *_PSI), Keep.POD, Cadence.PSI
)
CONTAINER_PSI_CPU_FULL_SUPPORTED = Kind(
    "container_psi_cpu_full_supported", "0 or 1", ("pod_uid", "container_id"), Keep.POD, Cadence.PSI
)
# Own kinds.
QOS_CPU_USAGE = Kind("qos_cpu_usage", "cores", ("qos_class",), Keep.POD)
QOS_MEMORY_USAGE = Kind("qos_memory_usage", "bytes", ("qos_class",), Keep.POD)
NODE_PSI = Kind("node_psi", "percent", _PSI, Keep.POD, Cadence.PSI)
QOS_PSI = Kind("qos_psi", "percent", ("qos_class", *_PSI), Keep.POD, Cadence.PSI)
NODE_NETWORK_RECEIVE = Kind(
    "node_network_receive", "bytes per second", ("device",), Keep.POD, Cadence.NETWORK
)
NODE_NETWORK_TRANSMIT = Kind(
    "node_network_transmit", "bytes per second", ("device",), Keep.POD, Cadence.NETWORK
)
POD_NETWORK_RECEIVE = Kind(
    "pod_network_receive", "bytes per second", _POD, Keep.POD, Cadence.NETWORK
)
POD_NETWORK_TRANSMIT = Kind(
    "pod_network_transmit", "bytes per second", _POD, Keep.POD, Cadence.NETWORK
)

KINDS: dict[str, Kind] = {
    kind.name: kind for kind in list(globals().values()) if isinstance(kind, Kind)
}
