"""Checks whether what a third party brings has the methods of its interface."""

import asyncio
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_MISSING = object()


def defects(thing: object, interface: type, names: Sequence[str] = ()) -> Iterator[str]:
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
        for defect in defects(cls, one):
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
