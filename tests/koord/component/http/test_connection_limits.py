"""One client, or many, that hold connections: probes and scrapes get through, on real sockets."""

import asyncio
import contextlib
import json
import socket

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from koord.component.http.limits import (
    HEAD_SECONDS,
    LAST_PLACES,
    LOOPBACK,
    MAX_CONNECTIONS,
    PER_LOOPBACK,
    PER_PEER,
    ConnectionLimiter,
    peer_of,
)
from koord.component.http.site import HttpServer
from koord.component.http.sockets import Address
from koord.util import logs
from koord.util.logs import LevelSpec
from koord.util.simulatedclock import SimulatedClock

CLOSED = "koordlet_http_connections_closed_total"
PROBE = b"GET /livez HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n"


class Clients:
    """A server, and clients of it that send only what the test makes them send."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.clock = SimulatedClock()
        self.go = asyncio.Event()
        self.at_work = 0
        app = web.Application()
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/slow", self._slow)
        self.server = HttpServer(
            app,
            Address("127.0.0.1", 0),
            clock=self.clock,
            registry=self.registry,
            prefix="koordlet",
        )
        self._streams: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def _livez(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _slow(self, _: web.Request) -> web.Response:
        self.at_work += 1
        await self.go.wait()
        return web.Response(text="at last")

    async def connect(self, sends: bytes = b"") -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        writer.write(sends)
        self._streams.append((reader, writer))
        return reader

    async def until_at_work(self, count: int) -> None:
        await self.clock.until(lambda: self.at_work == count)

    async def probe(self) -> int:
        """The status that a probe on a new connection gets."""
        reader = await self.connect(PROBE)
        async with asyncio.timeout(20):
            return int((await reader.readline()).split()[1])

    def closed(self, reason: str) -> float:
        return self.registry.get_sample_value(CLOSED, {"reason": reason}) or 0.0

    async def stop(self) -> None:
        self.go.set()
        for _, writer in self._streams:
            writer.close()
        await self.server.stop()


@pytest.fixture
async def clients():
    clients = Clients()
    await clients.server.start()
    yield clients
    await clients.stop()


async def test_a_client_that_holds_110_connections_does_not_fail_a_probe(clients):
    """Half of them with headers that never end; the probe comes from the same address."""
    for number in range(110):
        await clients.connect(b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Slow: " if number % 2 else b"")

    assert [await clients.probe() for _ in range(30)] == [200] * 30
    assert clients.closed("displaced") >= 110 - PER_LOOPBACK
    assert clients.closed("refused") == 0


async def test_a_connection_without_a_whole_request_ends_in_seconds(clients, monkeypatch):
    """Whether nothing comes or one byte after the other; one that has asked may stay."""
    monkeypatch.setattr("koord.component.http.limits.HEAD_SECONDS", 0.2)
    silent = await clients.connect()
    slow = await clients.connect(b"GET /livez HTTP/1.1\r\nHost: ")
    asked = await clients.connect(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
    async with asyncio.timeout(20):
        assert await silent.read() == b""
        assert await slow.read() == b""
        assert b"200 OK" in await asked.readuntil(b"\r\n\r\n")

    assert clients.closed("slow") == 2
    assert not asked.at_eof()


async def test_a_connection_at_work_is_not_displaced(clients, monkeypatch):
    """Only idle ones go; when all are at work the new one is refused."""
    monkeypatch.setattr("koord.component.http.limits.PER_LOOPBACK", 3)
    request = b"GET /slow HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    working = [await clients.connect(request) for _ in range(2)]
    await clients.until_at_work(2)
    idle = await clients.connect()
    working.append(await clients.connect(request))
    await clients.until_at_work(3)
    refused = await clients.connect()
    async with asyncio.timeout(20):
        assert await idle.read() == b""
        assert await refused.read() == b""
        assert (clients.closed("displaced"), clients.closed("refused")) == (1, 1)
        clients.go.set()
        for reader in working:
            assert (await reader.read()).endswith(b"at last")


@pytest.mark.parametrize(
    "malformed",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9.9\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nbad header\x1b[31m\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\n\r\n",
        b"POST /livez HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /livez HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd",
        b"GET http://[::1 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET //[ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\nab",
        b"GET /livez HTTP/1.1\r\nHost: x\r\nExpect: nonsense\r\n\r\n",
    ],
)  # fmt: skip
async def test_malformed_requests_cost_one_line_at_most(clients, capsys, malformed):
    """In our own format, without a traceback; more of them a minute later one more."""
    logs.configure("json", LevelSpec())

    async def send(times: int) -> None:
        for _ in range(times):
            reader = await clients.connect(malformed)
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(0.2 if b"Upgrade" in malformed else 20):
                    await reader.readline()

    await send(5)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) <= 1
    await send(3)
    assert capsys.readouterr().err == ""
    await clients.clock.advance(61)
    await send(1)
    again = capsys.readouterr().err.splitlines()

    assert len(again) == len(lines)
    for line in lines + again:
        found = json.loads(line)
        assert (found["event"], found["logger"]) == ("request.malformed", "koord.server")
        assert "exception" not in found
    assert not again or json.loads(again[0])["left_out"] == 7
    assert await clients.probe() == 200


async def test_what_closes_a_connection_early_is_no_log_line(clients, capsys, monkeypatch):
    """Hundreds of them a second would be hundreds of lines."""
    monkeypatch.setattr("koord.component.http.limits.PER_LOOPBACK", 4)
    for _ in range(40):
        await clients.connect(b"GET /li")
    assert await clients.probe() == 200

    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("address", "peer"),
    [
        (("127.0.0.1", 1), LOOPBACK),
        (("127.9.9.9", 1), LOOPBACK),
        (("::1", 1, 0, 0), LOOPBACK),
        (("::ffff:127.0.0.1", 1, 0, 0), LOOPBACK),
        (("10.1.2.3", 1), "10.1.2.3"),
        (("::ffff:10.1.2.3", 1, 0, 0), "10.1.2.3"),
        (("2001:db8::1", 1, 0, 0), "2001:db8::/64"),
        (("2001:db8::ffff:2", 1, 0, 0), "2001:db8::/64"),
        (("fe80::1%eth0", 1, 0, 2), "fe80::/64"),
        ("", ""),
        (b"\0unix", ""),
    ],
)
def test_who_counts_as_one_peer(address, peer):
    """All of loopback, an IPv4 address, a network of IPv6, or all clients of a Unix socket."""
    assert peer_of(address) == peer


@given(st.ip_addresses())
def test_every_address_has_a_peer(address):
    """Nothing that a kernel reports is an error."""
    assert peer_of((str(address), 1))


class ManyClients:
    """Connections of many peers, as the listener reports them."""

    def __init__(self) -> None:
        self.connections = ConnectionLimiter("koordlet")
        self.ends: list[socket.socket] = []

    def connect(self, host: str) -> socket.socket | None:
        """The client's end; None when it was refused."""
        client, server = socket.socketpair()
        self.ends += [client, server]
        return client if self.connections.admit(server, (host, 1)) else None

    def close(self) -> None:
        for end in self.ends:
            end.close()


@pytest.fixture
async def many_clients():
    many_clients = ManyClients()
    yield many_clients
    many_clients.close()


def is_open(client: socket.socket) -> bool:
    client.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        return client.recv(1) != b""
    return True


async def test_one_peer_keeps_its_newest_connections(many_clients):
    """The oldest idle one makes room for the next."""
    held = [many_clients.connect("10.0.0.1") for _ in range(PER_PEER + 3)]

    assert [is_open(client) for client in held] == [False] * 3 + [True] * PER_PEER


async def test_many_peers_leave_the_last_places_to_those_with_few(many_clients):
    """Clients that would fill the server are held below it; a probe displaces no client."""
    held = [many_clients.connect(f"10.0.0.{number % 10}") for number in range(200)]
    assert sum(is_open(client) for client in held) == MAX_CONNECTIONS - LAST_PLACES

    probes = [many_clients.connect(f"10.1.0.{number}") for number in range(LAST_PLACES)]
    assert all(is_open(probe) for probe in probes)
    assert sum(is_open(client) for client in held) == MAX_CONNECTIONS - LAST_PLACES


async def test_a_full_server_takes_from_whoever_has_most(many_clients):
    """A peer with one connection keeps it, however old it is."""
    probe = many_clients.connect("10.1.0.1")
    for host in range(40):
        for _ in range(4):
            many_clients.connect(f"10.0.0.{host}")

    assert is_open(probe)
    late = many_clients.connect("10.1.0.2")
    assert late is not None
    assert is_open(late)
    assert is_open(probe)


async def test_connections_that_ended_count_no_more(many_clients):
    """Their places are free at once, and their deadlines have no effect."""
    for _ in range(PER_PEER):
        many_clients.connect("10.0.0.1")
    many_clients.close()

    held = [many_clients.connect("10.0.0.1") for _ in range(PER_PEER)]
    assert all(is_open(client) for client in held)


def test_the_limits_leave_room_for_a_probe():
    """The kubelet asks from one address, with a new connection each time."""
    assert PER_LOOPBACK + 3 * PER_PEER <= MAX_CONNECTIONS - LAST_PLACES
    assert 1 <= HEAD_SECONDS <= 10
