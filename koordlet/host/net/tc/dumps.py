"""HTB classes and u32 filters of an interface as the kernel lists them, from messages to values.

They are looked at every 10 s. pyroute2 takes 105 ms for those of 150 pods with two addresses each,
this a tenth.

Source: kernel headers linux/rtnetlink.h, linux/pkt_sched.h, linux/pkt_cls.h.
"""

import socket
import struct
import sys
from collections.abc import Iterator
from ipaddress import ip_address
from typing import NamedTuple

from koordlet.host.net import netlink
from koordlet.host.net.netlink import HEADER, Span
from koordlet.host.net.tc.tree import Match, TrafficClass

OFFSETS = {  # bytes from the start of the IP header
    (4, "from"): 12,
    (4, "to"): 16,
    (6, "from"): 8,
    (6, "to"): 24,
}
PREFERENCES = {4: 4, 6: 6}  # of filters; one of each protocol
MINOR = 0xFFFF
_ROOT = 0xFFFFFFFF  # TC_H_ROOT
_GET_CLASSES, _NEW_CLASS, _GET_FILTERS, _NEW_FILTER = 42, 40, 46, 44  # RTM_*
_DUMP = netlink.REQUEST | netlink.DUMP
_TC = struct.Struct("=BxxxiIII")  # family, index, handle, parent, info
_KIND, _OPTIONS = 1, 2  # TCA_*
_PARAMETERS, _RATE64, _CEIL64 = 1, 6, 7  # TCA_HTB_*
_CLASS_ID, _DIVISOR, _SELECTOR = 1, 4, 5  # TCA_U32_*
_HTB = struct.Struct("=8xI8xI16xI")  # tc_htb_opt: rate, ceil, prio
_SELECTOR_BYTES, _KEYS_AT = 16, 2  # tc_u32_sel, and the place of its number of keys
_KEY = struct.Struct(">II4s4s")  # tc_u32_key: mask, value, offset, mask of the offset
_U32, _U64, _WORD = struct.Struct("=I"), struct.Struct("=Q"), struct.Struct(">I")
_TIMEOUT = 2.0  # seconds
_SIDES = {
    version: {offset: side for (of, side), offset in OFFSETS.items() if of == version}
    for version in PREFERENCES
}


class Altered(Exception):
    """A class or filter that koordlet does not make."""


class Interrupted(Exception):
    """Something was changed meanwhile: the list is to be read again."""


class Filter(NamedTuple):
    """A match as the kernel has it."""

    match: Match
    handle: int


def read_classes(index: int) -> list[TrafficClass]:
    """Return the classes of an interface in this network namespace.

    Raises:
        OSError: the kernel refuses, or there is no such interface.
        Interrupted: as there.
        ValueError, struct.error: the kernel's answer is none.
    """
    found = (parse_class(data, span) for data, span in _dump(_GET_CLASSES, _NEW_CLASS, index, 0))
    return [each for each in found if each is not None]


def read_filters(index: int, parent: int) -> list[Filter]:
    """Return the filters below a qdisc. Raises Altered, and as read_classes."""
    messages = _dump(_GET_FILTERS, _NEW_FILTER, index, parent)
    found = (parse_filter(data, span) for data, span in messages)
    return [each for each in found if each is not None]


def parse_class(data: bytes, span: Span) -> TrafficClass | None:
    """Return the class of a message; None: it is none of HTB. Raises ValueError, struct.error."""
    handle, parent, _, kind, options = _parts(data, span)
    if kind != "htb":
        return None
    rate, ceil, prio = _HTB.unpack_from(data, _place(options, _PARAMETERS, _HTB.size))
    if _RATE64 in options:
        (rate,) = _U64.unpack_from(data, _place(options, _RATE64, _U64.size))
    if _CEIL64 in options:
        (ceil,) = _U64.unpack_from(data, _place(options, _CEIL64, _U64.size))
    below = 0 if parent == _ROOT else parent & MINOR
    return TrafficClass(handle & MINOR, below, rate, ceil, prio)


def parse_filter(data: bytes, span: Span) -> Filter | None:
    """Return the filter of a message; None: it is the table of others.

    Raises:
        Altered: it is none of koordlet's.
        ValueError, struct.error: it is no such message.
    """
    handle, _, info, kind, options = _parts(data, span)
    if kind != "u32":
        raise Altered
    if not options or _DIVISOR in options:
        return None
    sides = _SIDES.get(next((v for v, at in PREFERENCES.items() if at == info >> 16), 0))
    if sides is None or _CLASS_ID not in options or _SELECTOR not in options:
        raise Altered
    (target,) = _U32.unpack_from(data, _place(options, _CLASS_ID, _U32.size))
    keys = list(_keys(data, options[_SELECTOR]))
    first = keys[0][0] if keys else -1
    words = 1 if info >> 16 == PREFERENCES[4] else 4
    wanted = [(first + 4 * word, 0xFFFFFFFF) for word in range(words)]
    if first not in sides or [(offset, mask) for offset, _, mask in keys] != wanted:
        raise Altered
    address = ip_address(b"".join(_WORD.pack(value) for _, value, _ in keys))
    return Filter(Match(sides[first], address, target & MINOR), handle)


def _keys(data: bytes, span: Span) -> Iterator[tuple[int, int, int]]:
    """Yield offset, value and mask. Raises ValueError: they are cut."""
    start, end = span
    count = data[start + _KEYS_AT] if end - start >= _SELECTOR_BYTES else 0
    first = start + _SELECTOR_BYTES
    if first + count * _KEY.size > end:
        raise ValueError(f"wanted {count} keys, found {end - start} bytes")
    for at in range(first, first + count * _KEY.size, _KEY.size):
        mask, value, offset, _ = _KEY.unpack_from(data, at)
        yield int.from_bytes(offset, sys.byteorder, signed=True), value, mask


def _parts(data: bytes, span: Span) -> tuple[int, int, int, str, dict[int, Span]]:
    """Return handle, parent, info, kind, and the options' attributes."""
    start, end = span[0] + HEADER.size, span[1]
    if start + _TC.size > end:
        raise ValueError(f"wanted a message about traffic, found {end - span[0]} bytes")
    _, _, handle, parent, info = _TC.unpack_from(data, start)
    found = netlink.attributes(data, start + _TC.size, end)
    kind = data[slice(*found.get(_KIND, (0, 0)))].rstrip(b"\0").decode(errors="replace")
    options = netlink.attributes(data, *found[_OPTIONS]) if _OPTIONS in found else {}
    return handle, parent, info, kind, options


def _place(options: dict[int, Span], attribute: int, size: int) -> int:
    start, end = options.get(attribute, (0, 0))
    if end - start < size:
        raise ValueError(f"wanted {size} bytes in attribute {attribute}, found {end - start}")
    return start


def _dump(ask: int, wanted: int, index: int, parent: int) -> Iterator[tuple[bytes, Span]]:
    """Yield the messages of the answer about an interface."""
    with netlink.connect(socket.NETLINK_ROUTE) as opened:
        opened.settimeout(_TIMEOUT)
        body = _TC.pack(0, index, 0, parent, 0)
        opened.send(HEADER.pack(HEADER.size + len(body), ask, _DUMP, 1, 0) + body)
        for kind, flags, data, span in netlink.replies(opened, 1):
            if flags & netlink.INTERRUPTED:
                raise Interrupted
            if kind == wanted:
                yield data, span
