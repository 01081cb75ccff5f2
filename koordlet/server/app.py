"""The HTTP application that Prometheus, the kubelet and people talk to."""

from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from koord.component.http.endpoints import Handler, guarded, health_handler, metrics_handler
from koord.component.http.exposition import Exposition, View
from koord.component.http.guard import Guard, local_only
from koord.component.http.middleware import MAX_BODY, limits
from koord.component.http.responses import json_body
from koord.component.page.serving import Page, add_page
from koord.util.clock import Clock
from koord.util.health import Health
from koordlet.server.events import EventSources, events_handler
from koordlet.server.explain import Explain, explain_handler


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
    page: Page | None = None  # None: it is switched off


def create_app(sources: HttpSources, *, guard: Guard = local_only) -> web.Application:
    """The application; guard decides which clients may read /nodemetric, /explain and /events."""
    app = web.Application(middlewares=[limits(sources.clock)], client_max_size=MAX_BODY)
    get, health, clock = app.router.add_get, sources.health, sources.clock
    get("/metrics", metrics_handler(sources.exposition))
    get("/internal-metrics", metrics_handler(sources.exposition, View.INTERNAL))
    get("/external-metrics", metrics_handler(sources.exposition, View.EXTERNAL))
    get("/healthz", health_handler(health, clock))
    get("/livez", health_handler(health, clock, live=True))
    get("/readyz", health_handler(health, clock, ready=True))
    get("/nodemetric", guarded(guard, _node_metric(sources.node_metric)))
    get("/explain", guarded(guard, explain_handler(sources.explain)))
    get("/events", guarded(guard, events_handler(sources.events)))
    if sources.page is not None:
        add_page(app, sources.page, clock, guard=guard)
    return app


def _node_metric(latest: Callable[[], bytes]) -> Handler:
    async def node_metric(_: web.Request) -> web.Response:
        return json_body(latest())

    return node_metric
