"""Keeps containers on the CPUs that the scheduler has given them, or on those that they share.

Reads the pods' annotation resource-status and the node's topology (CPUs that LS and BE pods share,
the kubelet's CPU manager, CPUs set aside for the system); claims the cpusets of containers and
sandboxes, and no CPU quota for pods that have CPUs of their own.
"""

from koordlet.plugin import PluginRegistry
from koordlet_plugins.cpuset_allocator.plugin import NAME, CPUSetAllocator


def register(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register_qos_ext_plugin(NAME, None, CPUSetAllocator())
