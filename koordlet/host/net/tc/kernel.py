"""Set trees of HTB classes with the kernel's own messages (rtnetlink), with pyroute2.

Ours is known by its handle, 6b6c: (0x6b6c0000). A root qdisc that the kernel made by itself has the
handle 0, which an agent cannot give; deleting ours brings it back. The kernel itself refuses to add
a root beside one with a handle, and to delete one of another handle, so that no moment is left in
which another agent's could be lost.

pyroute2's socket and its messages take about 10 MiB: this module is for a helper process.
"""

import errno
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Any, NamedTuple

import structlog
from pyroute2 import IPRoute, NetlinkError
from pyroute2.netlink.exceptions import NetlinkDumpInterrupted

from koordlet.host.errors import KernelFileError
from koordlet.host.net import netlink
from koordlet.host.net.netlink import HEADER, Span
from koordlet.host.net.tc.cgroup_map import read_cgroup_map, set_cgroup_map, supports_cgroup_map
from koordlet.host.net.tc.tree import (
    FOREIGN,
    MAJOR,
    MIN_RATE,
    MODIFIED,
    NEEDS,
    AddressMatch,
    CgroupMatch,
    ForeignQdisc,
    TrafficClass,
    TrafficRefused,
    TrafficTree,
    no_such_interface,
    parse_tree,
)
from koordlet.host.resource import ABSENT

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
_U32, _U64, _BE32 = struct.Struct("=I"), struct.Struct("=Q"), struct.Struct(">I")
_TIMEOUT = 2.0  # seconds
_SIDES = {
    version: {offset: side for (of, side), offset in OFFSETS.items() if of == version}
    for version in PREFERENCES
}


class ModifiedTree(Exception):
    """A class or filter that koordlet does not make."""


class DumpInterrupted(Exception):
    """Something was changed meanwhile: the list is to be read again."""


class AddressFilter(NamedTuple):
    """A match as the kernel has it."""

    match: AddressMatch
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


def read_filters(index: int, parent: int) -> list[AddressFilter]:
    """Return the filters below a qdisc. Raises Altered, and as read_classes."""
    messages = _dump(_GET_FILTERS, _NEW_FILTER, index, parent)
    found = (parse_filter(data, span) for data, span in messages)
    return [each for each in found if each is not None]


def parse_class(data: bytes, span: Span) -> TrafficClass | None:
    """Return the class of a message; None: it is none of HTB. Raises ValueError, struct.error."""
    handle, parent, _, kind, options = _key_parts(data, span)
    if kind != "htb":
        return None
    rate, ceil, prio = _HTB.unpack_from(data, _options_at(options, _PARAMETERS, _HTB.size))
    if _RATE64 in options:
        (rate,) = _U64.unpack_from(data, _options_at(options, _RATE64, _U64.size))
    if _CEIL64 in options:
        (ceil,) = _U64.unpack_from(data, _options_at(options, _CEIL64, _U64.size))
    below = 0 if parent == _ROOT else parent & MINOR
    return TrafficClass(handle & MINOR, below, rate, ceil, prio)


def parse_filter(data: bytes, span: Span) -> AddressFilter | None:
    """Return the filter of a message; None: it is the table of others.

    Raises:
        Altered: it is none of koordlet's.
        ValueError, struct.error: it is no such message.
    """
    handle, _, info, kind, options = _key_parts(data, span)
    if kind != "u32":
        raise ModifiedTree
    if not options or _DIVISOR in options:
        return None
    sides = _SIDES.get(next((v for v, at in PREFERENCES.items() if at == info >> 16), 0))
    if sides is None or _CLASS_ID not in options or _SELECTOR not in options:
        raise ModifiedTree
    (target,) = _U32.unpack_from(data, _options_at(options, _CLASS_ID, _U32.size))
    keys = list(_keys(data, options[_SELECTOR]))
    first = keys[0][0] if keys else -1
    words = 1 if info >> 16 == PREFERENCES[4] else 4
    wanted = [(first + 4 * word, 0xFFFFFFFF) for word in range(words)]
    if first not in sides or [(offset, mask) for offset, _, mask in keys] != wanted:
        raise ModifiedTree
    address = ip_address(b"".join(_BE32.pack(value) for _, value, _ in keys))
    return AddressFilter(AddressMatch(sides[first], address, target & MINOR), handle)


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


def _key_parts(data: bytes, span: Span) -> tuple[int, int, int, str, dict[int, Span]]:
    """Return handle, parent, info, kind, and the options' attributes."""
    start, end = span[0] + HEADER.size, span[1]
    if start + _TC.size > end:
        raise ValueError(f"wanted a message about traffic, found {end - span[0]} bytes")
    _, _, handle, parent, info = _TC.unpack_from(data, start)
    found = netlink.attributes(data, start + _TC.size, end)
    kind = data[slice(*found.get(_KIND, (0, 0)))].rstrip(b"\0").decode(errors="replace")
    options = netlink.attributes(data, *found[_OPTIONS]) if _OPTIONS in found else {}
    return handle, parent, info, kind, options


def _options_at(options: dict[int, Span], attribute: int, size: int) -> int:
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
                raise DumpInterrupted
            if kind == wanted:
                yield data, span


_TEMPORARY_MINOR = 0xFFFF  # a class that is there for the time of a change: the tree is half-made
_DEFAULTS = frozenset({"noqueue", "pfifo_fast", "fq_codel", "fq", "mq", "noop"})
_NO_DEVICE = frozenset({6, 19})  # ENXIO, ENODEV
_PROTOCOLS = {4: 0x0800, 6: 0x86DD}
_PID_LIMIT = 1 << 31
_BE32_WORD = struct.Struct(">I")
_BURST_SECONDS = 1000  # a class may send what it has in 1/1000 s at once, and
_BURST = 16000  # bytes more, about ten packets
_MAX_BURST_SECONDS = 60  # the kernel keeps no more
_QUANTUM = (1600, 60000)  # bytes in turn, at least a packet
_READS = 3  # a dump that is changed meanwhile is read again

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _KernelState:
    """The state at the root of an interface."""

    text: str
    tree: TrafficTree | None = None
    filters: tuple[tuple[AddressMatch, int], ...] = ()  # with handle
    queues: int = 0  # of mq
    incomplete: bool = False
    sockets: tuple[CgroupMatch, ...] = ()  # in nf_tables, whatever is at the root

    @property
    def is_ours(self) -> bool:
        return self.tree is not None or self.incomplete or self.text == MODIFIED


class KernelTraffic:
    """A TrafficControl through rtnetlink. For one thread."""

    def __init__(self, connect: Callable[[], Any] = IPRoute) -> None:
        self._connect = connect
        self._whole: set[int] = set()  # interfaces on which no earlier process left a part

    def read(self, interface: str) -> bytes | None:
        """Return the state at the root of an interface; None: no interface of that name."""
        try:
            index = _index(interface)
            with self._connect() as route:
                return f"{_read_state(route, index).text}\n".encode()
        except NetlinkError as err:
            if err.code in _NO_DEVICE:
                return None
            raise _unreadable(interface, err) from err
        except OSError as err:
            if err.errno in _NO_DEVICE:
                return None
            raise _unreadable(interface, err) from err

    def veth_peer(self, pid: int) -> str:
        """Return the node's end of a process's veth; "": it has none."""
        if not 0 < pid < _PID_LIMIT:
            raise _no_such_process(pid)
        try:
            with self._connect() as route:
                # The kernel numbers the namespaces of peers while it lists interfaces.
                links = list(route.get_links(kind="veth"))
                namespace = route.get_netnsid(pid=pid)["nsid"]
        except NetlinkError as err:
            if err.code == errno.ESRCH:
                raise _no_such_process(pid) from err
            raise _unreadable(f"process {pid}", err) from err
        ends = [link for link in links if link.get_attr("IFLA_LINK_NETNSID") == namespace]
        first = min(ends, key=lambda link: link.get_attr("IFLA_LINK"), default=None)
        return "" if first is None else str(first.get_attr("IFLA_IFNAME"))

    def supports_cgroup_map(self) -> bool:
        """Whether packets of the node's own sockets can be classified by cgroups of v2."""
        try:
            return supports_cgroup_map()
        except OSError as err:
            raise _unreadable("sockets", err) from err

    def identity(self, interface: str) -> int:
        """Return the ifindex of an interface; delete a half-made tree of ours."""
        index = _index(interface)
        if index not in self._whole:
            try:
                with self._connect() as route:
                    found = _read_state(route, index)
                    if found.incomplete or (found.tree is None and found.sockets):
                        _apply(route, index, found, None)
            except NetlinkError as err:
                if err.code in _NO_DEVICE:
                    raise no_such_interface(interface) from err
                raise _unreadable(interface, err) from err
            self._whole.add(index)
        return index

    def write(self, interface: str, identity: int, content: bytes) -> None:
        """Set the traffic tree of an interface: all of it or, on an error, nothing."""
        text = content.decode("ascii").removesuffix("\n")
        wanted = None if text == ABSENT else parse_tree(text)
        if _index(interface) != identity:
            raise no_such_interface(interface)
        try:
            with self._connect() as route:
                self._set(route, interface, identity, wanted)
        except NetlinkError as err:
            if err.code in _NO_DEVICE:
                raise no_such_interface(interface) from err
            raise _rejected_by_kernel(interface, err) from err

    def _set(self, route: Any, interface: str, index: int, wanted: TrafficTree | None) -> None:
        before = _read_state(route, index)
        if before.text.startswith(FOREIGN):
            raise ForeignQdisc(
                f"root qdisc of {interface}",
                wanted="what the kernel has by itself",
                found=before.text.removeprefix(f"{FOREIGN} "),
                hint="it is another agent's and stays; no traffic classes on this interface",
            )
        if before.queues and wanted is not None:
            logger.warning(
                "an interface with several queues (mq) gets one, for the time of traffic classes",
                interface=interface,
                queues=before.queues,
            )
        self._whole.discard(index)
        try:
            _apply(route, index, before, wanted)
        except NetlinkError:
            with suppress(NetlinkError):  # the first error is the one to report
                _apply(route, index, _read_state(route, index), before.tree)
            raise
        self._whole.add(index)


def _no_such_process(pid: int) -> OSError:
    return ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), str(pid))


def _index(interface: str) -> int:
    try:
        return socket.if_nametoindex(interface)
    except (OSError, ValueError) as err:
        raise no_such_interface(interface) from err


def _read_state(route: Any, index: int) -> _KernelState:
    for _ in range(_READS - 1):
        with suppress(NetlinkDumpInterrupted, DumpInterrupted):
            return _read_state_once(route, index)
    try:
        return _read_state_once(route, index)
    except DumpInterrupted as err:
        raise NetlinkError(errno.EAGAIN, "it changes all the time") from err


def _read_state_once(route: Any, index: int) -> _KernelState:
    try:
        sockets = read_cgroup_map(index, MAJOR)
    except (ValueError, struct.error):
        return _KernelState(MODIFIED)
    except OSError as err:
        raise NetlinkError(err.errno or errno.EIO, str(err)) from err
    return replace(_read_root_qdisc(route, index, sockets), sockets=sockets)


def _read_root_qdisc(route: Any, index: int, sockets: tuple[CgroupMatch, ...]) -> _KernelState:
    qdiscs = [each for each in route.get_qdiscs(index=index) if each["index"] == index]
    root = next((each for each in qdiscs if each["parent"] == _ROOT), None)
    if root is None:
        return _KernelState(ABSENT)
    kind = str(root.get_attr("TCA_KIND"))
    if root["handle"] == MAJOR and kind == "htb":
        return _read_our_tree(index, root, sockets)
    below = [each for each in qdiscs if each["parent"] < MAJOR and each["parent"] >> 16 == 0]
    by_kernel = all(
        each["handle"] == 0 and each.get_attr("TCA_KIND") in _DEFAULTS for each in (root, *below)
    )
    if by_kernel:
        return _KernelState(ABSENT, queues=len(below) if kind == "mq" else 0)
    name = "".join(c for c in kind.lower() if c.isascii() and (c.isalnum() or c == "_"))[:15]
    return _KernelState(f"{FOREIGN} {name or 'unknown'}")


def _read_our_tree(index: int, root: Any, sockets: tuple[CgroupMatch, ...]) -> _KernelState:
    try:
        options = root.get_attr("TCA_OPTIONS")
        default = options.get_attr("TCA_HTB_INIT")["defcls"]
        classes = read_classes(index)
        minors = {each.minor for each in classes}
        if not minors or _TEMPORARY_MINOR in minors:
            return _KernelState(ABSENT, incomplete=True)
        found = tuple(read_filters(index, MAJOR))
        tree = TrafficTree.of(default & MINOR, classes, [match for match, _ in found], sockets)
    except (ModifiedTree, ValueError, struct.error):
        return _KernelState(MODIFIED)
    except OSError as err:
        raise NetlinkError(err.errno or errno.EIO, str(err)) from err
    return _KernelState(str(tree), tree, found)


def _apply(route: Any, index: int, now: _KernelState, wanted: TrafficTree | None) -> None:
    """Raises NetlinkError: a part of it may have been done."""
    if now.is_ours and (
        wanted is None or now.tree is None or not _can_change_in_place(now.tree, wanted)
    ):
        route.tc("del", index=index, handle=MAJOR, parent=_ROOT)
        now = _KernelState(ABSENT, sockets=now.sockets)
    _apply_cgroup_map(index, now.sockets, () if wanted is None else wanted.sockets)
    if wanted is None:
        return
    if now.tree is None:
        route.tc("add", "htb", index, MAJOR, parent=_ROOT, default=wanted.default)
    _set_class(route, index, TrafficClass(_TEMPORARY_MINOR, 0, MIN_RATE, MIN_RATE, 0))
    known = {each.minor: each for each in now.tree.classes} if now.tree else {}
    for each in wanted.classes:
        if known.get(each.minor) != each:
            _set_class(route, index, each)
    old = dict(now.filters)
    for match in wanted.matches:
        if match not in old:
            _add_match(route, index, match)
    for match in old.keys() - set(wanted.matches):
        _delete_match(route, index, match, old[match])
    kept = {each.minor for each in wanted.classes}
    for minor in sorted(known.keys() - kept, reverse=True):  # those below come first
        _delete_class(route, index, minor)
    _delete_class(route, index, _TEMPORARY_MINOR)


def _apply_cgroup_map(
    index: int, now: tuple[CgroupMatch, ...], wanted: tuple[CgroupMatch, ...]
) -> None:
    """A class that is not there yet, or not any more, is taken for the default one."""
    if wanted == now:
        return
    try:
        set_cgroup_map(index, MAJOR, wanted)
    except OSError as err:
        raise NetlinkError(err.errno or errno.EIO, f"nf_tables: {err}") from err


def _can_change_in_place(now: TrafficTree, wanted: TrafficTree) -> bool:
    """Whether the kernel can make one of the other: it moves no class, and keeps the default.

    A class with others below it becomes no leaf again while filters are on it, nor a leaf with
    packets a parent: so those below are the same, too.
    """
    above = {each.minor: each.below for each in now.classes}
    parents = {each.below for each in now.classes}
    return now.default == wanted.default and all(
        above.get(each.minor, each.below) == each.below
        and (each.below in parents or each.below not in above)
        for each in wanted.classes
    )


def _set_class(route: Any, index: int, each: TrafficClass) -> None:
    route.tc(
        "replace-class",
        "htb",
        index,
        MAJOR | each.minor,
        parent=MAJOR | each.below if each.below else MAJOR,
        rate=each.rate,
        ceil=each.ceil,
        burst=_burst(each.rate),
        cburst=_burst(each.ceil),
        quantum=min(max(each.rate // 10, _QUANTUM[0]), _QUANTUM[1]),
        prio=each.prio,
    )


def _delete_class(route: Any, index: int, minor: int) -> None:
    route.tc("del-class", index=index, handle=MAJOR | minor, parent=MAJOR)


def _burst(rate: int) -> int:
    return max(1, min(rate // _BURST_SECONDS + _BURST, rate * _MAX_BURST_SECONDS))


def _add_match(route: Any, index: int, match: AddressMatch) -> None:
    version = match.address.version
    offset = OFFSETS[version, match.side]
    words = [value for (value,) in _BE32_WORD.iter_unpack(match.address.packed)]
    route.tc(
        "add-filter",
        "u32",
        index,
        parent=MAJOR,
        prio=PREFERENCES[version],
        protocol=_PROTOCOLS[version],
        target=MAJOR | match.minor,
        keys=[f"{word:#010x}/0xffffffff+{offset + 4 * at}" for at, word in enumerate(words)],
    )


def _delete_match(route: Any, index: int, match: AddressMatch, handle: int) -> None:
    version = match.address.version
    route.tc(
        "del-filter",
        "u32",
        index,
        handle,
        parent=MAJOR,
        prio=PREFERENCES[version],
        protocol=_PROTOCOLS[version],
        target=MAJOR | match.minor,
    )


def _unreadable(interface: str, err: Exception) -> KernelFileError:
    return KernelFileError(
        f"root qdisc of {interface}",
        wanted="to read it",
        found=str(err) or repr(err),
        hint="allow the address family AF_NETLINK, if a sandbox forbids it",
    )


def _rejected_by_kernel(interface: str, err: NetlinkError) -> TrafficRefused:
    return TrafficRefused(
        f"traffic classes of {interface}",
        wanted="the kernel to take them",
        found=str(err),
        hint=f"it needs CAP_NET_ADMIN, and {NEEDS}; what was there before is in force again",
    )
