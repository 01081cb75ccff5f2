"""Sets trees of HTB classes with the kernel's own messages (rtnetlink), by way of pyroute2.

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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import structlog
from pyroute2 import IPRoute, NetlinkError
from pyroute2.netlink.exceptions import NetlinkDumpInterrupted

from koordlet.host.errors import KernelFileError
from koordlet.host.kerneltext import ABSENT
from koordlet.host.net.tc import ForeignQdisc, TrafficRefused, no_such_interface
from koordlet.host.net.tc.dumps import (
    MINOR,
    OFFSETS,
    PREFERENCES,
    Altered,
    Interrupted,
    read_classes,
    read_filters,
)
from koordlet.host.net.tc.sockets import knows_sockets, read_sockets, set_sockets
from koordlet.host.net.tc.tree import (
    ALTERED,
    FOREIGN,
    LEAST_RATE,
    MAJOR,
    NEEDS,
    Match,
    SocketMatch,
    TrafficClass,
    Tree,
    parse_tree,
)

_ROOT = 0xFFFFFFFF  # TC_H_ROOT
_UNDER_WAY = 0xFFFF  # a class that is there for the time of a change: the tree is half-made
_DEFAULTS = frozenset({"noqueue", "pfifo_fast", "fq_codel", "fq", "mq", "noop"})
_GONE = frozenset({6, 19})  # ENXIO, ENODEV
_PROTOCOLS = {4: 0x0800, 6: 0x86DD}
_PIDS = 1 << 31
_WORD = struct.Struct(">I")
_BURST_SECONDS = 1000  # a class may send what it has in 1/1000 s at once, and
_BURST = 16000  # bytes more, about ten packets
_MOST_BURST_SECONDS = 60  # the kernel keeps no more
_QUANTUM = (1600, 60000)  # bytes in turn, at least a packet
_READS = 3  # a dump that is changed meanwhile is read again

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Found:
    """What is at the root."""

    text: str
    tree: Tree | None = None
    filters: tuple[tuple[Match, int], ...] = ()  # with handle
    queues: int = 0  # of mq
    half_made: bool = False
    sockets: tuple[SocketMatch, ...] = ()  # in nf_tables, whatever is at the root

    @property
    def is_ours(self) -> bool:
        return self.tree is not None or self.half_made or self.text == ALTERED


class KernelTraffic:
    """A TrafficControl; see there. For one thread."""

    def __init__(self, connect: Callable[[], Any] = IPRoute) -> None:
        self._connect = connect
        self._whole: set[int] = set()  # interfaces on which no earlier process left a part

    def read(self, interface: str) -> bytes | None:
        """As TrafficControl.read."""
        try:
            index = _index(interface)
            with self._connect() as route:
                return f"{_look(route, index).text}\n".encode()
        except NetlinkError as err:
            if err.code in _GONE:
                return None
            raise _unreadable(interface, err) from err
        except OSError as err:
            if err.errno in _GONE:
                return None
            raise _unreadable(interface, err) from err

    def end_of(self, pid: int) -> str:
        """As TrafficControl.end_of."""
        if not 0 < pid < _PIDS:
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

    def knows_sockets(self) -> bool:
        """As TrafficControl.knows_sockets."""
        try:
            return knows_sockets()
        except OSError as err:
            raise _unreadable("sockets", err) from err

    def identity(self, interface: str) -> int:
        """As TrafficControl.identity."""
        index = _index(interface)
        if index not in self._whole:
            try:
                with self._connect() as route:
                    found = _look(route, index)
                    if found.half_made or (found.tree is None and found.sockets):
                        _bring_about(route, index, found, None)
            except NetlinkError as err:
                if err.code in _GONE:
                    raise no_such_interface(interface) from err
                raise _unreadable(interface, err) from err
            self._whole.add(index)
        return index

    def write(self, interface: str, identity: int, content: bytes) -> None:
        """As TrafficControl.write."""
        text = content.decode("ascii").removesuffix("\n")
        wanted = None if text == ABSENT else parse_tree(text)
        if _index(interface) != identity:
            raise no_such_interface(interface)
        try:
            with self._connect() as route:
                self._set(route, interface, identity, wanted)
        except NetlinkError as err:
            if err.code in _GONE:
                raise no_such_interface(interface) from err
            raise _refused(interface, err) from err

    def _set(self, route: Any, interface: str, index: int, wanted: Tree | None) -> None:
        before = _look(route, index)
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
            _bring_about(route, index, before, wanted)
        except NetlinkError:
            with suppress(NetlinkError):
                _bring_about(route, index, _look(route, index), before.tree)
            raise
        self._whole.add(index)


def _no_such_process(pid: int) -> OSError:
    return ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), str(pid))


def _index(interface: str) -> int:
    try:
        return socket.if_nametoindex(interface)
    except (OSError, ValueError) as err:
        raise no_such_interface(interface) from err


def _look(route: Any, index: int) -> _Found:
    for _ in range(_READS - 1):
        with suppress(NetlinkDumpInterrupted, Interrupted):
            return _look_once(route, index)
    try:
        return _look_once(route, index)
    except Interrupted as err:
        raise NetlinkError(errno.EAGAIN, "it changes all the time") from err


def _look_once(route: Any, index: int) -> _Found:
    try:
        sockets = read_sockets(index, MAJOR)
    except (ValueError, struct.error):
        return _Found(ALTERED)
    except OSError as err:
        raise NetlinkError(err.errno or errno.EIO, str(err)) from err
    return replace(_look_at_root(route, index, sockets), sockets=sockets)


def _look_at_root(route: Any, index: int, sockets: tuple[SocketMatch, ...]) -> _Found:
    qdiscs = [each for each in route.get_qdiscs(index=index) if each["index"] == index]
    root = next((each for each in qdiscs if each["parent"] == _ROOT), None)
    if root is None:
        return _Found(ABSENT)
    kind = str(root.get_attr("TCA_KIND"))
    if root["handle"] == MAJOR and kind == "htb":
        return _ours(index, root, sockets)
    below = [each for each in qdiscs if each["parent"] < MAJOR and each["parent"] >> 16 == 0]
    by_kernel = all(
        each["handle"] == 0 and each.get_attr("TCA_KIND") in _DEFAULTS for each in (root, *below)
    )
    if by_kernel:
        return _Found(ABSENT, queues=len(below) if kind == "mq" else 0)
    name = "".join(c for c in kind.lower() if c.isascii() and (c.isalnum() or c == "_"))[:15]
    return _Found(f"{FOREIGN} {name or 'unknown'}")


def _ours(index: int, root: Any, sockets: tuple[SocketMatch, ...]) -> _Found:
    try:
        options = root.get_attr("TCA_OPTIONS")
        default = options.get_attr("TCA_HTB_INIT")["defcls"]
        classes = read_classes(index)
        minors = {each.minor for each in classes}
        if not minors or _UNDER_WAY in minors:
            return _Found(ABSENT, half_made=True)
        found = tuple(read_filters(index, MAJOR))
        tree = Tree.of(default & MINOR, classes, [match for match, _ in found], sockets)
    except (Altered, ValueError, struct.error):
        return _Found(ALTERED)
    except OSError as err:
        raise NetlinkError(err.errno or errno.EIO, str(err)) from err
    return _Found(str(tree), tree, found)


def _bring_about(route: Any, index: int, now: _Found, wanted: Tree | None) -> None:
    """Raises NetlinkError: a part of it may have been done."""
    if now.is_ours and (wanted is None or now.tree is None or not _fits(now.tree, wanted)):
        route.tc("del", index=index, handle=MAJOR, parent=_ROOT)
        now = _Found(ABSENT, sockets=now.sockets)
    _set_sockets(index, now.sockets, () if wanted is None else wanted.sockets)
    if wanted is None:
        return
    if now.tree is None:
        route.tc("add", "htb", index, MAJOR, parent=_ROOT, default=wanted.default)
    _set_class(route, index, TrafficClass(_UNDER_WAY, 0, LEAST_RATE, LEAST_RATE, 0))
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
    _delete_class(route, index, _UNDER_WAY)


def _set_sockets(index: int, now: tuple[SocketMatch, ...], wanted: tuple[SocketMatch, ...]) -> None:
    """A class that is not there yet, or not any more, is taken for the default one."""
    if wanted == now:
        return
    try:
        set_sockets(index, MAJOR, wanted)
    except OSError as err:
        raise NetlinkError(err.errno or errno.EIO, f"nf_tables: {err}") from err


def _fits(now: Tree, wanted: Tree) -> bool:
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
    return max(1, min(rate // _BURST_SECONDS + _BURST, rate * _MOST_BURST_SECONDS))


def _add_match(route: Any, index: int, match: Match) -> None:
    version = match.address.version
    offset = OFFSETS[version, match.side]
    words = [value for (value,) in _WORD.iter_unpack(match.address.packed)]
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


def _delete_match(route: Any, index: int, match: Match, handle: int) -> None:
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


def _refused(interface: str, err: NetlinkError) -> TrafficRefused:
    return TrafficRefused(
        f"traffic classes of {interface}",
        wanted="the kernel to take them",
        found=str(err),
        hint=f"it needs CAP_NET_ADMIN, and {NEEDS}; what was there before is in force again",
    )
