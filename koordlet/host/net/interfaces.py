"""Network interfaces of the node: links and counters over rtnetlink, or /proc/net/dev."""

import errno
import importlib.util
import os
import socket
import struct
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from koordlet.host.errors import KernelFileError, Unsupported
from koordlet.host.files import MAX_BYTES, parse_file, read_up_to
from koordlet.host.net import netlink
from koordlet.host.net.netfiles import InterfaceCounters, parse_net_dev, parse_tcp_retransmits
from koordlet.host.net.netlink import HEADER, Span, attributes
from koordlet.host.paths import HostPaths
from koordlet.host.processes import INIT_PROCESS, OWN_PROCESS, node_network_process, sees_host_pids
from koordlet.host.procfiles import parse_int

if TYPE_CHECKING:
    from pyroute2.netlink import nlmsg


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


_RTM_NEWLINK, _RTM_GETLINK, _RTM_NEWSTATS, _RTM_GETSTATS = 16, 18, 92, 94
_DUMP = netlink.REQUEST | netlink.DUMP
_LINK_EVENTS = 1  # RTMGRP_LINK
_COUNTERS_ONLY = 1  # IFLA_STATS_FILTER_BIT(IFLA_STATS_LINK_64)
_WITHOUT_GETSTATS = (errno.EOPNOTSUPP, errno.EINVAL)  # Linux before 4.7

_RESPONSE_BYTES = 65536
_TIMEOUT = 2.0  # seconds; a dump takes a few milliseconds
_EVENT_READS = 256  # per look, so that a storm of events cannot keep the caller


class LinkReader:
    """Reads all interfaces in the network namespace of this process. Not thread-safe.

    Asking for the counters alone (RTM_GETSTATS) is far cheaper than asking for the links, so the
    links are asked for only after the kernel announced a change.
    """

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._events: socket.socket | None = None
        self._requests: _Requests | None = None
        self._links: dict[int, LinkStats] = {}
        self._counters_alone = True
        self._sequence = 0

    def prepare(self) -> None:
        """Import what makes the requests, which a slow machine notices; later calls do nothing."""
        if self._requests is None:
            self._requests = _make_requests()

    def read(self) -> dict[str, LinkStats]:
        """Return the interfaces by name.

        Raises:
            KernelFileError: the kernel refuses, or does not answer in time.
        """
        try:
            return {found.link.name: found for found in self._read() if found.link}
        except (OSError, ValueError, struct.error) as err:
            self.close()
            raise KernelFileError(
                "rtnetlink",
                wanted="the network interfaces",
                found=str(err) or repr(err),
                hint="allow the address family AF_NETLINK, if a sandbox forbids it",
            ) from err

    def close(self) -> None:
        """Give the sockets back. The next read opens new ones."""
        for held in (self._socket, self._events):
            if held is not None:
                held.close()
        self._socket = self._events = None
        self._links = {}

    def _read(self) -> list[LinkStats]:
        if self._changed() or not self._links or not self._counters_alone:
            return self._read_links()
        try:
            counters = self._read_counters()
        except OSError as err:
            if err.errno not in _WITHOUT_GETSTATS:
                raise
            self._counters_alone = False
            return self._read_links()
        if counters.keys() != self._links.keys():
            return self._read_links()
        return [LinkStats(counters[index], known.link) for index, known in self._links.items()]

    def _changed(self) -> bool:
        """Whether the kernel announced a change of any link since the last look."""
        if self._events is None:
            self._events = netlink.connect(socket.NETLINK_ROUTE, _LINK_EVENTS)
            self._events.setblocking(False)
            return True
        changed = False
        for _ in range(_EVENT_READS):
            try:
                changed |= bool(self._events.recv(_RESPONSE_BYTES))
            except BlockingIOError:
                break
            except OSError as err:
                if err.errno != errno.ENOBUFS:  # some events were lost: something changed
                    raise
                changed = True
        return changed

    def _read_links(self) -> list[LinkStats]:
        self.prepare()
        assert self._requests is not None  # noqa: S101 - prepared
        self._links = {}
        for data, span in self._dump(self._requests.links, _RTM_GETLINK, _RTM_NEWLINK):
            index, found = decode_link(data, span)
            self._links[index] = found
        return list(self._links.values())

    def _read_counters(self) -> dict[int, InterfaceCounters]:
        self.prepare()
        assert self._requests is not None  # noqa: S101 - prepared
        response = self._dump(self._requests.counters, _RTM_GETSTATS, _RTM_NEWSTATS)
        return dict(decode_counters(data, span) for data, span in response)

    def _dump(self, request: "nlmsg", ask: int, wanted: int) -> Iterator[tuple[bytes, Span]]:
        """Yield the wanted messages of the response to a dump request."""
        if self._socket is None:
            self._socket = netlink.connect(socket.NETLINK_ROUTE)
            self._socket.settimeout(_TIMEOUT)
        self._sequence = self._sequence % 0xFFFFFFFF + 1
        header = request["header"]
        header["type"], header["flags"], header["sequence_number"] = ask, _DUMP, self._sequence
        request.reset()
        request.encode()
        self._socket.send(request.data)
        for kind, _, data, span in netlink.replies(self._socket, self._sequence):
            if kind == wanted:
                yield data, span


class _Requests(NamedTuple):
    links: "nlmsg"
    counters: "nlmsg"


def _make_requests() -> _Requests:
    links, with_filter = (message() for message in _message_classes("ifinfmsg", "ifstatsmsg"))
    with_filter["filter_mask"] = _COUNTERS_ONLY
    return _Requests(links, with_filter)


def _message_classes(*names: str) -> "list[type[nlmsg]]":
    """Return messages of pyroute2.netlink.rtnl, without running the package's own __init__.

    What was loaded for it is forgotten afterwards, so that a later import of pyroute2 is whole.
    """
    if "pyroute2" in sys.modules:
        return list(map(_message_class, names))
    spec = importlib.util.find_spec("pyroute2")
    bare = ModuleType("pyroute2")
    bare.__path__ = list(spec.submodule_search_locations or ()) if spec else []
    sys.modules["pyroute2"] = bare
    try:
        return list(map(_message_class, names))
    finally:
        for loaded in [key for key in sys.modules if key.partition(".")[0] == "pyroute2"]:
            del sys.modules[loaded]


def _message_class(name: str) -> "type[nlmsg]":
    found: type[nlmsg] = getattr(importlib.import_module(f"pyroute2.netlink.rtnl.{name}"), name)
    return found


BYTES_OF_MEGABIT = 125_000


class NodeNetwork:
    """Reads the interfaces of the node's network namespace. Not thread-safe.

    In that namespace itself (hostNetwork) over rtnetlink; from another one (hostPID alone), or
    when rtnetlink is forbidden, from net/dev, which knows counters only.
    """

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._links = LinkReader()
        self.process = node_network_process(proc)
        self.problem = ""  # why rtnetlink was not used last time, though it could have been

    def prepare(self) -> None:
        """Import what reading needs: that takes longer than a kernel read may."""
        if self.process == OWN_PROCESS:
            self._links.prepare()

    def read(self) -> dict[str, LinkStats]:
        """Return the interfaces by name.

        Raises:
            Unsupported: the node's namespace is out of reach.
            KernelFileError: the kernel refuses.
        """
        if self.process is None:
            raise Unsupported.here(
                str(self._proc / "1/net/dev"), "another container's", "hostNetwork or hostPID"
            )
        if self.process == OWN_PROCESS:
            try:
                found = self._links.read()
            except KernelFileError as err:
                self.problem = str(err)
            else:
                self.problem = ""
                return found
        counters = parse_file(self._proc / self.process / "net/dev", parse_net_dev)
        return {name: LinkStats(found) for name, found in counters.items()}

    def close(self) -> None:
        self._links.close()


class LinkSpeeds:
    """Reads the speed of the node's links."""

    def __init__(self, sys: Path) -> None:
        self._sys = sys

    def read(self, names: Iterable[str]) -> dict[str, int]:
        """Return the speeds that drivers know, in bytes per second, by interface.

        Those of another network namespace than the one that sysfs was mounted in are not there.
        """
        found = {}
        for name in names:
            try:
                speed = link_speed(self._sys, name)
            except KernelFileError:
                continue
            if speed:
                found[name] = speed * BYTES_OF_MEGABIT
        return found


def process_interfaces(proc: Path, pid: int) -> tuple[int, dict[str, InterfaceCounters]]:
    """Return the network namespace of a process, as network_namespace does, with its counters.

    The file is opened once for both and closed again: held open, it would keep the namespace of an
    ended pod alive.

    Raises:
        KernelFileError: the process has ended (Vanished) or is hidden from us.
    """
    path = f"{proc}/{pid}/net/dev"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            inode, data = os.fstat(descriptor).st_ino, read_up_to(descriptor, MAX_BYTES)
        finally:
            os.close(descriptor)
    except OSError as err:
        raise KernelFileError.from_os_error(path, err) from err
    try:
        return inode, parse_net_dev(data)
    except ValueError as err:
        raise KernelFileError(
            path, wanted="counters by interface", found=str(err), hint="is this a kernel file?"
        ) from err


def process_tcp_retransmits(proc: Path, pid: int) -> int:
    """Return the TCP segments that the network namespace of a process has sent again.

    Raises:
        KernelFileError: the process has ended (Vanished), is hidden from us, or the kernel has no
            such counter.
    """
    return parse_file(proc / str(pid) / "net/snmp", parse_tcp_retransmits)


def link_speed(sys: Path, name: str) -> int | None:
    """Return the speed of an interface in Mbit/s; None when its driver does not know it.

    Raises:
        KernelFileError: there is no such interface below sys.
    """
    path = sys / "class/net" / name / "speed"
    if not path.parent.exists():
        raise Unsupported.here(str(path), "no such interface")
    try:
        speed = parse_file(path, parse_int)
    except KernelFileError:  # EINVAL while the link is down
        return None
    return speed if speed >= 0 else None


_NEEDS_NODE_NETWORK = "the node's network namespace (hostNetwork, or hostPID with CAP_SYS_ADMIN)"


def node_namespace(paths: HostPaths) -> str:
    """Return the file of the node's network namespace; "": this process is in it.

    Raises:
        Unsupported: it cannot be entered from here.
    """
    if node_network_process(paths.proc) == OWN_PROCESS:
        return ""
    namespace = str(paths.proc / INIT_PROCESS / "ns/net")
    if not sees_host_pids(paths.proc) or not os.path.lexists(namespace):
        where = str(paths.proc / "self/ns/net")
        raise Unsupported.here(where, "that of a container", _NEEDS_NODE_NETWORK)
    return namespace
