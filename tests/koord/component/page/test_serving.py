"""The status page over HTTP: who gets what, and how streams begin and end."""

import asyncio
import json
import socket

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from koord.component.http.guard import local_only
from koord.component.http.responses import limits
from koord.component.page import serving
from koord.component.page.serving import MAX_PAGES, Page, add_page
from koord.util.clock import SystemClock
from koord.util.errors import Unavailable
from koord.util.health import Health, HealthStatus, PartHealth
from koord.util.simulatedclock import SimulatedClock
from tests.support.kube.health_page import HealthPage


class Source:
    """A page whose sections tests change."""

    title = 'node "<b>1</b>"'
    view = "health.js"

    def __init__(self):
        self.value, self.asked, self.problem = 1, 0, ""
        self.padding = ""

    async def snapshot(self):
        if self.problem:
            raise Unavailable(self.problem)
        return {"now": 10.0, "sections": {"x": self.value, "y": self.padding}, "whole": True}

    async def changes(self, since):
        self.asked += 1
        if self.problem:
            raise Unavailable(self.problem)
        return {"now": since + 1, "sections": {"x": self.value}}

    async def detail(self, kind, name):
        return {"kind": kind, "name": name} if name != "unknown" else None


@pytest.fixture
def source():
    return Source()


@pytest.fixture
def clock():
    return SimulatedClock()


@pytest.fixture
async def client(source, clock):
    app = web.Application(middlewares=[limits(clock)])
    page = Page(source=source, views={"own.js": b"export const x = 1;"})
    add_page(app, page, clock, guard=local_only)
    async with TestClient(TestServer(app)) as client:
        yield client


async def a_second_later(clock):
    """Once the stream sleeps."""
    await clock.until(lambda: clock.sleepers)
    await clock.advance(1.0)


async def line(stream):
    async with asyncio.timeout(30):
        return json.loads(await stream.content.readline())


async def test_the_page_loads_nothing_from_elsewhere_and_cannot_be_framed(client):
    """And a title from outside is no markup."""
    answer = await client.get("/")
    text = await answer.text()

    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "<title>node &quot;&lt;b&gt;1&lt;/b&gt;&quot;</title>" in text
    assert "{{" not in text
    assert "//" not in text.replace("<!doctype html>", "")
    assert 'data-switches="no"' in text


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("main.js", "text/javascript"),
        ("page.js", "text/javascript"),
        ("health.js", "text/javascript"),
        ("own.js", "text/javascript"),
        ("page.css", "text/css"),
        ("uPlot.iife.min.js", "text/javascript"),
        ("uPlot.min.css", "text/css"),
    ],
)
async def test_scripts_and_styles(client, name, kind):
    answer = await client.get(f"/page/{name}")

    assert answer.status == 200
    assert answer.content_type == kind


@pytest.mark.parametrize(
    "path", ["/page/", "/page/../page.js", "/page/source.py", "/page/%2e%2e/x"]
)
async def test_nothing_else_is_served(client, path):
    assert (await client.get(path)).status == 404


async def test_the_stream_has_everything_at_first_and_then_a_line_each_second(
    client, source, clock
):
    async with client.get("/page/stream") as stream:
        assert stream.content_type == "application/x-ndjson"
        assert await line(stream) == {"now": 10.0, "sections": {"x": 1, "y": ""}, "whole": True}
        source.value = 2
        await a_second_later(clock)
        assert await line(stream) == {"now": 11.0, "sections": {"x": 2}}
        await a_second_later(clock)
        assert (await line(stream))["now"] == 12.0


async def test_a_source_that_has_nothing_for_a_while_is_a_problem_on_the_page(
    client, source, clock
):
    """What the page has stays; the stream goes on."""
    async with client.get("/page/stream") as stream:
        await line(stream)
        source.problem = "no pods known yet"
        await a_second_later(clock)
        assert await line(stream) == {
            "now": 10.0, "sections": {}, "problem": "no pods known yet",
        }  # fmt: skip
        source.problem = ""
        await a_second_later(clock)
        assert (await line(stream))["sections"] == {"x": 1}


async def test_a_source_that_has_nothing_from_the_beginning_is_an_answer(client, source):
    source.problem = "no pods known yet"

    answer = await client.get("/page/stream")

    assert (answer.status, await answer.text()) == (503, "no pods known yet\n")


async def test_there_are_eight_pages_at_most(client, clock):
    """The ninth is told so; a place is free again when a page is closed."""
    streams = [await client.get("/page/stream") for _ in range(MAX_PAGES)]
    for stream in streams:
        await line(stream)

    ninth = await client.get("/page/stream")
    streams[0].close()
    async with asyncio.timeout(30):
        while (again := await client.get("/page/stream")).status == 503:
            await clock.advance(1.0)

    assert ninth.status == 503
    assert ninth.headers["Retry-After"] == "10"
    assert "at most 8 open pages" in await ninth.text()
    assert again.status == 200
    for stream in (*streams, again):
        stream.close()


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example:9316"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
@pytest.mark.parametrize("path", ["/page/stream", "/page/detail/pod?name=x"])
async def test_pages_of_other_sites_get_no_data(client, headers, path):
    """DNS rebinding, and forms and scripts that a browser runs for another page."""
    answer = await client.get(path, headers=headers)

    assert answer.status == 403


async def test_the_page_itself_is_let_in(client):
    here = f"{client.host}:{client.port}"
    headers = {"Origin": f"http://{here}", "Sec-Fetch-Site": "same-origin"}

    answer = await client.get("/page/detail/pod?name=x", headers=headers)

    assert await answer.json() == {"kind": "pod", "name": "x"}


async def test_details_of_what_is_not_known(client):
    assert (await client.get("/page/detail/pod?name=unknown")).status == 404


@pytest.mark.parametrize("path", ["/", "/page/page.js", "/page/stream", "/page/detail/pod"])
async def test_nothing_can_be_written(client, path):
    assert (await client.post(path)).status == 405
    assert (await client.put(path)).status == 405


async def test_the_end_of_the_daemon_ends_streams_at_once(source):
    """It does not wait for pages that are open."""
    clock = SystemClock()
    app = web.Application(middlewares=[limits(clock)])
    add_page(app, Page(source=source, period=3600.0), clock, guard=local_only)
    server = TestServer(app)
    async with TestClient(server) as client:
        stream = await client.get("/page/stream")
        await line(stream)
        async with asyncio.timeout(10):
            await asyncio.gather(app.shutdown(), stream.content.read())


async def test_a_page_that_does_not_read_is_dropped(source, monkeypatch):
    """What it was sent is bounded, and its place is free again."""
    monkeypatch.setattr(serving, "SLOW_SECONDS", 0.2)
    source.padding = "x" * 30_000_000  # more than kernels keep for a socket
    clock = SimulatedClock()
    app = web.Application(middlewares=[limits(clock)])
    add_page(app, Page(source=source, period=0.01), clock, guard=local_only)
    async with TestServer(app) as server:
        idle = socket.create_connection((server.host, server.port))
        with idle:
            idle.sendall(f"GET /page/stream HTTP/1.1\r\nHost: {server.host}\r\n\r\n".encode())
            await clock.until(lambda: server.handler.connections)
            await clock.until(lambda: not server.handler.connections)


async def test_a_daemon_without_a_view_of_its_own_shows_its_health():
    health = Health()
    health.register("kubelet", lambda: PartHealth(HealthStatus.DEGRADED, "refused"))

    page = HealthPage("koord-x", health, SimulatedClock())

    found = (await page.snapshot())["sections"]["health"]
    assert found["status"] == "degraded"
    assert {"name": "kubelet", "status": "degraded", "reason": "refused"} in found["parts"]


async def test_a_figure_that_json_has_no_word_for_is_absent(client, source):
    """The page could not read the line, and would ask for ever."""
    source.value = [float("nan"), {"deep": float("inf")}, 1.5]
    async with client.get("/page/stream") as stream:
        assert (await line(stream))["sections"]["x"] == [None, {"deep": None}, 1.5]


async def test_the_right_to_see_the_page_is_that_to_another_path(source, clock):
    """Tokens that may get /nodemetric need no further right."""
    asked = []

    async def guard(request):
        asked.append(request.path)

    app = web.Application(middlewares=[limits(clock)])
    add_page(app, Page(source=source, path="/nodemetric"), clock, guard=guard)
    async with TestClient(TestServer(app)) as client:
        assert (await client.get("/page/detail/pod?name=x")).status == 200
        assert (await client.get("/")).status == 200
    assert asked == ["/nodemetric"]


async def test_two_listeners_share_the_places(source, clock):
    page = Page(source=source)
    apps = [web.Application(middlewares=[limits(clock)]) for _ in range(2)]
    for app in apps:
        add_page(app, page, clock, guard=local_only)
    page.streams.update(object() for _ in range(MAX_PAGES))
    for app in apps:
        async with TestClient(TestServer(app)) as client:
            assert (await client.get("/page/stream")).status == 503


async def test_a_source_that_hangs_is_given_up(source, clock, monkeypatch):
    monkeypatch.setattr(serving, "RESPONSE_SECONDS", 0.05)

    async def hang():
        await asyncio.Event().wait()

    source.snapshot = hang
    app = web.Application(middlewares=[limits(clock)])
    add_page(app, Page(source=source), clock, guard=local_only)
    async with TestClient(TestServer(app)) as client:
        answer = await client.get("/page/stream")
        assert (answer.status, await answer.text()) == (503, "no figures within 0.05 s\n")


async def test_health_is_sent_again_when_it_has_changed():
    health, clock = Health(), SimulatedClock()
    page = HealthPage("koord-x", health, clock)
    first = await page.snapshot()
    clock.tick(1.0)
    same = await page.changes(first["now"])
    clock.tick(1.0)
    health.register("kubelet", lambda: PartHealth(HealthStatus.DEGRADED, "refused"))
    other = await page.changes(same["now"])
    assert (same["sections"], list(other["sections"])) == ({}, ["health"])
