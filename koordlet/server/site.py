"""One aiohttp application on one listening socket."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from koordlet.server.sockets import Address, listen_tcp, listen_unix

_IDLE_SECONDS = 120.0  # a connection without a request is closed; Prometheus may come once a minute
_LINE_BYTES = 4096  # of the request line and of each header
_GRACE_SECONDS = 2.0  # for answers under way when the server stops
_MOST_CONNECTIONS = 100  # at a time; a held one costs memory and a descriptor


class _Refusal(asyncio.Protocol):
    """What a connection gets that is one too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class Site:
    """Serves an application from start to stop, each called once."""

    def __init__(self, app: web.Application, listen: Callable[[], socket.socket]) -> None:
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            keepalive_timeout=_IDLE_SECONDS,
            max_line_size=_LINE_BYTES,
            max_field_size=_LINE_BYTES,
            shutdown_timeout=_GRACE_SECONDS,
        )
        self._listen = listen
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen and serve.

        Raises:
            ListenError: the socket cannot be had; the message says why.
        """
        self._socket = await asyncio.to_thread(self._listen)
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._protocol, sock=self._socket)

    async def stop(self) -> None:
        """Answer what was asked, then close. Does nothing when start failed."""
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._runner.cleanup()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _protocol(self) -> asyncio.BaseProtocol:
        server = self._runner.server
        if server is None or len(server.connections) >= _MOST_CONNECTIONS:
            return _Refusal()
        return server()


class HttpServer(Site):
    """A site on a TCP port."""

    def __init__(self, app: web.Application, address: Address) -> None:
        super().__init__(app, lambda: listen_tcp(address))

    @property
    def port(self) -> int:
        """The port in use; 0 while not started."""
        return 0 if self._socket is None else int(self._socket.getsockname()[1])


class UnixServer(Site):
    """A site on a Unix socket that only its owner may connect to."""

    def __init__(self, app: web.Application, path: Path) -> None:
        super().__init__(app, lambda: listen_unix(path))
        self._path = path
        self._inode = 0

    async def start(self) -> None:
        """As Site.start."""
        await super().start()
        self._inode = os.stat(self._path).st_ino

    async def stop(self) -> None:
        """As Site.stop; removes the socket unless somebody else has replaced it."""
        await super().stop()
        with contextlib.suppress(OSError):
            if os.stat(self._path).st_ino == self._inode:
                os.unlink(self._path)
