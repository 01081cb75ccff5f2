"""Where a pod of the running scheduler would go now, and why not elsewhere, over HTTP: /explain."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web
from msgspec.structs import replace

from koord.cluster.hypothetical import without_pod
from koord.component.http.responses import json_body, json_bytes
from koord.util.timebudget import TimeBudget
from koord_scheduler.cache import SchedulerCache
from koord_scheduler.framework.extension.providers import pending_advice
from koord_scheduler.planning.decision import Decider
from koord_scheduler.planning.report import Json, decision_report
from koord_scheduler.scheduling.scheduler import Scheduler

KIND = "PlacementExplanation"
MAX_KEY_LENGTH = 512  # characters of a question
MAX_SECONDS = 1.0  # seconds of computing, on the event loop, for a response


@dataclass(frozen=True, slots=True)
class Running:
    """A scheduler at work."""

    scheduler: Scheduler
    state: SchedulerCache


def explain_handler(
    running: Callable[[], Running | None], is_leader: Callable[[], bool]
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Return the handler of /explain?pod=NAMESPACE/NAME. Its caller must protect it.

    running: None while plugins are made.
    """

    async def explain(request: web.Request) -> web.Response:
        key, found = request.query.get("pod", ""), running()
        if not 0 < len(key) <= MAX_KEY_LENGTH:
            raise web.HTTPBadRequest(text="wanted ?pod=NAMESPACE/NAME\n")
        if found is None:
            raise web.HTTPServiceUnavailable(text="the plugins are still being made\n")
        response = await explanation(found, key, is_leader=is_leader())
        if response is None:
            raise web.HTTPNotFound(text=f"no pod {key} is known\n")
        return json_body(await asyncio.to_thread(json_bytes, response))

    return explain


async def explanation(running: Running, key: str, *, is_leader: bool) -> Json | None:
    """Return all facts about a pod and the node it would get; None: there is no such pod.

    key: namespace/name, or a name in the namespace default. It decides on the event loop, as
    plugins need it, and reports in a thread.
    """
    pod = running.state.pod(key if "/" in key else f"default/{key}")
    if pod is None:
        return None
    scheduler, nodes = running.scheduler, running.state.view()
    profile = scheduler.profiles.get(pod.scheduler_name)
    queued = scheduler.queue.find(pod.uid)
    base: Json = {
        "kind": KIND,
        "leader": is_leader,
        "pod": pod.key,
        "boundTo": pod.node,
        "assumed": running.state.is_assumed(pod.uid),
        "queue": scheduler.queue.place_of(pod.uid),
        "attempts": 0 if queued is None else queued.attempts,
        "rejectedBy": [] if queued is None else sorted(queued.rejecting_plugins),
        "gatedBy": "" if queued is None else queued.gating_plugin,
        "schedulerName": pod.scheduler_name,
        "schedulers": sorted(scheduler.profiles),
        "decision": None,
    }
    if profile is None:
        return base
    decider = Decider(profile.name, profile.search, profile.scoring, profile.binding)
    with TimeBudget(MAX_SECONDS):
        decision = decider.decide(replace(pod, node=""), without_pod(pod, nodes), dry_run=True)
        blockers = decider.blockers(decision)
        preemption = await decider.preemption(decision)
        waits_for = [] if decision.status.ok else pending_advice(profile.plugins, pod)
    report = await asyncio.to_thread(decision_report, decision, blockers, preemption)
    return {**base, "decision": {**report, "advice": [*waits_for, *report["advice"]]}}
