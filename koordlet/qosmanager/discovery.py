"""Finds the installed plugins: the entry points of the group koordlet.qos_plugins."""

from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points

from koord.component.features import FeatureSpec
from koord.util.logs import get_logger
from koordlet.plugin.base import ExtensionPlugin
from koordlet.plugin.errors import PluginError
from koordlet.plugin.registry import GROUP, SHIPPED, PluginRegistry

__all__ = ["GROUP", "SHIPPED", "discover", "source_of"]

log = get_logger("koordlet.qosmanager")


def discover(registry: PluginRegistry, found: Iterable[EntryPoint] | None = None) -> list[str]:
    """Register all installed plugins; return what went wrong beside that, one sentence each.

    An entry point that cannot be imported, or registers a name twice, does not keep others away.
    Its plugin is registered as one that could not be loaded, unless another one has its name.
    """
    problems = []
    for entry in sorted(entry_points(group=GROUP) if found is None else found, key=_order):
        try:
            _register(entry, registry)
        except (Exception, SystemExit) as err:  # a stranger's code is run here
            problem = str(err) if isinstance(err, PluginError) else f"{source_of(entry)}: {err!r}"
            log.error("plugin.refused", entry_point=entry.name, error=problem)  # noqa: TRY400 - the message says it all
            name = err.feature if isinstance(err, PluginError) and err.feature else entry.name
            if not _view(entry, registry).register_unloadable(name, problem):
                problems.append(problem)
    return problems


def source_of(entry: EntryPoint) -> str:
    """Name of an entry point with its distribution, for people."""
    where = f"{entry.name} = {entry.value}"
    return f"{where} ({entry.dist.name} {entry.dist.version})" if entry.dist else where


def _view(entry: EntryPoint, registry: PluginRegistry) -> PluginRegistry:
    return registry.from_source(source_of(entry), entry.dist.version if entry.dist else "")


def _register(entry: EntryPoint, registry: PluginRegistry) -> None:
    view = _view(entry, registry)
    loaded = entry.load()
    if isinstance(loaded, type) and issubclass(loaded, ExtensionPlugin):
        view.register_qos_ext_plugin(entry.name, _spec_of(loaded), loaded())
    elif callable(loaded) and not isinstance(loaded, type):
        loaded(view)
    else:
        raise PluginError(
            f"{source_of(entry)}: wanted an ExtensionPlugin class, or a function that registers "
            f"plugins, found {loaded!r}"
        )


def _spec_of(plugin: type[ExtensionPlugin]) -> FeatureSpec | None:
    if plugin.spec is None and plugin.gates:
        return None
    return plugin.spec or FeatureSpec()


def _order(entry: EntryPoint) -> tuple[bool, str, str]:
    distribution = entry.dist.name if entry.dist else ""
    return distribution != SHIPPED, distribution, entry.name
