"""Keeps a connection to the container runtime: registers, serves, and comes again."""

import asyncio
import socket
import struct
from collections.abc import Callable
from pathlib import Path

from koord.util.clock import Clock
from koord.util.errors import UnsafeFile
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.logs import get_logger
from koord.util.stop import Stop
from koord.util.timebudget import Backoff
from koordlet.host.paths import check_socket
from koordlet.host.processes import is_trusted
from koordlet.runtimehooks.connection import CallError, Connection
from koordlet.runtimehooks.handlers import NriPlugin
from koordlet.runtimehooks.hooks import HookOptions, HookResponses
from koordlet.runtimehooks.wire import RUNTIME_SERVICE, RegisterPluginRequest, WireError

MAX_PAUSE = 60.0  # seconds between attempts, whatever the flags allow
ABSENT = 10.0  # seconds between looks, at most, for a socket that is not there

log = get_logger("koordlet.runtimehooks")


class RuntimeHooks:
    """The part of the daemon that serves the runtime. Belongs to the event loop."""

    def __init__(
        self,
        path: Path,
        options: HookOptions,
        plugin: Callable[[], NriPlugin],
        responses: HookResponses,
        clock: Clock,
    ) -> None:
        """path: the runtime's socket. plugin makes what answers on a new connection."""
        self._path = path
        self._options = options
        self._plugin = plugin
        self._clock = clock
        self.responses = responses
        self._runtime = ""  # that is served now
        self._problem = ""
        self.connections = 0

    async def run(self, stop: Stop) -> None:
        """Serve until stop; a runtime that restarts is connected to again."""
        options = self._options
        cap = min(options.backoff_cap, MAX_PAUSE)
        backoff = Backoff(options.backoff, cap, factor=options.backoff_factor)
        while not stop.is_set():
            began, longest = self._clock.monotonic(), cap
            try:
                await self._attempt(stop)
            except FileNotFoundError:
                self._problem, longest = "", ABSENT  # the runtime has NRI off, or restarts
            except (OSError, WireError, CallError) as err:
                self._failed(err)
            if self._clock.monotonic() - began >= options.connect_timeout:
                backoff.reset()
            await stop.sleep(min(backoff.next(), longest))

    async def settle(self) -> None:
        """Adjust nothing from now on, and return when all that was answered is recorded.

        The runtime may still be about to set it: see Writer.awaited.
        """
        self.responses.ended = True
        await self.responses.all_recorded()

    def health(self) -> PartHealth:
        """Degraded while there is a socket, but no connection."""
        facts: dict[str, object] = {"runtime": self._runtime, "connections": self.connections}
        if self._problem:
            return PartHealth(HealthStatus.DEGRADED, self._problem, facts)
        return PartHealth(OK.status, detail=facts)

    async def _attempt(self, stop: Stop) -> None:
        """Connect and serve until stop.

        Raises:
            FileNotFoundError: there is no socket.
            OSError, WireError, CallError: it could not be used, or the connection broke.
        """
        check_socket(self._path)
        reader, writer = await asyncio.open_unix_connection(self._path)
        plugin = self._plugin()
        connection = Connection(reader, writer, plugin.handle)
        serving = asyncio.create_task(connection.serve(), name="nri connection")
        stopped = asyncio.create_task(stop.wait(), name="nri stop")
        try:
            check_peer(writer, self._path)
            register = RegisterPluginRequest(self._options.name, self._options.index).encode()
            timeout = self._options.connect_timeout
            await connection.call(RUNTIME_SERVICE, "RegisterPlugin", register, timeout)
            self._connected(plugin)
            await asyncio.wait({serving, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not stop.is_set():
                serving.result()
                raise ConnectionError("the runtime has closed the connection")
        finally:
            self._runtime = ""
            stopped.cancel()
            connection.close()
            await asyncio.wait({serving}, timeout=self._options.connect_timeout)
            serving.cancel()

    def _connected(self, plugin: NriPlugin) -> None:
        self.connections += 1
        self._problem, self._runtime = "", plugin.runtime or "unknown"
        log.info("nri.connected", socket=str(self._path), runtime=self._runtime)

    def _failed(self, err: Exception) -> None:
        problem = f"{self._path}: {err or repr(err)}"
        if problem != self._problem:
            log.warning("nri.disconnected", error=problem)
        self._problem = problem


def check_peer(writer: asyncio.StreamWriter, path: Path) -> None:
    """See that root, or this process's user, listens there. Raises UnsafeFile."""
    peer: socket.socket = writer.get_extra_info("socket")
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    if not is_trusted(user):
        raise UnsafeFile(path, f"a process of user {user} that listens there", "end that process")
