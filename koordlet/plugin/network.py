"""Traffic classes of network interfaces, and the settings of network QoS, as rules."""

from koordlet.host.net.netfiles import is_interface_name
from koordlet.host.net.tc.tree import (
    MAJOR,
    Address,
    AddressMatch,
    CgroupMatch,
    TrafficClass,
    TrafficTree,
    parse_tree,
)
from koordlet.host.terway_files import NODE_FILE, PODS_FILE
from koordlet.rules.network_qos import (
    ANNOTATION,
    BE,
    LINK,
    LS,
    MIN_RATE,
    SYSTEM,
    ClassRates,
    PodLimits,
    TerwayPod,
    classes,
    node_file,
    pod_limits,
    pods_file,
)

__all__ = [
    "ANNOTATION",
    "BE",
    "LINK",
    "LS",
    "MAJOR",
    "MIN_RATE",
    "NODE_FILE",
    "PODS_FILE",
    "SYSTEM",
    "Address",
    "AddressMatch",
    "CgroupMatch",
    "ClassRates",
    "PodLimits",
    "TerwayPod",
    "TrafficClass",
    "TrafficTree",
    "classes",
    "is_interface_name",
    "node_file",
    "parse_tree",
    "pod_limits",
    "pods_file",
]
