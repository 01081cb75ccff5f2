"""The fields of Protocol Buffers messages, as bytes: what codecs of single protocols stand on.

Source: protobuf.dev, "Encoding".
"""

from collections.abc import Iterator
from typing import NamedTuple

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5  # wire types; groups are rejected
_SIZES = {FIXED64: 8, FIXED32: 4}  # bytes
_BITS64 = (1 << 64) - 1
_LONGEST_VARINT = 10  # bytes


class MalformedMessage(ValueError):
    """Bytes that are no message."""


class Field(NamedTuple):
    """One field of a message: its value, and where all of it is, with its tag.

    value: an int of 64 bits for VARINT, else bytes.
    """

    number: int
    wire: int
    value: int | bytes
    start: int
    end: int


def fields_of(message: bytes) -> Iterator[Field]:
    """The fields of a message in their order. Raises MalformedMessage."""
    end = 0
    while end < len(message):
        start = end
        tag, at = _varint(message, start)
        if tag >> 3 == 0:
            raise MalformedMessage("wanted a field with a number, found 0")
        value, end = _value(message, at, tag & 7)
        yield Field(tag >> 3, tag & 7, value, start, end)


def field(number: int, value: int | bytes) -> bytes:
    """A field: VARINT for an int (negative ones as 64 bits), LENGTH for bytes."""
    out = bytearray()
    append(out, number, value)
    return bytes(out)


def append(out: bytearray, number: int, value: int | bytes) -> None:
    """Append what `field` returns."""
    if isinstance(value, int):
        _append_varint(out, number << 3 | VARINT)
        _append_varint(out, value & _BITS64)
    else:
        _append_varint(out, number << 3 | LENGTH)
        _append_varint(out, len(value))
        out += value


def _append_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _value(message: bytes, at: int, wire: int) -> tuple[int | bytes, int]:
    """The value of a field, and the position behind it."""
    if wire == VARINT:
        return _varint(message, at)
    if wire == LENGTH:
        length, at = _varint(message, at)
    elif wire in _SIZES:
        length = _SIZES[wire]
    else:
        raise MalformedMessage(f"wanted a field of wire type 0, 1, 2 or 5, found {wire}")
    end = at + length
    if end > len(message):
        raise MalformedMessage(
            f"wanted a field of {length} bytes, found {len(message) - at}: it is cut off"
        )
    return message[at:end], end


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """An integer, and the position behind it."""
    value = shift = 0
    for index in range(at, min(at + _LONGEST_VARINT, len(message))):
        byte = message[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _BITS64, index + 1
        shift += 7
    found = message[at : at + _LONGEST_VARINT]
    raise MalformedMessage(f"wanted an integer of at most {_LONGEST_VARINT} bytes, found {found!r}")
