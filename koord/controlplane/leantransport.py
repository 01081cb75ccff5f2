"""The transport of the control plane: short requests at a fraction of the usual cost."""

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

from koord.controlplane.http1 import Answer, Bounds, Connections, Peer
from koord.kube.access.config import ApiConfig
from koord.kube.access.credentials import Credential, Credentials
from koord.kube.answers import refusal
from koord.kube.errors import TimedOut, Unauthorized
from koord.kube.neterrors import translation
from koord.kube.transport import (
    MAX_REFUSAL_BYTES,
    USER_AGENT,
    Call,
    Limits,
    Traffic,
    Transport,
    check_head,
    too_large,
)
from koord.util.clock import Clock


@dataclass(frozen=True, slots=True)
class _Server:
    """A server as its URL names it."""

    secure: bool
    host: str
    port: int
    authority: str  # the header Host
    prefix: str  # before each path

    @classmethod
    def of(cls, url: str) -> "_Server":
        """Raises ValueError for what is no URL of a server."""
        parts = urlsplit(url)
        secure, host = parts.scheme == "https", parts.hostname
        if not host or parts.scheme not in ("http", "https"):
            raise ValueError(f"{url} is no URL of a server")
        usual = 443 if secure else 80
        name = f"[{host}]" if ":" in host else host
        authority = name if parts.port in (None, usual) else f"{name}:{parts.port}"
        return cls(secure, host, parts.port or usual, authority, parts.path.rstrip("/"))


class LeanTransport(Transport):
    """A Transport whose exchanges go over connections of their own; see http1.

    Streams, and all requests by a proxy, go the usual way.
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
        self._connections: Connections | None = None
        self._own: _Server | None = None  # the server of calls that name none
        self._last_peer: tuple[_Server | None, Peer | None] = (None, None)
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
        answer, began = Answer(), self._clock.monotonic()
        try:
            await self._ask(call, credential, answer)
        finally:
            seconds = answer.head_at - began if answer.status else 0.0
            self._observe(Traffic(call, answer.status, seconds, answer.received))
        return answer.body

    async def _ask(self, call: Call, credential: Credential, answer: Answer) -> None:
        """Send a call and fill in its answer; raise if it is a refusal."""
        where = call.where
        try:
            server = self._server(call)
            peer = self._peer(server, credential)
            request = self._head(call, server, credential) + (call.body or b"")
            await self._opened_connections().exchange(
                peer, call.method, request, answer, where, call.check
            )
        except TimedOut:
            if answer.status < 400:
                raise  # else the status alone has to do
        except (OSError, ValueError) as err:
            if answer.status < 400:
                raise translation(err, where) from err
        if answer.status >= 400:
            headers = answer.headers or {}
            named = {name.decode("latin-1").title(): answer.header(name) for name in headers}
            raise refusal(answer.status, named, answer.body, where=where)
        check_head(answer.status, answer.header(b"content-encoding"), where)
        if answer.too_large:
            raise too_large(where, self._limits.answer_bytes)

    def _server(self, call: Call) -> _Server:
        if call.server:
            return _Server.of(call.server)
        if self._own is None:
            self._own = _Server.of(self._config.server)
        return self._own

    def _peer(self, server: _Server, credential: Credential) -> Peer:
        """The same object as long as nothing has changed."""
        context = self._tls.current(credential) if server.secure else None
        made_of, peer = self._last_peer
        if peer is None or made_of is not server or peer.context is not context:
            peer = Peer(server.host, server.port, context, self._config.tls_server_name)
            self._last_peer = server, peer
        return peer

    def _head(self, call: Call, server: _Server, credential: Credential) -> bytes:
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

    def _opened_connections(self) -> Connections:
        if self._connections is None:
            self._warn_once()
            limits = self._limits
            bounds = Bounds(
                connect=limits.connect,
                head=limits.headers,
                body=limits.body,
                reason=limits.reason,
                body_bytes=limits.answer_bytes,
                reason_bytes=MAX_REFUSAL_BYTES,
                connections=limits.connections,
                keepalive=limits.keepalive,
            )
            self._connections = Connections(self._clock, bounds)
        return self._connections
