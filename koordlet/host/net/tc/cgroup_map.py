"""Classify packets by the cgroup (v2) of their socket: an nf_tables map for each interface."""

import errno
import os
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing

from koordlet.host.net import netlink
from koordlet.host.net.netlink import ATTRIBUTE, HEADER, each_attribute
from koordlet.host.net.tc.tree import CgroupMatch

_PREFIX = "koordlet-"
_CHAIN = "sockets"
_INET = 1  # NFPROTO_INET: IPv4 and IPv6
_NETLINK_NETFILTER = 12
_NFTABLES = 10 << 8  # of message types
_BEGIN, _END = 0x10, 0x11
_NEW_TABLE, _DELETE_TABLE, _NEW_CHAIN, _NEW_RULE = 0, 2, 3, 6
_NEW_SET, _GET_SET, _NEW_ELEMENTS, _GET_ELEMENTS = 9, 10, 12, 13
_CREATE, _APPEND = 0x400, 0x800  # NLM_F_*
_FAMILY = struct.Struct(">BBH")  # nfgenmsg: family, version, resource
_NUMBER = struct.Struct("=I")  # of the kernel's registers
_ID = struct.Struct("=Q")
_NESTED = 0x8000
_OUTPUT, _MANGLE = 3, -150  # hook, and priority in it
_MAP = 0x8  # NFT_SET_MAP
_CGROUP_TYPE, _CLASS_TYPE = 46, 23  # by which the program nft shows keys and values
_REGISTER, _SECOND = 1, 2
_PRIORITY, _OUT_INTERFACE = 2, 5  # NFT_META_*
_HOST_ORDER = bytes((0, 4)) + _NUMBER.pack(1) + bytes((1, 4)) + _NUMBER.pack(1)  # for nft, too
_CGROUPV2 = 3  # NFT_SOCKET_CGROUPV2
_ACCEPT = 1
_IN_MESSAGE = 500  # elements: an attribute has at most 64 KiB
_RECEIVE = 1 << 20  # bytes
_TIMEOUT = 5.0  # seconds; the first message may load modules
_LACKING = frozenset(  # no such table, no nf_tables at all, or no right to look
    {
        errno.ENOENT,
        errno.EPROTONOSUPPORT,
        errno.EAFNOSUPPORT,
        errno.EOPNOTSUPP,
        errno.EINVAL,
        errno.EPERM,
    }
)


def set_cgroup_map(index: int, major: int, matches: Iterable[CgroupMatch]) -> None:
    """Classify packets by the cgroup of their socket; replaces the map of the interface.

    Packets of other cgroups match nothing. index: the interface's number. major: of the classes.

    Raises:
        OSError: the kernel refuses, or has no nf_tables or no match on cgroups; nothing is changed.
    """
    by_level: dict[int, list[CgroupMatch]] = {}
    for match in matches:
        by_level.setdefault(match.level, []).append(match)
    table = _text(1, f"{_PREFIX}{index}")
    messages = [(_NEW_TABLE, _CREATE, table), (_DELETE_TABLE, 0, table)]
    if by_level:
        messages += [(_NEW_TABLE, _CREATE, table), (_NEW_CHAIN, _CREATE, _chain(index))]
    for level, found in sorted(by_level.items()):
        messages += _level_rules(index, major, level, found)
    _transact(messages)


def read_cgroup_map(index: int, major: int) -> tuple[CgroupMatch, ...]:
    """Return what is set, in the order of the text.

    Raises:
        ValueError, struct.error: what is there is not what set_cgroup_map makes.
        OSError: the kernel refuses. One without nf_tables has nothing set, and a process without
            CAP_NET_ADMIN sees nothing of it.
    """
    table = _text(1, f"{_PREFIX}{index}")
    try:
        sets = list(_ask(_GET_SET, table))
    except OSError as err:
        if err.errno in _LACKING:
            return ()
        raise
    found: list[CgroupMatch] = []
    for attributes in sets:
        name = _string(attributes.get(2, b""))
        level = int(name.removeprefix("level-"))
        for each in _ask(_GET_ELEMENTS, table + _text(2, name)):
            for element in _children(each.get(3, b"")):
                parts = dict(element)
                [cgroup] = _ID.unpack(_value(parts.get(1, b"")))
                [number] = _NUMBER.unpack(_value(parts.get(2, b"")))
                if number & 0xFFFF0000 != major:
                    raise ValueError(f"wanted a class of {major:#x}, found {number:#x}")
                found.append(CgroupMatch(level, cgroup, number & 0xFFFF))
    return tuple(sorted(found))


def supports_cgroup_map() -> bool:
    """Whether this kernel can do that. It makes a table, and takes it back at once.

    Raises:
        TimeoutError: it does not answer.
    """
    name = f"{_PREFIX}probe"
    table = _text(1, name)
    rule = _rule(name, [_socket_expression(1)])
    try:
        _transact(
            [
                (_NEW_TABLE, _CREATE, table),
                (_NEW_CHAIN, _CREATE, _chain_of(name)),
                (_NEW_RULE, _CREATE | _APPEND, rule),
                (_DELETE_TABLE, 0, table),
            ]
        )
    except TimeoutError:
        raise
    except OSError:
        return False
    return True


def _chain(index: int) -> bytes:
    return _chain_of(f"{_PREFIX}{index}")


def _chain_of(table: str) -> bytes:
    hook = _be32(1, _OUTPUT) + _be32(2, _MANGLE & 0xFFFFFFFF)
    return (
        _text(1, table) + _text(3, _CHAIN) + _nest(4, hook) + _be32(5, _ACCEPT) + _text(7, "filter")
    )


def _level_rules(
    index: int, major: int, level: int, matches: list[CgroupMatch]
) -> Iterator[tuple[int, int, bytes]]:
    """A map of the cgroups of one depth, and the rule that looks into it."""
    table, name = f"{_PREFIX}{index}", f"level-{level}"
    made = [
        _text(1, table), _text(2, name), _be32(3, _MAP), _be32(10, level),
        _be32(4, _CGROUP_TYPE), _be32(5, _ID.size), _be32(6, _CLASS_TYPE), _be32(7, _NUMBER.size),
        _attribute(13, _HOST_ORDER),
    ]  # fmt: skip
    yield _NEW_SET, _CREATE, b"".join(made)
    for at in range(0, len(matches), _IN_MESSAGE):
        elements = b"".join(
            _nest(
                1,
                _nest(1, _attribute(1, _ID.pack(each.cgroup)))
                + _nest(2, _attribute(1, _NUMBER.pack(major | each.minor))),
            )
            for each in matches[at : at + _IN_MESSAGE]
        )
        yield _NEW_ELEMENTS, _CREATE, _text(1, table) + _text(2, name) + _nest(3, elements)
    expressions = [
        _expression("meta", _be32(1, _REGISTER) + _be32(2, _OUT_INTERFACE)),
        _expression(
            "cmp",
            _be32(1, _REGISTER) + _be32(2, 0) + _nest(3, _attribute(1, _NUMBER.pack(index))),
        ),
        _socket_expression(level),
        _expression(
            "lookup", _text(1, name) + _be32(2, _REGISTER) + _be32(3, _SECOND) + _be32(4, level)
        ),
        _expression("meta", _be32(2, _PRIORITY) + _be32(3, _SECOND)),
    ]
    yield _NEW_RULE, _CREATE | _APPEND, _rule(table, expressions)


def _rule(table: str, expressions: list[bytes]) -> bytes:
    return _text(1, table) + _text(2, _CHAIN) + _nest(4, b"".join(expressions))


def _socket_expression(level: int) -> bytes:
    return _expression("socket", _be32(1, _CGROUPV2) + _be32(2, _REGISTER) + _be32(3, level))


def _expression(name: str, data: bytes) -> bytes:
    return _nest(1, _text(1, name) + _nest(2, data))


# Messages of netlink.


def _attribute(kind: int, data: bytes) -> bytes:
    length = ATTRIBUTE.size + len(data)
    return ATTRIBUTE.pack(length, kind) + data + bytes(-length % 4)


def _nest(kind: int, data: bytes) -> bytes:
    return _attribute(kind | _NESTED, data)


def _text(kind: int, text: str) -> bytes:
    return _attribute(kind, text.encode("ascii") + b"\0")


def _be32(kind: int, number: int) -> bytes:
    return _attribute(kind, struct.pack(">I", number))


def _string(data: bytes) -> str:
    return data.removesuffix(b"\0").decode("ascii", "replace")


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Kind and content of each. Raises ValueError."""
    return ((kind, data[slice(*place)]) for kind, place in each_attribute(data, 0, len(data)))


def _value(data: bytes) -> bytes:
    return dict(_attributes(data)).get(1, b"")


def _children(data: bytes) -> Iterator[Iterator[tuple[int, bytes]]]:
    return (_attributes(content) for _, content in _attributes(data))


def _message(kind: int, flags: int, number: int, family: int, resource: int, data: bytes) -> bytes:
    body = _FAMILY.pack(family, 0, resource) + data
    length, flags = HEADER.size + len(body), flags | netlink.REQUEST
    return HEADER.pack(length, kind, flags, number, 0) + body


def _transact(messages: Iterable[tuple[int, int, bytes]]) -> None:
    """Send the messages as one transaction: all take effect, or none. Raises OSError."""
    numbered = list(enumerate(messages, 1))
    parts = [_message(_BEGIN, 0, 0, 0, _NFTABLES >> 8, b"")]
    parts += [
        _message(_NFTABLES | kind, flags | netlink.ACK, number, _INET, 0, data)
        for number, (kind, flags, data) in numbered
    ]
    parts.append(_message(_END, 0, len(numbered) + 1, 0, _NFTABLES >> 8, b""))
    with closing(_connect()) as kernel:
        kernel.send(b"".join(parts))
        left = len(numbered)
        while left:
            left -= sum(kind == netlink.ERROR for kind, _ in _received(kernel))


def _ask(kind: int, data: bytes) -> Iterator[Mapping[int, bytes]]:
    """Attributes of what a dump has. Raises OSError, ValueError."""
    with closing(_connect()) as kernel:
        kernel.send(_message(_NFTABLES | kind, netlink.DUMP, 1, _INET, 0, data))
        while True:
            for found, content in _received(kernel):
                if found in (netlink.DONE, netlink.ERROR):
                    return
                yield dict(_attributes(content[_FAMILY.size :]))


def _connect() -> socket.socket:
    kernel = netlink.connect(_NETLINK_NETFILTER)
    kernel.settimeout(_TIMEOUT)
    kernel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE)
    kernel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _RECEIVE)
    return kernel


def _received(kernel: socket.socket) -> Iterator[tuple[int, bytes]]:
    """Kind and content of each message of a response. Raises OSError: one is an error, or none."""
    data = kernel.recv(_RECEIVE)
    try:
        found = list(netlink.messages(data))
    except ValueError as err:
        raise OSError(errno.EBADMSG, str(err)) from err
    for kind, _, span in found:
        if kind == netlink.ERROR and (number := netlink.error_number(data, span)):
            raise OSError(number, os.strerror(number))
        yield kind, data[span[0] + HEADER.size : span[1]]
