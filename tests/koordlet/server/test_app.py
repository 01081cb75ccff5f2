"""The HTTP endpoints, asked over real connections."""

import asyncio
import gzip
import json
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import Gauge
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from koord.component.http.exposition import Exposition
from koord.component.http.guard import local_only
from koord.component.http.responses import HttpError
from koord.util.errors import Unavailable
from koord.util.health import OK, Health, HealthStatus, PartHealth
from koordlet.executor.audit.files import AuditReader
from koordlet.executor.audit.log import AuditPages
from koordlet.plugin.testing import SimulatedClock
from koordlet.server.app import FAMILIES, EventSources, HttpSources, create_app

RAW = {"Accept-Encoding": "identity"}


async def explain(pod):
    """Nothing was decided."""
    return lambda: {"decisions": [], "pod": pod}


async def nothing():
    """There is nothing to flush."""


def events_off():
    """/events of a daemon that has not been asked to serve it."""
    pages = AuditPages(lambda: AuditReader(Path("/nonexistent")), SimulatedClock(), most=1)
    return EventSources(
        pages=pages, flush=nothing, served=lambda: False, recorded=lambda: False, most=1
    )


class Daemon:
    """What the application shows, for tests to change."""

    def __init__(self):
        self.clock = SimulatedClock()
        self.exposition = Exposition(FAMILIES, clock=self.clock)
        self.health = Health()
        self.node_metric = b'{"kind":"NodeMetric"}\n'
        self.guard = local_only
        Gauge("koordlet_start_time", "Start.", registry=self.exposition.internal)
        Gauge("users", "Users'.", registry=self.exposition.external)

    def latest(self):
        if not self.node_metric:
            raise Unavailable("no NodeMetric yet: wanted a sample, found none")
        return self.node_metric

    async def check(self, request):
        await self.guard(request)

    def app(self):
        sources = HttpSources(
            exposition=self.exposition,
            health=self.health,
            clock=self.clock,
            node_metric=self.latest,
            explain=explain,
            events=events_off(),
        )
        return create_app(sources, guard=self.check)


@pytest.fixture
def daemon():
    return Daemon()


@pytest.fixture
async def client(daemon):
    async with TestClient(TestServer(daemon.app()), auto_decompress=False) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "shown", "hidden"),
    [
        ("/metrics", ["koordlet_start_time", "users", "process_cpu_seconds_total"], []),
        ("/internal-metrics", ["koordlet_start_time"], ["users"]),
        ("/external-metrics", ["users"], ["koordlet_start_time"]),
    ],
)
async def test_metrics_in_text(client, path, shown, hidden):
    """A client that asks for nothing gets text 0.0.4, with the families of that path."""
    answer = await client.get(path, headers=RAW)
    text = await answer.text()

    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert all(f"\n{name} " in text for name in shown)
    assert not any(name in text for name in hidden)


async def test_openmetrics_and_gzip_as_prometheus_asks(client):
    """Negotiated, and readable by the OpenMetrics parser."""
    answer = await client.get(
        "/metrics",
        headers={"Accept": "application/openmetrics-text;version=1.0.0", "Accept-Encoding": "gzip"},
    )
    text = gzip.decompress(await answer.read()).decode()

    assert answer.headers["Content-Encoding"] == "gzip"
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert "users" in [family.name for family in text_string_to_metric_families(text)]


async def test_head_has_no_body(client):
    """HEAD answers as GET does, without the body."""
    answer = await client.head("/metrics", headers=RAW)

    assert answer.status == 200
    assert await answer.read() == b""


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_nothing_can_be_changed(client, method):
    """Only GET and HEAD are served."""
    answer = await client.request(method, "/metrics")

    assert (answer.status, answer.headers["Allow"]) == (405, "GET,HEAD")


async def test_unknown_paths_are_not_found(client):
    """As one line of text."""
    answer = await client.get("/pods")

    assert answer.status == 404
    assert await answer.text() == "404 Not Found: /pods\n"


async def test_health_is_ok_without_trouble(client, daemon):
    """The whole body is `ok`, which is what probes compare with."""
    daemon.health.register("loop", lambda: OK, live=True, ready=True)

    for path in ("/healthz", "/livez", "/readyz"):
        answer = await client.get(path)
        assert (answer.status, await answer.text()) == (200, "ok")


async def test_a_broken_plugin_is_named_and_no_failure(client, daemon):
    """Degraded is 200."""
    daemon.health.register("Mine", lambda: PartHealth(HealthStatus.DEGRADED, "raised 5 times"))

    answer = await client.get("/healthz")

    assert (answer.status, await answer.text()) == (200, "ok\ndegraded: Mine: raised 5 times\n")


async def test_an_unhealthy_part_is_503_but_not_for_livez(client, daemon):
    """An outage elsewhere must not make the kubelet restart the daemon."""
    daemon.health.register("loop", lambda: OK, live=True)
    daemon.health.register(
        "api", lambda: PartHealth(HealthStatus.UNHEALTHY, "no answer"), ready=True
    )

    statuses = {path: (await client.get(path)).status for path in ("/healthz", "/livez", "/readyz")}

    assert statuses == {"/healthz": 503, "/livez": 200, "/readyz": 503}


async def test_verbose_and_json_health(client, daemon):
    """Both name all parts."""
    daemon.health.register("loop", lambda: OK)

    verbose = await (await client.get("/healthz?verbose")).text()
    as_json = await (await client.get("/healthz?format=json")).json()

    assert verbose == "[+]loop ok\nok\n"
    assert as_json["status"] == "ok"
    assert as_json["parts"]["loop"]["status"] == "ok"


async def test_health_is_worked_out_once_a_second(client, daemon):
    """However often it is asked for; each endpoint and form for itself."""
    asked = []
    daemon.health.register("loop", lambda: asked.append("loop") or OK, live=True)

    for _ in range(20):
        assert (await client.get("/livez")).status == 200
    assert len(asked) == 1

    daemon.health.register("loop", lambda: PartHealth(HealthStatus.UNHEALTHY, "late"), live=True)
    await daemon.clock.advance(0.9)
    assert (await client.get("/livez")).status == 200
    assert (await client.get("/livez?verbose")).status == 503
    await daemon.clock.advance(0.2)
    assert (await client.get("/livez")).status == 503


async def test_node_metric(client):
    """The whole object as JSON."""
    answer = await client.get("/nodemetric")

    assert answer.content_type == "application/json"
    assert await answer.json() == {"kind": "NodeMetric"}


async def test_no_node_metric_yet_is_503_with_the_reason(client, daemon):
    """Before the first report."""
    daemon.node_metric = b""

    answer = await client.get("/nodemetric")

    assert answer.status == 503
    assert "wanted a sample" in await answer.text()


async def test_the_guard_decides_about_more_than_metrics(client, daemon):
    """Health and metrics stay public when NodeMetric is not."""

    async def nobody(_):
        raise HttpError(401, "wanted a token, found none", headers={"WWW-Authenticate": "Bearer"})

    daemon.guard = nobody

    answer = await client.get("/nodemetric")
    assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert await answer.text() == "wanted a token, found none\n"
    assert (await client.head("/nodemetric")).status == 401
    assert (await client.get("/healthz")).status == 200
    assert (await client.get("/metrics")).status == 200


@pytest.mark.parametrize(("peer", "status"), [("127.0.0.1", 200), ("10.0.0.9", 403), ("", 403)])
async def test_without_a_cluster_only_this_machine_is_let_in(
    client, daemon, monkeypatch, peer, status
):
    """Other clients get a hint how to get there all the same."""
    monkeypatch.setattr("koord.component.http.guard.peer", lambda _: peer)
    daemon.guard = local_only

    answer = await client.get("/nodemetric")

    assert answer.status == status
    assert status == 200 or "ssh -L" in await answer.text()
    assert (await client.get("/metrics")).status == 200


async def test_a_failing_handler_is_one_line(client, daemon, capsys):
    """The client learns nothing about the inside; the log does."""

    async def broken(_):
        raise RuntimeError("secret")

    daemon.guard = broken

    answer = await client.get("/nodemetric")

    assert answer.status == 500
    assert "secret" not in await answer.text()
    assert "secret" in capsys.readouterr().err


async def test_a_handler_that_hangs_is_cut_off(client, daemon, monkeypatch):
    """The client gets a 503 in time."""
    monkeypatch.setattr("koord.component.http.responses.HANDLER_SECONDS", 0.01)

    async def hang(_):
        await asyncio.Event().wait()

    daemon.guard = hang

    assert (await client.get("/nodemetric")).status == 503


async def test_explain_is_for_those_who_may_know_more(client, daemon):
    """The guard decides, as for the report; the pod's name is passed on."""
    answer = await client.get("/explain", params={"pod": "shop/web"})
    assert json.loads(await answer.read()) == {"decisions": [], "pod": "shop/web"}

    async def nobody(_):
        raise HttpError(403, "not for you")

    daemon.guard = nobody
    assert (await client.get("/explain")).status == 403
