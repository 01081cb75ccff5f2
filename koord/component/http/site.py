"""An aiohttp application on a listening socket, and the log of malformed requests."""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import CollectorRegistry

from koord.component.http.limits import HEAD_SECONDS, ConnectionLimiter
from koord.component.http.sockets import Address, GuardedListener, listen_tcp, listen_unix
from koord.util.clock import Clock, SystemClock
from koord.util.logs import LimitedLog, get_logger
from koord.util.ownedfiles import OwnedPath

LONGEST = 200  # characters of an error that quotes what a client has sent

log = get_logger("koord.server")


def request_logger(clock: Clock) -> logging.Logger:
    """Return a logger for a server of aiohttp."""
    logger = logging.Logger("koord.server.requests", logging.WARNING)
    logger.addHandler(_Events(clock))
    return logger


class _Events(logging.Handler):
    """Separates a malformed request, which any client can send, from an error of ours."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._log = LimitedLog(log, clock)

    def emit(self, record: logging.LogRecord) -> None:
        """Log an event in place of the record."""
        error = record.exc_info[1] if record.exc_info else None
        text = record.getMessage() if error is None else f"{type(error).__name__}: {error}"
        if isinstance(error, HttpProcessingError | web.RequestPayloadError):
            client = str(record.args[0]) if isinstance(record.args, tuple) and record.args else ""
            said = " ".join(text.split())[:LONGEST]
            self._log.warning("request.malformed", client=client, error=said)
        else:
            self._log.error("request.failed", message=record.getMessage(), exc_info=error)


_IDLE_SECONDS = 120.0  # a connection without a request is closed; Prometheus may come once a minute
_LINE_BYTES = 4096  # of the request line and of each header
_GRACE_SECONDS = 2.0  # for answers under way when the server stops


class Site:
    """Serves an application from start to stop, each called once."""

    def __init__(
        self,
        app: web.Application,
        listen: Callable[[], socket.socket],
        tls: ssl.SSLContext | None = None,
        *,
        clock: Clock | None = None,
        registry: CollectorRegistry | None = None,
        prefix: str = "koord",
    ) -> None:
        """clock paces the log; registry takes the metrics of the connections, named by prefix."""
        self._connections = ConnectionLimiter(prefix, registry)
        app.middlewares.insert(0, self._connections.middleware)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            keepalive_timeout=_IDLE_SECONDS,
            max_line_size=_LINE_BYTES,
            max_field_size=_LINE_BYTES,
            shutdown_timeout=_GRACE_SECONDS,
            lingering_time=_GRACE_SECONDS,  # in which what is left of a body is read, and dropped
            logger=request_logger(clock or SystemClock()),
        )
        self._listen = listen
        self._tls = tls
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen and serve.

        Raises:
            ListenError: the socket cannot be had; the message says why.
        """
        listening = await asyncio.to_thread(self._listen)
        self._socket = GuardedListener(listening, self._connections.admit)
        await self._runner.setup()
        assert self._runner.server is not None  # noqa: S101 - setup has made it
        self._server = await asyncio.get_running_loop().create_server(
            self._runner.server,
            sock=self._socket,
            ssl=self._tls,
            ssl_handshake_timeout=HEAD_SECONDS if self._tls else None,
            ssl_shutdown_timeout=_GRACE_SECONDS if self._tls else None,
        )

    async def stop(self) -> None:
        """Answer what was asked, then close. Does nothing when start failed."""
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._runner.cleanup()
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class HttpServer(Site):
    """A site on a TCP port, with TLS if there is a context for it."""

    def __init__(
        self,
        app: web.Application,
        address: Address,
        tls: ssl.SSLContext | None = None,
        *,
        clock: Clock | None = None,
        registry: CollectorRegistry | None = None,
        prefix: str = "koord",
    ) -> None:
        super().__init__(
            app, lambda: listen_tcp(address), tls, clock=clock, registry=registry, prefix=prefix
        )

    @property
    def port(self) -> int:
        """The port in use; 0 while not started."""
        return 0 if self._socket is None else int(self._socket.getsockname()[1])


class UnixServer(Site):
    """A site on a Unix socket that only its owner may connect to."""

    def __init__(self, app: web.Application, path: OwnedPath) -> None:
        super().__init__(app, lambda: listen_unix(path))
        self._path = path
        self._inode = 0

    async def start(self) -> None:
        """Start the server and remember the inode of its socket."""
        await super().start()
        self._inode = self._path.stat().st_ino

    async def stop(self) -> None:
        """Stop the server; remove the socket unless another process has replaced it."""
        await super().stop()
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()
