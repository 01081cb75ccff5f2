"""/events as Koordinator's clients know it."""

import json

import pytest
from aiohttp.test_utils import TestClient, TestServer

from koord.component.http.exposition import Exposition
from koord.component.http.responses import HttpError
from koord.util.health import Health
from koordlet.executor.audit.files import AuditEvent, AuditReader, encode_event
from koordlet.executor.audit.log import IDLE_TIMEOUT, AuditPages
from koordlet.plugin.testing import SimulatedClock
from koordlet.server.app import FAMILIES, EventSources, HttpSources, create_app

JSON = {"Accept": "application/json"}


class Events:
    """26 events, e1 to e26, and the switches around them."""

    def __init__(self, directory):
        self.served = self.recorded = True
        self.guarded = False
        self.clock = SimulatedClock()
        self.directory = directory
        self.write(range(1, 27))
        self.pages = AuditPages(lambda: AuditReader(directory), self.clock, most=4)

    def write(self, numbers):
        with (self.directory / "audit.log").open("ab") as file:
            for number in numbers:
                file.write(encode_event(AuditEvent(reason="r", message=f"e{number}"), 1.0))

    async def flush(self):
        return None

    async def explain(self, pod):
        return dict

    async def guard(self, request):
        if self.guarded:
            raise HttpError(403, "not for you")

    def app(self):
        sources = EventSources(
            pages=self.pages,
            flush=self.flush,
            served=lambda: self.served,
            recorded=lambda: self.recorded,
            most=2048,
        )
        return create_app(
            HttpSources(
                exposition=Exposition(FAMILIES),
                health=Health(),
                clock=SimulatedClock(),
                node_metric=lambda: b"",
                explain=self.explain,
                events=sources,
            ),
            guard=self.guard,
        )


@pytest.fixture
def events(tmp_path):
    return Events(tmp_path)


@pytest.fixture
async def client(events):
    async with TestClient(TestServer(events.app())) as client:
        yield client


@pytest.fixture
def page(client):
    """A page in JSON: numbers of its events, and the token for the next."""

    async def page(**query):
        answer = await client.get("/events", params=query, headers=JSON)
        assert answer.status == 200, await answer.text()
        found = await answer.json()
        return [int(event["message"][1:]) for event in found["Events"]], found["NextPageToken"]

    return page


async def test_page_by_page_to_the_end(client, page):
    """Newest first, one token all the way, none at the end; then it is of no reader any more."""
    numbers, token = await page(size="10")
    assert numbers == list(range(26, 16, -1))
    assert await page(size="1", pageToken=token) == ([16], token)
    assert await page(size="20", pageToken=token) == (list(range(15, 0, -1)), "")
    assert (await client.get("/events", params={"pageToken": token})).status == 409


async def test_a_page_that_ends_with_the_log_is_the_last(page):
    """Nobody is sent for an empty page."""
    assert await page(size="26") == (list(range(26, 0, -1)), "")


@pytest.mark.parametrize("size", [{}, {"size": "x"}, {"size": ""}])
async def test_without_a_size_there_are_256(events, page, size):
    """Also when it is no number."""
    events.write(range(27, 400))
    numbers, token = await page(**size)
    assert len(numbers) == 256
    assert token


@pytest.mark.parametrize(
    ("size", "text"),
    [
        ("3000", "size(3000) exceeds the limit(2048)\n"),
        ("0", "size(0) must be at least 1\n"),
        ("-1", "size(-1) must be at least 1\n"),
    ],
)
async def test_a_size_that_cannot_be(client, size, text):
    """Refused with the reason."""
    answer = await client.get("/events", params={"size": size})
    assert (answer.status, await answer.text()) == (400, text)


async def test_a_token_of_no_user(client):
    """A conflict, in Koordinator's words, and nothing else in the body."""
    answer = await client.get("/events", params={"pageToken": "unknown"})
    assert (answer.status, await answer.text()) == (409, "invalid pageToken unknown\n")


async def test_one_reader_too_many_closes_the_oldest(client, page):
    """Nine first pages leave four readers."""
    tokens = [(await page(size="1"))[1] for _ in range(9)]
    statuses = [
        (await client.get("/events", params={"pageToken": token, "size": "1"})).status
        for token in tokens
    ]
    assert statuses == [409] * 5 + [200] * 4


async def test_a_reader_in_use_outlives_idle_ones(client, events, page):
    """All that were idle for ten minutes are closed, not one at a time."""
    tokens = [(await page(size="1"))[1] for _ in range(3)]
    events.clock.tick(IDLE_TIMEOUT - 1)
    assert (await page(size="1", pageToken=tokens[0]))[0] == [25]
    events.clock.tick(2)
    for token in tokens[1:]:
        assert (await client.get("/events", params={"pageToken": token})).status == 409
    assert (await page(size="1", pageToken=tokens[0]))[0] == [24]


async def test_text_is_one_event_per_line(client):
    """For whoever does not name JSON; the token is in a header, as long as there is one."""
    first = await client.get("/events", params={"size": "20"})
    token = first.headers["Next-Page-Token"]
    rest = await client.get("/events", params={"size": "20", "pageToken": token})

    assert first.content_type == "text/plain"
    lines = (await first.text()).splitlines()
    assert json.loads(lines[0])["message"] == "e26"
    assert len(lines) == 20
    assert len((await rest.text()).splitlines()) == 6
    assert "Next-Page-Token" not in rest.headers


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("application/json", "application/json"),
        ("text/html, application/json;q=0.9, */*;q=0.1", "application/json"),
        ("*/*", "text/plain"),
        ("application/json;q=0", "text/plain"),
    ],
)
async def test_json_for_those_who_name_it(client, accept, content_type):
    """In a list or with parameters, too."""
    answer = await client.get("/events", headers={"Accept": accept})
    assert answer.content_type == content_type


async def test_two_gates_and_the_guard(client, events):
    """No events recorded: an empty answer. Not served: no such page. Not for strangers."""
    events.recorded = False
    answer = await client.get("/events")
    assert (answer.status, await answer.text()) == (200, "")
    events.served = False
    answer = await client.get("/events")
    assert answer.status == 404
    assert "AuditEventsHTTPHandler" in await answer.text()
    events.guarded = True
    assert (await client.get("/events")).status == 403
