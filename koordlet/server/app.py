"""The HTTP application: /metrics, /healthz, /nodemetric, /explain, /events and the page."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from aiohttp import web

from koord.component.http.endpoints import (
    Handler,
    accepts_json,
    guarded,
    health_handler,
    metrics_handler,
)
from koord.component.http.exposition import Exposition, FamilySelection
from koord.component.http.guard import Guard, local_only
from koord.component.http.responses import (
    MAX_BODY,
    HttpError,
    json_body,
    json_bytes,
    limits,
    text_response,
)
from koord.component.metrics import FamilyRules
from koord.component.page.serving import Page, add_page
from koord.util.clock import Clock
from koord.util.health import Health
from koordlet import NAME
from koordlet.executor.audit.log import AuditPage, AuditPages, UnknownPageToken

PAGE_SIZE = 256  # events, when the client does not say


@dataclass(frozen=True, kw_only=True, slots=True)
class EventSources:
    """The sources of /events: served says whether it is there at all, recorded whether events are.

    flush has readers see what was noted before. most is the largest page a client may ask for.
    """

    pages: AuditPages
    flush: Callable[[], Awaitable[None]]
    served: Callable[[], bool]
    recorded: Callable[[], bool]
    most: int


def events_handler(sources: EventSources) -> Callable[[web.Request], Awaitable[web.Response]]:
    """The handler of GET /events."""

    async def events(request: web.Request) -> web.Response:
        if not sources.served():
            raise HttpError(
                404, "/events is there with --feature-gates=AuditEventsHTTPHandler=true"
            )
        size = _size(request.query.get("size", ""), sources.most)
        if not sources.recorded():
            return text_response("")
        await sources.flush()
        try:
            page = await sources.pages.page(request.query.get("pageToken", ""), size)
        except UnknownPageToken as err:
            raise HttpError(409, str(err)) from err
        if accepts_json(",".join(request.headers.getall("Accept", ()))):
            return json_body(await asyncio.to_thread(_as_json, page))
        text = await asyncio.to_thread(_as_text, page)
        return text_response(
            text, headers={"Next-Page-Token": page.next_token} if page.next_token else None
        )

    return events


def _size(text: str, most: int) -> int:
    try:
        size = int(text)
    except ValueError:
        return min(PAGE_SIZE, most)
    if size > most:
        raise HttpError(400, f"size({size}) exceeds the limit({most})")
    if size < 1:
        raise HttpError(400, f"size({size}) must be at least 1")
    return size


def _as_json(page: AuditPage) -> bytes:
    return json_bytes({"NextPageToken": page.next_token, "Events": page.events})


def _as_text(page: AuditPage) -> str:
    return "".join(json.dumps(event, separators=(",", ":")) + "\n" for event in page.events)


Explain = Callable[[str], Awaitable[Callable[[], Mapping[str, object]]]]
"""Looks what is known about a pod (namespace/name, name or UID) or a cgroup, or
for "" about all; what it returns makes the response in a worker thread."""


def explain_handler(explain: Explain) -> Callable[[web.Request], Awaitable[web.Response]]:
    """The handler of GET /explain."""

    async def explained(request: web.Request) -> web.Response:
        response = await explain(request.query.get("pod", ""))
        return json_body(await asyncio.to_thread(lambda: json_bytes(response())))

    return explained


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
    get("/internal-metrics", metrics_handler(sources.exposition, FamilySelection.INTERNAL))
    get("/external-metrics", metrics_handler(sources.exposition, FamilySelection.EXTERNAL))
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


# Koordinator's counters: their names have no `_total`.
UPSTREAM_COUNTERS = frozenset(
    {
        "koordlet_collect_node_cpu_info_status",
        "koordlet_collect_node_numa_info_status",
        "koordlet_collect_node_local_storage_info_status",
        "koordlet_pod_eviction",
        "koordlet_pod_eviction_detail",
        "koordlet_core_sched_cookie_manage_status",
    }
)

# Families made by collectors and the reporter that Koordinator keeps in its internal registry; all
# other families that they make are for users and belong to the external one.
INTERNAL_FAMILIES = UPSTREAM_COUNTERS | {
    "koordlet_start_time",
    "koordlet_node_used_cpu_cores",
    "koordlet_node_used_memory_bytes",
    "koordlet_be_suppress_cpu_cores",
    "koordlet_be_suppress_ls_used_cpu_cores",
    "koordlet_be_suppress_be_used_cpu_cores",
    "koordlet_container_scaled_cfs_burst_us",
    "koordlet_container_scaled_cfs_quota_us",
    "koordlet_cpuset_share_pool_cpu_cores",
    "koordlet_cpuset_be_share_pool_cpu_cores",
    "koordlet_cpuset_share_pool_info",
    "koordlet_cpuset_be_share_pool_info",
    "koordlet_node_predicted_resource_reclaimable",
    "koordlet_node_predicted_resource_peak",
    "koordlet_node_metric_node_usage",
    "koordlet_node_metric_system_usage",
    "koordlet_node_metric_numa_node_usage",
    "koordlet_node_metric_numa_system_usage",
    "koordlet_host_application_resource_usage",
    "koordlet_container_core_sched_cookie",
    "koordlet_container_oom_score_adj",
}

FAMILIES = FamilyRules(
    prefix=NAME, internal=INTERNAL_FAMILIES, unsuffixed_counters=UPSTREAM_COUNTERS
)
