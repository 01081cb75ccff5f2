"""A runtime that a test plays: it listens on a real socket and says whatever the test wants."""

import asyncio
import contextlib
from pathlib import Path

from koordlet.runtimehooks.wire import (
    PLUGIN,
    PLUGIN_SERVICE,
    RUNTIME,
    FrameReader,
    MessageType,
    Request,
    Response,
    StreamReader,
    frames,
    packed,
)

TIMEOUT = 5.0  # seconds for a response


class ScriptedRuntime:
    """Takes one plugin at a time."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.registered: list[bytes] = []
        self._answers: dict[int, asyncio.Future[Response]] = {}
        self._stream = -1
        self._came = asyncio.Event()
        self.writer: asyncio.StreamWriter | None = None

    async def listen(self) -> None:
        self.socket.parent.mkdir(parents=True, exist_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, self.socket)

    async def end(self) -> None:
        """As a restart of the runtime: the socket and the connection are gone."""
        self._server.close()
        if self.writer is not None:
            self.writer.close()
            self.writer = None
        self._came.clear()
        self.socket.unlink(missing_ok=True)

    async def plugin(self) -> None:
        """Return when a plugin has registered."""
        await asyncio.wait_for(self._came.wait(), TIMEOUT)

    def send(self, content: bytes) -> None:
        """Send these bytes as they are."""
        assert self.writer
        self.writer.write(content)

    async def call(
        self, method: str, payload: bytes = b"", service: str = PLUGIN_SERVICE
    ) -> Response:
        self._stream += 2
        answer = self._answers[self._stream] = asyncio.get_running_loop().create_future()
        request = Request(service, method, payload)
        self.send(frames(PLUGIN, packed(self._stream, MessageType.REQUEST, request.encode())))
        return await asyncio.wait_for(answer, TIMEOUT)

    async def gone(self) -> None:
        """Return when the plugin has closed the connection."""
        await asyncio.wait_for(self._ended.wait(), TIMEOUT)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer, self._ended = writer, asyncio.Event()
        framed = FrameReader()
        streams = {PLUGIN: StreamReader(), RUNTIME: StreamReader()}
        with contextlib.suppress(OSError):
            while arrived := await reader.read(65536):
                for connection, content in framed.feed(arrived):
                    for frame in streams[connection].feed(content):
                        if connection == RUNTIME:
                            self.registered.append(Request.decode(frame.content).payload)
                            answer = packed(frame.stream, MessageType.RESPONSE, Response().encode())
                            writer.write(frames(RUNTIME, answer))
                            self._came.set()
                        else:
                            answer = Response.decode(frame.content)
                            self._answers.pop(frame.stream).set_result(answer)
        self._ended.set()
        writer.close()
