"""Changes what cycles log, at run time: PUT /debug/flags/s, f, d and db.

Source: Koordinator, pkg/scheduler/frameworkext/services (debug flags). Only clients on this machine
may, as through `kubectl exec` or `kubectl port-forward`.
"""

from collections.abc import Callable

from aiohttp import web

from koord.component.flagkinds import read_bool, read_int
from koord.component.http.bodies import read_small
from koord.component.http.endpoints import Handler, guarded
from koord.component.http.guard import local_only
from koord.component.http.middleware import MAX_BODY
from koord.component.http.refusal import Refusal
from koord.component.http.responses import text_response
from koord_scheduler.framework.debugging import Debugging

_LONGEST = 64  # characters of a value


def add_debug_flags(app: web.Application, debugging: Debugging) -> None:
    """Add the paths to an application."""

    def set_scores(text: str) -> None:
        count = read_int(text)
        if count < 0:
            raise ValueError("wanted 0 or more")
        debugging.scores = count

    def set_filters(text: str) -> None:
        debugging.filters = read_bool(text)

    def set_diagnosis(text: str) -> None:
        debugging.diagnosis = read_bool(text)

    def set_blocking(text: str) -> None:
        debugging.diagnosis_blocking = read_bool(text)

    for letter, name, change in (
        ("s", "debug-scores", set_scores),
        ("f", "debug-filters", set_filters),
        ("d", "debug-diagnosis", set_diagnosis),
        ("db", "debug-diagnosis-blocking", set_blocking),
    ):
        handler = guarded(local_only, _changing(name, change))
        app.router.add_put(f"/debug/flags/{letter}", handler)


def _changing(name: str, change: Callable[[str], None]) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        text = (await read_small(request, MAX_BODY)).decode(errors="replace").strip()
        try:
            change(text)
        except ValueError as err:
            raise Refusal(400, f"{name}: {err}, found {text[:_LONGEST]!r}") from err
        return text_response(f"successfully set {name} to {text}\n")

    return handle
