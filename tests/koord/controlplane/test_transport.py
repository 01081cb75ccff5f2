"""Whatever a server sends, a short request ends with its response or an error, and is sent once.

That it does all that a Transport does is in tests/koord/kube, where both run.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.controlplane.transport import PooledTransport
from koord.kube import errors
from koord.kube.credentials import ApiConfig
from koord.kube.transport import Call, Limits, Transport
from koord.util.simulatedclock import SimulatedClock

GET = Call("GET", "/api/v1/pods")
POST = Call("POST", "/api/v1/pods", body=b"{}")
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
MIB = 1 << 20
HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


class RawServer:
    """Answers the n-th request of all with the n-th answer; None: closes without one."""

    def __init__(self, *answers: bytes | None, then_close: bool = False) -> None:
        self.answers = list(answers)
        self.then_close = then_close
        self.requests: list[bytes] = []
        self.connections = 0
        self.ended = 0
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None
        self.url = ""

    async def __aenter__(self) -> "RawServer":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.hang_up()

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().rpartition(b"content-length: ")[2].split(b"\r\n")[0]
                body = await reader.readexactly(int(length)) if b"ength:" in head else b""
                self.requests.append(head + body)
                answer = self.answers.pop(0) if self.answers else OK
                if answer is None:
                    break
                writer.write(answer)
                await writer.drain()
                if self.then_close:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.ended += 1
            writer.close()


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
async def serve(clock: SimulatedClock) -> AsyncIterator[Callable[..., object]]:
    """A server with these responses, and a transport to it."""
    async with AsyncExitStack() as stack:

        async def serve(
            *answers: bytes | None, then_close: bool = False, limits: Limits | None = None
        ) -> tuple[RawServer, PooledTransport]:
            server = await stack.enter_async_context(RawServer(*answers, then_close=then_close))
            transport = made(server, clock, limits)
            stack.push_async_callback(transport.close)
            return server, transport

        yield serve


def made(server: RawServer, clock: SimulatedClock, limits: Limits | None = None) -> PooledTransport:
    config = ApiConfig(server=server.url, source="the test")
    return PooledTransport(config, clock, limits=limits or Limits(qps=0))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - on the network, which is real
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (OK, b"{}"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, b"{}"),
        (b"HTTP/1.1 103 Early\r\nLink: x\r\nContent-Encoding: gzip\r\n\r\n" + OK, b"{}"),
        (CHUNKED + b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n", b"{}"),
        (CHUNKED + b"2\r\n{}\r\n0\r\nTrail: er\r\n\r\n", b"{}"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b""),
    ],
)  # fmt: skip
async def test_an_answer_in_every_frame(serve, answer: bytes, body: bytes) -> None:
    """Interim answers are passed over; the connection serves the next request."""
    server, transport = await serve(answer)

    assert await transport.exchange(POST) == body
    assert await transport.exchange(POST) == b"{}"
    assert server.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.0 200 OK\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}",
    ],
)
async def test_a_server_that_closes_after_its_answer(serve, answer: bytes) -> None:
    """HTTP/1.0, no length, or Connection: close: the next request has a connection of its own."""
    server, transport = await serve(answer, OK, then_close=True)

    assert await transport.exchange(POST) == b"{}"
    assert await transport.exchange(POST) == b"{}"
    assert server.connections == 2


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (None, errors.Unreachable),
        (b"garbage\r\n\r\n", errors.Unreachable),
        (b"\x16\x03\x01\x02\x00", errors.Unreachable),
        (b"HTTP/1.1 200", errors.Unreachable),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{}", errors.Unreachable),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n{}", errors.Unreachable),
        (HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", errors.Unreachable),
        (CHUNKED + b"zz\r\n{}", errors.Unreachable),
        (CHUNKED + b"2\r\n{}\r\n", errors.Unreachable),
        (b"HTTP/1.1 101 Go\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", errors.Unreachable),
        (
            b"HTTP/1.1 307 Go\r\nLocation: http://a/\r\nContent-Length: 0\r\n\r\n",
            errors.BadResponse,
        ),
        (HEAD + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", errors.BadResponse),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * MIB, errors.Unreachable),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000, errors.Unreachable),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000, errors.Unreachable),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n{", errors.BadResponse),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (2 * MIB), errors.BadResponse),
        (CHUNKED + b"200000\r\n" + b"x" * (2 * MIB),
         errors.BadResponse),
        (b"HTTP/1.1 403 No\r\nContent-Length: 9\r\n\r\n{}", errors.Forbidden),
        (b"HTTP/1.1 403 No\r\nContent-Length: 99999999\r\n\r\n{}", errors.Forbidden),
    ],
)  # fmt: skip
async def test_a_hostile_answer_is_an_error(
    serve, answer: bytes | None, error: type[Exception]
) -> None:
    """It is refused, a POST is not sent again, and the next request works."""
    server, transport = await serve(
        answer, OK, then_close=True, limits=Limits(qps=0, response_bytes=MIB)
    )

    with pytest.raises(error, match="POST /api/v1/pods"):
        await transport.exchange(POST)

    assert len(server.requests) == 1
    await until(lambda: server.ended == 1)
    await asyncio.sleep(0.02)  # its end arrives
    assert await transport.exchange(POST) == b"{}"


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=200), head=st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n"]))
def test_any_bytes_end_the_request(data: bytes, head: bytes) -> None:
    """With a response or an error of ours."""

    async def once() -> None:
        async with RawServer(head + data, then_close=True) as server:
            transport = made(server, SimulatedClock())
            try:
                await transport.exchange(POST)
            except errors.KubeError:
                pass
            finally:
                await transport.close()

    asyncio.run(once())


async def test_bytes_beyond_the_answer_are_no_answer(serve) -> None:
    """A second response that nothing asked for is not taken for that of the next request."""
    forged = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"
    server, transport = await serve(OK + forged)

    assert await transport.exchange(POST) == b"{}"
    assert await transport.exchange(POST) == b"{}"
    assert server.connections == 2


async def test_a_slow_drip_ends_in_time(serve, clock) -> None:
    """A byte now and then does not keep a request alive."""
    server, transport = await serve(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
    asked = asyncio.ensure_future(transport.exchange(POST))
    await until(lambda: len(server.requests) == 1)
    for _ in range(70):
        server._writers[0].write(b"x")
        await asyncio.sleep(0.002)
        await clock.advance(1.0)

    with pytest.raises(errors.TimedOut, match="the whole answer within 60 s"):
        await asked
    await until(lambda: server.ended == 1)


async def test_each_request_has_its_own_deadline(serve, clock) -> None:
    """One timer serves all: one that begins later ends later, and an answered one not at all."""
    server, transport = await serve(b"", b"")
    first = asyncio.ensure_future(transport.exchange(POST))
    await until(lambda: len(server.requests) == 1)
    await clock.advance(20.0)
    second = asyncio.ensure_future(transport.exchange(POST))
    await until(lambda: len(server.requests) == 2)
    assert await transport.exchange(POST) == b"{}"

    await clock.advance(10.0)
    with pytest.raises(errors.TimedOut, match="the head of the answer within 30 s"):
        await first
    assert not second.done()
    await clock.advance(20.0)
    with pytest.raises(errors.TimedOut):
        await second
    assert clock.sleepers == 0


@pytest.mark.parametrize(("call", "sent"), [(GET, 2), (POST, 1)])
async def test_only_what_may_be_repeated_is_sent_again(serve, call: Call, sent: int) -> None:
    """The server ends a kept connection just when a request comes: it may have acted on it."""
    server, transport = await serve(OK, None)
    await transport.exchange(GET)

    try:
        await transport.exchange(call)
    except errors.Unreachable:
        assert call is POST

    assert len(server.requests) == 1 + sent


async def test_a_connection_that_ended_is_not_used(serve) -> None:
    """The end of an idle connection is noticed, so the next request is not lost on it."""
    server, transport = await serve()
    await transport.exchange(POST)
    server.hang_up()
    await asyncio.sleep(0.02)

    assert await transport.exchange(POST) == b"{}"


async def test_a_cancelled_request_closes_its_connection(serve) -> None:
    """Its answer must not be taken for that of the next."""
    server, transport = await serve(b"")
    asked = asyncio.ensure_future(transport.exchange(POST))
    await until(lambda: len(server.requests) == 1)

    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked

    await until(lambda: server.ended == 1)
    assert await transport.exchange(POST) == b"{}"


async def test_connections_are_bounded_and_each_gets_its_own_answer(serve) -> None:
    """A hundred at once over three connections."""
    limits = Limits(qps=0, connections=3)
    answers = [b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n%03d" % at for at in range(100)]
    server, transport = await serve(*answers, limits=limits)

    found = await asyncio.gather(*(transport.exchange(POST) for _ in range(100)))

    assert sorted(found) == [b"%03d" % at for at in range(100)]
    assert server.connections == 3


async def test_waiting_for_a_connection_has_an_end(serve, clock) -> None:
    """While others hang, a request does not wait for longer than for a server that is away."""
    server, transport = await serve(b"", limits=Limits(qps=0, connections=1))
    hanging = asyncio.ensure_future(transport.exchange(POST))
    await until(lambda: len(server.requests) == 1)
    waiting = asyncio.ensure_future(transport.exchange(POST))
    await asyncio.sleep(0.01)

    await clock.advance(10.0)

    with pytest.raises(errors.TimedOut, match="a connection within 10 s"):
        await waiting
    hanging.cancel()


async def test_an_idle_connection_grows_old(serve, clock) -> None:
    """Servers forget connections; a request must not be the one that finds out."""
    server, transport = await serve()
    await transport.exchange(POST)
    await clock.advance(80.0)

    await transport.exchange(POST)

    assert server.connections == 2


@pytest.mark.parametrize("path", ["/a b", "/a\r\nX: y", "/a\x00", "/ä"])
async def test_a_path_that_is_not_quoted_is_not_sent(serve, path: str) -> None:
    """It could add a header, or a request."""
    server, transport = await serve()

    with pytest.raises(errors.Unreachable, match="not quoted"):
        await transport.exchange(Call("GET", path))

    assert server.requests == []


@pytest.mark.parametrize("transport_class", [Transport, PooledTransport])
async def test_a_call_that_waited_for_its_turn_is_asked_about_again(
    clock: SimulatedClock, transport_class: type[Transport]
) -> None:
    """The lead may have been lost meanwhile."""
    is_leader = True

    def check() -> None:
        if not is_leader:
            raise errors.KubeError("not sent")

    async with RawServer() as server:
        config = ApiConfig(server=server.url, source="the test")
        transport = transport_class(config, clock, limits=Limits(qps=1, burst=1))
        await transport.exchange(POST._replace(check=check))
        waiting = asyncio.create_task(transport.exchange(POST._replace(check=check)))
        await clock.until(lambda: clock.sleepers >= 1)
        is_leader = False
        await clock.advance(1)
        with pytest.raises(errors.KubeError, match="not sent"):
            await waiting
        is_leader = True
        await clock.advance(1)
        await transport.exchange(POST._replace(check=check))
        await transport.close()
        assert len(server.requests) == 2
        assert server.connections == 1
