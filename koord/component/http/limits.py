"""Limits of connections per client, and of the bytes of request bodies."""

import asyncio
import ipaddress
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import prometheus_client
from aiohttp import web
from prometheus_client import CollectorRegistry

from koord.component.http.responses import HttpError
from koord.util.goformat import is_loopback

MAX_CONNECTIONS = 100  # connections at a time; each costs memory and a descriptor
PER_PEER = 16  # of one address, or of one IPv6 network of 64 bits: its owner has all of it
PER_LOOPBACK = 32  # of this machine, where all have one address
MAX_FOR_LAST_PLACES = 4  # connections up to which a peer may use the last places
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
class InboundConnection:
    """One client's connection. since: loop time since which it waits for a request."""

    sock: socket.socket
    peer: str
    since: float
    busy: bool = False  # a request is being answered, whose body is there
    deadline: asyncio.TimerHandle | None = field(default=None, repr=False)

    def mark_displaceable(self) -> None:
        """Wait for the client from now on."""
        self.busy, self.since = False, asyncio.get_running_loop().time()

    def close(self) -> None:
        """Shut the socket down, in any state of the connection: the event loop reads its end."""
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the client was faster


_CONNECTION = web.RequestKey("connection", InboundConnection)


@contextmanager
def reading_body(request: web.Request) -> Iterator[None]:
    """Surround the reading of a body: until it is there the connection may be displaced."""
    one = request.get(_CONNECTION)
    if one is not None:
        one.mark_displaceable()
    try:
        yield
    finally:
        if one is not None:
            one.busy = True


class ConnectionLimiter:
    """The connections of one server. Used on the event loop."""

    def __init__(self, prefix: str, registry: CollectorRegistry | None = None) -> None:
        self._held: dict[int, InboundConnection] = {}  # by descriptor
        self._closed = prometheus_client.Counter(
            f"{prefix}_http_connections_closed_total",
            "Connections that the HTTP server did not keep, by reason: slow (no whole request in "
            f"{HEAD_SECONDS:g} s), displaced (idle, for a newer one) or refused (all were busy).",
            ["reason"],
            registry=registry,
        )

    def admit(self, sock: socket.socket, address: object) -> bool:
        """Admit a new connection; if need be, close the one that is idle the longest.

        Returns False when the new one must be closed: no connection is idle that could be closed.
        """
        self._forget_closed()
        peer = peer_of(address)
        if not self._has_room(peer):
            self._closed.labels("refused").inc()
            return False
        loop = asyncio.get_running_loop()
        one = InboundConnection(sock, peer, loop.time())
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
            one.mark_displaceable()

    def _of(self, request: web.Request) -> InboundConnection | None:
        sock = request.transport.get_extra_info("socket") if request.transport else None
        return None if sock is None else self._held.get(sock.fileno())

    def _has_room(self, peer: str) -> bool:
        """Whether a peer may have one more connection; may close an idle one."""
        held = Counter(one.peer for one in self._held.values())
        most = (
            MAX_CONNECTIONS
            if held[peer] < MAX_FOR_LAST_PLACES or not peer
            else MAX_CONNECTIONS - LAST_PLACES
        )
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

    def _end(self, one: InboundConnection, reason: str) -> None:
        if self._held.get(one.sock.fileno()) is not one:
            return  # it is over
        del self._held[one.sock.fileno()]
        if one.deadline is not None:
            one.deadline.cancel()
        self._closed.labels(reason).inc()
        one.close()

    def _forget_closed(self) -> None:
        """Drop those that have ended; the event loop has closed their sockets."""
        for descriptor, one in list(self._held.items()):
            if one.sock.fileno() < 0:
                if one.deadline is not None:
                    one.deadline.cancel()
                del self._held[descriptor]


BODY_SECONDS = 2.0  # from the head of a request until its whole body is there
SMALL = 1 << 20  # bytes of each body that are free: connections are bounded
_CLOSE = {"Connection": "close"}  # what is left of the body is not wanted
_LATER = {**_CLOSE, "Retry-After": "1"}


class BodyLimiter:
    """The bodies of one server that are being read or worked on. Used on the event loop.

    A small body is always admitted. Of the rest one peer has at most what the largest body needs,
    so that it does not keep others out.
    """

    def __init__(self, *, largest: int, most: int) -> None:
        """largest: bytes of one body; most: bytes of all, without the first SMALL of each."""
        self._largest = largest
        self._most = most
        self._held: Counter[str] = Counter()  # bytes by peer

    @property
    def held(self) -> int:
        """Bytes that count, of all bodies."""
        return self._held.total()

    @asynccontextmanager
    async def read(self, request: web.Request, most: int | None = None) -> AsyncIterator[bytearray]:
        """Yield the body; its bytes count until the block ends. most: fewer bytes than `largest`.

        Raises:
            HttpError: the body is too large, too slow or ended early, or the limit of all bodies is
                reached.
        """
        largest = self._largest if most is None else most
        peer = peer_of(request.transport and request.transport.get_extra_info("peername"))
        body, counted = bytearray(), 0
        try:
            try:
                async with asyncio.timeout(BODY_SECONDS):
                    with reading_body(request):
                        _check(request.content_length or 0, largest)
                        async for piece in request.content.iter_any():
                            _check(len(body) + len(piece), largest)
                            more = max(len(body) + len(piece) - SMALL, 0) - counted
                            self._take(peer, more)
                            counted += more
                            body += piece
            except TimeoutError as err:
                why = f"wanted the whole body within {BODY_SECONDS:g} s, found {len(body)} bytes"
                raise HttpError(408, why, headers=_CLOSE) from err
            except (ConnectionError, web.PayloadAccessError, web.RequestPayloadError) as err:
                raise HttpError(400, "wanted a whole body, found its end", headers=_CLOSE) from err
            yield body
        finally:
            self._held[peer] -= counted
            self._held += Counter()  # forgets peers without any

    def _take(self, peer: str, count: int) -> None:
        if self._held[peer] + count > self._largest or self.held + count > self._most:
            why = f"wanted room for a body, found {self.held} bytes of others; ask again"
            raise HttpError(503, why, headers=_LATER)
        self._held[peer] += count


async def read_small_body(request: web.Request, most: int) -> bytes:
    """Return the body of a request, of at most `most` bytes.

    Raises:
        HttpError: see BodyLimiter.read.
    """
    async with BodyLimiter(largest=most, most=0).read(request) as body:
        return bytes(body)


def _check(found: int, largest: int) -> None:
    if found > largest:
        why = f"wanted a body of at most {largest} bytes, found more"
        raise HttpError(413, why, headers=_CLOSE)
