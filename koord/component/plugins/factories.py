"""A registry of factories: functions and classes that make a plugin from its args and a handle."""

import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

from koord.component.plugins.errors import PluginError
from koord.component.plugins.registry import Origin, Registered, Registry
from koord.component.plugins.shape import class_defect

F = TypeVar("F", bound=Callable[[Any, Any], Any])

_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


class FactoryRegistry(Registry[Registered[F]]):
    """Factories in the order of registration; each daemon derives its own."""

    def register(self, name: str, factory: F) -> None:
        """Add a factory under the name by which profiles enable its plugins.

        Raises:
            PluginError: the name is taken (the first one stays) or cannot be one, or this cannot
                be called with args and handle, or is a class that does not have the methods of its
                interfaces as they have them. While entry points are registered it is noted instead.
        """
        self._add(Registered(name, factory, self.origin()), _defect(name, factory, self.base))

    def unregister(self, name: str) -> None:
        """Take a plugin out.

        Raises:
            PluginError: there is none of that name.
        """
        if name not in self._entries:
            raise PluginError(
                f"no plugin named {name!r} exists; registered are: {self._names() or 'none'}", name
            )
        del self._entries[name]

    def merge(self, other: "FactoryRegistry[F]") -> None:
        """Add all plugins of another registry, or none.

        Raises:
            PluginError: names that are taken, with both sources of each.
        """
        taken = [entry for entry in other if entry.name in self._entries]
        if taken:
            names = ", ".join(
                f"{each.name} from {each.source}, registered by {self._entries[each.name].source}"
                for each in taken
            )
            raise PluginError(
                f"merging plugins: wanted free names, found {names}; rename or uninstall one of "
                "each two",
                taken[0].name,
            )
        self._entries.update({entry.name: entry for entry in other})

    def register_class(self, name: str, plugin: Any) -> None:
        """Register a class whose constructor takes args and handle."""
        self.register(name, plugin)

    def unloadable(self, name: str, origin: Origin, error: str) -> Registered[Any]:
        """Return a registration that no profile can be built with."""

        def refuse(args: Any, handle: Any) -> Any:
            raise PluginError(f"plugin {name} from {origin.source}: {error}", name)

        return Registered(name, refuse, origin, error)

    def _names(self) -> str:
        return ", ".join(sorted(self._entries))


def _defect(name: object, factory: object, base: type) -> str:
    """Return why this cannot be registered; empty: it can."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return "wanted a name of letters, digits, '-', '_' and '.', at most 63"
    if not callable(factory):
        return f"wanted a factory(args, handle), found {factory!r:.80}"
    if isinstance(factory, type) and (wrong := class_defect(factory, base)):
        return wrong
    try:
        inspect.signature(factory).bind(None, None)
    except TypeError as err:
        return f"wanted a factory(args, handle), found one that does not take these: {err}"
    except ValueError:  # written in C, without a signature: it is seen when it is called
        return ""
    return ""
