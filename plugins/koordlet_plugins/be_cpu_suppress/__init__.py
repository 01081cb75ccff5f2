"""Limits best-effort pods to the CPU that other pods leave: by CPU set, by quota, or by cpu.idle.

The strategy is the NodeSLO's resourceUsedThresholdWithBE. Each second a round measures the usage of
all others and adjusts the limit, as Koordinator does. In between, fast looks at a few CPU counters
reduce best-effort pods within tenths of a second (fast attack, slow release).
"""

from koordlet.plugin import PluginRegistry
from koordlet_plugins.be_cpu_suppress.plugin import GATE, BECPUSuppress


def register(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register_qos_ext_plugin(GATE, None, BECPUSuppress())
