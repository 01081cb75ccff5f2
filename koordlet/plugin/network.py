"""Traffic classes of network interfaces, and the settings of network QoS, as rules."""

from koordlet.host.net.tc.names import is_interface_name
from koordlet.host.net.tc.tree import (
    MAJOR,
    Address,
    Match,
    SocketMatch,
    TrafficClass,
    Tree,
    parse_tree,
)
from koordlet.host.terwayfiles import NODE_FILE, PODS_FILE
from koordlet.rules.networkqos import (
    ANNOTATION,
    BE,
    LEAST_RATE,
    LINK,
    LS,
    SYSTEM,
    ClassRates,
    PodLimits,
    classes,
    pod_limits,
)
from koordlet.rules.terwayqos import TerwayPod, node_file, pods_file

__all__ = [
    "ANNOTATION",
    "BE",
    "LEAST_RATE",
    "LINK",
    "LS",
    "MAJOR",
    "NODE_FILE",
    "PODS_FILE",
    "SYSTEM",
    "Address",
    "ClassRates",
    "Match",
    "PodLimits",
    "SocketMatch",
    "TerwayPod",
    "TrafficClass",
    "Tree",
    "classes",
    "is_interface_name",
    "node_file",
    "parse_tree",
    "pod_limits",
    "pods_file",
]
