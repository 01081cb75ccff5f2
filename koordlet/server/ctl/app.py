"""The application behind ctl.sock, which answers in JSON."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

from koord.component.http.middleware import MAX_BODY, limits
from koord.component.http.responses import json_body, json_bytes
from koord.component.page.serving import Page, add_page
from koord.util.clock import SystemClock
from koord.util.errors import OptionError
from koord.util.nearest import nearest
from koordlet.executor.audit.query import AuditQuery, parse_query
from koordlet.metriccache.cache import MetricCache
from koordlet.server.ctl.top import top
from koordlet.server.ctl.windows import (
    DEFAULT_WINDOW,
    aggregates,
    find_kind,
    find_pod,
    parse_window,
)
from koordlet.server.explain import Explain, explain_handler
from koordlet.statesinformer.informer import StatesInformer

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class DryRunSource(Protocol):
    """The plugins in dry-run, and the switch for each."""

    def describe(self) -> Mapping[str, object]: ...

    async def switch(self, plugin: str, *, on: bool) -> Mapping[str, object]: ...


class AuditSource(Protocol):
    """The audit log."""

    async def flush(self) -> None: ...

    def answer(self, query: AuditQuery) -> Mapping[str, object]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class CtlSources:
    """The sources of the endpoints. All results must be JSON, or know how to be text.

    cpu_limits, status, plugins, release and node_metric are called on the event loop and must be
    quick; the last is as in HttpSources. cpu_limits are the cores that plugins hold cgroups to.
    release takes a plugin out of quarantine and returns whether it was in. record yields the lines
    of a record of so many seconds.
    """

    node: str
    cache: MetricCache
    states: StatesInformer
    cpu_limits: Callable[[], Mapping[str, float]]
    status: Callable[[], Mapping[str, object]]
    plugins: Callable[[], Sequence[Mapping[str, object]]]
    release: Callable[[str], bool]
    node_metric: Callable[[], bytes]
    explain: Explain
    dry_run: DryRunSource
    audit: AuditSource
    doctor: Callable[[], Awaitable[Sequence[Mapping[str, object]]]]
    record: Callable[[float], AsyncGenerator[bytes]]


def create_ctl_app(sources: CtlSources, page: Page | None = None) -> web.Application:
    """The application. GET changes nothing; POST is for the few commands that do.

    page: the status page, which offers those here.
    """
    clock = SystemClock()
    app = web.Application(middlewares=[limits(clock)], client_max_size=MAX_BODY)
    if page is not None:
        add_page(app, page, clock, guard=_let_in, switches=True)
    app.router.add_get("/status", _quick(sources.status))
    app.router.add_get("/plugins", _quick(sources.plugins))
    app.router.add_post("/plugins/{name}/release", _release(sources))
    app.router.add_get("/doctor", _doctor(sources.doctor))
    app.router.add_get("/top", _in_thread(lambda _: _top(sources)))
    app.router.add_get("/metrics/{kind}", _in_thread(lambda request: _metrics(sources, request)))
    app.router.add_get("/nodemetric", _node_metric(sources.node_metric))
    app.router.add_get("/explain", explain_handler(sources.explain))
    app.router.add_get("/dry-run", _quick(sources.dry_run.describe))
    app.router.add_post("/dry-run/{plugin}/{switch:on|off}", _switch(sources.dry_run))
    app.router.add_get("/audit", _audit(sources.audit))
    app.router.add_get("/record", _record(sources.record))
    return app


async def _let_in(_: web.Request) -> None:
    """Whoever may connect to the socket may do everything."""


def _quick(make: Callable[[], object]) -> _Handler:
    async def quick(_: web.Request) -> web.Response:
        return json_body(json_bytes(make()))

    return quick


def _in_thread(prepare: Callable[[web.Request], Callable[[], object]]) -> _Handler:
    """Read the request on the loop; make and encode the answer in a worker thread."""

    async def in_thread(request: web.Request) -> web.Response:
        make = prepare(request)
        return json_body(await asyncio.to_thread(lambda: json_bytes(make())))

    return in_thread


def _node_metric(latest: Callable[[], bytes]) -> _Handler:
    async def node_metric(_: web.Request) -> web.Response:
        return json_body(latest())

    return node_metric


def _doctor(look: Callable[[], Awaitable[object]]) -> _Handler:
    async def doctor(_: web.Request) -> web.Response:
        return json_body(json_bytes(await look()))

    return doctor


def _switch(dry_run: DryRunSource) -> _Handler:
    async def switched(request: web.Request) -> web.Response:
        plugin, switch = request.match_info["plugin"], request.match_info["switch"]
        return json_body(json_bytes(await dry_run.switch(plugin, on=switch == "on")))

    return switched


def _audit(audit: AuditSource) -> _Handler:
    async def audited(request: web.Request) -> web.Response:
        query = parse_query(request.query)
        await audit.flush()
        return json_body(await asyncio.to_thread(lambda: json_bytes(audit.answer(query))))

    return audited


def _record(record: Callable[[float], AsyncGenerator[bytes]]) -> _Handler:
    async def recorded(request: web.Request) -> web.StreamResponse:
        lines = record(parse_window(request.query.get("duration", DEFAULT_WINDOW)))
        async with contextlib.aclosing(lines):
            first = await anext(lines)  # an error before it begins is answered with a status
            response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
            await response.prepare(request)
            with contextlib.suppress(ConnectionError):  # the listener has had enough
                await response.write(first)
                async for line in lines:
                    await response.write(line)
                await response.write_eof()
        return response

    return recorded


def _release(sources: CtlSources) -> _Handler:
    async def release(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        states = {str(plugin["name"]): plugin["state"] for plugin in sources.plugins()}
        if name not in states:
            hint = f"did you mean {nearest(name, states)}?" if states else "there are no plugins"
            raise OptionError("plugin", name, hint)
        if not sources.release(name):
            hint = f"it is not in quarantine, its state is {states[name]}"
            raise OptionError("plugin", name, hint)
        return json_body(json_bytes({"released": name}))

    return release


def _top(sources: CtlSources) -> Callable[[], object]:
    node, pods = sources.states.node(), sources.states.pods()
    capacity = {} if node is None else node.capacity
    limits = sources.cpu_limits()
    return lambda: top(sources.cache, sources.node, capacity, pods, limits)


def _metrics(sources: CtlSources, request: web.Request) -> Callable[[], object]:
    kind = find_kind(request.match_info["kind"], sources.cache)
    window = parse_window(request.query.get("window", DEFAULT_WINDOW))
    name = request.query.get("pod")
    pods = sources.states.pods()
    pod = None if name is None else find_pod(name, pods)
    return lambda: aggregates(sources.cache, kind, window, pods, pod)
