"""Cache and memory bandwidth by control groups of resctrl: of QoS classes, and of single pods.

Makes groups in /sys/fs/resctrl, sets their schemata, and moves the processes of containers there.
"""

from koordlet.plugin import PluginRegistry
from koordlet_plugins.resctrl.plugins import RdtResctrl, Resctrl


def register_classes(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register_qos_ext_plugin("RdtResctrl", None, RdtResctrl())


def register_pods(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register_qos_ext_plugin("Resctrl", None, Resctrl())
