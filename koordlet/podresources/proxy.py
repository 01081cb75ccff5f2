"""A gRPC server that passes the kubelet's pod-resources service on, and adds devices to it.

Imports grpclib, an optional dependency: only while the gate PodResourcesProxy is on.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.config import Configuration
from grpclib.const import Cardinality, Handler, Status
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError
from grpclib.server import Server, Stream

from koord.component.http.sockets import ListenError, listen_unix
from koord.util.clock import Clock
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.logs import LogState, get_logger
from koord.util.ownedfiles import OwnedDirectory
from koord.util.stop import Stop
from koordlet.podresources.messages import DevicesOf, with_devices

SOCKET = "kubelet.sock"
SERVICE = "/v1.PodResourcesLister/"
LIST = "List"
FORWARDED_METHODS = ("GetAllocatableResources", "Get")
RESPONSE_TIMEOUT = 10.0  # real seconds for the kubelet
MAX_CONCURRENT_CALLS = 4  # calls to the kubelet; more wait
MAX_BYTES = 16 << 20  # of a message, as the kubelet's own limit
_STOP_TIMEOUT = 3.0  # real seconds for calls that are under way at the end

log = get_logger("koordlet.podresources")


class _Bytes(CodecBase):
    """Messages stay bytes."""

    __content_subtype__ = "proto"

    def encode(self, message: bytes, message_type: Any) -> bytes:
        return message

    def decode(self, data: bytes, message_type: Any) -> bytes:
        return data


class PodResourcesProxy:
    """Serves <directory>/kubelet.sock, for root and this process's user."""

    def __init__(self, directory: Path, kubelet: Path, devices_of: DevicesOf, clock: Clock) -> None:
        """kubelet: the socket of its service. devices_of: what is added, checked."""
        self._directory = directory
        self._kubelet = kubelet
        self._devices_of = devices_of
        self._clock = clock
        self._at_once = asyncio.Semaphore(MAX_CONCURRENT_CALLS)
        self._problem = ""
        self._trouble = LogState(log)

    async def run(self, stop: Stop) -> None:
        """Serve until stop.

        Raises:
            ListenError: the socket cannot be made.
        """
        try:
            directory = await asyncio.to_thread(OwnedDirectory.open, self._directory)
            sock = await asyncio.to_thread(listen_unix, directory / SOCKET)
        except (OSError, ListenError) as err:
            self._problem = str(err)
            raise
        codec = _Bytes()
        channel = Channel(path=str(self._kubelet), codec=codec, config=_limits())
        server = Server([self._Service(self, channel)], codec=codec, config=_limits())
        await server.start(sock=sock)
        self._problem = ""
        try:
            await stop.wait()
        finally:
            server.close()
            channel.close()
            (directory / SOCKET).unlink()
            directory.close()
            await asyncio.wait([asyncio.ensure_future(server.wait_closed())], timeout=_STOP_TIMEOUT)

    def health(self) -> PartHealth:
        """Degraded while the socket cannot be made, or the kubelet does not answer."""
        return PartHealth(HealthStatus.DEGRADED, self._problem) if self._problem else OK

    class _Service:
        """The service whose methods grpclib reads from __mapping__."""

        def __init__(self, proxy: "PodResourcesProxy", channel: Channel) -> None:
            self._proxy = proxy
            self._channel = channel

        def __mapping__(self) -> dict[str, Handler]:
            return {
                SERVICE + name: Handler(self._handler(name), Cardinality.UNARY_UNARY, bytes, bytes)
                for name in (LIST, *FORWARDED_METHODS)
            }

        def _handler(self, name: str) -> Callable[[Stream[bytes, bytes]], Any]:
            method = UnaryUnaryMethod(self._channel, SERVICE + name, bytes, bytes)

            async def handle(stream: Stream[bytes, bytes]) -> None:
                request = await stream.recv_message()
                response = await self._proxy.ask(method, request or b"")
                await stream.send_message(self._proxy.completed(name, response))

            return handle

    async def ask(self, method: "UnaryUnaryMethod[bytes, bytes]", request: bytes) -> bytes:
        """Return the kubelet's response. Raises GRPCError, which the client gets."""
        async with self._at_once:
            try:
                response = await method(request, timeout=RESPONSE_TIMEOUT)
            except (OSError, TimeoutError) as err:
                problem = f"{self._kubelet}: the kubelet does not answer: {err or 'timeout'}"
                self._failed(problem)
                raise GRPCError(Status.UNAVAILABLE, problem) from err
        if len(response) > MAX_BYTES:
            raise GRPCError(Status.RESOURCE_EXHAUSTED, "the kubelet's answer is too large")
        self._problem = ""
        self._trouble.ended("pod_resources.recovered")
        return response

    def completed(self, name: str, response: bytes) -> bytes:
        """The answer with devices, if it is one of pods."""
        if name != LIST:
            return response
        try:
            return with_devices(response, self._devices_of)
        except ValueError as err:
            problem = f"{self._kubelet}: wanted a list of pods, found {err}"
            self._failed(problem)
            raise GRPCError(Status.INTERNAL, problem) from err

    def _failed(self, problem: str) -> None:
        self._problem = problem
        self._trouble.failed("pod_resources.failed", error=problem)


def _limits() -> Configuration:
    return Configuration(http2_connection_window_size=MAX_BYTES, http2_stream_window_size=1 << 20)
