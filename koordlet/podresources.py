"""The kubelet's pod-resources service with the devices that the scheduler has given to pods."""

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

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
from koord.util.protobuf import Field, MalformedMessage, append, field, fields_of
from koord.util.stop import Stop

_PODS = 1  # of the response
_POD_NAME, _POD_NAMESPACE, _CONTAINERS = 1, 2, 3  # of a pod
_DEVICES = 2  # of a container
_RESOURCE, _IDS = 1, 2  # of devices


class GivenDevices(NamedTuple):
    """Devices of one resource that a pod was given."""

    resource: str
    ids: tuple[str, ...]


DevicesOf = Callable[[str, str], Iterable[GivenDevices]]
"""Returns the devices of the pod with this namespace and name."""


def with_devices(response: bytes, devices_of: DevicesOf) -> bytes:
    """Return a List response whose first container of each pod has the pod's devices as well.

    A container's devices are sorted by resource.

    Raises:
        ValueError: it is no such message.
    """
    out = bytearray()
    for found in fields_of(response):
        if found.number == _PODS:
            append(out, _PODS, _pod(_bytes(found), devices_of))
        else:
            out += response[found.start : found.end]
    return bytes(out)


def _pod(pod: bytes, devices_of: DevicesOf) -> bytes:
    fields = list(fields_of(pod))
    given = [*devices_of(_text(fields, _POD_NAMESPACE), _text(fields, _POD_NAME))]
    first = next((each for each in fields if each.number == _CONTAINERS), None)
    if not given or first is None:
        return pod
    container = field(_CONTAINERS, _container(_bytes(first), given))
    return pod[: first.start] + container + pod[first.end :]


def _container(container: bytes, given: Iterable[GivenDevices]) -> bytes:
    others = bytearray()
    devices = []
    for found in fields_of(container):
        if found.number == _DEVICES:
            devices.append(_bytes(found))
        else:
            others += container[found.start : found.end]
    devices += map(_devices, given)
    for each in sorted(devices, key=lambda each: _text(fields_of(each), _RESOURCE)):
        append(others, _DEVICES, each)
    return bytes(others)


def _devices(given: GivenDevices) -> bytes:
    ids = b"".join(field(_IDS, each.encode()) for each in given.ids)
    return field(_RESOURCE, given.resource.encode()) + ids


def _text(fields: Iterable[Field], number: int) -> str:
    """The text of a field; the last one counts, "" when there is none. Raises ValueError."""
    found = [_bytes(each) for each in fields if each.number == number]
    return found[-1].decode() if found else ""


def _bytes(found: Field) -> bytes:
    """The bytes of a text or message. Raises MalformedMessage."""
    if not isinstance(found.value, bytes):
        raise MalformedMessage(f"wanted bytes as field {found.number}, found an integer")
    return found.value


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
