"""Koordinator's rules for configuration as JSON: how it decodes, and how one overlays another.

Canonical JSON holds known fields only, each of the right type, without what Go leaves out when it
writes (null, "", empty lists and maps). Overlaying works on canonical values, so that absent means
"as it was". Canonical values share their parts and are never modified.

Source: Go encoding/json; Koordinator, util.MergeCfg.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from koord.api.decoding.jsonvalues import TEXT, Limit, Shape
from koord.util.errors import InvalidObject

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
