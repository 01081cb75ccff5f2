"""Network QoS: bandwidth of the node's interface by QoS class, and limits of single pods.

Claims what is at the root of the node's interface, and of the node's ends of pods' interfaces.
"""

from koordlet.plugin import PluginRegistry
from koordlet_plugins.net_qos.plugin import TCNetworkQoS


def register(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register_qos_ext_plugin("TCNetworkQoS", None, TCNetworkQoS())
