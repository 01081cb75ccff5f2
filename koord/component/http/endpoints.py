"""Handlers of the endpoints that every daemon has: metrics and health."""

import json
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Protocol

from aiohttp import web

from koord.component.http.exposition import (
    FRESH_SECONDS,
    OPENMETRICS,
    TEXT,
    Exposition,
    FamilySelection,
    TextFormat,
)
from koord.component.http.guard import Guard
from koord.component.http.responses import json_body, text_response
from koord.util.clock import Clock
from koord.util.health import Health, HealthStatus, PartHealth, worst
from koord.util.ttlcache import TtlCache

Parts = dict[str, PartHealth]

_MARKS = {HealthStatus.OK: "+", HealthStatus.DEGRADED: "!", HealthStatus.UNHEALTHY: "-"}


def summary_text(parts: Parts) -> str:
    """`ok` or `unhealthy`, then one line for each part that is not ok."""
    lines = [
        f"{part.status.value}: {name}: {part.reason}"
        for name, part in _worst_first(parts)
        if part.status is not HealthStatus.OK
    ]
    return "\n".join([_verdict(parts), *lines]) + "\n" if lines else _verdict(parts)


def verbose_text(parts: Parts) -> str:
    """One line per part, details included, then the verdict."""
    lines = [_line(name, part) for name, part in parts.items()]
    return "\n".join([*lines, _verdict(parts)]) + "\n"


def as_json(parts: Parts) -> str:
    """JSON with the status of the whole, and status, reason and detail of each part."""
    return json.dumps(
        {
            "status": worst(parts).value,
            "parts": {
                name: {"status": part.status.value, "reason": part.reason, "detail": part.detail}
                for name, part in parts.items()
            },
        },
        default=str,
    )


def _verdict(parts: Parts) -> str:
    return "unhealthy" if worst(parts) is HealthStatus.UNHEALTHY else "ok"


def _line(name: str, part: PartHealth) -> str:
    line = f"[{_MARKS[part.status]}]{name} {part.status.value}"
    if part.reason:
        line += f": {part.reason}"
    if part.detail:
        line += " (" + ", ".join(f"{key}={value}" for key, value in part.detail.items()) + ")"
    return line


def _worst_first(parts: Parts) -> list[tuple[str, PartHealth]]:
    order = list(HealthStatus)
    return sorted(parts.items(), key=lambda item: -order.index(item[1].status))


_OPENMETRICS_TYPE = "application/openmetrics-text"
_OPENMETRICS_VERSIONS = {"1.0.0", "0.0.1", ""}  # what ours can be read as; "": any
_TEXT_TYPES = {"text/plain", "text/*", "*/*"}


def choose_format(accept: str) -> TextFormat:
    """OpenMetrics if the client prefers it or likes both the same, else text 0.0.4."""
    openmetrics = text = 0.0
    for media_type, parameters, weight in _preferences(accept):
        if media_type == _OPENMETRICS_TYPE:
            if parameters.get("version", "") in _OPENMETRICS_VERSIONS:
                openmetrics = max(openmetrics, weight)
        elif media_type in _TEXT_TYPES:
            text = max(text, weight)
    return OPENMETRICS if openmetrics > 0 and openmetrics >= text else TEXT


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether the body may be compressed with gzip."""
    weights = {coding: weight for coding, _, weight in _preferences(accept_encoding)}
    return weights.get("gzip", weights.get("*", 0.0)) > 0


def accepts_json(accept: str) -> bool:
    """Whether the client names JSON; one that takes anything has not."""
    return any(name == "application/json" and weight for name, _, weight in _preferences(accept))


def _preferences(header: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Each element of the list: value, parameters, weight (0 to 1; malformed counts as 0)."""
    for element in header.split(","):
        value, *rest = (part.strip() for part in element.split(";"))
        pairs = (part.partition("=") for part in rest)
        parameters = {name.strip().lower(): text.strip().strip('"') for name, _, text in pairs}
        yield value.lower(), parameters, _weight(parameters.get("q", "1"))


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        return 0.0
    return min(max(weight, 0.0), 1.0) if math.isfinite(weight) else 0.0


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HealthQuery(Protocol):
    """Returns the parts that count for /livez or /readyz, as Health.parts."""

    async def __call__(self, *, live: bool, ready: bool) -> Parts: ...


_FORMS = (summary_text, verbose_text, as_json)


def metrics_handler(exposition: Exposition, view: FamilySelection = FamilySelection.ALL) -> Handler:
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
    ask: HealthQuery | None = None,
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
        return as_json
    return verbose_text if "verbose" in query else summary_text


def _status(parts: Parts) -> int:
    return 503 if worst(parts) is HealthStatus.UNHEALTHY else 200


def _answer(text: str, status: int, write: Callable[[Parts], str]) -> web.Response:
    if write is as_json:
        return json_body(text.encode(), status=status)
    return text_response(text, status=status)
