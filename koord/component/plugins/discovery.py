"""Finds the installed plugins of a daemon: the entry points of its group."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, EntryPoint, entry_points
from typing import Any

from koord.component.plugins.execution import LOADING, time_limit
from koord.component.plugins.registry import PluginBlocked, PluginError, Registry
from koord.util.errors import error_text
from koord.util.logs import get_logger

log = get_logger("koord.plugins")


@dataclass(frozen=True, slots=True)
class InstalledPlugin:
    """An entry point, with its distribution."""

    entry: EntryPoint
    distribution: str = ""  # empty: unknown
    version: str = ""

    @property
    def source(self) -> str:
        """Name of the entry point with its distribution, for people."""
        where = f"{self.entry.name} = {self.entry.value}"
        return f"{where} ({self.distribution} {self.version})" if self.distribution else where


def installed_plugins(entries: Iterable[EntryPoint]) -> Iterator[InstalledPlugin]:
    """Yield entry points with their distributions, the metadata of each of which is read once."""
    name_and_version = cache(_name_and_version)
    for entry in entries:
        yield InstalledPlugin(entry, *name_and_version(entry.dist))


def _name_and_version(distribution: Distribution | None) -> tuple[str, str]:
    if distribution is None:
        return "", ""
    metadata = distribution.metadata  # parses the whole file each time
    return metadata["Name"], metadata["Version"]


def discover(
    registry: Registry[Any],
    found: Iterable[EntryPoint] | None = None,
    *,
    seconds: float = LOADING,
) -> list[str]:
    """Register all installed plugins; return the other problems, one sentence each.

    An entry point that cannot be imported, or is not done within so many seconds, does not keep
    others away; nor does a plugin that is rejected keep others of its entry point away. Each is
    registered as one that could not be loaded, unless another one has its name.
    """
    problems = []
    entries = entry_points(group=registry.group) if found is None else found
    for each in sorted(installed_plugins(entries), key=lambda each: _order(each, registry.shipped)):
        view = registry.from_source(each.source, each.version, each.distribution)
        view.refused = []
        refused: list[BaseException] = []
        try:
            with time_limit(seconds):
                _register(each, view)
            refused += view.refused or ()
        except (Exception, SystemExit, PluginBlocked) as err:  # third-party code
            refused += [*(view.refused or ()), err]
        for error in refused:
            text = error_text(error)
            problem = text if isinstance(error, PluginError) else f"{each.source}: {text}"
            log.error("plugin.rejected", entry_point=each.entry.name, error=problem)
            name = error.name if isinstance(error, PluginError) and error.name else each.entry.name
            if not view.register_unloadable(name, problem):
                problems.append(problem)
    return problems


def _register(found: InstalledPlugin, view: Registry[Any]) -> None:
    loaded = found.entry.load()
    if isinstance(loaded, type) and issubclass(loaded, view.base):
        view.register_class(found.entry.name, loaded)
    elif callable(loaded) and not isinstance(loaded, type):
        loaded(view)
    else:
        raise PluginError(
            f"{found.source}: wanted a class derived from {view.base.__name__}, or a function that "
            f"registers plugins, found {loaded!r}"
        )


def _order(found: InstalledPlugin, shipped: str) -> tuple[bool, str, str]:
    return found.distribution != shipped, found.distribution, found.entry.name
