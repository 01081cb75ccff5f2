"""The HTTP application that Prometheus, the kubelet and people talk to."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from koordlet.server import healthtext
from koordlet.server.events import EventSources, events_handler
from koordlet.server.explain import Explain, explain_handler
from koordlet.server.exposition import Exposition, View
from koordlet.server.guard import Guard, local_only
from koordlet.server.middleware import MAX_BODY, limits
from koordlet.server.negotiation import accepts_gzip, choose_format
from koordlet.server.responses import json_body, json_response, text_response
from koordlet.util.health import Health, Status, worst

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpSources:
    """What the endpoints show.

    node_metric returns the latest NodeMetric object as JSON, or raises Unavailable with the reason
    why there is none. It is called on the event loop.
    """

    exposition: Exposition
    health: Health
    node_metric: Callable[[], bytes]
    explain: Explain
    events: EventSources


def create_app(sources: HttpSources, *, guard: Guard = local_only) -> web.Application:
    """The application; guard decides who may read /nodemetric, /explain and /events."""
    app = web.Application(middlewares=[limits], client_max_size=MAX_BODY)
    for path, view in (
        ("/metrics", View.ALL),
        ("/internal-metrics", View.INTERNAL),
        ("/external-metrics", View.EXTERNAL),
    ):
        app.router.add_get(path, _metrics(sources.exposition, view))
    app.router.add_get("/healthz", _health(sources.health))
    app.router.add_get("/livez", _health(sources.health, live=True))
    app.router.add_get("/readyz", _health(sources.health, ready=True))
    app.router.add_get("/nodemetric", _guarded(guard, _node_metric(sources.node_metric)))
    app.router.add_get("/explain", _guarded(guard, explain_handler(sources.explain)))
    app.router.add_get("/events", _guarded(guard, events_handler(sources.events)))
    return app


def _metrics(exposition: Exposition, view: View) -> Handler:
    async def metrics(request: web.Request) -> web.Response:
        form = choose_format(_header(request, "Accept"))
        compress = accepts_gzip(_header(request, "Accept-Encoding"))
        headers = {"Content-Type": form.content_type, "Vary": "Accept, Accept-Encoding"}
        if compress:
            headers["Content-Encoding"] = "gzip"
        body = await exposition.body(view, form, compress=compress)
        return web.Response(body=body, headers=headers)

    return metrics


def _header(request: web.Request, name: str) -> str:
    return ",".join(request.headers.getall(name, ()))


def _health(health: Health, *, live: bool = False, ready: bool = False) -> Handler:
    async def healthz(request: web.Request) -> web.Response:
        parts = health.parts(live=live, ready=ready)
        status = 503 if worst(parts) is Status.UNHEALTHY else 200
        if request.query.get("format") == "json":
            return json_response(healthtext.as_json(parts), status=status)
        write = healthtext.verbose if "verbose" in request.query else healthtext.brief
        return text_response(write(parts), status=status)

    return healthz


def _node_metric(latest: Callable[[], bytes]) -> Handler:
    async def node_metric(_: web.Request) -> web.Response:
        return json_body(latest())

    return node_metric


def _guarded(guard: Guard, handler: Handler) -> Handler:
    async def guarded(request: web.Request) -> web.StreamResponse:
        await guard(request)
        return await handler(request)

    return guarded
