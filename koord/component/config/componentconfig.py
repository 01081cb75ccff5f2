"""Component configs: from the bytes of a file to dataclasses, or all errors of the document."""

import dataclasses
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar, cast

from koord.api.gojson import BOOL, DURATION, INT32, INT64, NUMBER, TEXT, Scalar, folded, key_of
from koord.api.gojson import INT_OR_TEXT as _INT_OR_TEXT
from koord.component.config.document import DocumentWithLines
from koord.component.config.field_errors import (
    FieldError,
    FieldPath,
    InvalidConfig,
    Key,
    independent,
    invalid,
    required,
    unknown_field,
    unsupported,
    warning,
)
from koord.util.errors import InvalidObject, KoordError

T = TypeVar("T")


def _unsigned(bits: int) -> Scalar:
    def accept(value: object) -> object:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**bits:
            raise ValueError(value)
        return value

    return Scalar("a whole number, 0 or more", accept, zero=0)


Seconds = Annotated[float, DURATION]
"""Seconds; in JSON a duration in Go's syntax, such as "5m0s"."""
Int32 = Annotated[int, INT32]
UInt = Annotated[int, _unsigned(64)]
UInt32 = Annotated[int, _unsigned(32)]

_HINTED = 50  # faults of a document with a hint at the name that was meant; each takes 1 ms

_SCALARS: Mapping[object, Scalar] = {bool: BOOL, int: INT64, float: NUMBER, str: TEXT}


class Reader:
    """Reads the JSON of one document, and keeps the faults that it finds."""

    def __init__(self) -> None:
        self.faults: list[FieldError] = []

    def read(self, cls: type[T], value: object, path: FieldPath, *, strict: bool = True) -> T:
        """Return the object of a dataclass; a field with a fault has its default.

        Not strict: the case of keys does not matter, and an unknown field is a warning.

        Raises:
            Rejected: there is no such object; the fault is kept.
        """
        if not isinstance(value, Mapping):
            self._reject(invalid(path, value, "wanted an object"))
        members = _members(cast(type, cls))
        found = self._known(members, value, path, strict=strict)
        made: dict[str, Any] = {}
        lacking = False
        for key, one in members.items():
            below = (*path, key)
            if found.get(key) is None:
                if one.is_required:
                    self.faults.append(required(below))
                    lacking = True
                continue
            try:
                made[one.attribute] = one.read(self, found[key], below, strict)
            except Rejected:
                lacking = lacking or one.is_required
        if lacking:
            raise Rejected
        try:
            return cls(**made)
        except (KoordError, ValueError) as err:  # of a third party's __post_init__
            self._reject(invalid(path, value, str(err)))

    def scalar(self, shape: Scalar, value: object, path: FieldPath) -> object:
        """Return the Python value of a scalar. Raises Rejected."""
        try:
            return shape.load(shape.read(value, ""))
        except InvalidObject:
            self._reject(invalid(path, value, f"wanted {shape.wanted}"))

    def word(self, enum: type[StrEnum], value: object, path: FieldPath) -> StrEnum:
        """Return a word of an enum. Raises Rejected."""
        if not isinstance(value, str) or value not in enum.__members__.values():
            self._reject(unsupported(path, value, enum))
        return enum(value)

    def each(
        self, items: "Mapping[Any, object]", read: "_Read", path: FieldPath, *, strict: bool
    ) -> dict[Any, object]:
        """Return the items of a list or map, by index or Key. Raises Rejected if one is bad."""
        made: dict[Any, object] = {}
        for at, item in items.items():
            try:
                made[at] = read(self, item, (*path, at), strict)
            except Rejected:
                continue
        if len(made) < len(items):
            raise Rejected
        return made

    def must_be(self, kind: type, value: object, path: FieldPath) -> None:
        """See that a value is a list or an object. Raises Rejected."""
        if not isinstance(value, kind):
            wanted = "a list" if kind is list else "an object"
            self._reject(invalid(path, value, f"wanted {wanted}"))

    def _known(
        self,
        members: "Mapping[str, _Member]",
        value: Mapping[str, object],
        path: FieldPath,
        *,
        strict: bool,
    ) -> dict[str, object]:
        """The fields that the object has, by their keys."""
        keys = {key if strict else folded(key): key for key in members}
        found: dict[str, object] = {}
        for name, item in value.items():
            key = keys.get(name if strict else folded(name))
            if key is not None:
                found[key] = item
                continue
            hinted = members if len(self.faults) < _HINTED else ()
            fault = unknown_field((*path, name), hinted)
            self.faults.append(fault if strict else warning(fault.path, fault.text))
        return found

    def _reject(self, fault: FieldError) -> typing.NoReturn:
        self.faults.append(fault)
        raise Rejected


class Rejected(Exception):
    """A value cannot be used; the reader has the fault."""


def to_json(value: object) -> object:
    """Return the JSON of a dataclass, so that Reader.read returns the same; JSON stays as it is.

    Fields that are not set, and lists and maps that are empty by default, are left out.
    """
    return _writer(type(value))(value) if dataclasses.is_dataclass(value) else value


_Read = Callable[[Reader, object, FieldPath, bool], object]
_Write = Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class _Member:
    attribute: str
    read: _Read
    write: _Write
    is_required: bool
    empty: object  # the default, if it is an empty list or map; else None


@cache
def _members(cls: type) -> Mapping[str, _Member]:
    """The fields of a dataclass by their JSON keys."""
    hints = typing.get_type_hints(cls, include_extras=True)
    members: dict[str, _Member] = {}
    for field in dataclasses.fields(cls):
        read, write = _shape(hints[field.name])
        is_required = field.default is MISSING and field.default_factory is MISSING
        members[json_key(field)] = _Member(
            field.name, read, write, is_required, None if is_required else _empty(field)
        )
    return members


def json_key(field: "dataclasses.Field[Any]") -> str:
    """The key that a field has in JSON."""
    first, *rest = field.name.split("_")
    return key_of(field) or first + "".join(part.capitalize() for part in rest)


def _empty(field: "dataclasses.Field[Any]") -> object:
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return default if default in ((), {}) else None


def _shape(hint: Any) -> tuple[_Read, _Write]:
    """How a value of a type is read and written."""
    hint = _without_none(hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _scalar(arguments[1])
    if hint in _SCALARS:
        return _scalar(_SCALARS[hint])
    if hint == int | str:
        return _scalar(_INT_OR_TEXT)
    if hint is object:
        return (lambda _reader, value, _path, _strict: value), (lambda value: value)
    if origin is tuple:
        return _list_of(arguments[0])
    if origin is Mapping:
        return _map_of(arguments[1])
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        enum = hint
        return (lambda reader, value, path, _strict: reader.word(enum, value, path)), str
    if dataclasses.is_dataclass(hint):
        return (
            lambda reader, value, path, strict: reader.read(hint, value, path, strict=strict)
        ), _writer(cast(type, hint))
    raise TypeError(f"no JSON shape for {hint}")


def _without_none(hint: Any) -> Any:
    if typing.get_origin(hint) not in (types.UnionType, typing.Union):
        return hint
    rest = [part for part in typing.get_args(hint) if part is not types.NoneType]
    return rest[0] if len(rest) == 1 else typing.Union[tuple(rest)]  # noqa: UP007


def _scalar(shape: Scalar) -> tuple[_Read, _Write]:
    return (lambda reader, value, path, _strict: reader.scalar(shape, value, path)), shape.dump


def _list_of(hint: Any) -> tuple[_Read, _Write]:
    item, write = _shape(hint)

    def read(reader: Reader, value: object, path: FieldPath, strict: bool) -> object:
        reader.must_be(list, value, path)
        items = dict(enumerate(cast(list[object], value)))
        return tuple(reader.each(items, item, path, strict=strict).values())

    return read, lambda value: [write(one) for one in value]


def _map_of(hint: Any) -> tuple[_Read, _Write]:
    item, write = _shape(hint)

    def read(reader: Reader, value: object, path: FieldPath, strict: bool) -> object:
        reader.must_be(Mapping, value, path)
        items = {Key(key): one for key, one in cast(Mapping[str, object], value).items()}
        found = reader.each(items, item, path, strict=strict)
        return {str(key): one for key, one in found.items()}

    return read, lambda value: {key: write(one) for key, one in value.items()}


def _writer(cls: type) -> _Write:
    def write(value: Any) -> object:
        written: dict[str, object] = {}
        for key, one in _members(cls).items():
            item = getattr(value, one.attribute)
            if item is not None and item != one.empty:
                written[key] = one.write(item)
        return written

    return write


C = TypeVar("C")
E = TypeVar("E")

Hint = Callable[[object], str]
"""Returns what to do about an apiVersion that is not the wanted one; "": nothing to say."""


@dataclass(frozen=True, slots=True)
class ReadConfig(Generic[C]):
    """A configuration that can be used, and probable mistakes in its file."""

    configuration: C
    warnings: tuple[FieldError, ...]


def read_component_config(
    placed: DocumentWithLines,
    cls: type[T],
    *,
    group_version: str,
    kind: str,
    hint: Hint = lambda found: "",
) -> tuple[T | None, list[FieldError]]:
    """Return the document as it is, and its faults; None: it is none of this type.

    Each field of cls has a default.
    """
    value = placed.value
    if not isinstance(value, dict):
        return None, [invalid((), value, f"wanted an object of kind {kind}")]
    wanted = {"apiVersion": group_version, "kind": kind}
    wrong = [key for key in wanted if value.get(key) != wanted[key]]
    if wrong:
        return None, [_wrong_type(value, key, wanted[key], hint) for key in wrong]
    reader = Reader()
    fields = {key: item for key, item in value.items() if key not in wanted}
    try:
        external = reader.read(cls, fields, ())
    except Rejected:  # not possible while each field has a default
        return None, reader.faults
    return external, reader.faults


def _accepted(
    configuration: C | None, faults: Iterable[FieldError], placed: DocumentWithLines, path: Path
) -> ReadConfig[C]:
    """Return a configuration that has no errors, with its warnings. path is for messages.

    Raises:
        InvalidConfig: it has some; all are named, each with its line.
    """
    found = [*placed.duplicates, *faults]
    located = sorted(map(placed.place, found), key=lambda fault: fault.line)
    errors = [fault for fault in located if not fault.is_warning]
    if errors or configuration is None:
        raise InvalidConfig(path, errors)
    return ReadConfig(configuration, tuple(fault for fault in located if fault.is_warning))


def settled(
    external: E | None,
    faults: Iterable[FieldError],
    placed: DocumentWithLines,
    path: Path,
    convert: Callable[[E], tuple[C | None, list[FieldError]]],
) -> ReadConfig[C]:
    """Return what a document means, whose faults so far are given; external None: nothing.

    convert completes it, returns what it means, and its faults; those that follow from earlier ones
    are left out.

    Raises:
        InvalidConfig: it has errors; all are named, each with its line.
    """
    earlier, configuration = list(faults), None
    found = list(earlier)
    if external is not None:
        configuration, more = convert(external)
        found += independent(more, earlier)
    return _accepted(configuration, found, placed, path)


def _wrong_type(value: Mapping[str, object], key: str, wanted: str, hint: Hint) -> FieldError:
    path: FieldPath = (key,)
    found = value.get(key)
    if found is None:
        return required(path, wanted)
    more = hint(found) if key == "apiVersion" else ""
    return invalid(path, found, f"{wanted}; {more}" if more else wanted)
