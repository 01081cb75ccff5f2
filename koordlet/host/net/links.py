"""Answers of rtnetlink about interfaces, from bytes to values. Pure: no socket.

Source: kernel headers linux/rtnetlink.h, linux/if_link.h.
"""

import struct
import sys
from typing import NamedTuple

from koordlet.host.net.netfiles import InterfaceCounters
from koordlet.host.net.netlink import HEADER, Span, attributes

_LINK = struct.Struct("=BxHiII")  # family, type, index, flags, change
_STATS = struct.Struct("=BxxxII")  # family, index, filter mask
_ORDER = sys.byteorder

_ADDRESS, _BROADCAST, _IFNAME, _MTU, _IFLINK = 1, 2, 3, 4, 5
_TXQLEN, _OPERSTATE, _LINKMODE, _IFALIAS, _STATS64 = 13, 16, 17, 20, 23
_GROUP, _CARRIER, _CARRIER_CHANGES, _CARRIER_UP, _CARRIER_DOWN = 27, 33, 35, 47, 48
_STATS_LINK_64 = 1  # the only attribute of RTM_NEWSTATS that is asked for
_OPERSTATES = ("unknown", "notpresent", "down", "lowerlayerdown", "testing", "dormant", "up")

_STATS64_FIELDS = struct.Struct("=23Q")  # the part of rtnl_link_stats64 that all kernels have
_U64 = struct.Struct("=Q")


class Link(NamedTuple):
    """An interface's properties. None: the kernel does not report one."""

    ifindex: int
    name: str
    protocol_type: int  # ARPHRD_*, for example 1 for Ethernet
    flags: int  # IFF_*
    operstate: str  # RFC 2863, for example "up"
    mtu: int  # bytes
    tx_queue_length: int  # packets
    group: int
    lower_ifindex: int  # the interface below or beside it (veth peer); its own when there is none
    link_mode: int
    address: str
    broadcast: str
    alias: str
    carrier: int | None = None
    carrier_changes: int | None = None
    carrier_up_changes: int | None = None
    carrier_down_changes: int | None = None


class LinkStats(NamedTuple):
    """Traffic of one interface; link is None when the source knows no more than its name."""

    counters: InterfaceCounters
    link: Link | None = None


def decode_link(data: bytes, span: Span) -> tuple[int, LinkStats]:
    """Return the index and state of one interface from an RTM_NEWLINK message.

    Raises:
        ValueError: it has no name or no 64-bit counters (all kernels since 2.6.35 send both).
        struct.error: it is too short.
    """
    start, end = span
    _, kind, index, flags, _ = _LINK.unpack_from(data, start + HEADER.size)
    found = attributes(data, start + HEADER.size + _LINK.size, end)
    if _IFNAME not in found or _STATS64 not in found:
        raise ValueError(f"link {index} without name or 64-bit counters")

    def number(attribute: int) -> int | None:
        place = found.get(attribute)
        return int.from_bytes(data[slice(*place)], _ORDER) if place else None

    def text(attribute: int) -> str:
        place = found.get(attribute)
        return data[slice(*place)].rstrip(b"\0").decode(errors="replace") if place else ""

    def hardware(attribute: int) -> str:
        place = found.get(attribute)
        return data[slice(*place)].hex(":") if place else ""

    operstate = number(_OPERSTATE) or 0
    link = Link(
        ifindex=index,
        name=text(_IFNAME),
        protocol_type=kind,
        flags=flags,
        operstate=_OPERSTATES[operstate] if operstate < len(_OPERSTATES) else "unknown",
        mtu=number(_MTU) or 0,
        tx_queue_length=number(_TXQLEN) or 0,
        group=number(_GROUP) or 0,
        lower_ifindex=number(_IFLINK) or index,
        link_mode=number(_LINKMODE) or 0,
        address=hardware(_ADDRESS),
        broadcast=hardware(_BROADCAST),
        alias=text(_IFALIAS),
        carrier=number(_CARRIER),
        carrier_changes=number(_CARRIER_CHANGES),
        carrier_up_changes=number(_CARRIER_UP),
        carrier_down_changes=number(_CARRIER_DOWN),
    )
    return index, LinkStats(fold_stats64(data, found[_STATS64]), link)


def decode_counters(data: bytes, span: Span) -> tuple[int, InterfaceCounters]:
    """Return the index and counters of one interface from an RTM_NEWSTATS message.

    Raises:
        ValueError: it has no 64-bit counters.
        struct.error: it is too short.
    """
    start, end = span
    _, index, _ = _STATS.unpack_from(data, start + HEADER.size)
    place = attributes(data, start + HEADER.size + _STATS.size, end).get(_STATS_LINK_64)
    if place is None:
        raise ValueError(f"link {index} without 64-bit counters")
    return index, fold_stats64(data, place)


def fold_stats64(data: bytes, place: Span) -> InterfaceCounters:
    """Return rtnl_link_stats64 folded into the columns of /proc/net/dev, as the kernel folds it.

    Raises:
        ValueError: the structure is shorter than in any kernel.
    """
    start, end = place
    nohandler_at = start + _STATS64_FIELDS.size
    if nohandler_at > end:
        raise ValueError(f"wanted at least {_STATS64_FIELDS.size} bytes, found {end - start}")
    (
        rx_packets, tx_packets, rx_bytes, tx_bytes, rx_errors, tx_errors, rx_dropped, tx_dropped,
        multicast, collisions, rx_length, rx_over, rx_crc, rx_frame, rx_fifo, rx_missed,
        tx_aborted, tx_carrier, tx_fifo, tx_heartbeat, tx_window, rx_compressed, tx_compressed,
    ) = _STATS64_FIELDS.unpack_from(data, start)  # fmt: skip
    has_nohandler = nohandler_at + _U64.size <= end  # Linux 4.6 and later
    nohandler = _U64.unpack_from(data, nohandler_at)[0] if has_nohandler else None
    return InterfaceCounters(
        rx_bytes, rx_packets, rx_errors, rx_dropped + rx_missed, rx_fifo,
        rx_frame + rx_length + rx_over + rx_crc, rx_compressed, multicast,
        tx_bytes, tx_packets, tx_errors, tx_dropped, tx_fifo, collisions,
        tx_carrier + tx_aborted + tx_heartbeat + tx_window, tx_compressed, nohandler,
    )  # fmt: skip
