"""One connection to the container runtime: its requests to us, and ours to it."""

import asyncio
from collections.abc import Awaitable, Callable

from koord.util.errors import error_text
from koord.util.logs import get_logger
from koordlet.runtimehooks.wire import (
    PLUGIN,
    PLUGIN_SERVICE,
    RUNTIME,
    Code,
    Frame,
    FrameReader,
    MessageType,
    Request,
    Response,
    Status,
    StreamReader,
    WireError,
    frames,
    malformed,
    packed,
)

MAX_REQUESTS = 64  # of the runtime that are worked on at once; it sends one after the other
_READ = 64 << 10  # bytes

log = get_logger("koordlet.runtimehooks")


class CallError(Exception):
    """A call that did not go well: the response has this code and message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


Handler = Callable[[str, bytes], Awaitable[bytes]]
"""Answers a method of the plugin service, or raises CallError or WireError."""


class Connection:
    """Serves until the runtime closes it, or sends what the protocol does not allow."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handler: Handler
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._handler = handler
        self._frames = FrameReader()
        self._streams = {PLUGIN: StreamReader(), RUNTIME: StreamReader()}
        self._calls: dict[int, asyncio.Future[Response]] = {}
        self._last_stream = -1
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Read and answer until the end.

        Raises:
            OSError: the connection broke.
            WireError: the bytes received do not follow the protocol.
        """
        try:
            while arrived := await self._reader.read(_READ):
                for connection, content in self._frames.feed(arrived):
                    stream = self._streams.get(connection)
                    for frame in stream.feed(content) if stream else ():
                        self._take(connection, frame)
        finally:
            await self._end()

    async def call(self, service: str, method: str, payload: bytes, timeout: float) -> bytes:
        """Call the runtime; serve must be running.

        Raises:
            CallError: it rejects the call.
            OSError: the connection ended, or there was no answer in time.
        """
        self._last_stream += 2
        stream = self._last_stream
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._calls[stream] = answer
        request = Request(service, method, payload, int(timeout * 1e9))
        self._send(RUNTIME, packed(stream, MessageType.REQUEST, request.encode()))
        try:
            async with asyncio.timeout(timeout):
                await self._writer.drain()
                response = await answer
        finally:
            self._calls.pop(stream, None)
        status = response.status
        if status is not None and status.code != Code.OK:
            raise CallError(status.code, status.message)
        return response.payload

    def close(self) -> None:
        """End the connection; serve returns."""
        self._writer.close()

    def _take(self, connection: int, frame: Frame) -> None:
        """Work on one message. Raises WireError."""
        if connection == RUNTIME and frame.kind == MessageType.RESPONSE:
            response = Response.decode(frame.content)
            answer = self._calls.get(frame.stream)
            if answer is not None and not answer.done():
                answer.set_result(response)
        elif connection == PLUGIN and frame.kind == MessageType.REQUEST:
            if len(self._tasks) >= MAX_REQUESTS:
                raise malformed("requests", f"at most {MAX_REQUESTS} at once", len(self._tasks) + 1)
            request = Request.decode(frame.content)
            task = asyncio.create_task(self._answer(frame.stream, request), name="nri request")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            raise malformed("a message", "a request or a response", frame.kind)

    async def _answer(self, stream: int, request: Request) -> None:
        response = await self._response(request)
        try:
            content = packed(stream, MessageType.RESPONSE, response.encode())
        except WireError as err:
            error = Response(Status(Code.UNKNOWN, str(err)))
            content = packed(stream, MessageType.RESPONSE, error.encode())
        self._send(PLUGIN, content)

    async def _response(self, request: Request) -> Response:
        if request.service != PLUGIN_SERVICE:
            return Response(Status(Code.UNIMPLEMENTED, f"no service {request.service!r:.80}"))
        try:
            return Response(payload=await self._handler(request.method, request.payload))
        except CallError as err:
            return Response(Status(err.code, str(err)))
        except WireError as err:
            return Response(Status(Code.INVALID_ARGUMENT, str(err)))
        except Exception as err:
            log.exception("nri.request_failed", method=f"{request.method:.80}")
            return Response(Status(Code.UNKNOWN, error_text(err)))

    def _send(self, connection: int, content: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(frames(connection, content))

    async def _end(self) -> None:
        self._writer.close()
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(ConnectionError("the runtime has closed the connection"))
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
