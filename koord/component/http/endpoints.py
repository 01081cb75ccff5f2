"""Handlers of the endpoints that every daemon has: metrics and health."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from aiohttp import web

from koord.component.http import healthtext
from koord.component.http.exposition import FRESH_SECONDS, Exposition, View
from koord.component.http.guard import Guard
from koord.component.http.healthtext import Parts
from koord.component.http.negotiation import accepts_gzip, choose_format
from koord.component.http.responses import json_body, text_response
from koord.util.clock import Clock
from koord.util.health import Health, Status, worst
from koord.util.ttlcache import TtlCache

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AskHealth(Protocol):
    """Returns the parts that count for /livez or /readyz, as Health.parts."""

    async def __call__(self, *, live: bool, ready: bool) -> Parts: ...


_FORMS = (healthtext.brief, healthtext.verbose, healthtext.as_json)


def metrics_handler(exposition: Exposition, view: View = View.ALL) -> Handler:
    """Return the handler of a page of metrics."""

    async def metrics(request: web.Request) -> web.Response:
        form = choose_format(_header(request, "Accept"))
        compress = accepts_gzip(_header(request, "Accept-Encoding"))
        headers = {"Content-Type": form.content_type, "Vary": "Accept, Accept-Encoding"}
        if compress:
            headers["Content-Encoding"] = "gzip"
        body = await exposition.body(view, form, compress=compress)
        return web.Response(body=body, headers=headers)

    return metrics


def health_handler(
    health: Health,
    clock: Clock,
    *,
    live: bool = False,
    ready: bool = False,
    ask: AskHealth | None = None,
) -> Handler:
    """Return the handler of /healthz, /livez or /readyz: the parts that count there.

    It is worked out once a second at most. ask: on another event loop; None: here.
    """
    pages: TtlCache[Callable[[Parts], str], tuple[str, int]] = TtlCache(clock, len(_FORMS))

    async def healthz(request: web.Request) -> web.Response:
        write = _form(request.query)
        try:
            text, status = pages[write]
        except KeyError:
            if ask is None:
                parts = health.parts(live=live, ready=ready)
            else:
                parts = await ask(live=live, ready=ready)
            status = _status(parts)
            text = write(parts)
            pages.put(write, (text, status), FRESH_SECONDS)
        return _answer(text, status, write)

    return healthz


def check_handler(health: Health) -> Handler:
    """Return the handler of /healthz/{check}: one part alone."""

    async def check(request: web.Request) -> web.Response:
        name = request.match_info["check"]
        part = health.part(name)
        if part is None:
            return text_response(f"no check {name!r:.80}\n", status=404)
        write, parts = _form(request.query), {name: part}
        return _answer(write(parts), _status(parts), write)

    return check


def guarded(guard: Guard, handler: Handler) -> Handler:
    """Return the handler for clients that the guard lets in."""

    async def answer(request: web.Request) -> web.StreamResponse:
        await guard(request)
        return await handler(request)

    return answer


def _header(request: web.Request, name: str) -> str:
    return ",".join(request.headers.getall(name, ()))


def _form(query: Mapping[str, str]) -> Callable[[Parts], str]:
    if query.get("format") == "json":
        return healthtext.as_json
    return healthtext.verbose if "verbose" in query else healthtext.brief


def _status(parts: Parts) -> int:
    return 503 if worst(parts) is Status.UNHEALTHY else 200


def _answer(text: str, status: int, write: Callable[[Parts], str]) -> web.Response:
    if write is healthtext.as_json:
        return json_body(text.encode(), status=status)
    return text_response(text, status=status)
