"""Gives throttled latency-sensitive containers more CPU for a while, in two ways.

A burst budget lets a container save up the unused part of its limit. Beyond that, the CPU quota of
a throttled container grows while the CPUs that such pods share are idle, and goes back to the limit
when they are not.
"""

from koordlet.plugin import PluginRegistry
from koordlet_plugins.cpu_burst.plugin import CPUBurst


def register(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register_qos_ext_plugin("CPUBurst", None, CPUBurst())
