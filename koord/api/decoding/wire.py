"""Dataclasses as JSON objects: each field states its key once, its type gives the shape."""

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from koord.api.decoding import jsonvalues
from koord.api.decoding.jsonrules import ListOf, MapOf, Member, Struct
from koord.api.decoding.jsonvalues import Limit, Shape
from koord.api.quantity import Quantity

T = TypeVar("T")

_SCALARS: Mapping[object, Shape] = {
    int: jsonvalues.INT64,
    bool: jsonvalues.BOOL,
    str: jsonvalues.TEXT,
    float: jsonvalues.NUMBER,
    Quantity: jsonvalues.QUANTITY,
    int | str: jsonvalues.INT_OR_TEXT,
}


@dataclass(frozen=True)
class _Wire:
    key: str
    shape: Shape | None
    limit: Limit | None
    always: bool


def wire(
    key: str,
    default: object = None,
    *,
    factory: Callable[[], object] | None = None,
    shape: Shape | None = None,
    limit: Limit | None = None,
    always: bool = False,
) -> Any:
    """Declare a field with its JSON key and its default, or a factory that makes the default.

    shape states what the type does not, limit what the CRD demands beyond it; always
    marks the fields that Go writes even when they are unset.
    """
    metadata = {"wire": _Wire(key, shape, limit, always)}
    if factory is not None:
        return dataclasses.field(default_factory=factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def key_of(field: "dataclasses.Field[Any]") -> str:
    """Return the JSON key of a field; "": it is not declared with wire."""
    declared: _Wire | None = field.metadata.get("wire")
    return declared.key if declared else ""


def shape_of(cls: type[T]) -> Struct[T]:
    """Return the shape of a dataclass all of whose fields are declared with wire."""
    hints = typing.get_type_hints(cls)
    return Struct(cls, (_member(field, hints[field.name]) for field in _fields(cls)))


def _fields(cls: type) -> tuple["dataclasses.Field[object]", ...]:
    return dataclasses.fields(cls)


def _member(field: "dataclasses.Field[object]", hint: object) -> Member:
    declared: _Wire = field.metadata["wire"]
    shape = declared.shape or _shape(hint)
    return Member(declared.key, field.name, shape, declared.limit, declared.always)


def _shape(hint: object) -> Shape:
    hint = _without_none(hint)
    if hint in _SCALARS:
        return _SCALARS[hint]
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return shape_of(hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return ListOf(_shape(arguments[0]))
    if origin is Mapping:
        return MapOf(_shape(arguments[1]))
    raise TypeError(f"no JSON shape for {hint}")


def _without_none(hint: object) -> object:
    if typing.get_origin(hint) not in (types.UnionType, typing.Union):
        return hint
    rest = [part for part in typing.get_args(hint) if part is not types.NoneType]
    return rest[0] if len(rest) == 1 else int | str
