"""The QoS plugins of a node agent, and the gates that enable each."""

from dataclasses import dataclass

from koord.component.features import FeatureSpec
from koord.component.plugins.errors import PluginError
from koord.component.plugins.registry import Origin, Registered, Registry
from koordlet.plugin.base import ExtensionPlugin
from koordlet.plugin.shape import defect_of


class UnloadablePlugin(ExtensionPlugin):
    """Stands for a plugin that is installed and cannot be loaded; never set up, never run."""

    def setup(self, *_: object) -> None:
        raise PluginError(f"plugin {self.name}: wanted one that could be loaded")

    async def run(self, stop: object) -> None:
        raise PluginError(f"plugin {self.name}: wanted one that could be loaded")


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration(Registered[ExtensionPlugin]):
    """One plugin. spec None: it is enabled by gates that the agent already has."""

    spec: FeatureSpec | None

    @property
    def gates(self) -> tuple[str, ...]:
        """The gates that enable it, any of them."""
        own = (self.name,) if self.spec is not None or not self.plugin.gates else ()
        return tuple(dict.fromkeys((*own, *self.plugin.gates)))


class PluginRegistry(Registry[Registration]):
    """The plugins of one agent, in the order of registration."""

    group = "koordlet.qos_plugins"
    shipped = "koordlet"
    base = ExtensionPlugin

    def register_qos_ext_plugin(
        self, feature: str, spec: FeatureSpec | None, plugin: ExtensionPlugin
    ) -> None:
        """Add a plugin under a feature name, which becomes a gate when spec is given.

        Raises:
            PluginError: the name is taken (the first plugin stays), or this has not the shape of
                a plugin: see koordlet.plugin.shape.
        """
        found = Registration(feature, plugin, self.origin(), spec=spec)
        if self._add(found, defect_of(feature, spec, plugin)):
            plugin.name = feature

    def register_class(self, name: str, plugin: type[ExtensionPlugin]) -> None:
        """Register a class under a gate of its own, unless it names gates and no spec."""
        has_gate = plugin.spec is not None or not plugin.gates
        spec = (plugin.spec or FeatureSpec()) if has_gate else None
        self.register_qos_ext_plugin(name, spec, plugin())

    def unloadable(self, name: str, origin: Origin, error: str) -> Registration:
        """Return a registration with an alpha gate."""
        plugin = UnloadablePlugin()
        plugin.name = name
        return Registration(name, plugin, origin, error, spec=FeatureSpec())
