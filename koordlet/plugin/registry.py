"""The QoS plugins of a node agent, the gates that enable each, and the check of their shape."""

from collections.abc import Iterator
from dataclasses import dataclass

from koord.component.flags import FeatureSpec
from koord.component.plugins.registry import (
    Origin,
    PluginError,
    Registered,
    Registry,
    interface_defects,
)
from koord.util.text import snake_case
from koordlet.executor.claims import table
from koordlet.executor.claims.claim import ClaimScope
from koordlet.host.kernelfile import KernelFile
from koordlet.plugin import publishing
from koordlet.plugin.base import ExtensionPlugin, Limits

_METHODS = ("init_flags", "setup", "run", "stop")
MAX_OWN_FILES = 16  # that a plugin declares
_GATES = ("gates", "modes", "needs")


def defect_of(feature: object, spec: object, plugin: object) -> str:
    """Return what is wrong with a plugin: wanted, found and what to do; "" for nothing."""
    if not isinstance(plugin, ExtensionPlugin):
        return (
            f"wanted an instance of ExtensionPlugin, found {plugin!r}; "
            "derive its class from koordlet.plugin.ExtensionPlugin"
        )
    return next(_defects(feature, spec, plugin), "")


def _defects(feature: object, spec: object, plugin: ExtensionPlugin) -> Iterator[str]:
    if not isinstance(feature, str) or not feature or set(feature) & set("=, "):
        yield f"wanted a name without blanks, commas and =, found {feature!r}"
    for wanted in (spec, plugin.spec):
        if wanted is not None and not isinstance(wanted, FeatureSpec):
            yield f"wanted a FeatureSpec or None as spec, found {wanted!r}"
    yield from interface_defects(plugin, ExtensionPlugin, _METHODS)
    for name in _GATES:
        value = getattr(plugin, name)
        if not isinstance(value, tuple) or not all(isinstance(gate, str) for gate in value):
            hint = f"write {name} = ({value!r},)" if isinstance(value, str) else "write a tuple"
            yield f"wanted a tuple of gate names in {name}, found {value!r}; {hint}"
    yield from _limits_defects(plugin.limits)
    yield from _claim_defects(plugin.may_claim)
    if defect := publishing.defect_of(plugin.publishes, snake_case(str(feature))):
        yield defect


def _limits_defects(limits: object) -> Iterator[str]:
    if not isinstance(limits, Limits):
        yield f"wanted Limits in limits, found {limits!r}; write limits = Limits(round=60.0)"


def _claim_defects(may_claim: object) -> Iterator[str]:
    """Yield what is wrong with may_claim; each resource in it is a series of /metrics."""
    if not isinstance(may_claim, tuple):
        hint = "write may_claim = (ClaimScope(…),)"
        yield f"wanted a tuple in may_claim, found {may_claim!r}; {hint}"
        return
    own = {may.resource for may in may_claim if isinstance(getattr(may, "resource", 0), KernelFile)}
    if len(own) > MAX_OWN_FILES:
        yield f"wanted at most {MAX_OWN_FILES} kernel files of its own, found {len(own)}"
    for may in may_claim:
        if not isinstance(may, ClaimScope):
            yield f"wanted ClaimScope(…) in may_claim, found {may!r}"
        elif defect := table.scope_defect(may):
            yield f"may_claim: {defect}"


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
                a plugin: see koordlet.plugin.registry.
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
