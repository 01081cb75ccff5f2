"""Holds best-effort pods back to the CPU that the others leave: by CPU set, by quota, or as idle.

The strategy is the NodeSLO's resourceUsedThresholdWithBE. Each second a round measures what all
others use and adjusts the limit, as Koordinator does. In between, fast looks at a few CPU counters
make best-effort pods give way within tenths of a second (fast attack, slow release).
"""

from koordlet.plugin import PluginRegistry
from koordlet_plugins.be_cpu_suppress.plugin import GATE, BECPUSuppress


def register(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register_qos_ext_plugin(GATE, None, BECPUSuppress())
