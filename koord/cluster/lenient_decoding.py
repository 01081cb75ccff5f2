"""Decode objects part by part: a malformed or oversized part costs only itself, and is noted."""

from collections.abc import Callable, Iterable
from functools import lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, Generic, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Raw, Struct

from koord.cluster.wire import NOTHING
from koord.util.errors import InvalidObject

MAX_PART_BYTES = 256 << 10  # bytes of JSON, some 1,400 affinity terms; a larger part is left out
KEPT_BYTES = 256 << 10  # of texts in one list or map of an object; what is beyond is cut
_ITEM_BYTES = 64  # that an item takes whatever its texts
UNCHECKED_ITEMS = 64  # items that are kept without adding up their texts
MAX_NOTED_FAULTS = 8  # faults of an object
OTHERS = "and others"  # than those
_LONGEST = 200  # characters of a fault
UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeError)

T = TypeVar("T")


class DecodingFaults(list[str]):
    """The parts of an object that were left out or cut, and why.

    At most MAX_NOTED_FAULTS, then OTHERS.
    """

    __slots__ = ()

    def note(self, where: str, why: str) -> None:
        """Note a part by its name."""
        self.take((f"{where}: {why}",))

    def take(self, texts: Iterable[str]) -> None:
        """Note texts that name their part themselves."""
        for text in texts:
            if len(self) < MAX_NOTED_FAULTS:
                self.append(text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…")
            elif self[-1] != OTHERS:
                self.append(OTHERS)


class LenientDecoder(Generic[T]):
    """A part of an object that is read on its own, and bounded in bytes."""

    def __init__(self, name: str, shape: Any, largest: int = MAX_PART_BYTES) -> None:
        """shape: the type; largest: bytes of its JSON."""
        self.name = name
        self._shape = shape
        self._largest = largest
        self._decoder: msgspec.json.Decoder[T | None] = msgspec.json.Decoder(shape | None)

    def read(self, data: Raw, faults: DecodingFaults) -> T | None:
        """Return the part without what is malformed in it.

        None: there is none, or nothing of it can be read, which is noted.
        """
        if data is NOTHING:
            return None
        size = len(memoryview(data))
        if size > self._largest:
            faults.note(self.name, f"{size} bytes of at most {self._largest}")
            return None
        try:
            return self._decoder.decode(data)
        except UNREADABLE:
            try:
                found: T = decode_leniently(self._shape, data, self.name, faults)
            except UNREADABLE as err:
                faults.note(self.name, str(err))
                return None
            return found


def decode_leniently(shape: Any, data: Raw | bytes, where: str, faults: DecodingFaults) -> Any:
    """Return JSON as msgspec would read it into shape, without what is malformed, which is noted.

    Of structs a field that cannot be read has its default, of lists and maps an item is missing;
    but structs that say so are read whole or not at all, and some fields decide (see wire.Wire).

    Raises:
        msgspec.DecodeError, RecursionError, UnicodeError: it is something else, or a field that
            has no default, or is deciding, cannot be read.
    """
    try:
        return _decoder(shape).decode(data)
    except UNREADABLE:
        inner = _without_none(shape)
        if isinstance(inner, type) and issubclass(inner, Struct):
            if getattr(inner, "whole", False):
                raise
            return _struct(inner, data, where, faults)
        origin, of = get_origin(inner), get_args(inner)
        if origin is list:
            items = _decoder(list[Raw]).decode(data)
            return list(_read_each(of[0], enumerate(items), where, faults).values())
        if origin is dict:
            return _read_each(of[1], _decoder(dict[str, Raw]).decode(data).items(), where, faults)
        raise


def _struct(shape: type[Struct], data: Raw | bytes, where: str, faults: DecodingFaults) -> Struct:
    found = _decoder(dict[str, Raw]).decode(data)
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(shape):
        text = found.get(field.encode_name)
        if text is None:
            if field.required:
                raise msgspec.ValidationError(f"{where} lacks {field.encode_name}")
            continue
        place = f"{where}.{field.encode_name}"
        try:
            values[field.name] = decode_leniently(field.type, text, place, faults)
        except UNREADABLE as err:
            if field.required or field.name in getattr(shape, "deciding", ()):
                raise
            faults.note(place, str(err))
    return shape(**values)


def _read_each(
    shape: Any, items: Iterable[tuple[Any, Raw]], where: str, faults: DecodingFaults
) -> dict[Any, Any]:
    """The items that can be read, by their keys or places."""
    values: dict[Any, Any] = {}
    for key, text in items:
        place = f"{where}[{key}]"
        try:
            values[key] = decode_leniently(shape, text, place, faults)
        except UNREADABLE as err:
            faults.note(place, str(err))
    return values


@lru_cache(maxsize=512)
def _decoder(shape: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(shape)


def _without_none(shape: Any) -> Any:
    """Return the type other than None, without annotations."""
    if get_origin(shape) in (Union, UnionType):
        others = [one for one in get_args(shape) if one is not NoneType]
        return _without_none(others[0]) if len(others) == 1 else shape
    return _without_none(get_args(shape)[0]) if get_origin(shape) is Annotated else shape


def readable(
    items: Iterable[Any], read: Callable[[Any], T], name: str, faults: DecodingFaults
) -> tuple[T, ...]:
    """Return what read makes of the items; one for which it raises InvalidObject is left out."""
    found = []
    for at, one in enumerate(items):
        try:
            found.append(read(one))
        except InvalidObject as err:
            faults.note(f"{name}[{at}]", str(err))
    return tuple(found)


def take_within_limit(
    items: list[T], texts: Callable[[T], Iterable[str]], name: str, faults: DecodingFaults
) -> list[T]:
    """Return the first items whose texts take KEPT_BYTES together."""
    if len(items) <= UNCHECKED_ITEMS:
        return items
    left = KEPT_BYTES
    for at, one in enumerate(items):
        left -= _ITEM_BYTES + sum(map(len, texts(one)))
        if left < 0:
            faults.note(name, f"{at} of {len(items)} are kept")
            return items[:at]
    return items


def bounded_amounts(
    amounts: dict[str, int], name: str, faults: DecodingFaults
) -> tuple[tuple[str, int], ...]:
    """Return amounts by name of the resource, sorted, as within: those of Kubernetes first."""
    if len(amounts) <= UNCHECKED_ITEMS:
        return tuple(sorted(amounts.items()))
    items = sorted(amounts.items(), key=lambda item: ("/" in item[0], item))
    return tuple(sorted(take_within_limit(items, lambda item: (item[0],), name, faults)))
