"""JSON by Go's and Koordinator's rules: shapes of values, overlays, dataclasses as objects."""

import dataclasses
import json
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar, cast

from koord.api.quantity import Quantity
from koord.util import goformat
from koord.util.errors import InvalidObject


class Shape:
    """The shape of one JSON value."""

    zero: object = None  # what Go makes of a null inside of a list or map

    def read(self, value: object, where: str, *, fold_case: bool = False) -> object:
        """Return the canonical form. Raises InvalidObject with the path of what has a wrong type.

        With fold_case the case of an object's keys does not matter.
        """
        raise NotImplementedError

    def check(self, value: object, where: str) -> None:
        """Compare a canonical value with the limits of its fields. Raises InvalidObject."""

    def overlay(self, base: object, new: object) -> object:
        """Return what base becomes when new is decoded onto it. Both are canonical."""
        return new

    def load(self, value: object) -> object:
        """Return the Python value of a canonical one."""
        return value

    def dump(self, value: object) -> object:
        """Return the canonical form of a Python value."""
        return value

    def omits(self, value: object) -> bool:
        """Whether Go leaves a field with this value out, so that it overlays nothing."""
        return value in ("", None)


def _same(value: object) -> object:
    return value


@dataclass(frozen=True, eq=False)
class Scalar(Shape):
    """A value without parts. accept returns its canonical form or raises ValueError."""

    wanted: str
    accept: Callable[[object], object]
    zero: object = None
    loads: Callable[[object], object] = _same
    dumps: Callable[[object], object] = _same

    def read(self, value: object, where: str, *, fold_case: bool = False) -> object:
        try:
            return self.accept(value)
        except (ValueError, OverflowError) as err:
            raise InvalidObject(where, wanted=self.wanted, found=value) from err

    def load(self, value: object) -> object:
        return self.loads(value)

    def dump(self, value: object) -> object:
        return self.dumps(value)


def _require(value: object, *types: type) -> None:
    """Raise ValueError unless the value is of one of the types; true and false are no numbers."""
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise ValueError(value)


def _whole_number(bits: int) -> Callable[[object], object]:
    reach = range(-(2 ** (bits - 1)), 2 ** (bits - 1))

    def accept(value: object) -> object:
        _require(value, int)
        if value not in reach:
            raise ValueError(value)
        return value

    return accept


def _boolean(value: object) -> object:
    _require(value, bool)
    return value


def _text(value: object) -> object:
    _require(value, str)
    str(value).encode()  # fails for half a surrogate pair, which JSON can say
    return value


def _number(value: object) -> object:
    _require(value, int, float)
    number = float(str(value))
    if not math.isfinite(number):
        raise ValueError(value)
    return number


def _duration(value: object) -> object:
    _require(value, str)
    return goformat.format_duration_ns(goformat.parse_duration_ns(str(value)))


INT64 = Scalar("a whole number of 64 bits", _whole_number(64), zero=0)
INT32 = Scalar("a whole number of 32 bits", _whole_number(32), zero=0)
BOOL = Scalar("true or false", _boolean, zero=False)
TEXT = Scalar("a text", _text, zero="")
NUMBER = Scalar("a number", _number, zero=0.0)
INT_OR_TEXT = Scalar(
    "a whole number or a text",
    accept=lambda value: (TEXT if isinstance(value, str) else INT32).accept(value),
    zero=0,
)
QUANTITY = Scalar(
    "a quantity",
    accept=lambda value: str(Quantity.parse(value)),
    zero="0",
    loads=Quantity.parse,
    dumps=str,
)
DURATION = Scalar(  # in Python, seconds
    'a duration like "5m0s"',
    accept=_duration,
    zero="0s",
    loads=lambda value: goformat.parse_duration(str(value)),
    dumps=lambda value: goformat.format_duration(_float(value)),
)


def enum_text(enum: type[StrEnum], *, otherwise: StrEnum | None) -> Scalar:
    """A text that is a word of enum. Like in Koordinator, another one is otherwise in disguise."""
    known = {word.value: word for word in enum}
    return Scalar(
        TEXT.wanted, _text, zero="", loads=lambda text: known.get(str(text), otherwise), dumps=str
    )


@dataclass(frozen=True, eq=False)
class Limit:
    """A bound on values of the right type, as the CRD or Koordinator has it."""

    wanted: str
    holds: Callable[[object], bool]


def between(low: int, high: int) -> Limit:
    return Limit(f"{low} to {high}", lambda value: low <= _float(value) <= high)


def at_least(low: int) -> Limit:
    return Limit(f"{low} or more", lambda value: _float(value) >= low)


def above(low: int) -> Limit:
    return Limit(f"more than {low}", lambda value: _float(value) > low)


def one_of(enum: type[StrEnum]) -> Limit:
    known = [word.value for word in enum]
    return Limit(" or ".join(known), lambda value: value in known)


PERCENT = between(0, 100)
NOT_NEGATIVE = at_least(0)
POSITIVE = above(0)


def _float(value: object) -> float:
    """A canonical number; what is none fulfils no limit."""
    return value if isinstance(value, (int, float)) else math.nan


T = TypeVar("T")

Json = dict[str, object]
JsonObject = Mapping[str, object]


def parse_json(text: object, where: str) -> object:
    """Return the value of a JSON text from an annotation or a ConfigMap.

    Raises:
        InvalidObject: it is no JSON; like in Go, NaN and Infinity are none. Half a character is
            valid JSON, but cannot be written out again.
    """
    if not isinstance(text, str):
        raise InvalidObject(where, wanted="a text", found=text)
    try:
        value: object = json.loads(text, parse_constant=_no_constant)
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as err:
        raise InvalidObject(where, wanted=f"valid JSON ({err})", found=text) from err
    return value


def member(value: JsonObject, key: str, *, fold_case: bool) -> object:
    """Return the value of a key, None when absent.

    With fold_case the case of letters does not matter; see with_folded_keys.
    """
    return with_folded_keys(value).get(folded(key)) if fold_case else value.get(key)


def with_folded_keys(value: JsonObject) -> JsonObject:
    """Return an object by the folded forms of its keys, without its nulls.

    As in Go, of several keys that differ only in case the last one counts.
    """
    return {
        folded(key): item
        for key, item in value.items()
        if item is not None and isinstance(key, str)
    }


def folded(key: str) -> str:
    """Return a key in the form that those have which differ from it only in case.

    As in Go, the long s is a form of s, and the Kelvin sign one of k.
    """
    return key.lower().replace("\u017f", "s")


@dataclass(frozen=True, eq=False)
class ListOf(Shape):
    """A list, in Python a tuple. Lists of objects overlay by index, others as a whole."""

    item: Shape

    def read(self, value: object, where: str, *, fold_case: bool = False) -> list[object]:
        if not isinstance(value, list):
            raise InvalidObject(where, wanted="a list", found=value)
        return [
            _read_item(self.item, item, f"{where}[{index}]", fold_case=fold_case)
            for index, item in enumerate(value)
        ]

    def check(self, value: object, where: str) -> None:
        for index, item in enumerate(cast(list[object], value)):
            self.item.check(item, f"{where}[{index}]")

    def overlay(self, base: object, new: object) -> list[object]:
        old, over = cast(list[object], base), cast(list[object], new)
        merged = [self.item.overlay(*pair) for pair in zip(old, over, strict=False)]
        return merged + over[len(merged) :]

    def load(self, value: object) -> tuple[object, ...]:
        return tuple(self.item.load(item) for item in cast(list[object], value))

    def dump(self, value: object) -> list[object]:
        return [self.item.dump(item) for item in cast(tuple[object, ...], value)]

    def omits(self, value: object) -> bool:
        return not value


@dataclass(frozen=True, eq=False)
class MapOf(Shape):
    """An object with free keys. Overlaying unites the keys and replaces whole values."""

    item: Shape

    def read(self, value: object, where: str, *, fold_case: bool = False) -> Json:
        return {
            cast(str, TEXT.read(key, where)): _read_item(
                self.item, item, f"{where}.{key}", fold_case=fold_case
            )
            for key, item in _object(value, where).items()
        }

    def overlay(self, base: object, new: object) -> Json:
        return {**cast(Json, base), **cast(Json, new)}

    def load(self, value: object) -> Json:
        return {key: self.item.load(item) for key, item in cast(Json, value).items()}

    def dump(self, value: object) -> Json:
        return {key: self.item.dump(item) for key, item in cast(Json, value).items()}

    def omits(self, value: object) -> bool:
        return not value


@dataclass(frozen=True, eq=False)
class Member:
    """One field of an object: its JSON key, and the attribute that holds it in Python."""

    key: str
    attribute: str
    shape: Shape
    limit: Limit | None = None
    always: bool = False  # Go writes it even when unset, as the zero of its type


class Struct(Shape, Generic[T]):
    """An object with known fields, in Python a dataclass. Other fields are ignored."""

    def __init__(self, cls: type[T], members: Iterable[Member]) -> None:
        self._cls = cls
        self._members = tuple(members)
        self.zero = self.read({}, "")

    def read(self, value: object, where: str, *, fold_case: bool = False) -> Json:
        found = _object(value, where)
        if fold_case:
            found = with_folded_keys(found)
        canonical: Json = {}
        for one in self._members:
            item = found.get(folded(one.key) if fold_case else one.key)
            if item is not None:
                item = one.shape.read(item, f"{where}.{one.key}", fold_case=fold_case)
            elif one.always:
                item = one.shape.zero
            if not one.shape.omits(item):
                canonical[one.key] = item
        return canonical

    def check(self, value: object, where: str) -> None:
        found = cast(Json, value)
        for one in self._members:
            if one.key in found:
                item, place = found[one.key], f"{where}.{one.key}"
                if one.limit is not None and not one.limit.holds(item):
                    raise InvalidObject(place, wanted=one.limit.wanted, found=item)
                one.shape.check(item, place)

    def overlay(self, base: object, new: object) -> Json:
        old, over = cast(Json, base), cast(Json, new)
        merged = {**old, **over}
        return {
            one.key: one.shape.overlay(old[one.key], over[one.key])
            if one.key in old and one.key in over
            else merged[one.key]
            for one in self._members
            if one.key in merged
        }

    def load(self, value: object) -> T:
        """Return the dataclass; what is absent has the default it has there."""
        found = cast(Json, value)
        return self._cls(
            **{
                one.attribute: one.shape.load(found[one.key])
                for one in self._members
                if one.key in found
            }
        )

    def dump(self, value: object) -> Json:
        return {
            one.key: one.shape.dump(item)
            for one in self._members
            if not one.shape.omits(item := getattr(value, one.attribute))
        }

    def omits(self, value: object) -> bool:
        """An empty object is written: in Go it is a pointer to one."""
        return value is None


def _read_item(shape: Shape, item: object, where: str, *, fold_case: bool) -> object:
    return shape.zero if item is None else shape.read(item, where, fold_case=fold_case)


def _object(value: object, where: str) -> JsonObject:
    if not isinstance(value, Mapping):
        raise InvalidObject(where, wanted="an object", found=value)
    return value


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


_SCALARS: Mapping[object, Shape] = {
    int: INT64,
    bool: BOOL,
    str: TEXT,
    float: NUMBER,
    Quantity: QUANTITY,
    int | str: INT_OR_TEXT,
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
