"""Evicts pods while the node has too little memory for those that stay.

Three gates: BEMemoryEvict and MemoryEvict when the node uses too much, the first of best-effort
pods, the second of pods that offer themselves; MemoryAllocatableEvict when pods of lower tiers ask
for more than there is. Usage alone is not enough for the first victim: tasks must wait for memory
as well. Reads metrics, pressure, pods, the node and resourceUsedThresholdWithBE of the NodeSLO;
evicts.
"""

from koordlet.plugin import PluginRegistry
from koordlet_plugins.memory_evict.plugin import MemoryEvict

NAME = "MemoryEvict"


def register(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register_qos_ext_plugin(NAME, None, MemoryEvict())
