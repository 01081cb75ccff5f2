"""Evicts pods while the node has too little CPU or memory for those that stay.

Two plugins with three gates each, one for best-effort pods, one for usage, one for requests.

CPUEvict: BECPUEvict when best-effort pods get too little of what they asked for, CPUEvict when the
node uses too much, CPUAllocatableEvict when pods of lower tiers ask for more than there is.

MemoryEvict: BEMemoryEvict and MemoryEvict when the node uses too much, the first of best-effort
pods, the second of pods that offer themselves; MemoryAllocatableEvict when pods of lower tiers ask
for more than there is. Usage alone is not enough for the first victim: tasks must wait for memory
as well.

Both read metrics, pods, the node and resourceUsedThresholdWithBE of the NodeSLO; memory also
pressure. Both evict one victim after the other.
"""

from koordlet.plugin import PluginRegistry
from koordlet_plugins.eviction.cpu import CPUEvict
from koordlet_plugins.eviction.memory import MemoryEvict


def register_cpu_evict(registry: PluginRegistry) -> None:
    """Entry point of CPUEvict."""
    registry.register_qos_ext_plugin("CPUEvict", None, CPUEvict())


def register_memory_evict(registry: PluginRegistry) -> None:
    """Entry point of MemoryEvict."""
    registry.register_qos_ext_plugin("MemoryEvict", None, MemoryEvict())
