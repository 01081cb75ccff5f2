"""Bounds connections: each client has a few, and one that has none always gets one."""

import asyncio
import ipaddress
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import prometheus_client
from aiohttp import web
from prometheus_client import CollectorRegistry

from koord.util.address import is_loopback

MOST = 100  # connections at a time; each costs memory and a descriptor
PER_PEER = 16  # of one address, or of one IPv6 network of 64 bits: its owner has all of it
PER_LOOPBACK = 32  # of this machine, where all have one address
FEW = 4  # connections up to which a peer may use the last places
LAST_PLACES = 20  # for peers with few connections: probes and scrapes
HEAD_SECONDS = 5.0  # from a connection until its first request is there, TLS included

LOOPBACK = "loopback"

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def peer_of(address: object) -> str:
    """Return the peer that a socket address counts for; "" for a Unix socket."""
    if not isinstance(address, tuple):
        return ""
    host = str(address[0])
    if is_loopback(host):
        return LOOPBACK
    found = ipaddress.ip_address(host)
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((int(found), 64), strict=False))


@dataclass(eq=False, slots=True)
class Connection:
    """One client's connection. since: loop time since which it waits for a request."""

    sock: socket.socket
    peer: str
    since: float
    busy: bool = False  # a request is being answered, whose body is there
    deadline: asyncio.TimerHandle | None = field(default=None, repr=False)

    def rest(self) -> None:
        """Wait for the client from now on."""
        self.busy, self.since = False, asyncio.get_running_loop().time()

    def hang_up(self) -> None:
        """Have the event loop read an end from it, whatever it has got to."""
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the client was faster


_CONNECTION = web.RequestKey("connection", Connection)


@contextmanager
def arriving(request: web.Request) -> Iterator[None]:
    """Surround the reading of a body: until it is there the connection may be displaced."""
    one = request.get(_CONNECTION)
    if one is not None:
        one.rest()
    try:
        yield
    finally:
        if one is not None:
            one.busy = True


class Connections:
    """The connections of one server. Used on the event loop."""

    def __init__(self, prefix: str, registry: CollectorRegistry | None = None) -> None:
        self._held: dict[int, Connection] = {}  # by descriptor
        self._closed = prometheus_client.Counter(
            f"{prefix}_http_connections_closed_total",
            "Connections that the HTTP server did not keep, by reason: slow (no whole request in "
            f"{HEAD_SECONDS:g} s), displaced (idle, for a newer one) or refused (all were busy).",
            ["reason"],
            registry=registry,
        )

    def admit(self, sock: socket.socket, address: object) -> bool:
        """Take a new connection in; if need be the one that is idle the longest makes room.

        Returns False when it shall be closed: no connection that could make room is idle.
        """
        self._forget_closed()
        peer = peer_of(address)
        if not self._has_room(peer):
            self._closed.labels("refused").inc()
            return False
        loop = asyncio.get_running_loop()
        one = Connection(sock, peer, loop.time())
        one.deadline = loop.call_later(HEAD_SECONDS, self._end, one, "slow")
        self._held[sock.fileno()] = one
        return True

    @web.middleware
    async def middleware(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Note which connections are at work."""
        one = self._of(request)
        if one is None:
            return await handler(request)
        if one.deadline is not None:
            one.deadline.cancel()
            one.deadline = None
        one.busy = True
        request[_CONNECTION] = one
        try:
            return await handler(request)
        finally:
            one.rest()

    def _of(self, request: web.Request) -> Connection | None:
        sock = request.transport.get_extra_info("socket") if request.transport else None
        return None if sock is None else self._held.get(sock.fileno())

    def _has_room(self, peer: str) -> bool:
        """Whether there is room for one more of a peer, perhaps made now."""
        held = Counter(one.peer for one in self._held.values())
        most = MOST if held[peer] < FEW or not peer else MOST - LAST_PLACES
        if peer and held[peer] >= (PER_LOOPBACK if peer == LOOPBACK else PER_PEER):
            return self._displace(held, only=peer)
        return held.total() < most or self._displace(held)

    def _displace(self, held: Counter[str], *, only: str | None = None) -> bool:
        """Close an idle connection: of the client with most, the one that is idle the longest."""
        idle = [
            one
            for one in self._held.values()
            if not one.busy and (only is None or one.peer == only)
        ]
        if not idle:
            return False
        self._end(max(idle, key=lambda one: (held[one.peer], -one.since)), "displaced")
        return True

    def _end(self, one: Connection, reason: str) -> None:
        if self._held.get(one.sock.fileno()) is not one:
            return  # it is over
        del self._held[one.sock.fileno()]
        if one.deadline is not None:
            one.deadline.cancel()
        self._closed.labels(reason).inc()
        one.hang_up()

    def _forget_closed(self) -> None:
        """Drop those that have ended; the event loop has closed their sockets."""
        for descriptor, one in list(self._held.items()):
            if one.sock.fileno() < 0:
                if one.deadline is not None:
                    one.deadline.cancel()
                del self._held[descriptor]
