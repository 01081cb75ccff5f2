"""The plugins of one daemon, by name, each with its origin."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Self, TypeVar

from koord.component.plugins.errors import PluginError

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of a plugin."""

    source: str  # for people: entry point and distribution, or file and line
    version: str = ""  # of the distribution; empty: unknown
    distribution: str = ""  # its name; empty: unknown


@dataclass(frozen=True, slots=True)
class Registered(Generic[P]):
    """One plugin: an object, a class or a factory, as the daemon has its plugins."""

    name: str
    plugin: P
    origin: Origin
    error: str = ""  # why it could not be loaded; empty: it could

    @property
    def source(self) -> str:
        """Origin for people."""
        return self.origin.source

    @property
    def version(self) -> str:
        """Version of its distribution; empty: unknown."""
        return self.origin.version


R = TypeVar("R", bound=Registered[Any])


class Registry(ABC, Generic[R]):
    """The plugins of one daemon, in the order of registration; each daemon derives its own.

    The daemon's class adds the method that plugins register themselves with, which ends in _add,
    and says what an entry point's class, and one that cannot be loaded, are registered as.
    """

    group: ClassVar[str]
    """The group of the entry points."""
    shipped: ClassVar[str]
    """The distribution whose plugins come first, so that no other one takes their names."""
    base: ClassVar[type]
    """The class that an entry point's class is derived from."""

    def __init__(self) -> None:
        self._entries: dict[str, R] = {}
        self._origin: Origin | None = None
        self.refused: list[PluginError] | None = None
        """What could not be registered, while entry points are; None: it is raised instead."""

    @abstractmethod
    def register_class(self, name: str, plugin: type[Any]) -> None:
        """Register a class derived from base under the name of its entry point.

        Raises:
            Exception: anything; the plugin is then one that could not be loaded.
        """

    @abstractmethod
    def unloadable(self, name: str, origin: Origin, error: str) -> R:
        """Return the registration of a plugin that could not be loaded."""

    def register_unloadable(self, name: str, error: str) -> bool:
        """Keep the name of a plugin that could not be loaded, so that it is known.

        Returns False when another plugin has the name.
        """
        if name in self._entries:
            return False
        self._entries[name] = self.unloadable(name, self.origin(), error)
        return True

    def from_source(self, source: str, version: str = "", distribution: str = "") -> Self:
        """The same registry for one distribution: what it registers carries this origin."""
        view = type(self)()
        view._entries, view._origin = self._entries, Origin(source, version, distribution)
        return view

    def origin(self) -> Origin:
        """Origin of what is being registered; by hand it is the line that calls this registry."""
        return self._origin or Origin(self._caller())

    def get(self, name: str) -> R | None:
        """Return the registration of that name; None: there is none."""
        return self._entries.get(name)

    def __iter__(self) -> Iterator[R]:
        return iter(tuple(self._entries.values()))

    def __len__(self) -> int:
        return len(self._entries)

    def _add(self, registration: R, defect: str = "") -> bool:
        """Add a plugin, unless it has a defect; return whether it was added.

        Raises:
            PluginError: it has one, or the name is taken; the first plugin stays. With refused it
                is noted there.
        """
        name, source = registration.name, registration.source
        first = self._entries.get(name) if not defect else None
        if first is not None:
            defect = (
                f"wanted a free name, found it registered by {first.source}, which stays; rename "
                "or uninstall one of the two"
            )
        if not defect:
            self._entries[name] = registration
            return True
        error = PluginError(f"plugin {name} from {source}: {defect}", name)
        if self.refused is None:
            raise error
        self.refused.append(error)
        return False

    def _caller(self) -> str:
        """File and line of the first frame that is none of this registry's methods."""
        frame = inspect.currentframe()
        while frame is not None and frame.f_locals.get("self") is self:
            frame = frame.f_back
        return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "unknown"
