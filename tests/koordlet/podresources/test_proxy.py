"""The proxy between a client and a kubelet, over real sockets."""

import asyncio
import os
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpclib", reason="needs the package grpclib")

from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.server import Server

from koord.util.clock import SystemClock
from koord.util.health import OK
from koord.util.stop import Stop
from koordlet.podresources import SERVICE, GivenDevices, PodResourcesProxy, _Bytes

from .conftest import answer, container, devices, message, pod

PODS = answer([pod("ml", "train", container("c"))])
GIVEN = GivenDevices("nvidia.com/gpu", ("GPU-1",))


class Kubelet:
    """Answers with what the test says; remembers the requests."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes] = {"List": PODS, "Get": b"\x0a\x00"}
        self.requests: list[tuple[str, bytes]] = []

    def __mapping__(self) -> dict[str, Handler]:
        names = ("List", "GetAllocatableResources", "Get")
        return {
            SERVICE + name: Handler(self._handler(name), Cardinality.UNARY_UNARY, bytes, bytes)
            for name in names
        }

    def _handler(self, name: str) -> Any:
        async def handle(stream: Any) -> None:
            self.requests.append((name, await stream.recv_message()))
            if name not in self.answers:
                raise GRPCError(Status.UNIMPLEMENTED, "the feature gate is off")
            await stream.send_message(self.answers[name])

        return handle


class Scene:
    """A kubelet, a proxy and a client."""

    def __init__(self, directory: Path) -> None:
        self.kubelet = Kubelet()
        self.upstream = directory / "k.sock"
        self.server: Server | None = None
        self.directory = directory / "p"
        self.proxy = PodResourcesProxy(
            self.directory,
            self.upstream,
            lambda _, name: [GIVEN] if name == "train" else [],
            SystemClock(),
        )
        self.socket = self.directory / "kubelet.sock"
        self.stop = Stop(SystemClock())

    async def start_kubelet(self) -> None:
        self.server = Server([self.kubelet], codec=_Bytes())
        await self.server.start(path=str(self.upstream))

    async def start(self) -> None:
        self.task = asyncio.create_task(self.proxy.run(self.stop))
        async with asyncio.timeout(20):
            while not self.listens() and not self.task.done():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    def listens(self) -> bool:
        """Whether clients can connect: the socket is there some time before."""
        with socket.socket(socket.AF_UNIX) as client:
            return client.connect_ex(str(self.socket)) == 0

    async def ask(self, name: str, request: bytes = b"") -> bytes:
        channel = Channel(path=str(self.socket), codec=_Bytes())
        try:
            method = UnaryUnaryMethod(channel, SERVICE + name, bytes, bytes)
            found: bytes = await method(request, timeout=20)
            return found
        finally:
            channel.close()

    async def end(self) -> None:
        self.stop.set()
        await asyncio.wait_for(self.task, 20)
        if self.server is not None:
            self.server.close()
            await self.server.wait_closed()


@pytest.fixture
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    scene = Scene(tmp_path_factory.mktemp("p"))
    yield scene
    await scene.end()


async def test_devices_are_added_and_the_rest_passes(scene: Scene) -> None:
    await scene.start_kubelet()
    await scene.start()
    mode = scene.socket.stat().st_mode
    assert stat.S_IMODE(mode) == 0o600
    found = await scene.ask("List")
    given = devices("nvidia.com/gpu", "GPU-1")
    assert found == answer([pod("ml", "train", container("c", given))])
    request = message(1, "train")
    assert await scene.ask("Get", request) == b"\x0a\x00"
    assert scene.kubelet.requests == [("List", b""), ("Get", request)]
    assert scene.proxy.health() == OK


async def test_a_refusal_of_the_kubelet_is_passed_on(scene: Scene) -> None:
    await scene.start_kubelet()
    await scene.start()
    with pytest.raises(GRPCError) as caught:
        await scene.ask("GetAllocatableResources")
    assert caught.value.status is Status.UNIMPLEMENTED
    assert scene.proxy.health() == OK


async def test_a_kubelet_that_is_away_comes_back(scene: Scene) -> None:
    await scene.start()
    with pytest.raises(GRPCError) as caught:
        await scene.ask("List")
    assert caught.value.status is Status.UNAVAILABLE
    assert "the kubelet does not answer" in scene.proxy.health().reason
    await scene.start_kubelet()
    assert await scene.ask("List") != PODS
    assert scene.proxy.health() == OK


async def test_nonsense_of_the_kubelet_is_not_passed_on(scene: Scene) -> None:
    scene.kubelet.answers["List"] = b"\x0a\x05a"
    await scene.start_kubelet()
    await scene.start()
    with pytest.raises(GRPCError) as caught:
        await scene.ask("List")
    assert caught.value.status is Status.INTERNAL
    assert "wanted a list of pods" in scene.proxy.health().reason


async def test_a_stale_socket_is_replaced_and_ours_is_removed(scene: Scene) -> None:
    scene.directory.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(scene.socket))
    await scene.start_kubelet()
    await scene.start()
    async with asyncio.timeout(20):
        while True:
            try:
                await scene.ask("List")
                break
            except (GRPCError, OSError):
                await asyncio.sleep(0.05)
    scene.stop.set()
    await scene.task
    assert os.listdir(scene.directory) == []


async def test_noise_on_the_socket_ends_nothing(scene: Scene) -> None:
    await scene.start_kubelet()
    await scene.start()
    reader, writer = await asyncio.open_unix_connection(str(scene.socket))
    writer.write(b"GET / HTTP/1.1\r\n\r\n" * 100)
    await writer.drain()
    async with asyncio.timeout(20):
        await reader.read()
    writer.close()
    assert await scene.ask("List") != PODS
