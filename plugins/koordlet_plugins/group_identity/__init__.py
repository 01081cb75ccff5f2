"""Sets the group identity of pods, by which Anolis and Alibaba Cloud kernels favour LS pods.

Reads the CPU QoS of the classes in the NodeSLO and of LS pods in their annotation; claims
cpu.bvt_warp_ns, from 2 (latency sensitive) to -1 (best effort), of QoS classes, pods and
containers. Other kernels have no such value: there the plugin logs this once and is idle.
"""

from koordlet.plugin import PluginRegistry
from koordlet_plugins.group_identity.plugin import NAME, GroupIdentity


def register(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register_qos_ext_plugin(NAME, None, GroupIdentity())
