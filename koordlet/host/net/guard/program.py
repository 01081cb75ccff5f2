"""The helper's program: enter the node's network namespace and serve TrafficControl."""

import ctypes
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import structlog
from pyroute2 import IPRoute, NetlinkError

from koord.api.fields import Fields
from koord.util.clock import SystemClock
from koord.util.errors import KoordError
from koord.util.ownedfiles import OwnedDirectory
from koordlet.host.net.guard.client import Channel, ChannelError, MalformedMessage, error_message
from koordlet.host.net.guard.commit_confirm import (
    CommitConfirmTraffic,
    PendingChangesFile,
    ReachabilityProbe,
)
from koordlet.host.net.tc.kernel import KernelTraffic
from koordlet.host.net.tc.tree import TrafficControl

CAP_NET_ADMIN = 12
_NETWORK, _CGROUP = 0x40000000, 0x02000000  # CLONE_NEWNET, CLONE_NEWCGROUP
_OWN_CGROUP = "/proc/self/ns/cgroup"
_NO_NEW_PRIVS, _CAPBSET_DROP = 38, 24  # PR_*
_CAPABILITY_VERSION_3 = 0x20080522
_LAST_CAPABILITY = 63
GROUP = "koordlet-network"

_libc = ctypes.CDLL(None, use_errno=True)


def leave_groups(roots: list[Path]) -> list[str]:
    """Move into a cgroup of our own in each hierarchy; return what did not work.

    So it outlives the agent's, which a container runtime or systemd kills as a whole.
    """
    problems = []
    for root in roots:
        try:
            group = root / GROUP
            group.mkdir(exist_ok=True)
            (group / "cgroup.procs").write_text(str(os.getpid()))
        except OSError as err:
            problems.append(f"{root}: {err.strerror}")
    return problems


def enter_network(namespace: Path) -> None:
    """Enter a network namespace. Raises OSError."""
    _enter(namespace, _NETWORK)


def enter_cgroup_namespace(namespace: Path) -> list[str]:
    """Enter a cgroup namespace, unless this process is in it; return what did not work.

    Beyond that of a container no group of v2 can be left, and kernels from 6.12 count the levels of
    cgroups from where the process is that makes a rule.
    """
    try:
        if not namespace.samefile(_OWN_CGROUP):
            _enter(namespace, _CGROUP)
    except OSError as err:
        return [f"{namespace}: {err.strerror}"]
    return []


def _enter(namespace: Path, kind: int) -> None:
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.setns(descriptor, kind):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(namespace))
    finally:
        os.close(descriptor)


def drop_capabilities(kept: int = CAP_NET_ADMIN) -> None:
    """Keep one capability, for good.

    Raises:
        OSError: it is refused, as by a seccomp filter, and there are others.
    """
    _libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    for capability in range(_LAST_CAPABILITY + 1):
        if capability != kept:
            _libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0)  # without CAP_SETPCAP it is refused
    bits = 1 << kept
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    data = struct.pack("6I", bits, bits, 0, 0, 0, 0)
    if _libc.capset(header, data):
        number = ctypes.get_errno()
        if _capabilities_held() & ~bits:
            raise OSError(number, os.strerror(number), "capset")


def _capabilities_held() -> int:
    """The capabilities that this process may use, one bit each; all if the kernel does not say."""
    found = ctypes.create_string_buffer(24)
    if _libc.capget(struct.pack("Ii", _CAPABILITY_VERSION_3, 0), found):
        return -1
    _, low, _, _, high, _ = struct.unpack("6I", found.raw)
    return int(low | high << 32)


_MAIN_TABLE = 254
_PROBE, _REACHABLE, _JUDGED = 0x10, 0x02, 0x02 | 0x04 | 0x08 | 0x10  # NUD_*; with STALE and DELAY
_STEP = 0.05  # seconds


class ApiServerProbe:
    """Connects to an address. A refused connection counts as unreachable."""

    def __init__(self, host: str, port: int) -> None:
        """Raises ValueError: host is no IP address."""
        self._address = (str(ip_address(host)), port)
        self.name = f"the API server at {host} port {port}"

    def reachable(self, limit: float) -> bool:
        """Whether the probe succeeds within limit seconds. Blocking."""
        try:
            socket.create_connection(self._address, timeout=limit).close()
        except OSError:
            return False
        return True


class GatewayProbe:
    """Has the kernel ask the neighbours that are default gateways (ARP, neighbour discovery).

    One of them is enough. A gateway without an entry, or with one that is never asked for, says
    nothing: it counts as not reachable, so that changes are not rolled back for it.
    """

    name = "the default gateway"

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], str] = {}  # link addresses of those that answered

    def reachable(self, limit: float) -> bool:
        """Whether the probe succeeds within limit seconds. Blocking."""
        end = time.monotonic() + limit
        try:
            with IPRoute() as route:
                asked = list(self._request(route))
                while asked and time.monotonic() < end:
                    if any(_state(route, *gateway) == _REACHABLE for gateway in asked):
                        return True
                    time.sleep(_STEP)
        except (NetlinkError, OSError):
            return False
        return False

    def _request(self, route: Any) -> Iterator[tuple[str, int]]:
        for address, interface in _gateways(route):
            found = _neighbour(route, address, interface)
            if found is not None and found["state"] & _JUDGED:
                self._known[address, interface] = found.get_attr("NDA_LLADDR")
            if link := self._known.get((address, interface)):
                route.neigh("replace", dst=address, ifindex=interface, lladdr=link, state=_PROBE)
                yield address, interface


def _gateways(route: Any) -> Iterator[tuple[str, int]]:
    for family in (socket.AF_INET, socket.AF_INET6):
        for message in route.get_routes(family=family, table=_MAIN_TABLE):
            address, interface = message.get_attr("RTA_GATEWAY"), message.get_attr("RTA_OIF")
            if message["dst_len"] == 0 and address and interface:
                yield address, interface


def _neighbour(route: Any, address: str, interface: int) -> Any:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for message in route.get_neighbours(family=family, ifindex=interface):
        if message["ifindex"] == interface and message.get_attr("NDA_DST") == address:
            return message
    return None


def _state(route: Any, address: str, interface: int) -> int:
    found = _neighbour(route, address, interface)
    return 0 if found is None else int(found["state"])


_BOOT_ID = "/proc/sys/kernel/random/boot_id"
MESSAGE_TIMEOUT = 2.0  # seconds that an agent may take for the rest of a line
MAX_DRAIN_TIME = (
    60.0  # seconds after the agent's end: a rollback that fails is left to the next start
)


def serve(channel: Channel, traffic: CommitConfirmTraffic) -> None:
    """Answer until the agent ends, and then until no change is pending."""
    clock, ended = SystemClock(), 0.0
    while not ended or (traffic.pending and clock.monotonic() < ended + MAX_DRAIN_TIME):
        readable, _, _ = select.select([] if ended else [channel], [], [], traffic.pause)
        if readable:
            try:
                channel.send(respond(channel, traffic))
            except ChannelError:
                ended = clock.monotonic()
                channel.close()
        traffic.check()


def respond(channel: Channel, traffic: TrafficControl) -> dict[str, Any]:
    """Return what to say to the next line. Raises ChannelError: there will be none."""
    try:
        request = channel.receive()
    except MalformedMessage as err:
        return error_message(err)
    return handle(request, traffic)


def handle(request: dict[str, Any], traffic: TrafficControl) -> dict[str, Any]:
    """Do what a request asks for, and return what to say."""
    try:
        return {"ok": _dispatch(Fields(request, "request"), traffic)}
    except (KoordError, OSError, ValueError) as err:
        return error_message(err)


def _dispatch(request: Fields, traffic: TrafficControl) -> str | int | None:
    interface, operation = request.text("interface"), request.text("op")
    match operation:
        case "read":
            data = traffic.read(interface)
            return None if data is None else data.decode("ascii")
        case "identity":
            return traffic.identity(interface)
        case "end":
            return traffic.veth_peer(request.integer("pid") or 0)
        case "sockets":
            return traffic.supports_cgroup_map()
        case "write":
            identity, content = request.integer("identity") or 0, request.text("content")
            traffic.write(interface, identity, content.encode())
            return None
    raise ValueError(f"wanted a request, found {operation:.60}")


def main() -> None:
    """Run with one argument, JSON; standard input is the channel."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    channel = Channel(socket.socket(fileno=os.dup(0)), MESSAGE_TIMEOUT)
    config = json.loads(sys.argv[1])
    try:
        problems = enter_cgroup_namespace(Path(config["cgroup"])) if config["cgroup"] else []
        problems += leave_groups([Path(root) for root in config["cgroups"]])
        if problems:
            structlog.get_logger("koordlet.network").warning(
                "network.cgroup_leave_failed", problems=problems
            )
        if config["network"]:
            enter_network(Path(config["network"]))
        directory = OwnedDirectory.open(Path(config["state"]))
        boot = Path(_BOOT_ID).read_text().strip()
        record = PendingChangesFile(directory, boot)
        drop_capabilities()
    except OSError as err:
        channel.send(error_message(err))
        return
    channel.send({"ok": None})
    reach: ReachabilityProbe = ApiServerProbe(*config["api"]) if config["api"] else GatewayProbe()
    serve(channel, CommitConfirmTraffic(KernelTraffic(), reach, record, SystemClock()))


if __name__ == "__main__":
    main()
