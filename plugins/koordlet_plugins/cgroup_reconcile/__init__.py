"""Memory QoS: protects, throttles and reclaims memory of pods by NodeSLO and annotations.

Writes memory.min, low and high, and on Anolis kernels watermarks, OOM priorities and page cache
limits, for pods, containers and the cgroups of their Kubernetes QoS classes.
"""

from koordlet.plugin import PluginRegistry
from koordlet_plugins.cgroup_reconcile.plugin import CgroupReconcile


def register(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register_qos_ext_plugin("CgroupReconcile", None, CgroupReconcile())
