"""Which plugins there are, under which name, and where each came from."""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass

from koord.component.features import FeatureSpec
from koordlet.plugin.base import ExtensionPlugin
from koordlet.plugin.errors import PluginError
from koordlet.plugin.shape import defect_of

GROUP = "koordlet.qos_plugins"  # of entry points
SHIPPED = "koordlet"  # the distribution whose plugins come first, so that nobody takes their names


class UnloadablePlugin(ExtensionPlugin):
    """Stands for a plugin that is installed and cannot be loaded; never set up, never run."""

    def setup(self, *_: object) -> None:
        raise PluginError(f"plugin {self.name}: wanted one that could be loaded")

    async def run(self, stop: object) -> None:
        raise PluginError(f"plugin {self.name}: wanted one that could be loaded")


@dataclass(frozen=True, slots=True)
class Registration:
    """One plugin. spec None: it is enabled by gates that the agent already has."""

    feature: str
    spec: FeatureSpec | None
    plugin: ExtensionPlugin
    source: str  # for people: entry point and distribution, or file and line
    version: str = ""  # of the distribution; empty: unknown
    error: str = ""  # why it could not be loaded; empty: it could

    @property
    def gates(self) -> tuple[str, ...]:
        """The gates that enable it, any of them."""
        own = (self.feature,) if self.spec is not None or not self.plugin.gates else ()
        return tuple(dict.fromkeys((*own, *self.plugin.gates)))


class PluginRegistry:
    """The plugins of one daemon, in the order of registration."""

    def __init__(self) -> None:
        self._entries: dict[str, Registration] = {}
        self._source = ""
        self._version = ""

    def register_qos_ext_plugin(
        self, feature: str, spec: FeatureSpec | None, plugin: ExtensionPlugin
    ) -> None:
        """Add a plugin under a feature name, which becomes a gate when spec is given.

        Raises:
            PluginError: the name is taken (the first plugin stays), or this has not the shape of
                a plugin: see koordlet.plugin.shape.
        """
        source = self._source or _caller()
        if not isinstance(plugin, ExtensionPlugin):
            raise PluginError(
                f"plugin {feature} from {source}: wanted an instance of ExtensionPlugin, "
                f"found {plugin!r}; derive its class from koordlet.plugin.ExtensionPlugin",
                feature,
            )
        if defect := defect_of(feature, spec, plugin):
            raise PluginError(f"plugin {feature} from {source}: {defect}", feature)
        first = self._entries.get(feature)
        if first is not None:
            raise PluginError(
                f"plugin {feature} from {source}: wanted a free name, found it registered by "
                f"{first.source}, which stays; rename or uninstall one of the two",
                feature,
            )
        plugin.name = feature
        self._entries[feature] = Registration(feature, spec, plugin, source, self._version)

    def register_unloadable(self, feature: str, error: str) -> bool:
        """Keep the name of a plugin that could not be loaded, so that its gate is known.

        Returns False when another plugin has the name.
        """
        if feature in self._entries:
            return False
        plugin = UnloadablePlugin()
        plugin.name = feature
        self._entries[feature] = Registration(
            feature, FeatureSpec(), plugin, self._source or _caller(), self._version, error
        )
        return True

    def from_source(self, source: str, version: str = "") -> "PluginRegistry":
        """The same registry for one distribution: what it registers carries name and version."""
        view = PluginRegistry()
        view._entries, view._source, view._version = self._entries, source, version
        return view

    def get(self, feature: str) -> Registration | None:
        return self._entries.get(feature)

    def __iter__(self) -> Iterator[Registration]:
        return iter(tuple(self._entries.values()))

    def __len__(self) -> int:
        return len(self._entries)


def _caller() -> str:
    """File and line that called register_qos_ext_plugin."""
    frame = inspect.currentframe()
    for _ in range(2):
        frame = frame.f_back if frame is not None else None
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "unknown"
