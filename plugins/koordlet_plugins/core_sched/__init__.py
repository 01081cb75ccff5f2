"""Core scheduling: pods of different groups never share the hyper-threads of a core.

Reads the CPU QoS of the classes in the NodeSLO, labels of pods and the processes in their
containers; claims the core scheduling cookie of each process, one for each group, and cpu.idle of
QoS classes. Kernels without core scheduling have no cookies: there the plugin logs this once.
"""

from koordlet.plugin import PluginRegistry
from koordlet_plugins.core_sched.plugin import NAME, CoreSched


def register(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register_qos_ext_plugin(NAME, None, CoreSched())
