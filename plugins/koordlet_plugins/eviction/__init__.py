"""Evicts pods while the node has too little CPU or memory for the others.

Two plugins with three gates each, one for best-effort pods, one for usage, one for requests.

CPUEvict: BECPUEvict when best-effort pods get too little of their CPU requests, CPUEvict when the
node uses too much, CPUAllocatableEvict when requests of lower tiers exceed the allocatable.

MemoryEvict: BEMemoryEvict and MemoryEvict when the node uses too much, the first for best-effort
pods, the second for pods with the eviction label; MemoryAllocatableEvict when requests of lower
tiers exceed the allocatable. Usage alone is not enough for the first victim: tasks must wait for
memory as well.

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
