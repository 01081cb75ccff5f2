"""Decisions as JSON (see docs/placement.md), and the responses of /explain."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from aiohttp import web
from msgspec.structs import replace

from koord.cluster.hypothetical import without_pod
from koord.component.http.responses import json_body, json_bytes
from koord.util.timebudget import TimeBudget
from koord_scheduler.cache import SchedulerCache
from koord_scheduler.framework.calls import ExtensionPointError
from koord_scheduler.framework.extension.providers import pending_advice
from koord_scheduler.framework.groupplan import PlannedReserve
from koord_scheduler.framework.profile import ProfilePlugins
from koord_scheduler.framework.status import NodeStatuses, PostFilterResult
from koord_scheduler.planning.decision import Blocker, Blockers, Decider, Decision
from koord_scheduler.planning.simulation import Simulated, Utilization
from koord_scheduler.scheduling.scheduler import Scheduler

Json = dict[str, Any]

MAX_NODES = 1000  # nodes of one decision that are listed with their scores, or why not


def decision_report(
    decision: Decision,
    blockers: Blockers,
    preemption: PostFilterResult | None = None,
    *,
    annotations: Mapping[str, str] = MappingProxyType({}),
    waits_for: Sequence[str] = (),
) -> Json:
    """Return a decision: the node and the scores, or the cause and what would help.

    preemption: what PostFilter would do; None: nothing, or it is not known. annotations: that
    plugins would write on the pod. waits_for: sentences of plugins, for a pod without a node.
    """
    found, nodes = decision.found, decision.nodes
    return {
        "pod": decision.pod.key,
        "profile": decision.profile,
        "node": decision.choose(),
        "equallyGood": max(len(decision.best) - 1, 0),
        "status": decision.status.code.title,
        "message": decision.message,
        "nodes": len(nodes),
        "feasible": int(np.count_nonzero(found.feasible)),
        "scores": _scores(decision),
        "excluded": _excluded(decision),
        "blockers": [_blocker(one) for one in blockers.plugins],
        "preemption": _preemption(preemption),
        "annotations": dict(annotations),
        "advice": [] if decision.status.ok else [*waits_for, *blockers.advice],
    }


def simulation_report(simulated: Simulated) -> Json:
    """Return where pods went, what is pending, and the utilisation before and after."""
    return {
        "kind": "Simulation",
        "placed": len(simulated.pods) - len(simulated.pending),
        "pending": len(simulated.pending),
        "evicted": [
            {"pod": one.pod.key, "node": one.node, "by": one.by} for one in simulated.evicted
        ],
        "pods": [
            {
                "pod": one.pod.key,
                "node": one.node,
                "message": one.message,
                "annotations": dict(one.annotations),
            }
            for one in simulated.pods
        ],
        "utilization": {
            name: {"before": _shares(simulated.before[name]), "after": _shares(after)}
            for name, after in simulated.after.items()
        },
    }


def _preemption(result: PostFilterResult | None) -> Json | None:
    if result is None or not result.nominated_node:
        return None
    return {"node": result.nominated_node, "victims": [one.key for one in result.victims]}


def _shares(one: Utilization) -> Json:
    return {"mean": one.mean, "lowest": one.lowest, "highest": one.highest}


def _scores(decision: Decision) -> list[Json]:
    """The feasible nodes, the best one first; without scores where only one is feasible."""
    nodes, table = decision.nodes, decision.table
    if table is None:
        rows = np.flatnonzero(decision.found.feasible).tolist()
        return [{"node": nodes.node(row).name, "total": None, "plugins": {}} for row in rows]
    names = [nodes.node(row).name for row in table.rows.tolist()]
    order = sorted(range(len(names)), key=lambda at: (-int(table.totals[at]), names[at]))
    return [
        {
            "node": names[at],
            "total": int(table.totals[at]),
            "plugins": {name: int(column[at]) for name, column in table.columns.items()},
        }
        for at in order[:MAX_NODES]
    ]


def _excluded(decision: Decision) -> list[Json]:
    """Nodes that are not feasible, by name, each with the plugin that rejects it first."""
    statuses = decision.found.statuses
    if statuses is None:
        return []
    nodes = decision.nodes
    rows = np.flatnonzero(~decision.found.feasible).tolist()
    named = sorted((nodes.node(row).name, row) for row in rows)[:MAX_NODES]
    return [_rejection(name, statuses, row) for name, row in named]


def _rejection(name: str, statuses: NodeStatuses, row: int) -> Json:
    status = statuses.status(row)
    return {
        "node": name,
        "plugin": "" if status is None else status.plugin,
        "reason": "" if status is None else status.message,
    }


def _blocker(one: Blocker) -> Json:
    return {
        "plugin": one.plugin,
        "nodes": one.nodes,
        "alone": one.alone,
        "reasons": dict(one.reasons),
    }


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
        annotations = {} if pod.node else _planned(profile.plugins, decision)
    report = await asyncio.to_thread(
        decision_report,
        decision,
        blockers,
        preemption,
        annotations=annotations,
        waits_for=waits_for,
    )
    return {**base, "decision": report}


def _planned(plugins: ProfilePlugins, decision: Decision) -> Mapping[str, str]:
    """Return what plugins would write on a pod on the node that it would go to now."""
    node, pod = decision.choose(), decision.pod
    if node is None:
        return {}
    try:
        placed = PlannedReserve(plugins).placed(pod, decision.nodes, node)
    except ExtensionPointError:
        return {}  # it is logged
    before = dict(pod.annotations)
    return {key: text for key, text in placed.annotations if before.get(key) != text}
