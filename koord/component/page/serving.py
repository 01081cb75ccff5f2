"""The endpoints of the status page.

The page and its scripts hold no data and are for all. Data is for clients that the guard admits. A
page of another site gets neither: it cannot read answers, is rejected by Origin, Sec-Fetch-Site,
and cannot frame this one.
"""

import asyncio
import contextlib
import html
import json
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from aiohttp import web

from koord.component.http.endpoints import Handler
from koord.component.http.guard import Guard
from koord.component.http.responses import HttpError, json_body
from koord.component.page.sections import PageData, PageSource
from koord.util.clock import Clock
from koord.util.errors import Unavailable
from koord.util.logs import LogState, get_logger
from koord.util.stop import Stop

STREAM = "/page/stream"
MAX_PAGES = 8
RESPONSE_SECONDS = 10.0  # for the daemon's part in a line
SLOW_SECONDS = 10.0  # after which a reader that takes nothing is dropped

_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_KINDS = {"js": "text/javascript", "css": "text/css"}
_STATIC = ("main.js", "page.js", "health.js", "heatmap.js", "page.css",
           "uPlot.iife.min.js", "uPlot.min.css")  # fmt: skip
_WRITE_BUFFER = 256 << 10  # bytes of a stream that the kernel has not taken yet

log = get_logger("koord.page")


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """A daemon's status page."""

    source: PageSource
    views: Mapping[str, bytes] = field(default_factory=dict)  # JavaScript modules, by file name
    period: float = 1.0  # seconds between two lines of a stream
    path: str = "/nodemetric"  # a client that may get this may see the page's data
    streams: set[object] = field(default_factory=set)  # that are open, on all listeners


def add_page(
    app: web.Application, page: Page, clock: Clock, *, guard: Guard, switches: bool = False
) -> None:
    """Add the page at / and what it loads below /page.

    switches: the application also has POST /dry-run/PLUGIN/on and off, which the page then offers.
    """
    source, views = page.source, page.views
    streams = _Streams(page, clock)
    app.on_shutdown.append(streams.close)
    static = {name: files(__package__).joinpath("static", name).read_bytes() for name in _STATIC}
    get = app.router.add_get
    get("/", _static(_page(source, switches=switches), "text/html"))
    for name, body in {**static, **views}.items():
        get(f"/page/{name}", _static(body, _KINDS[name.rpartition(".")[2]]))
    guarded = _guarded(guard, page.path)
    get(STREAM, guarded(streams.serve), allow_head=False)
    get("/page/detail/{kind}", guarded(_detail(source)), allow_head=False)


def _page(source: PageSource, *, switches: bool) -> bytes:
    text = files(__package__).joinpath("static", "page.html").read_text()
    values = {"title": source.title, "view": source.view, "switches": "yes" if switches else "no"}
    for name, value in values.items():
        text = text.replace(f"{{{{{name}}}}}", html.escape(value))
    return text.encode()


def _static(body: bytes, kind: str) -> Handler:
    async def static(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=_HEADERS)

    return static


def _detail(source: PageSource) -> Handler:
    async def detail(request: web.Request) -> web.Response:
        found = await source.detail(request.match_info["kind"], request.query.get("name", ""))
        if found is None:
            raise HttpError(404, f"{request.path}: wanted a name that is known, found none of it")
        return json_body(await asyncio.to_thread(_line, found))

    return detail


def _guarded(guard: Guard, path: str) -> Callable[[Handler], Handler]:
    """Guard handlers: a client must be allowed to get that path, whatever it asks for here."""

    def guarded(handler: Handler) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            await guard(request.clone(rel_url=path))
            return await handler(request)

        return _own(answer)

    return guarded


def _own(handler: Handler) -> Handler:
    """Wrap a handler: it serves the page itself and programs, not pages of other sites."""

    async def own(request: web.Request) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        site = request.headers.get("Sec-Fetch-Site", "none")
        if origin is not None and origin.partition("://")[2] != request.headers.get("Host"):
            raise HttpError(403, f"{request.path}: wanted no Origin or our own, found another")
        if site not in ("same-origin", "none"):
            raise HttpError(403, f"{request.path}: wanted our own page, found another site's")
        return await handler(request)

    return own


def _line(answer: PageData) -> bytes:
    """One line; a figure that JSON does not know is absent, as no page could read the line."""
    try:
        text = json.dumps(answer, default=str, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(answer), default=str)
    return text.encode() + b"\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


class _Streams:
    """The streams to open pages: a line of JSON at first, and one each period."""

    def __init__(self, page: Page, clock: Clock) -> None:
        self._page = page
        self._closing = Stop(clock)
        self._trouble = LogState(log)

    async def close(self, _: web.Application) -> None:
        """End all, so that the server need not wait for them."""
        self._closing.set()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Serve one until its reader or the daemon ends."""
        if len(self._page.streams) >= MAX_PAGES:
            message = f"wanted at most {MAX_PAGES} open pages, found that many; close one"
            raise HttpError(503, message, headers={"Retry-After": "10"})
        held = object()
        self._page.streams.add(held)
        try:
            return await self._serve(request)
        finally:
            self._page.streams.discard(held)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={**_HEADERS, "Cache-Control": "no-store"})
        response.content_type = "application/x-ndjson"
        async with contextlib.aclosing(self._lines()) as lines:
            first = await anext(lines)  # an error before it begins is answered with a status
            await response.prepare(request)
            transport = request.transport
            if transport is not None:
                transport.set_write_buffer_limits(high=_WRITE_BUFFER)
            try:
                await self._write(response, first)
                async for line in lines:
                    await self._write(response, line)
                await response.write_eof()
            except TimeoutError:
                if transport is not None:
                    transport.abort()
            except ConnectionError:
                pass  # the page was closed
        return response

    async def _asked(self, answer: Awaitable[PageData]) -> PageData:
        try:
            async with asyncio.timeout(RESPONSE_SECONDS):
                return await answer
        except TimeoutError as err:
            raise Unavailable(f"no figures within {RESPONSE_SECONDS:g} s") from err

    async def _write(self, response: web.StreamResponse, line: bytes) -> None:
        async with asyncio.timeout(SLOW_SECONDS):
            await response.write(line)

    async def _lines(self) -> AsyncGenerator[bytes]:
        answer = await self._asked(self._page.source.snapshot())
        while True:
            yield await asyncio.to_thread(_line, answer)
            if await self._closing.sleep(self._page.period):
                return
            try:
                answer = await self._asked(self._page.source.changes(answer["now"]))
            except Unavailable as err:  # for a while: the page says so, and what it has stays
                self._trouble.failed("page.failed", error=str(err))
                answer = {"now": answer["now"], "sections": {}, "problem": str(err)}
            else:
                self._trouble.ended("page.recovered")
