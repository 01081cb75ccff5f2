"""Protobuf (proto3), as much of it as NRI needs: messages are dataclasses with numbered fields."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NamedTuple, Self

from koord.util.errors import KoordError
from koord.util.protobuf import LENGTH, VARINT, MalformedMessage, append, fields_of


class WireError(KoordError):
    """Bytes that the protocol does not allow; their connection cannot be used any more."""


def malformed(what: str, wanted: str, found: object) -> WireError:
    """Return the error for a part of a message."""
    return unusable(f"{what}: wanted {wanted}, found {found!r:.80}")


def unusable(problem: str) -> WireError:
    """Return the error for bytes with a problem."""
    return WireError(f"{problem}; the connection is closed and made anew")


MAX_ITEMS = 65536  # of a repeated field or a map, and parts of a message
MAX_FIELDS = 4 * MAX_ITEMS  # in a message without those in it, whether named or not
_BITS64 = (1 << 64) - 1
_KEY = "protobuf"


class _Kind(NamedTuple):
    """Reads and writes the values of a field, as an int or as bytes, by the wire type."""

    wire: int
    read: Callable[[Any], Any]
    write: Callable[[Any], Any]
    is_default: Callable[[Any], bool] = lambda value: not value


class _Numbered(NamedTuple):
    """A field. merged: a message, which may come in several parts."""

    number: int
    kind: _Kind
    repeated: bool = False
    by_key: bool = False
    merged: bool = False


class Message:
    """A message; its dataclass fields are made by the functions below."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def encode(self) -> bytes:
        """Return the message as bytes; fields in the order of their numbers."""
        out = bytearray()
        for name, numbered in _layout(type(self)).in_order:
            value = getattr(self, name)
            if numbered.by_key:
                for key, item in value.items():
                    append(out, numbered.number, _MapEntry(key, item).encode())
            elif numbered.repeated:
                for item in value:
                    append(out, numbered.number, numbered.kind.write(item))
            elif not numbered.kind.is_default(value):
                append(out, numbered.number, numbered.kind.write(value))
        return bytes(out)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return the message in some bytes.

        Raises:
            WireError: they are cut off, or a field is not of its type.
        """
        layout = _layout(cls)
        values: dict[str, Any] = {}
        try:
            for count, (number, wire, value, _, _) in enumerate(fields_of(data)):
                if count == MAX_FIELDS:
                    raise malformed(cls.__name__, f"at most {MAX_FIELDS} fields", "more")
                if (found := layout.by_number.get(number)) is None:
                    continue
                name, numbered = found
                if numbered.kind.wire != wire:
                    wanted = f"wire type {numbered.kind.wire}"
                    raise malformed(f"{cls.__name__}.{name}", wanted, wire)
                _take(values, name, numbered, value)
        except MalformedMessage as err:
            raise unusable(f"{cls.__name__}: {err}") from err
        for name, numbered in layout.collected:
            if name in values:
                items = values[name]
                values[name] = (
                    numbered.kind.read(b"".join(items)) if numbered.merged else tuple(items)
                )
        return cls(**values)


def text(number: int) -> Any:
    """A string; absent: ""."""
    return _field(_Numbered(number, _TEXT), default="")


def data(number: int) -> Any:
    """Bytes; absent: none."""
    return _field(_Numbered(number, _BYTES), default=b"")


def integer(number: int) -> Any:
    """A signed integer of 32 or 64 bits, or an enumeration; absent: 0."""
    return _field(_Numbered(number, _INTEGER), default=0)


def boolean(number: int) -> Any:
    """A boolean; absent: False."""
    return _field(_Numbered(number, _BOOLEAN), default=False)


def optional_integer(number: int) -> Any:
    """A message with a signed integer as its field 1; absent: None."""
    return _field(_Numbered(number, _optional(_SignedValue)), default=None)


def optional_unsigned(number: int) -> Any:
    """A message with an unsigned integer as its field 1; absent: None."""
    return _field(_Numbered(number, _optional(_UnsignedValue)), default=None)


def message(number: int, of: type[Message]) -> Any:
    """A message; absent: None."""
    kind = _Kind(LENGTH, of.decode, of.encode, lambda value: value is None)
    return _field(_Numbered(number, kind, merged=True), default=None)


def messages(number: int, of: type[Message]) -> Any:
    """Several messages, as a tuple."""
    return _field(_Numbered(number, _Kind(LENGTH, of.decode, of.encode), repeated=True), default=())


def texts(number: int) -> Any:
    """Several strings, as a tuple."""
    return _field(_Numbered(number, _TEXT, repeated=True), default=())


def texts_by_text(number: int) -> Any:
    """A map of strings to strings."""
    return _field(_Numbered(number, _BYTES, by_key=True), default_factory=dict)


def _field(numbered: _Numbered, **default: Any) -> Any:
    return field(metadata={_KEY: numbered}, **default)


class _Layout(NamedTuple):
    """The fields of a message. collected: those that are not complete before its end."""

    in_order: tuple[tuple[str, _Numbered], ...]
    by_number: Mapping[int, tuple[str, _Numbered]]
    collected: tuple[tuple[str, _Numbered], ...]


_LAYOUTS: dict[type, _Layout] = {}


def _layout(of: type[Message]) -> _Layout:
    found = _LAYOUTS.get(of)
    if found is None:
        table = [(each.name, each.metadata[_KEY]) for each in fields(of)]
        rows = tuple(sorted(table, key=lambda row: row[1].number))
        found = _LAYOUTS[of] = _Layout(
            rows,
            {row[1].number: row for row in rows},
            tuple(row for row in rows if row[1].merged or row[1].repeated),
        )
    return found


def _take(values: dict[str, Any], name: str, numbered: _Numbered, raw: Any) -> None:
    """Add one field that was found to the values of a message."""
    if numbered.by_key:
        entry = _MapEntry.decode(raw)
        items = values.setdefault(name, {})
        items[entry.key] = entry.value
        _check_count(name, len(items))
    elif numbered.repeated or numbered.merged:
        items = values.setdefault(name, [])
        items.append(raw if numbered.merged else numbered.kind.read(raw))
        _check_count(name, len(items))
    else:
        values[name] = numbered.kind.read(raw)


def _check_count(name: str, count: int) -> None:
    if count > MAX_ITEMS:
        raise malformed(name, f"at most {MAX_ITEMS} items", count)


def _read_text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as err:
        raise malformed("a string", "UTF-8", raw) from err


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _unsigned(value: int) -> int:
    return value & _BITS64


_TEXT = _Kind(LENGTH, _read_text, lambda value: value.encode())
_BYTES = _Kind(LENGTH, bytes, bytes)
_INTEGER = _Kind(VARINT, _signed, _unsigned)
_BOOLEAN = _Kind(VARINT, bool, int)


@dataclass(frozen=True, slots=True)
class _SignedValue(Message):
    value: int = integer(1)


@dataclass(frozen=True, slots=True)
class _UnsignedValue(Message):
    value: int = _field(_Numbered(1, _Kind(VARINT, _unsigned, _unsigned)), default=0)


@dataclass(frozen=True, slots=True)
class _MapEntry(Message):
    key: str = text(1)
    value: str = text(2)


def _optional(of: Callable[[int], Message]) -> _Kind:
    wrapper: Any = of
    return _Kind(
        LENGTH,
        lambda raw: wrapper.decode(raw).value,
        lambda value: wrapper(value).encode(),
        lambda value: value is None,
    )
