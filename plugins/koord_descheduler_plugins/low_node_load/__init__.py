"""LowNodeLoad: moves pods from nodes that use much to nodes that use little, by their NodeMetrics.

A round is a pure computation that yields one move after the other and is given what became of it:
census (figures of nodes) -> limits -> plan of a pool -> moves -> decisions for people. The planner
`exact` reserves what really moves, `koordinator` does it as Koordinator. Only plugin acts.
"""

from koord_descheduler.plugin import PluginRegistry
from koord_descheduler_plugins.low_node_load.plugin import LowNodeLoad


def register(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register("LowNodeLoad", LowNodeLoad)
