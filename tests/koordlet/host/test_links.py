"""Answers of rtnetlink, byte by byte."""

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.host.net.interfaces import decode_counters, decode_link, fold_stats64
from koordlet.host.net.netlink import attributes, error_number, messages

STATS64 = """
    rx_packets tx_packets rx_bytes tx_bytes rx_errors tx_errors rx_dropped tx_dropped
    multicast collisions rx_length rx_over rx_crc rx_frame rx_fifo rx_missed tx_aborted
    tx_carrier tx_fifo tx_heartbeat tx_window rx_compressed tx_compressed rx_nohandler
    rx_otherhost_dropped
""".split()


def stats64(length: int = 24, **counters: int) -> bytes:
    values = [0] * length
    for name, value in counters.items():
        values[STATS64.index(name)] = value
    return struct.pack(f"={length}Q", *values)


def attribute(kind: int, value: bytes) -> bytes:
    padding = -len(value) % 4
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * padding


def message(kind: int, body: bytes, sequence: int = 7) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, 2, sequence, 0) + body


def link(*more: bytes, index: int = 3, name: bytes = b"eth0", counters: bytes = b"") -> bytes:
    head = struct.pack("=BxHiII", 0, 1, index, 0x1043, 0)
    return message(
        16,
        head + attribute(3, name + b"\0") + attribute(23, counters or stats64()) + b"".join(more),
    )


def u32(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=I", value))


def decode(data: bytes):
    ((_, _, span),) = messages(data)
    return decode_link(data, span)


@pytest.mark.parametrize(
    ("counters", "field", "expected"),
    [
        ({"rx_dropped": 5, "rx_missed": 2}, "rx_drop", 7),
        ({"rx_frame": 1, "rx_length": 2, "rx_over": 3, "rx_crc": 4}, "rx_frame", 10),
        ({"tx_carrier": 1, "tx_aborted": 1, "tx_window": 2}, "tx_carrier", 4),
        ({"tx_heartbeat": 9}, "tx_carrier", 9),
        ({"tx_dropped": 5}, "tx_drop", 5),
        ({"collisions": 6}, "tx_colls", 6),
        ({"multicast": 8}, "rx_multicast", 8),
        ({"rx_bytes": 2**64 - 1}, "rx_bytes", 2**64 - 1),
        ({"rx_nohandler": 3}, "rx_nohandler", 3),
    ],
)
def test_counters_are_folded_as_in_proc_net_dev(counters, field, expected):
    """The worked examples, one column at a time; all other columns stay 0."""
    data = stats64(**counters)

    folded = fold_stats64(data, (0, len(data)))

    assert getattr(folded, field) == expected
    assert sum(value or 0 for value in folded) == expected


@pytest.mark.parametrize(("length", "nohandler"), [(23, None), (24, 0), (25, 0), (40, 0)])
def test_older_and_newer_kernels(length, nohandler):
    """The structure grew at its end; fields unknown to us are left alone."""
    data = stats64(length, rx_bytes=11, tx_compressed=12)

    folded = fold_stats64(data, (0, len(data)))

    assert (folded.rx_bytes, folded.tx_compressed, folded.rx_nohandler) == (11, 12, nohandler)


def test_a_structure_that_is_too_short():
    """Reading beyond its end would give another attribute's bytes."""
    data = stats64(40)

    with pytest.raises(ValueError, match="184 bytes"):
        fold_stats64(data, (0, 22 * 8))


def test_a_link():
    """All that an interface says about itself."""
    index, (counters, found) = decode(
        link(
            attribute(1, bytes.fromhex("02fc00000001")),
            attribute(2, b"\xff" * 6),
            u32(4, 1500),
            u32(5, 9),
            u32(13, 1000),
            attribute(16, b"\x06"),
            attribute(17, b"\x01"),
            attribute(20, b"uplink\0"),
            u32(27, 4),
            attribute(33, b"\x01"),
            u32(35, 5),
            u32(47, 3),
            u32(48, 2),
            attribute(0x8000 | 26, b"\x04\0\0\0"),
            counters=stats64(rx_bytes=10, tx_bytes=20),
        )
    )

    assert index == found.ifindex == 3
    assert (counters.rx_bytes, counters.tx_bytes) == (10, 20)
    assert found._asdict() == {
        "ifindex": 3,
        "name": "eth0",
        "protocol_type": 1,
        "flags": 0x1043,
        "operstate": "up",
        "mtu": 1500,
        "tx_queue_length": 1000,
        "group": 4,
        "lower_ifindex": 9,
        "link_mode": 1,
        "address": "02:fc:00:00:00:01",
        "broadcast": "ff:ff:ff:ff:ff:ff",
        "alias": "uplink",
        "carrier": 1,
        "carrier_changes": 5,
        "carrier_up_changes": 3,
        "carrier_down_changes": 2,
    }


def test_what_an_old_kernel_does_not_say_is_absent():
    """Numbers that are measured are None then, never 0."""
    _, (_, found) = decode(link(attribute(16, b"\x63")))

    assert found.operstate == "unknown"
    assert found.lower_ifindex == found.ifindex
    assert (found.carrier, found.carrier_changes) == (None, None)


def test_a_link_without_name_or_counters():
    """Such a response is refused rather than guessed."""
    head = struct.pack("=BxHiII", 0, 1, 3, 0, 0)

    with pytest.raises(ValueError, match="without name"):
        decode(message(16, head + attribute(3, b"eth0\0")))


def test_counters_alone():
    """The answer to RTM_GETSTATS; 64-bit alignment puts an empty attribute before."""
    body = struct.pack("=BxxxII", 0, 5, 1) + attribute(0, b"") + attribute(1, stats64(rx_bytes=3))
    data = message(92, body)
    ((_, _, span),) = messages(data)

    index, counters = decode_counters(data, span)

    assert (index, counters.rx_bytes) == (5, 3)
    with pytest.raises(ValueError, match="without 64-bit counters"):
        decode_counters(data, (0, 16 + 12))


def test_several_messages_in_one_datagram():
    """Each with its type and sequence number; an error carries its number."""
    error = message(2, struct.pack("=i", -95) + b"\0" * 16, sequence=8)
    data = link() + error + message(3, b"\0\0\0\0", sequence=9)

    found = list(messages(data))

    assert [(kind, sequence) for kind, sequence, _ in found] == [(16, 7), (2, 8), (3, 9)]
    assert error_number(data, found[1][2]) == 95


@pytest.mark.parametrize("length", [0, 15, 1000])
def test_impossible_message_lengths(length):
    """Neither an endless loop nor a read beyond the end."""
    data = struct.pack("=IHHII", length, 16, 0, 0, 0)

    with pytest.raises(ValueError, match="netlink message"):
        list(messages(data))


@pytest.mark.parametrize("length", [0, 3, 1000])
def test_impossible_attribute_lengths(length):
    """Likewise for attributes."""
    data = struct.pack("=HHI", length, 1, 0)

    with pytest.raises(ValueError, match="netlink attribute"):
        attributes(data, 0, len(data))


@given(
    st.binary(max_size=100) | st.builds(lambda cut: link(u32(4, 1500))[:cut], st.integers(0, 300)),
    st.integers(0, 300),
    st.binary(min_size=1, max_size=2),
)
def test_any_bytes_end_in_an_expected_way(data, at, damage):
    """Damaged answers are values, ValueError or struct.error, and always end."""
    damaged = data[:at] + damage + data[at + len(damage) :]
    with contextlib.suppress(ValueError, struct.error):
        for _, _, span in messages(damaged):
            with contextlib.suppress(ValueError, struct.error):
                decode_counters(damaged, span)
            decode_link(damaged, span)
