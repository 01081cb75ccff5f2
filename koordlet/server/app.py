"""The HTTP application that Prometheus, the kubelet and people talk to."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from aiohttp import web

from koord.component.http import healthtext
from koord.component.http.exposition import FRESH_SECONDS, Exposition, View
from koord.component.http.guard import Guard, local_only
from koord.component.http.healthtext import Parts
from koord.component.http.middleware import MAX_BODY, limits
from koord.component.http.negotiation import accepts_gzip, choose_format
from koord.component.http.responses import json_body, text_response
from koord.util.clock import Clock
from koord.util.health import Health, Status, worst
from koord.util.ttlcache import TtlCache
from koordlet.server.events import EventSources, events_handler
from koordlet.server.explain import Explain, explain_handler

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpSources:
    """The sources of the endpoints.

    node_metric returns the latest NodeMetric object as JSON, or raises Unavailable with the reason
    why there is none. It is called on the event loop.
    """

    exposition: Exposition
    health: Health
    clock: Clock
    node_metric: Callable[[], bytes]
    explain: Explain
    events: EventSources


def create_app(sources: HttpSources, *, guard: Guard = local_only) -> web.Application:
    """The application; guard decides which clients may read /nodemetric, /explain and /events."""
    app = web.Application(middlewares=[limits(sources.clock)], client_max_size=MAX_BODY)
    for path, view in (
        ("/metrics", View.ALL),
        ("/internal-metrics", View.INTERNAL),
        ("/external-metrics", View.EXTERNAL),
    ):
        app.router.add_get(path, _metrics(sources.exposition, view))
    app.router.add_get("/healthz", _health(sources))
    app.router.add_get("/livez", _health(sources, live=True))
    app.router.add_get("/readyz", _health(sources, ready=True))
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


def _health(sources: HttpSources, *, live: bool = False, ready: bool = False) -> Handler:
    """Health of the parts that count, worked out once a second at most."""
    pages: TtlCache[Callable[[Parts], str], tuple[str, int]] = TtlCache(sources.clock, len(_FORMS))

    async def healthz(request: web.Request) -> web.Response:
        write = _form(request.query)
        try:
            text, status = pages[write]
        except KeyError:
            parts = sources.health.parts(live=live, ready=ready)
            status = 503 if worst(parts) is Status.UNHEALTHY else 200
            text = write(parts)
            pages.put(write, (text, status), FRESH_SECONDS)
        if write is healthtext.as_json:
            return json_body(text.encode(), status=status)
        return text_response(text, status=status)

    return healthz


_FORMS = (healthtext.brief, healthtext.verbose, healthtext.as_json)


def _form(query: Mapping[str, str]) -> Callable[[Parts], str]:
    if query.get("format") == "json":
        return healthtext.as_json
    return healthtext.verbose if "verbose" in query else healthtext.brief


def _node_metric(latest: Callable[[], bytes]) -> Handler:
    async def node_metric(_: web.Request) -> web.Response:
        return json_body(latest())

    return node_metric


def _guarded(guard: Guard, handler: Handler) -> Handler:
    async def guarded(request: web.Request) -> web.StreamResponse:
        await guard(request)
        return await handler(request)

    return guarded
