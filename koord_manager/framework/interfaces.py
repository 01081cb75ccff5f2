"""Interfaces of plugins, what they may use of the daemon, and the registry that they are in."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from koord.component.features import FeatureGates
from koord.component.plugins.registry import FactoryRegistry
from koord.util.clock import Clock
from koord_manager.framework.facts import Calculation, NodeFacts


class Plugin:
    """A plugin, made once by its factory. Everything runs on the daemon's event loop."""

    name: str
    """The name that it was registered under, which is its feature gate too; set by the framework"""

    async def close(self) -> None:
        """Clean up, at the end. By default there is nothing to do."""


class NodeResourcePlugin(Plugin, ABC):
    """Says what resources, annotations and labels nodes are to have."""

    order: ClassVar[int] = 100
    """Plugins of a lower order come first; of two that say something of one name the later wins."""

    @abstractmethod
    def calculate(self, node: NodeFacts, earlier: Calculation) -> Calculation:
        """Return what a node is to have. earlier is what the plugins before this one have said.

        Called at each change of the node: it must only compute. When it raises, the node keeps what
        it has of this plugin.
        """


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
