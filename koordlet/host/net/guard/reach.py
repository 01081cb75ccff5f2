"""Whether the control plane can be reached: the API server by TCP, else the default gateway."""

import socket
import time
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any

from pyroute2 import IPRoute, NetlinkError

_MAIN_TABLE = 254
_PROBE, _REACHABLE, _JUDGED = 0x10, 0x02, 0x02 | 0x04 | 0x08 | 0x10  # NUD_*; with STALE and DELAY
_STEP = 0.05  # seconds


class ApiServer:
    """Connects to an address: what it answers does not matter, a refusal is no answer."""

    def __init__(self, host: str, port: int) -> None:
        """Raises ValueError: host is no IP address."""
        self._address = (str(ip_address(host)), port)
        self.name = f"the API server at {host} port {port}"

    def reachable(self, limit: float) -> bool:
        """As Reach.reachable."""
        try:
            socket.create_connection(self._address, timeout=limit).close()
        except OSError:
            return False
        return True


class Gateway:
    """Has the kernel ask the neighbours that are default gateways (ARP, neighbour discovery).

    One of them is enough. A gateway without an entry, or with one that is never asked for, says
    nothing: it counts as not reachable, so that changes are not rolled back for it.
    """

    name = "the default gateway"

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], str] = {}  # link addresses of those that answered

    def reachable(self, limit: float) -> bool:
        """As Reach.reachable."""
        end = time.monotonic() + limit
        try:
            with IPRoute() as route:
                asked = list(self._ask(route))
                while asked and time.monotonic() < end:
                    if any(_state(route, *gateway) == _REACHABLE for gateway in asked):
                        return True
                    time.sleep(_STEP)
        except (NetlinkError, OSError):
            return False
        return False

    def _ask(self, route: Any) -> Iterator[tuple[str, int]]:
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
