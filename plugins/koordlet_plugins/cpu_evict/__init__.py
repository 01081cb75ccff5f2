"""Evicts pods while the node has too little CPU for those that stay.

Three gates: BECPUEvict when best-effort pods get too little of what they asked for, CPUEvict when
the node uses too much, CPUAllocatableEvict when pods of lower tiers ask for more than there is.
Reads metrics, pods, the node and resourceUsedThresholdWithBE of the NodeSLO; evicts.
"""

from koordlet.plugin import PluginRegistry
from koordlet_plugins.cpu_evict.plugin import CPUEvict

NAME = "CPUEvict"


def register(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register_qos_ext_plugin(NAME, None, CPUEvict())
