"""Fields of Protocol Buffers messages: taken apart, put together, and what is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.util.protobuf import LENGTH, VARINT, Field, MalformedMessage, field, fields_of

NUMBERS = st.integers(1, (1 << 29) - 1)
UNSIGNED = st.integers(0, (1 << 64) - 1)


@pytest.mark.parametrize(
    ("number", "value", "written"),
    [  # the first two: protobuf.dev, "Encoding"
        (1, 150, "089601"),
        (2, b"testing", "120774657374696e67"),
        (1, 0, "0800"),
        (1, -1, "08ffffffffffffffffff01"),
        (16, b"", "820100"),
    ],
)
def test_fields_are_those_of_the_specification(
    number: int, value: int | bytes, written: str
) -> None:
    assert field(number, value).hex() == written


@given(st.lists(st.tuples(NUMBERS, UNSIGNED | st.binary(max_size=300))))
def test_what_is_written_is_found(values: list[tuple[int, int | bytes]]) -> None:
    message = b"".join(field(number, value) for number, value in values)
    found = list(fields_of(message))
    assert [(each.number, each.value) for each in found] == values
    assert b"".join(message[each.start : each.end] for each in found) == message


def test_all_wire_types_are_found() -> None:
    message = b"\x08\x01" + b"\x11" + bytes(8) + b"\x1a\x01a" + b"\x25" + bytes(4)
    assert list(fields_of(message)) == [
        Field(1, VARINT, 1, 0, 2),
        Field(2, 1, bytes(8), 2, 11),
        Field(3, LENGTH, b"a", 11, 14),
        Field(4, 5, bytes(4), 14, 19),
    ]


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ("0a", "integer of at most 10 bytes, found b''"),
        ("0a0561", "a field of 5 bytes, found 1: it is cut off"),
        ("0affffffffffffffffffff01", "integer of at most 10 bytes"),
        ("0000", "a field with a number, found 0"),
        ("0b", "wire type 0, 1, 2 or 5, found 3"),
        ("0901", "a field of 8 bytes, found 1"),
    ],
)
def test_what_is_no_message_is_refused(message: str, problem: str) -> None:
    with pytest.raises(MalformedMessage, match=problem):
        list(fields_of(bytes.fromhex(message)))


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_found_whole(message: bytes) -> None:
    try:
        found = list(fields_of(message))
    except MalformedMessage:
        return
    assert b"".join(message[each.start : each.end] for each in found) == message
