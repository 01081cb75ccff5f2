"""Traffic classes of network interfaces, and the names of terway-qos's files."""

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
from koordlet.host.objects import NODE_FILE, PODS_FILE

__all__ = [
    "MAJOR",
    "NODE_FILE",
    "PODS_FILE",
    "Address",
    "AddressMatch",
    "CgroupMatch",
    "TrafficClass",
    "TrafficTree",
    "is_interface_name",
    "parse_tree",
]
