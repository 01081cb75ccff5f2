"""The transport of the control plane: pooled HTTP/1.1 exchanges, cheap for short requests."""

import asyncio
import math
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlencode, urlsplit

import httptools
import msgspec

from koord.kube.client import encode_json
from koord.kube.credentials import ApiConfig, Credential, Credentials
from koord.kube.errors import TimedOut, Unauthorized
from koord.kube.transport import (
    MAX_ERROR_BYTES,
    USER_AGENT,
    Call,
    Deadline,
    Limits,
    Traffic,
    Transport,
    api_error_of,
    check_head,
    too_large,
    translation,
)
from koord.util.clock import Clock

MAX_HEAD_BYTES = 64 << 10  # of a response, with the interim ones before it
_NEXT_ADDRESS_DELAY = 0.25  # seconds until a server's next address is tried, in parallel

# Requests that do the same when they arrive twice. Source: RFC 9110, 9.2.2.
_REPEATABLE = frozenset({"GET", "PUT", "DELETE"})


def encode_json_fast(body: object) -> bytes:
    """Return what encode_json does. Also of types that it does not know, such as a datetime."""
    try:
        found = msgspec.json.encode(body)
    except TypeError:  # such as a str of a class of its own
        return encode_json(body)
    # It writes null for a number that is none: that must not become a field to be removed.
    return encode_json(body) if b"null" in found else found


class ConnectionCut(ConnectionError):
    """The connection ended before the response did."""

    def __init__(self, *, began: bool) -> None:
        super().__init__("the server closed the connection before the end of its answer")
        self.began = began  # whether any byte of the response has arrived


class MalformedResponse(ValueError):
    """The answer is not HTTP, or not what a client may be sent."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server, with the TLS context for new connections to it; None: without TLS."""

    host: str
    port: int
    context: ssl.SSLContext | None = None
    tls_name: str = ""  # in its certificate, if it is not the host


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of exchanges; seconds and bytes."""

    connect: float  # a turn, a connection and TLS
    head: float
    body: float
    reason: float  # the body of an error response
    body_bytes: int
    reason_bytes: int
    connections: int
    keepalive: float  # seconds that a connection waits for its next request; 0: it closes


@dataclass(slots=True)
class HttpResponse:
    """A response; what is known of it, when it has not come as a whole."""

    status: int = 0  # 0: no head arrived
    headers: dict[bytes, bytes] | None = None  # names in lower case; the last one of a name counts
    body: bytes = b""
    received: int = 0  # bytes of body
    head_at: float = 0.0  # monotonic seconds
    too_large: bool = False  # its body is beyond the bound, and was not read further

    def header(self, name: bytes) -> str:
        """The value of a header; "" if it is absent."""
        return (self.headers or {}).get(name, b"").decode("latin-1")


class ConnectionPool:
    """A bounded set of connections to a few servers. Belongs to one event loop."""

    def __init__(self, clock: Clock, bounds: Bounds) -> None:
        self._clock = clock
        self._bounds = bounds
        self._turns = asyncio.Semaphore(bounds.connections)
        self._idle: deque[_Connection] = deque()  # used latest last
        self._busy: set[_Connection] = set()
        self._timer: asyncio.Future[None] | None = None  # one for all that are busy
        self._rings_at = math.inf
        self._closed = False

    async def exchange(
        self,
        peer: Server,
        method: str,
        request: bytes,
        response: HttpResponse,
        where: str,
        check: Callable[[], None] | None = None,
    ) -> None:
        """Send a request and fill in its response, unless check raises when it is about to be sent.

        It is sent a second time only if it is repeatable and a kept connection had ended before
        any byte of the response arrived, as a server ends those that idle. Cancelled, or late, it
        closes its connection.

        Raises:
            TimedOut: the server was silent; where names the request.
            OSError, ValueError: there is no connection, it has ended, or the answer is not HTTP.
        """
        if self._turns.locked():
            async with Deadline(self._clock, where) as deadline:
                deadline.enter("a connection", self._bounds.connect)
                await self._turns.acquire()
        else:
            await self._turns.acquire()
        try:
            idle_connection = self._idle_connection(peer)
            if idle_connection is not None:
                try:
                    return await self._over(idle_connection, request, response, where, check)
                except ConnectionCut as err:
                    if err.began or method not in _REPEATABLE:
                        raise
            await self._over(await self._connect(peer, where), request, response, where, check)
        finally:
            self._turns.release()

    def close(self) -> None:
        """Close all connections."""
        self._closed = True
        for connection in (*self._idle, *self._busy):
            connection.close()
        self._idle.clear()
        self._end_timer()

    async def _over(
        self,
        connection: "_Connection",
        request: bytes,
        response: HttpResponse,
        where: str,
        check: Callable[[], None] | None,
    ) -> None:
        busy = self._busy
        busy.add(connection)
        try:
            if check is not None:
                check()
            await connection.send(request, response, where)
        finally:
            busy.discard(connection)
            if not busy:
                self._end_timer()
            if connection.reusable and not self._closed and self._bounds.keepalive > 0:
                self._keep(connection)
            else:
                connection.close()

    def _keep(self, connection: "_Connection") -> None:
        idle, now = self._idle, self._clock.monotonic()
        connection.idle_since = now
        idle.append(connection)
        while idle[0].idle_since + self._bounds.keepalive <= now:
            idle.popleft().close()

    def _idle_connection(self, peer: Server) -> "_Connection | None":
        """The connection that was used last, if it is to that server and still open."""
        idle, oldest = self._idle, self._clock.monotonic() - self._bounds.keepalive
        for _ in range(len(idle)):
            connection = idle.pop()
            if not connection.reusable or connection.idle_since <= oldest:
                connection.close()
            elif connection.peer == peer:
                return connection
            else:
                idle.appendleft(connection)
        return None

    async def _connect(self, peer: Server, where: str) -> "_Connection":
        make = partial(_Connection, peer, self._bounds, self._clock.monotonic, self._watch)
        async with Deadline(self._clock, where) as deadline:
            deadline.enter("a connection", self._bounds.connect)
            try:
                _, connection = await asyncio.get_running_loop().create_connection(
                    make,
                    peer.host,
                    peer.port,
                    ssl=peer.context,
                    happy_eyeballs_delay=_NEXT_ADDRESS_DELAY,
                    server_hostname=(peer.tls_name or peer.host) if peer.context else None,
                )
            except OSError as err:
                raise ConnectionError(f"{peer.host}:{peer.port}: {err}") from err
        return connection

    def _watch(self, due: float) -> None:
        """Set the timer so that it fires no later than `due`."""
        if due < self._rings_at:
            self._end_timer()
            self._rings_at = due
            self._timer = self._clock.timer(due - self._clock.monotonic())
            self._timer.add_done_callback(self._on_timer)

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._rings_at = None, math.inf

    def _on_timer(self, timer: "asyncio.Future[None]") -> None:
        if timer is not self._timer:
            return  # it was cancelled
        self._end_timer()
        now = self._clock.monotonic()
        for connection in tuple(self._busy):
            if connection.due <= now:
                connection.expire()
            else:
                self._watch(connection.due)


class _Connection(asyncio.Protocol):
    """A connection; the parser calls its methods that begin with on_."""

    def __init__(
        self,
        peer: Server,
        bounds: Bounds,
        now: Callable[[], float],
        watch: Callable[[float], None],
    ) -> None:
        self.peer = peer
        self.idle_since = 0.0  # monotonic
        self.due = math.inf  # monotonic; when the phase of the exchange is over
        self._bounds = bounds
        self._now = now
        self._watch = watch
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._open = True
        self._waiter: asyncio.Future[None] | None = None
        self._response = HttpResponse()
        self._where = ""
        self._phase, self._seconds = "", 0.0
        self._head_bytes = 0
        self._final = False  # the head of the response itself has arrived
        self._framed = False  # the head says where the body ends
        self._pieces: list[bytes] = []
        self._limit = 0  # bytes of the body

    @property
    def reusable(self) -> bool:
        """Whether another request can be sent."""
        return self._open and self._waiter is None

    def send(self, request: bytes, response: HttpResponse, where: str) -> "asyncio.Future[None]":
        """Send a request; the future is done when the response is there, and fails as exchange."""
        assert self._transport is not None  # noqa: S101 - it was connected
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiter, self._response, self._where = waiter, response, where
        self._head_bytes, self._final = 0, False
        self._pieces = []
        self._enter("the head of the answer", self._bounds.head)
        self._transport.write(request)
        return waiter

    def close(self) -> None:
        """Close it at once, whatever is on the way."""
        self._open = False
        if self._transport is not None:
            self._transport.abort()

    def expire(self) -> None:
        """The time of this phase is over."""
        self._fail(TimedOut(self._where, self._phase, self._seconds))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - of bytes
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._waiter is None:
            return self.close()  # it was not asked anything
        if not self._final:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(MalformedResponse("the server switched to another protocol"))
        except httptools.HttpParserError as err:
            cause = err.__context__ if isinstance(err.__context__, MalformedResponse) else err
            self._fail(MalformedResponse(str(cause)))
        else:
            if not self._final and self._head_bytes > MAX_HEAD_BYTES:
                self._fail(MalformedResponse(f"a head of more than {MAX_HEAD_BYTES} bytes"))

    def eof_received(self) -> None:
        self._open = False  # it closes itself: nothing more is to be sent

    def connection_lost(self, error: Exception | None) -> None:
        self._open = False
        if self._waiter is None:
            return
        if error is None and self._final and not self._framed:
            self._done()  # its end is that of the connection
        else:
            cut = ConnectionCut(began=self._head_bytes > 0)
            cut.__cause__ = error
            self._fail(cut)

    def on_message_begin(self) -> None:
        if self._final:
            self._open = False  # more than was asked for: the next response would be that
            return
        self._response.headers, self._framed = {}, False

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self._framed = self._framed or name in (b"content-length", b"transfer-encoding")
        headers = self._response.headers
        if not self._final and headers is not None:
            headers[name] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._final or 100 <= status < 200:
            return
        response, bounds = self._response, self._bounds
        self._final = True
        response.status, response.head_at = status, self._now()
        if status >= 400:
            self._limit = bounds.reason_bytes
            self._enter("the reason of a refusal", bounds.reason)
        else:
            self._limit = bounds.body_bytes
            self._enter("the whole answer", bounds.body)
        length = (response.headers or {}).get(b"content-length")
        if length is not None and int(length) > self._limit:
            self._stop_reading()

    def on_body(self, data: bytes) -> None:
        response = self._response
        if self._waiter is None:
            return
        response.received += len(data)
        if response.received > self._limit:
            self._stop_reading()
        else:
            self._pieces.append(data)

    def on_message_complete(self) -> None:
        if self._final and self._waiter is not None:
            self._open = self._open and self._parser.should_keep_alive()
            self._done()

    def _stop_reading(self) -> None:
        self._response.too_large = True
        self._pieces = []
        self.close()
        self._done()

    def _enter(self, phase: str, seconds: float) -> None:
        self._phase, self._seconds = phase, seconds
        self.due = self._now() + seconds
        self._watch(self.due)

    def _done(self) -> None:
        pieces, waiter = self._pieces, self._waiter
        self._response.body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._pieces, self._waiter = [], None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _fail(self, error: Exception) -> None:
        waiter, self._waiter = self._waiter, None
        self.close()
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)


@dataclass(frozen=True, slots=True)
class _ServerUrl:
    """A server as its URL names it."""

    secure: bool
    host: str
    port: int
    authority: str  # the header Host
    prefix: str  # before each path

    @classmethod
    def of(cls, url: str) -> "_ServerUrl":
        """Raises ValueError for what is no URL of a server."""
        parts = urlsplit(url)
        secure, host = parts.scheme == "https", parts.hostname
        if not host or parts.scheme not in ("http", "https"):
            raise ValueError(f"{url} is no URL of a server")
        default_port = 443 if secure else 80
        name = f"[{host}]" if ":" in host else host
        authority = name if parts.port in (None, default_port) else f"{name}:{parts.port}"
        return cls(secure, host, parts.port or default_port, authority, parts.path.rstrip("/"))


class PooledTransport(Transport):
    """A Transport whose exchanges go over connections of their own; see http1.

    Streams, and all requests by a proxy, take the ordinary path.
    """

    def __init__(
        self,
        config: ApiConfig,
        clock: Clock,
        *,
        limits: Limits | None = None,
        credentials: Credentials | None = None,
        observe: Callable[[Traffic], None] | None = None,
        user_agent: str = USER_AGENT,
    ) -> None:
        super().__init__(
            config,
            clock,
            limits=limits,
            credentials=credentials,
            observe=observe,
            user_agent=user_agent,
        )
        self._connections: ConnectionPool | None = None
        self._own: _ServerUrl | None = None  # the server of calls that name none
        self._last_peer: tuple[_ServerUrl | None, Server | None] = (None, None)
        self._fixed: tuple[Credential | None, str] = (None, "")

    async def exchange(self, call: Call) -> bytes:
        if self._config.proxy_url:
            return await super().exchange(call)
        try:
            return await self._exchange(call)
        except Unauthorized:
            self._credentials.refused()
            return await self._exchange(call)

    async def close(self) -> None:
        if self._connections is not None:
            self._connections.close()
            self._connections = None
        await super().close()

    async def _exchange(self, call: Call) -> bytes:
        await self._turns.take()
        credential = await self._credentials.current()
        response, began = HttpResponse(), self._clock.monotonic()
        try:
            await self._ask(call, credential, response)
        finally:
            seconds = response.head_at - began if response.status else 0.0
            self._observe(Traffic(call, response.status, seconds, response.received))
        return response.body

    async def _ask(self, call: Call, credential: Credential, response: HttpResponse) -> None:
        """Send a call and fill in its response; raise if the server rejects it."""
        where = call.where
        try:
            server = self._server(call)
            peer = self._peer(server, credential)
            request = self._head(call, server, credential) + (call.body or b"")
            await self._opened_connections().exchange(
                peer, call.method, request, response, where, call.check
            )
        except TimedOut:
            if response.status < 400:
                raise  # else the status alone has to do
        except (OSError, ValueError) as err:
            if response.status < 400:
                raise translation(err, where) from err
        if response.status >= 400:
            headers = response.headers or {}
            named = {name.decode("latin-1").title(): response.header(name) for name in headers}
            raise api_error_of(response.status, named, response.body, where=where)
        check_head(response.status, response.header(b"content-encoding"), where)
        if response.too_large:
            raise too_large(where, self._limits.response_bytes)

    def _server(self, call: Call) -> _ServerUrl:
        if call.server:
            return _ServerUrl.of(call.server)
        if self._own is None:
            self._own = _ServerUrl.of(self._config.server)
        return self._own

    def _peer(self, server: _ServerUrl, credential: Credential) -> Server:
        """The same object as long as nothing has changed."""
        context = self._tls.current(credential) if server.secure else None
        made_of, peer = self._last_peer
        if peer is None or made_of is not server or peer.context is not context:
            peer = Server(server.host, server.port, context, self._config.tls_server_name)
            self._last_peer = server, peer
        return peer

    def _head(self, call: Call, server: _ServerUrl, credential: Credential) -> bytes:
        query = f"?{urlencode(call.query)}" if call.query else ""
        target = f"{server.prefix}{call.path}{query}"
        if not target.isascii() or not target.isprintable() or " " in target:
            raise ValueError(f"the path {target!r:.200} is not quoted")
        head = (
            f"{call.method} {target} HTTP/1.1\r\nHost: {server.authority}\r\n"
            f"Accept: {call.accept}\r\n{self._fixed_headers(credential)}"
        )
        if call.body is not None:
            head += f"Content-Type: {call.content_type}\r\nContent-Length: {len(call.body)}\r\n"
        elif call.method != "GET":
            head += "Content-Length: 0\r\n"
        return f"{head}\r\n".encode("ascii")

    def _fixed_headers(self, credential: Credential) -> str:
        """The headers that are the same as long as the credential is."""
        made_of, fixed = self._fixed
        if made_of is not credential:
            values = {"Accept-Encoding": "identity", "User-Agent": self._user_agent}
            if credential.token:
                values["Authorization"] = f"Bearer {credential.token}"
            for name, value in values.items():
                if not value.isascii() or not value.isprintable():
                    raise ValueError(f"the header {name} is not of printable ASCII characters")
            fixed = "".join(f"{name}: {value}\r\n" for name, value in values.items())
            self._fixed = credential, fixed
        return fixed

    def _opened_connections(self) -> ConnectionPool:
        if self._connections is None:
            self._warn_once()
            limits = self._limits
            bounds = Bounds(
                connect=limits.connect,
                head=limits.headers,
                body=limits.body,
                reason=limits.reason,
                body_bytes=limits.response_bytes,
                reason_bytes=MAX_ERROR_BYTES,
                connections=limits.connections,
                keepalive=limits.keepalive,
            )
            self._connections = ConnectionPool(self._clock, bounds)
        return self._connections
