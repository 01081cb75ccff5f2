"""Messages about classes and filters, from bytes to values: none crashes, none is half read."""

import struct
from contextlib import suppress
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.host.net.tc.kernel import AddressFilter, ModifiedTree, parse_class, parse_filter
from koordlet.host.net.tc.tree import AddressMatch, TrafficClass

G = 125_000_000


def attribute(kind, data):
    padding = b"\0" * (-len(data) % 4)
    return struct.pack("=HH", 4 + len(data), kind) + data + padding


def message(handle, parent, info, name, *options):
    body = struct.pack("=BxxxiIII", 0, 2, handle, parent, info)
    body += attribute(1, name + b"\0")
    if options:
        body += attribute(2, b"".join(options))
    return struct.pack("=IHHII", 16 + len(body), 40, 2, 1, 0) + body


def parameters(rate, ceil, prio):
    spec = struct.pack("=8xI", rate), struct.pack("=8xI", ceil)
    return attribute(1, b"".join(spec) + struct.pack("=IIIII", 1, 2, 3, 0, prio))


def selector(*keys):
    data = struct.pack("=BBBxHHHHI", 1, 0, len(keys), 0, 0, 0, 0, 0)
    return attribute(
        5, data + b"".join(struct.pack(">II", m, v) + struct.pack("=ii", o, 0) for o, v, m in keys)
    )


def whole(data):
    return data, (0, len(data))


CLASS = message(0x6B6C0004, 0x6B6C0001, 0, b"htb", parameters(G, 5 * G, 3))
TARGET = attribute(1, struct.pack("=I", 0x6B6C0007))
SEVEN = (12, 0x0A000007, 0xFFFFFFFF)
FOUR = message(0x80000800, 0x6B6C0000, 4 << 16 | 8, b"u32", TARGET, selector(SEVEN))
WORDS = [(24 + 4 * at, word, 0xFFFFFFFF) for at, word in enumerate((0xFD000000, 0, 0, 7))]
SIX = message(0x80100800, 0x6B6C0000, 6 << 16, b"u32", TARGET, selector(*WORDS))


def test_a_class():
    """Rates of 32 and of 64 bits; below another, and at the root."""
    assert parse_class(*whole(CLASS)) == TrafficClass(4, 1, G, 5 * G, 3)
    most = (1 << 32) - 1
    wide = message(
        0x6B6C0001,
        0xFFFFFFFF,
        0,
        b"htb",
        parameters(most, most, 0),
        attribute(6, struct.pack("=Q", 1 << 33)),
        attribute(7, struct.pack("=Q", 1 << 34)),
    )
    assert parse_class(*whole(wide)) == TrafficClass(1, 0, 1 << 33, 1 << 34, 0)
    assert parse_class(*whole(message(1, 2, 0, b"fq_codel"))) is None


def test_a_filter():
    """Of both IP versions; the table that holds them is none."""
    seven = ip_address("10.0.0.7")
    assert parse_filter(*whole(FOUR)) == AddressFilter(AddressMatch("from", seven, 7), 0x80000800)
    assert parse_filter(*whole(SIX)).match == AddressMatch("to", ip_address("fd00::7"), 7)
    table = message(0x80000000, 0x6B6C0000, 4 << 16, b"u32", attribute(4, struct.pack("=I", 1)))
    assert parse_filter(*whole(table)) is None
    assert parse_filter(*whole(message(0, 0x6B6C0000, 4 << 16, b"u32"))) is None


@pytest.mark.parametrize(
    ("info", "name", "options"),
    [
        (4 << 16, b"flower", (TARGET, selector(SEVEN))),
        (5 << 16, b"u32", (TARGET, selector(SEVEN))),
        (6 << 16, b"u32", (TARGET, selector(SEVEN))),
        (4 << 16, b"u32", (selector(SEVEN),)),
        (4 << 16, b"u32", (TARGET,)),
        (4 << 16, b"u32", (TARGET, selector())),
        (4 << 16, b"u32", (TARGET, selector(SEVEN, SEVEN))),
        (4 << 16, b"u32", (TARGET, selector((12, 0x0A000000, 0xFF000000)))),
        (4 << 16, b"u32", (TARGET, selector((-4, 1, 0xFFFFFFFF)))),
    ],
)
def test_filters_of_others(info, name, options):
    with pytest.raises(ModifiedTree):
        parse_filter(*whole(message(1, 0x6B6C0000, info, name, *options)))


@given(
    st.sampled_from([(parse_class, CLASS), (parse_filter, FOUR), (parse_filter, SIX)]),
    st.integers(0, 400),
    st.integers(0, 255),
    st.integers(0, 400),
)
def test_a_damaged_message_is_read_or_refused(case, at, byte, length):
    parse, data = case
    damaged = bytearray(data)
    damaged[at % len(data)] = byte
    cut = bytes(damaged[: max(16, length % (len(data) + 1))])
    with suppress(ValueError, struct.error, ModifiedTree):
        parse(cut, (0, len(cut)))
    with suppress(ValueError, struct.error, ModifiedTree):
        parse(bytes(damaged), (0, len(damaged)))


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data):
    for parse in (parse_class, parse_filter):
        with suppress(ValueError, struct.error, ModifiedTree):
            parse(data, (0, len(data)))
