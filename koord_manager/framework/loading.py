"""Makes the plugins that are switched on, and calls them within their time."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from koord.cluster.keptfields import KeptFields, reads, reads_of, union
from koord.component.flags import FeatureGates
from koord.component.plugins.args import ArgsType, args_type_of
from koord.component.plugins.execution import FailureLog, PluginCode, RepeatedTimeLimit
from koord.util.clock import Clock
from koord.util.errors import error_text
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.logs import get_logger
from koord_manager.framework.calculator import ORIGIN
from koord_manager.framework.facts import Calculation, NodeFacts
from koord_manager.framework.interfaces import (
    ControllerPlugin,
    Handle,
    NodeResourcePlugin,
    Plugin,
    PluginRegistry,
    PodMutator,
    Services,
)

STEP = 2.0  # seconds of real time that a plugin may hold the event loop
ALL = "*"
BANDWIDTH_ANNOTATION = "node.koordinator.sh/network-bandwidth"
STRATEGY_ANNOTATION = "node.koordinator.sh/colocation-strategy"

log = get_logger("koord_manager.plugins")


@reads(node_annotations={BANDWIDTH_ANNOTATION: 256, STRATEGY_ANNOTATION: 65_536, ORIGIN: 4096})
class _Own:
    """The fields of nodes that the daemon reads itself."""


def known_plugins(registry: PluginRegistry) -> Mapping[str, ArgsType | None]:
    """Return the registered plugins with the type of their arguments."""
    return {entry.name: args_type_of(entry.plugin) for entry in registry}


def selected(name: str, selection: Sequence[str]) -> bool:
    """Whether --noderesource-plugins selects a plugin: the first entry that matches decides.

    Source: Koordinator, noderesource/framework.
    """
    for entry in selection:
        if entry == name:
            return True
        if entry == f"-{name}":
            return False
    return ALL in selection


def enabled_plugins(
    registry: PluginRegistry, gates: FeatureGates, selection: Sequence[str]
) -> list[str]:
    """Return the names of the plugins that are switched on, in the order of registration."""
    return [
        entry.name
        for entry in registry
        if gates.enabled(entry.name) and selected(entry.name, selection)
    ]


def fields_read(registry: PluginRegistry, names: Iterable[str]) -> KeptFields:
    """Return what these plugins and the daemon read of pods and nodes."""
    entries = [registry.get(name) for name in names]
    return union([reads_of(_Own), *(reads_of(one.plugin) for one in entries if one is not None)])


@dataclass(frozen=True, slots=True)
class _Loaded:
    plugin: Plugin
    code: PluginCode


class Plugins:
    """The plugins that are made."""

    def __init__(
        self,
        registry: PluginRegistry,
        names: Iterable[str],
        args: Mapping[str, object],
        gates: FeatureGates,
        clock: Clock,
        failed: Callable[[str], None] = lambda plugin: None,
        services: Services | None = None,
    ) -> None:
        """A plugin that cannot be made is left out and named; the others work without it."""
        self.limits = RepeatedTimeLimit()
        """Entered around several calls of calculate: one alarm is set for all, not one for each."""
        self.broken: dict[str, str] = {}
        self.failing: dict[str, str] = {}  # the latest failure of each, until it works again
        self._failures = FailureLog(log, clock)
        self._count = failed
        self._loaded: dict[str, _Loaded] = {}
        for name in names:
            entry = registry.get(name)
            if entry is None:
                continue
            code = PluginCode(name, clock, step_seconds=STEP, limits=self.limits, accounted=False)
            handle = Handle(name=name, clock=clock, gates=gates, services=services)
            try:
                plugin = code.call(entry.plugin, args.get(name), handle)
            except Exception as err:  # a third party's code
                self._leave_out(name, error_text(err))
                continue
            if not isinstance(plugin, NodeResourcePlugin | ControllerPlugin):
                wanted, found = "a NodeResourcePlugin or ControllerPlugin", type(plugin).__name__
                self._leave_out(name, f"wanted {wanted}, found {found}")
                continue
            plugin.name = name
            self._loaded[name] = _Loaded(plugin, code)

    def _leave_out(self, name: str, error: str) -> None:
        self.broken[name] = error
        log.error("plugin.broken", plugin=name, error=error)

    @property
    def node_resource(self) -> list[NodeResourcePlugin]:
        """Those that say what nodes are to have."""
        found = (one.plugin for one in self._loaded.values())
        return [one for one in found if isinstance(one, NodeResourcePlugin)]

    @property
    def controllers(self) -> list[ControllerPlugin]:
        """Those that keep objects of the cluster."""
        found = (one.plugin for one in self._loaded.values())
        return [one for one in found if isinstance(one, ControllerPlugin)]

    def mutate_pod(self, pod: dict[str, Any], namespace: str) -> dict[str, Any]:
        """Return what the plugins make of a pod, each within its time. Raises what they raise."""
        for one in self._loaded.values():
            if isinstance(one.plugin, PodMutator):
                pod = one.code.call(one.plugin.mutate_pod, pod, namespace)
        return pod

    def calculate(
        self, plugin: NodeResourcePlugin, node: NodeFacts, earlier: Calculation
    ) -> Calculation:
        """Call a plugin within its time. Raises what it raises."""
        found = self._loaded[plugin.name].code.call(plugin.calculate, node, earlier)
        if not isinstance(found, Calculation):
            raise TypeError(f"wanted a Calculation, found {type(found).__name__}")
        if self.failing:
            self.failing.pop(plugin.name, None)
        return found

    def failed(self, plugin: str, node: str, error: Exception) -> None:
        """Record that a plugin has failed for a node."""
        self.failing[plugin] = self._failures.failed("plugin.failed", plugin, error, node=node)
        self._count(plugin)

    def health(self) -> PartHealth:
        """Degraded while a plugin is broken, or has failed when it was called last."""
        if not self.broken and not self.failing:
            return OK
        reasons = [f"{name}: {text}" for name, text in (self.broken | self.failing).items()]
        return PartHealth(HealthStatus.DEGRADED, "; ".join(reasons[:5]))

    async def close(self) -> None:
        """Let all plugins clean up."""
        for name, one in self._loaded.items():
            try:
                await one.plugin.close()
            except Exception as err:  # a third party's code
                self._failures.failed("plugin.close_failed", name, err)
