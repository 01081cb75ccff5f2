"""Typed access to the fields of JSON objects from outside.

An error names the JSON path of the malformed field.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import TypeVar

from koord.api.gojson import folded, with_folded_keys
from koord.api.quantity import Quantity
from koord.util.errors import InvalidObject

T = TypeVar("T")


class Fields:
    """The fields of one JSON object. An absent field and a null are the same.

    Every method raises InvalidObject, with the path of the field, when its type is wrong.
    """

    def __init__(self, value: object, where: str, *, fold_case: bool = False) -> None:
        """fold_case: the case of keys does not matter, in nested objects neither; see gojson."""
        if not isinstance(value, Mapping):
            raise InvalidObject(where, wanted="an object", found=value)
        self.raw: Mapping[str, object] = value
        self.where = where
        self._fold_case = fold_case
        self._values = with_folded_keys(value) if fold_case else self.raw

    def path(self, key: str) -> str:
        """JSON path of a field, for messages."""
        return f"{self.where}.{key}"

    def get(self, key: str) -> object:
        """The value of a field, of whatever type; None when absent."""
        return self._values.get(folded(key) if self._fold_case else key)

    def text(self, key: str, default: str = "") -> str:
        value = self.get(key)
        return default if value is None else self._text(key, value)

    def required_text(self, key: str) -> str:
        """The text of a field that must be there and must not be empty."""
        value = self.text(key)
        if not value:
            raise InvalidObject(self.path(key), wanted="a text", found="nothing")
        return value

    def integer(self, key: str) -> int | None:
        """A whole number of 64 bits; like Go, 1.0 and "1" are none."""
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63:
            return value
        raise InvalidObject(self.path(key), wanted="a whole number of 64 bits", found=value)

    def number(self, key: str) -> float | None:
        """A number with or without decimals, as JSON has them; NaN and Infinity are none."""
        value = self.raw.get(key)
        if value is None:
            return None
        if isinstance(value, int | float) and not isinstance(value, bool):
            try:
                number = float(value)
            except OverflowError:
                number = math.inf
            if math.isfinite(number):
                return number
        raise InvalidObject(self.path(key), wanted="a number", found=value)

    def boolean(self, key: str) -> bool:
        value = self.get(key)
        if value is None or isinstance(value, bool):
            return value or False
        raise InvalidObject(self.path(key), wanted="true or false", found=value)

    def time(self, key: str) -> float | None:
        """A time in RFC 3339, as Unix seconds."""
        text = self.text(key)
        if not text:
            return None
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            moment = None
        if moment is None or moment.tzinfo is None:
            wanted = "a time like 2026-07-24T06:52:45Z"
            raise InvalidObject(self.path(key), wanted=wanted, found=text)
        return moment.timestamp()

    def quantity(self, key: str) -> Quantity | None:
        value = self.get(key)
        if value is None:
            return None
        return self._read(self.path(key), value, Quantity.parse, "a quantity")

    def nested(self, key: str) -> "Fields":
        """A nested object; without fields when absent."""
        value = self.get(key)
        return self._object({} if value is None else value, self.path(key))

    def objects(self, key: str) -> Iterator["Fields"]:
        """The objects of a list."""
        for place, item in self._items(key):
            yield self._object(item, place)

    def list_of(self, key: str, read: Callable[[object], T], wanted: str) -> list[T]:
        """The list's items through read, which raises ValueError for a bad one."""
        return [self._read(place, item, read, wanted) for place, item in self._items(key)]

    def texts(self, key: str) -> dict[str, str]:
        """A map of texts, for example labels. Its own null values count as empty."""
        nested = self._map(key)
        return {self._text(key, name): nested.text(name) for name in nested.raw}

    def integers(self, key: str) -> dict[str, int]:
        """A map of whole numbers; null values are left out."""
        nested = self._map(key)
        found = {self._text(key, name): nested.integer(name) for name in nested.raw}
        return {name: number for name, number in found.items() if number is not None}

    def quantities(self, key: str) -> dict[str, str]:
        """A map of quantities, each valid, as the text that was found."""
        nested = self._map(key)
        found: dict[str, str] = {}
        for name, value in nested.raw.items():
            self._text(key, name)
            self._read(nested.path(name), value, Quantity.parse, "a quantity")
            found[name] = str(value)
        return found

    def _object(self, value: object, where: str) -> "Fields":
        return Fields(value, where, fold_case=self._fold_case)

    def _map(self, key: str) -> "Fields":
        """A nested object with free keys; their case matters."""
        value = self.get(key)
        return Fields({} if value is None else value, self.path(key))

    def _items(self, key: str) -> Iterator[tuple[str, object]]:
        items = self.get(key)
        if items is None:
            return
        if not isinstance(items, list):
            raise InvalidObject(self.path(key), wanted="a list", found=items)
        for index, item in enumerate(items):
            yield f"{self.path(key)}[{index}]", item

    def _text(self, key: str, value: object) -> str:
        if not isinstance(value, str):
            raise InvalidObject(self.path(key), wanted="a text", found=value)
        try:
            value.encode()
        except UnicodeEncodeError as err:  # half a surrogate pair, which JSON can say
            raise InvalidObject(self.path(key), wanted="Unicode text", found=value) from err
        return value

    @staticmethod
    def _read(where: str, value: object, read: Callable[[object], T], wanted: str) -> T:
        try:
            return read(value)
        except ValueError as err:
            raise InvalidObject(where, wanted=wanted, found=value) from err
