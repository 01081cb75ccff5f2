"""Finds, supervises and ends the QoS plugins."""

from koordlet.qosmanager.config import QOSExtensionConfig
from koordlet.qosmanager.manager import PluginReport, QOSManager, setup_plugins, start_plugins

__all__ = [
    "PluginReport",
    "QOSExtensionConfig",
    "QOSManager",
    "setup_plugins",
    "start_plugins",
]
