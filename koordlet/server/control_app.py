"""The application behind ctl.sock: JSON for koordletctl, for the daemon's own user only."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

from koord.api.nodemetric import MAX_WINDOW
from koord.component.http.responses import MAX_BODY, json_body, json_bytes, limits
from koord.component.page.serving import Page, add_page
from koord.util import goformat
from koord.util.clock import SystemClock
from koord.util.errors import OptionError
from koord.util.text import nearest
from koordlet.executor.audit.files import AuditQuery, parse_query
from koordlet.metriccache.aggregate import Aggregate
from koordlet.metriccache.cache import MetricCache
from koordlet.metriccache.kinds import AnyKind
from koordlet.metriccache.ring import SeriesKey
from koordlet.server.app import Explain, explain_handler
from koordlet.server.top import top
from koordlet.statesinformer.informer import StatesInformer
from koordlet.statesinformer.podmeta import PodMeta

DEFAULT_WINDOW = "1m0s"


def find_kind(name: str, cache: MetricCache) -> AnyKind:
    """Return the kind of that name.

    Raises:
        OptionError: there is none; the message names those that contain the text, or the nearest.
    """
    kinds = cache.kinds()
    if name not in kinds:
        similar = [known for known in kinds if name and name in known] or [nearest(name, kinds)]
        raise OptionError("metric", name, f"did you mean {' or '.join(similar)}?")
    return kinds[name]


def parse_window(text: str) -> float:
    """Return a window in seconds, at most an hour.

    Raises:
        OptionError: it is not a positive Go duration.
    """
    try:
        seconds = goformat.parse_duration(text)
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise OptionError("window", text, f'use a duration above 0, for example "{DEFAULT_WINDOW}"')
    return min(seconds, MAX_WINDOW)


def find_pod(name: str, pods: Iterable[PodMeta]) -> PodMeta:
    """Return the pod with that UID, namespace/name, or name.

    Raises:
        OptionError: none has it, or several have the name.
    """
    pods = list(pods)
    found = [pod for pod in pods if name in (pod.uid, _full_name(pod))]
    found = found or [pod for pod in pods if name == pod.pod.name]
    if len(found) > 1:
        raise OptionError("pod", name, f"use one of {', '.join(map(_full_name, found))}")
    if not found:
        names = [_full_name(pod) for pod in pods]
        hint = f"did you mean {nearest(name, names)}?" if names else "no pods are known"
        raise OptionError("pod", name, hint)
    return found[0]


def aggregates(
    cache: MetricCache,
    kind: AnyKind,
    window: float,
    pods: Iterable[PodMeta],
    only: PodMeta | None = None,
) -> dict[str, object]:
    """Name, unit and window, and one entry per series with samples in it.

    A series of a pod or container also gets the pod's namespace/name, and the container's name,
    while the pod is known. With
    `only` these are the series of that pod and of its containers.
    """
    series = cache.aggregate_all(kind, window)
    owners = _owners(kind, pods if only is None else (only,))
    return {
        "name": kind.name,
        "unit": kind.unit,
        "window_seconds": window,
        "series": [
            {**_subject(kind, key, owners), **_figures(series[key])}
            for key in sorted(series)
            if only is None or key[:1] in owners
        ],
    }


def _owners(kind: AnyKind, pods: Iterable[PodMeta]) -> dict[SeriesKey, dict[str, str]]:
    """Pod, and container, by the first property of a key, where that identifies one."""
    if kind.properties[:1] == ("pod_uid",):
        return {(pod.uid,): {"pod": _full_name(pod)} for pod in pods}
    if kind.properties[:1] == ("container_id",):
        return {
            (own.container_id,): {"pod": _full_name(pod), "container": own.name}
            for pod in pods
            for own in pod.containers
        }
    return {}


def _full_name(pod: PodMeta) -> str:
    return f"{pod.pod.namespace}/{pod.pod.name}"


def _subject(
    kind: AnyKind, key: SeriesKey, owners: Mapping[SeriesKey, Mapping[str, str]]
) -> dict[str, str]:
    return {**owners.get(key[:1], {}), **dict(zip(kind.properties, key, strict=True))}


def _figures(aggregate: Aggregate) -> dict[str, float]:
    return {
        "last": aggregate.last,
        "avg": aggregate.avg(),
        "p50": aggregate.percentile(50),
        "p90": aggregate.percentile(90),
        "p95": aggregate.percentile(95),
        "p99": aggregate.percentile(99),
        "count": aggregate.count,
        "span_seconds": aggregate.span,
    }


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
        add_page(app, page, clock, guard=_allow_all, switches=True)
    app.router.add_get("/status", _on_loop(sources.status))
    app.router.add_get("/plugins", _on_loop(sources.plugins))
    app.router.add_post("/plugins/{name}/release", _release(sources))
    app.router.add_get("/doctor", _doctor(sources.doctor))
    app.router.add_get("/top", _in_thread(lambda _: _top(sources)))
    app.router.add_get("/metrics/{kind}", _in_thread(lambda request: _metrics(sources, request)))
    app.router.add_get("/nodemetric", _node_metric(sources.node_metric))
    app.router.add_get("/explain", explain_handler(sources.explain))
    app.router.add_get("/dry-run", _on_loop(sources.dry_run.describe))
    app.router.add_post("/dry-run/{plugin}/{switch:on|off}", _switch(sources.dry_run))
    app.router.add_get("/audit", _audit(sources.audit))
    app.router.add_get("/record", _record(sources.record))
    return app


async def _allow_all(_: web.Request) -> None:
    """Whoever may connect to the socket may do everything."""


def _on_loop(make: Callable[[], object]) -> _Handler:
    async def quick(_: web.Request) -> web.Response:
        return json_body(json_bytes(make()))

    return quick


def _in_thread(prepare: Callable[[web.Request], Callable[[], object]]) -> _Handler:
    """Read the request on the loop; make and encode the response in a worker thread."""

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
