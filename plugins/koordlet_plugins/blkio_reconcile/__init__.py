"""Block I/O QoS: throttles and weighs the I/O of best-effort pods and of single pods by device.

Writes blkio.throttle.* and the weights of cgroup v1, io.max, io.latency and the weights of v2, and
the settings of iocost in the root cgroup.
"""

from koordlet.plugin import PluginRegistry
from koordlet_plugins.blkio_reconcile.plugin import BlkIOReconcile


def register(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register_qos_ext_plugin("BlkIOReconcile", None, BlkIOReconcile())
