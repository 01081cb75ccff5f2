"""The descheduler's endpoints beside those of every daemon."""

from collections.abc import Callable

from aiohttp import web

from koord.component.http.endpoints import guarded
from koord.controlplane import serving
from koord.controlplane.serving import HttpSources
from koord_descheduler.framework.decisions import Decisions
from koord_descheduler.planning.explain import explain_handler


def create_app(
    sources: HttpSources, decisions: Decisions, leads: Callable[[], bool]
) -> web.Application:
    """The application."""
    app = serving.create_app(sources)
    app.router.add_get("/explain", guarded(sources.guard, explain_handler(decisions, leads)))
    return app
