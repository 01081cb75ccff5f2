"""Local storage of the node: disks, partitions, volume groups and mounts.

The metric cache has it while the gate BlkIOReconcile is on: `cache.get(NODE_LOCAL_STORAGE)` is a
LocalStorage, or None before the first look.
"""

from koordlet.collectors.node_storage import NODE_LOCAL_STORAGE
from koordlet.host.topology.storage import LocalStorage

__all__ = ["NODE_LOCAL_STORAGE", "LocalStorage"]
