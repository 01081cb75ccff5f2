"""What plugins may use of the daemon, and the registry that they are in."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from koord.component.features import FeatureGates
from koord.component.plugins.registry import FactoryRegistry
from koord.util.clock import Clock
from koord_manager.framework.interfaces import Plugin


@dataclass(frozen=True, kw_only=True, slots=True)
class Handle:
    """What a plugin may use."""

    name: str  # of the plugin
    clock: Clock
    gates: FeatureGates


PluginFactory = Callable[[Any, Handle], Plugin]
"""Makes a plugin from its args (None: the configuration has none) and its handle."""


class PluginRegistry(FactoryRegistry[PluginFactory]):
    """Factories in the order of registration."""

    group = "koord_manager.plugins"
    shipped = "koordlet"
    base = Plugin
