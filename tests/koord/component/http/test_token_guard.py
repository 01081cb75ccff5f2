"""Clients that the API server admits, and the responses to those that it does not."""

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from koord.component.http.guard import BURST, TokenGuard, bearer_token
from koord.component.http.responses import limits
from koord.kube.authorization import User
from koord.util.errors import KoordError
from koord.util.health import HealthStatus
from koord.util.simulatedclock import SimulatedClock


class Cluster:
    """An API server that knows anna, who may get /nodemetric."""

    def __init__(self):
        self.users = {"annas": User("anna")}
        self.allowed = {("anna", "/nodemetric")}
        self.asked = []  # tokens, and (user, path)
        self.error = None
        self.silent = asyncio.Event()
        self.silent.set()

    async def user(self, token):
        self.asked.append(token)
        await self._answer()
        return self.users.get(token)

    async def may_get(self, user, path):
        self.asked.append((user.name, path))
        await self._answer()
        return (user.name, path) in self.allowed

    async def _answer(self):
        await self.silent.wait()
        if self.error:
            raise self.error


@pytest.fixture
def cluster():
    return Cluster()


@pytest.fixture
def clock():
    return SimulatedClock()


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
def guard(cluster, clock, registry):
    return TokenGuard(cluster, clock, registry, name="koordlet")


@pytest.fixture
def far_away(monkeypatch):
    """Have clients come from another machine."""
    monkeypatch.setattr("koord.component.http.guard.peer", lambda _: "10.0.0.9")


@pytest.fixture
async def client(guard, clock):
    async def guarded(request):
        await guard(request)
        return web.Response(text="secret")

    app = web.Application(middlewares=[limits(clock)])
    app.router.add_get("/nodemetric", guarded)
    app.router.add_get("/explain", guarded)
    async with TestClient(TestServer(app)) as client:
        yield client


@pytest.fixture
def get(client):
    """Ask with a token; returns status, text and headers."""

    async def get(token="", path="/nodemetric", **headers):
        if token:
            headers["Authorization"] = f"Bearer {token}"
        answer = await client.get(path, headers=headers)
        return answer.status, await answer.text(), answer.headers

    return get


def counted(registry, outcome):
    name = "koordlet_guarded_requests_total"
    return registry.get_sample_value(name, {"outcome": outcome})


async def test_local_clients_need_no_token(get, cluster, registry):
    """The API server is not asked."""
    assert (await get())[:2] == (200, "secret")
    assert cluster.asked == []
    assert counted(registry, "local") == 1


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Forwarded-For": "127.0.0.1"},
        {"Forwarded": "for=127.0.0.1"},
        {"X-Real-IP": "::1"},
        {"Host": "localhost"},
    ],
)
async def test_no_header_makes_a_client_local(get, far_away, headers):
    """Anybody can send those."""
    assert (await get(**headers))[0] == 401


async def test_a_web_page_on_this_machine_needs_a_token(get):
    """With one any name will do: browsers do not add tokens by themselves."""
    named = {"Host": "koordlet.koordlet-system.svc:9316"}
    assert (await get(**named))[0] == 401
    assert (await get("annas", **named))[:2] == (200, "secret")


async def test_without_a_token(get, far_away, cluster, registry):
    """The answer says what is wanted, to programs and to people."""
    status, text, headers = await get()

    assert status == 401
    assert headers["WWW-Authenticate"] == 'Bearer realm="koordlet"'
    assert "kubectl create token" in text
    assert cluster.asked == []
    assert counted(registry, "unauthenticated") == 1


async def test_a_token_with_the_grant(get, far_away, cluster, registry):
    """Gets what it asks for, in whatever case the scheme is written."""
    assert (await get("annas"))[:2] == (200, "secret")
    assert (await get(Authorization="bearer  annas"))[0] == 200
    assert cluster.asked == ["annas", ("anna", "/nodemetric")]
    assert counted(registry, "allowed") == 2


async def test_a_token_of_no_user(get, far_away, registry):
    """Another 401, by which a client knows that another token may help."""
    status, text, headers = await get("stolen")

    assert status == 401
    assert headers["WWW-Authenticate"] == 'Bearer realm="koordlet", error="invalid_token"'
    assert "stolen" not in text


async def test_a_token_without_the_grant(get, far_away, registry):
    """The user learns who they are and what they lack."""
    status, text, _ = await get("annas", "/explain")

    assert status == 403
    assert text.startswith("anna may not get /explain; ")
    assert counted(registry, "forbidden") == 1


async def test_answers_hold_for_a_while(get, far_away, cluster, clock):
    """Half a minute for a yes, ten seconds for a no, each counted from the response."""
    for _ in range(3):
        assert (await get("annas"))[0] == 200
        assert (await get("nobodys"))[0] == 401
    assert cluster.asked == ["annas", ("anna", "/nodemetric"), "nobodys"]

    cluster.users["nobodys"] = User("ben")
    cluster.allowed.add(("ben", "/nodemetric"))
    cluster.allowed.remove(("anna", "/nodemetric"))
    clock.tick(9)
    assert ((await get("annas"))[0], (await get("nobodys"))[0]) == (200, 401)
    clock.tick(1)
    assert ((await get("annas"))[0], (await get("nobodys"))[0]) == (200, 200)
    clock.tick(20)
    assert ((await get("annas"))[0], (await get("nobodys"))[0]) == (403, 200)


async def test_one_review_for_many_requests_at_once(get, far_away, cluster, clock):
    """A dashboard with twenty panels is one review; a client that leaves does not end others."""
    cluster.silent.clear()
    requesting = [asyncio.ensure_future(get("annas")) for _ in range(20)]
    await clock.until(lambda: cluster.asked == ["annas"])
    requesting.pop(0).cancel()
    cluster.silent.set()

    assert {status for status, *_ in await asyncio.gather(*requesting)} == {200}
    assert cluster.asked == ["annas", ("anna", "/nodemetric")]


async def test_without_the_api_server_no_token_is_accepted(
    get, far_away, cluster, guard, clock, registry
):
    """And as soon as it is back, those who may. The reason is for the log, not for strangers."""
    cluster.error = KoordError("tokenreviews is forbidden: User agent cannot create it")
    with capture_logs() as logs:
        for _ in range(2):
            status, text, headers = await get("annas")
            assert (status, headers["Retry-After"]) == (503, "5")
            assert "agent" not in text
    assert [log["event"] for log in logs if log["event"] == "review.failed"] == ["review.failed"]
    assert guard.health().status is HealthStatus.DEGRADED
    assert "User agent cannot" in guard.health().reason
    assert counted(registry, "unavailable") == 2

    cluster.error = None
    assert (await get("annas"))[0] == 200
    assert guard.health().status is HealthStatus.OK


async def test_what_was_known_holds_while_the_api_server_is_away(
    get, far_away, cluster, clock, guard
):
    """For as long as it would have held anyway; that is no sign of the server's life."""
    assert (await get("annas"))[0] == 200
    cluster.error = KoordError("away")
    clock.tick(29)
    with capture_logs() as logs:
        for _ in range(3):
            assert (await get("bens"))[0] == 503
            assert (await get("annas"))[0] == 200
    assert [log["event"] for log in logs if log["event"].startswith("review")] == ["review.failed"]
    assert guard.health().status is HealthStatus.DEGRADED
    clock.tick(1)
    assert (await get("annas"))[0] == 503


async def test_an_old_failure_is_not_reported_for_ever(get, far_away, cluster, guard, clock):
    """There was no request since, so the state is not known."""
    cluster.error = KoordError("away")
    await get("annas")
    clock.tick(300)

    assert guard.health().status is HealthStatus.OK


async def test_a_flood_of_tokens_stays_here(get, far_away, cluster, clock, registry):
    """One question a second after the first ten; those who are known still get in."""
    assert (await get("annas"))[0] == 200
    answers = [await get(f"guess{number}") for number in range(200)]
    statuses = [status for status, *_ in answers]

    assert statuses.count(401) == BURST - 2
    assert statuses.count(429) == 200 - (BURST - 2)
    assert answers[-1][2]["Retry-After"] == "1"
    assert len(cluster.asked) == BURST
    assert (await get("annas"))[0] == 200
    clock.tick(5)
    more = [(await get(f"another{number}"))[0] for number in range(20)]
    assert more.count(401) == 5
    assert counted(registry, "busy") == 200 - (BURST - 2) + 15


async def test_a_hanging_api_server_holds_few_requests(get, far_away, cluster, clock):
    """The others hear at once that it is no good."""
    cluster.silent.clear()
    held = [asyncio.ensure_future(get(f"guess{number}")) for number in range(8)]
    await clock.until(lambda: len(cluster.asked) == 8)

    assert (await get("annas"))[0] == 429
    cluster.silent.set()
    assert {status for status, *_ in await asyncio.gather(*held)} == {401}


async def test_tokens_are_neither_logged_nor_kept(get, far_away, cluster, guard):
    """A memory dump or a log file gives no access."""
    with capture_logs() as logs:
        await get("annas")
        cluster.error = KoordError("away")
        await get("bens")

    assert "annas" not in repr(logs)
    assert "bens" not in repr(logs)
    assert "annas" not in repr(vars(guard._users._reviews._known))
    assert [log["event"] for log in logs if "unencrypted" in log["event"]] == ["token.unencrypted"]


@pytest.mark.parametrize(
    ("values", "token"),
    [
        (["Bearer abc.def-_~+/=="], "abc.def-_~+/=="),
        (["BEARER abc "], "abc"),
        ([], None),
        (["Bearer"], None),
        (["Bearer "], None),
        (["Bearer a b"], None),
        (["Bearer a\n"], None),
        (["Bearer ä"], None),
        (["Basic YTpi"], None),
        (["abc"], None),
        (["Bearer a=b"], None),
        (["Bearer abc", "Bearer def"], None),
    ],
)
def test_the_token_of_a_request(values, token):
    """One header with one token of the allowed letters, else none."""
    assert bearer_token(values) == token


@given(st.lists(st.text()))
def test_any_header_is_a_token_or_none(values):
    """What is passed on to the API server is fit for JSON and has no blanks."""
    token = bearer_token(values)

    assert token is None or (token.isascii() and not any(map(str.isspace, token)))
