"""Servers from start to stop, on real sockets."""

import asyncio
import socket
import ssl

import aiohttp
import pytest
from aiohttp import web

from koord.component.http.site import HttpServer, UnixServer
from koord.component.http.sockets import Address, ListenError
from koord.util.ownedfiles import OwnedDirectory

LOCAL = Address("127.0.0.1", 0)


@pytest.fixture
def app():
    async def hello(_):
        return web.Response(text="hello")

    app = web.Application()
    app.router.add_get("/", hello)
    return app


async def get(url, **options):
    async with aiohttp.ClientSession(**options) as session, session.get(url) as answer:
        return await answer.text()


async def test_http_from_start_to_stop(app):
    """It answers while it runs and lets go of the port."""
    server = HttpServer(app, LOCAL)
    await server.start()
    port = server.port
    text = await get(f"http://127.0.0.1:{port}/")
    await server.stop()

    assert text == "hello"
    assert server.port == 0
    socket.create_server(("127.0.0.1", port)).close()


async def test_a_taken_port_is_an_error_and_stop_is_harmless(app):
    """The daemon exits with the message; its shutdown stops all parts, started or not."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        server = HttpServer(app, Address("127.0.0.1", holder.getsockname()[1]))
        with pytest.raises(ListenError, match="in use"):
            await server.start()
        await server.stop()


async def test_unix_from_start_to_stop(app, tmp_path):
    """The socket file goes with the server."""
    path = tmp_path / "ctl.sock"
    server = UnixServer(app, OwnedDirectory.open(tmp_path) / path.name)
    await server.start()
    text = await get("http://koordlet/", connector=aiohttp.UnixConnector(str(path)))
    await server.stop()

    assert text == "hello"
    assert not path.exists()


async def test_a_replaced_socket_file_is_not_removed(app, tmp_path):
    """It belongs to whoever put it there."""
    path = tmp_path / "ctl.sock"
    server = UnixServer(app, OwnedDirectory.open(tmp_path) / path.name)
    await server.start()
    path.unlink()
    path.write_text("another's")
    await server.stop()

    assert path.read_text() == "another's"


async def test_unfinished_handshakes_give_way(app, authority, monkeypatch):
    """Whoever never says a word of TLS costs no more than a connection, and makes room."""
    monkeypatch.setattr("koord.component.http.limits.PER_LOOPBACK", 2)
    server = HttpServer(app, LOCAL, authority.issue("silent").server_context())
    await server.start()
    silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
    oldest = await silent[0][0].read()
    context = ssl.create_default_context(cafile=str(authority.certificate))
    connector = aiohttp.TCPConnector(ssl=context)
    text = await get(f"https://127.0.0.1:{server.port}/", connector=connector)
    for _, held in silent:
        held.close()
    await server.stop()

    assert (oldest, text) == (b"", "hello")


async def test_endless_headers_are_refused(app):
    """A request line of 100 kB gets an error, not memory."""
    server = HttpServer(app, LOCAL)
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n")
    answer = await reader.read()
    writer.close()
    await server.stop()

    assert answer.startswith(b"HTTP/1.0 400")
