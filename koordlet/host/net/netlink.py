"""Netlink: messages and attributes, from bytes to their places, and a socket for them.

Source: kernel header linux/netlink.h.
"""

import os
import socket
import struct
from collections.abc import Iterator

HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
ATTRIBUTE = struct.Struct("=HH")  # length, type
ERROR, DONE = 2, 3  # NLMSG_*
REQUEST, ACK, DUMP, INTERRUPTED = 0x1, 0x4, 0x300, 0x10  # NLM_F_*
_TYPE_MASK = 0x3FFF  # the two upper bits of an attribute's type are flags
_NUMBER = struct.Struct("=i")
_RESPONSE_BYTES = 65536  # a datagram that does not fit is cut; the kernel sends at most 32 KiB

Span = tuple[int, int]  # first byte and the byte after the last


def connect(protocol: int, groups: int = 0) -> socket.socket:
    """Return a socket to the kernel, with these multicast groups. Raises OSError."""
    kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
    opened = socket.socket(socket.AF_NETLINK, kind, protocol)
    try:
        opened.bind((0, groups))
    except OSError:
        opened.close()
        raise
    return opened


def messages(data: bytes) -> Iterator[tuple[int, int, Span]]:
    """Yield type, sequence number and place of each netlink message of one datagram.

    Raises:
        ValueError: a length is impossible.
    """
    start = 0
    while start + HEADER.size <= len(data):
        length, kind, _, sequence, _ = HEADER.unpack_from(data, start)
        if not HEADER.size <= length <= len(data) - start:
            raise ValueError(f"netlink message of {length} bytes in {len(data) - start}")
        yield kind, sequence, (start, start + length)
        start += (length + 3) & ~3


def replies(kernel: socket.socket, sequence: int) -> Iterator[tuple[int, int, bytes, Span]]:
    """Yield type, flags, datagram and place of each message of the response to a dump request.

    The last one is DONE. Messages of a request that was given up are left out.

    Raises:
        OSError: the kernel refuses, or does not answer in time.
        ValueError: a length is impossible.
    """
    while True:
        data = kernel.recv(_RESPONSE_BYTES)
        for kind, found, span in messages(data):
            if found != sequence:
                continue
            if kind == ERROR:
                number = error_number(data, span)
                raise OSError(number, os.strerror(number))
            _, _, flags, _, _ = HEADER.unpack_from(data, span[0])
            yield kind, flags, data, span
            if kind == DONE:
                return


def error_number(data: bytes, span: Span) -> int:
    """Return the errno of an NLMSG_ERROR message; 0 acknowledges the request.

    Raises:
        struct.error: it is too short.
    """
    (number,) = _NUMBER.unpack_from(data, span[0] + HEADER.size)
    return -int(number)


def each_attribute(data: bytes, start: int, end: int) -> Iterator[tuple[int, Span]]:
    """Yield type and place of the value of each attribute, in their order.

    Raises:
        ValueError: a length is impossible.
    """
    while start + ATTRIBUTE.size <= end:
        length, kind = ATTRIBUTE.unpack_from(data, start)
        if not ATTRIBUTE.size <= length <= end - start:
            raise ValueError(f"netlink attribute of {length} bytes in {end - start}")
        yield kind & _TYPE_MASK, (start + ATTRIBUTE.size, start + length)
        start += (length + 3) & ~3


def attributes(data: bytes, start: int, end: int) -> dict[int, Span]:
    """Return the places by type; the last of a type wins. Raises as each_attribute."""
    return dict(each_attribute(data, start, end))
