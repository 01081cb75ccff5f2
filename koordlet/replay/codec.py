"""Frozen dataclasses as JSON and back, by the types of their fields."""

import dataclasses
import types
import typing
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any

from koord.util.errors import InvalidObject


def encode(value: Any) -> Any:
    """Return a value as JSON: dataclasses and mappings are objects, sets are sorted lists."""
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: encode(getattr(value, name)) for name in _fields(type(value))}
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(encode, value))
    if isinstance(value, tuple | list):
        return list(map(encode, value))
    return value


def decode(wanted: Any, value: Any, where: str) -> Any:
    """Return what encode was given, a value of the wanted type. Unknown fields are left out,
    and those that it lacks have their defaults: it may be of another version.

    Raises:
        InvalidObject: it does not have that shape; where is its place in the file.
    """
    try:
        return _decode(wanted, value)
    except (TypeError, ValueError, KeyError, AttributeError) as err:
        raise InvalidObject(where, wanted=str(wanted), found=f"{err!r}") from err


def _decode(wanted: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        [wanted] = (each for each in arguments if each is not type(None))
        return _decode(wanted, value)
    if dataclasses.is_dataclass(wanted) and isinstance(wanted, type):
        fields = _fields(wanted)
        return wanted(
            **{name: _decode(fields[name], value[name]) for name in fields if name in value}
        )
    if origin is not None and issubclass(origin, Mapping):
        of_key, of_item = arguments
        return {_decode_key(of_key, key): _decode(of_item, item) for key, item in value.items()}
    if origin is tuple:
        return tuple(_decode(arguments[0], item) for item in value)
    if origin is frozenset:
        return frozenset(_decode(arguments[0], item) for item in value)
    return _scalar(wanted, value)


def _decode_key(wanted: Any, key: str) -> Any:
    return int(key) if wanted is int else _scalar(wanted, key)


def _scalar(wanted: Any, value: Any) -> Any:
    if wanted in (Any, object):
        return value
    if issubclass(wanted, Enum):
        return wanted(value)
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, wanted):
        raise TypeError(f"wanted {wanted.__name__}, found {value!r:.60}")
    return value


@cache
def _fields(kind: type) -> dict[str, Any]:
    """The types of the fields that its constructor takes, by name."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}
