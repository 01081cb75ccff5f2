"""Bodies of requests on real sockets: large ones, slow ones, and many at once."""

import asyncio
import contextlib

import pytest
from aiohttp import web

from koord.component.http import limits as module
from koord.component.http.limits import PER_LOOPBACK, BodyLimiter, read_small_body
from koord.component.http.responses import limits
from koord.component.http.site import HttpServer
from koord.component.http.sockets import Address
from koord.util.simulatedclock import SimulatedClock

LARGEST, MOST, SMALL = 4000, 6000, 100


class Site:
    """A server whose answers wait until the test lets them go."""

    def __init__(self) -> None:
        self.bodies = BodyLimiter(largest=LARGEST, most=MOST)
        self.clock = SimulatedClock()
        self.go = asyncio.Event()
        self.at_work: list[int] = []  # lengths of the bodies that are there
        app = web.Application(middlewares=[limits(self.clock)])
        app.router.add_post("/", self._answer)
        app.router.add_post("/small", self._small)
        app.router.add_get("/livez", self._livez)
        self.server = HttpServer(app, Address("127.0.0.1", 0), clock=self.clock)
        self._writers: list[asyncio.StreamWriter] = []

    async def _answer(self, request: web.Request) -> web.Response:
        async with self.bodies.read(request) as body:
            self.at_work.append(len(body))
            await self.go.wait()
            return web.Response(body=bytes(body[:10]))

    async def _small(self, request: web.Request) -> web.Response:
        return web.Response(body=await read_small_body(request, SMALL))

    async def _livez(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def begin(
        self, sends: bytes, length: int | None = None, path: str = "/"
    ) -> asyncio.StreamReader:
        """Send the head and a part of the body. length None: in chunks, without a length."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        self._writers.append(writer)
        size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
        writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\n{size}\r\n\r\n".encode())
        writer.write(sends if length is not None else b"%x\r\n%s\r\n" % (len(sends), sends))
        return reader

    async def until_at_work(self, *lengths: int) -> None:
        await self.clock.until(lambda: self.at_work == list(lengths))

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.close()

    async def stop(self) -> None:
        self.go.set()
        self.hang_up()
        await self.server.stop()


async def status(reader: asyncio.StreamReader) -> int:
    """Of a response; 0: the connection was closed without one."""
    async with asyncio.timeout(30):
        with contextlib.suppress(ConnectionError):
            line = await reader.readline()
            return int(line.split()[1]) if line else 0
    return 0


@pytest.fixture
async def site(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "SMALL", SMALL)
    site = Site()
    await site.server.start()
    yield site
    await site.stop()


@pytest.mark.parametrize("length", [LARGEST + 1, 1 << 40, None])
async def test_a_body_that_is_too_large_is_refused_before_it_is_there(site, length):
    """By the length that it says, or by what has come."""
    reader = await site.begin(b"x" * (LARGEST + 1 if length is None else 10), length)

    assert await status(reader) == 413
    assert site.bodies.held == 0


async def test_a_slow_body_has_seconds_and_not_seconds_for_each_byte(site, monkeypatch):
    monkeypatch.setattr(module, "BODY_SECONDS", 0.2)
    reader = await site.begin(b"x" * 500, 1000)

    assert await status(reader) == 408
    assert b"within 0.2 s, found 500 bytes" in await reader.read()
    assert site.bodies.held == 0


async def test_one_peer_has_room_for_one_largest_body(site):
    """What is worked on counts, too; a small body always finds room; room comes back."""
    held = await site.begin(b"x" * LARGEST, LARGEST)
    await site.until_at_work(LARGEST)
    assert site.bodies.held == LARGEST - SMALL

    assert await status(await site.begin(b"x" * 500, 500)) == 503
    small = await site.begin(b"x" * SMALL, SMALL)
    await site.until_at_work(LARGEST, SMALL)
    site.go.set()
    assert [await status(held), await status(small)] == [200, 200]
    await site.clock.until(lambda: site.bodies.held == 0)
    assert await status(await site.begin(b"x" * LARGEST, LARGEST)) == 200


async def test_all_peers_together_have_a_budget(site, monkeypatch):
    """Another peer has what the first one leaves."""
    monkeypatch.setattr(module, "peer_of", str)  # each connection is a peer
    first = await site.begin(b"x" * LARGEST, LARGEST)
    await site.until_at_work(LARGEST)
    second = await site.begin(b"x" * 2000, 2000)
    await site.until_at_work(LARGEST, 2000)

    assert await status(await site.begin(b"x" * 2000, 2000)) == 503
    site.go.set()
    assert [await status(first), await status(second)] == [200, 200]
    await site.clock.until(lambda: site.bodies.held == 0)


async def test_a_client_that_goes_amid_its_body_gives_its_room_back(site, caplog):
    """Without a word in the log: any client can do that."""
    await site.begin(b"x" * 3000, 4000)
    await site.clock.until(lambda: site.bodies.held == 3000 - SMALL)
    site.hang_up()

    await site.clock.until(lambda: site.bodies.held == 0)
    assert caplog.records == []


async def test_connections_whose_bodies_do_not_come_make_room_for_others(site):
    """As those whose heads do not come: many of them keep no other out."""
    slow = [await site.begin(b"x", 1000) for _ in range(PER_LOOPBACK + 10)]

    reader, writer = await asyncio.open_connection("127.0.0.1", site.server.port)
    writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert await status(reader) == 200
    writer.close()
    assert await status(slow[0]) == 0


async def test_a_small_body_is_read_whole_or_refused(site):
    assert await status(await site.begin(b"x" * SMALL, SMALL, "/small")) == 200
    assert await status(await site.begin(b"", 0, "/small")) == 200
    assert await status(await site.begin(b"x" * 101, None, "/small")) == 413
