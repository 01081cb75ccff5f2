"""The registry of a daemon's plugins, and checks of their interfaces."""

import asyncio
import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Self, TypeVar

from koord.util.errors import KoordError


class PluginError(KoordError):
    """A plugin cannot be registered or does not have the shape of one.

    name is the one that it was to be registered under; empty: unknown, or no name.
    """

    def __init__(self, message: str, name: object = "") -> None:
        super().__init__(message)
        self.name = name if isinstance(name, str) else ""


class PluginBlocked(BaseException):
    """Raised inside a plugin that holds the main thread; no Exception, so most `except` miss it."""


_MISSING = object()


def interface_defects(thing: object, interface: type, names: Sequence[str] = ()) -> Iterator[str]:
    """Yield what is wrong with the methods of an object, or of a class, one sentence each.

    interface says which methods there are, which of them are coroutines, and what they get: an
    abstract class or a protocol. names: those that are looked at; by default all public ones.
    """
    for name in names or _methods(interface):
        wanted, found = vars(interface)[name], getattr(thing, name, _MISSING)
        inherited = getattr(found, "__func__", found) is wanted
        if not inherited or getattr(wanted, "__isabstractmethod__", False):
            yield from _method_defects(thing, name, wanted, found)


def interfaces(cls: type, base: type) -> tuple[type, ...]:
    """Return the interfaces of a daemon that a class has: those of the package of their base."""
    package = _package(base)
    return tuple(
        one
        for one in cls.__mro__
        if one is not base and issubclass(one, base) and _package(one) == package
    )


def class_defect(cls: type, base: type) -> str:
    """Return what is wrong with the class of a plugin; "": nothing is.

    base is that of all interfaces: it has no method that a plugin must have.
    """
    if not issubclass(cls, base):
        return (
            f"wanted a class derived from interfaces of {_public(base)}, found one that is derived "
            f"from none: class {cls.__name__}(…)"
        )
    found = interfaces(cls, base)
    if not found:
        return (
            f"wanted a class with an interface of {_public(base)}, such as FilterPlugin, found "
            f"{base.__name__} alone: nothing of it would ever be called"
        )
    for one in (*found, base):
        for defect in interface_defects(cls, one):
            return defect
    return ""


def is_coroutine_function(method: object) -> bool:
    """Whether calling this gives a coroutine, also where a decorator is around it."""
    around = inspect.unwrap(method) if callable(method) else method
    return any(map(_is_coroutine, (method, around)))


def _is_coroutine(method: object) -> bool:
    return inspect.iscoroutinefunction(method) or asyncio.iscoroutinefunction(method)


def _method_defects(thing: object, name: str, wanted: Any, found: Any) -> Iterator[str]:
    is_async = inspect.iscoroutinefunction(wanted)
    parameters = tuple(inspect.signature(wanted).parameters)
    head = f"{'async ' if is_async else ''}def {name}({', '.join(parameters)})"
    if found is _MISSING:
        yield f"wanted {head}, found none"
    elif getattr(found, "__isabstractmethod__", False):
        yield f"wanted {head}, found none: it is abstract still"
    elif not callable(found):
        yield f"wanted {head}, found {found!r:.80}"
    elif inspect.isasyncgenfunction(found):
        yield f"wanted {head}, found an async generator; take the yield out of {name}"
    elif is_async and not is_coroutine_function(found):
        yield f"wanted {head}, found a plain function; write async def"
    elif not is_async and _is_coroutine(found):
        yield f"wanted {head}, found async def; it is not awaited: write def"
    elif not _takes(thing, name, found, len(parameters) - 1):
        yield f"wanted {head}, found {name}{inspect.signature(found)}"


def _methods(interface: type) -> list[str]:
    return [
        name
        for name, value in vars(interface).items()
        if inspect.isfunction(value) and not name.startswith("_")
    ]


def _takes(thing: object, name: str, method: Callable[..., Any], count: int) -> bool:
    """Whether a method can be called with so many arguments, by position."""
    bound = not isinstance(thing, type) or isinstance(
        inspect.getattr_static(thing, name), staticmethod | classmethod
    )
    try:
        inspect.signature(method).bind(*range(count if bound else count + 1))
    except TypeError:
        return False
    except ValueError:  # written in C, without a signature: it is seen when it is called
        return True
    return True


def _package(cls: type) -> str:
    return cls.__module__.partition(".")[0]


def _public(base: type) -> str:
    return f"{_package(base)}.plugin"


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
        """Failures to register entry points; None: they are raised instead."""

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
