"""Decisions as JSON (see docs/placement.md) and as tables, and the responses of /explain."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from aiohttp import web
from msgspec.structs import replace
from rich.console import RenderableType

from koord.cluster.hypothetical import without_pod
from koord.component.http.responses import json_body, json_bytes
from koord.component.terminal import ABSENT, Name, figure, heading, prose, table
from koord.controlplane.commands import dump_view
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


_Report = Mapping[str, Any]


def placement_view(report: _Report, most: int) -> Iterator[RenderableType]:
    """The lines of a response of place or explain; at most so many nodes of each table."""
    if "input" in report:
        yield from dump_view(report["input"])
    yield heading(_outcome(report))
    if report["message"]:
        yield prose(report["message"], "yellow")
    if report["preemption"] is not None:
        found = report["preemption"]
        victims = ", ".join(found["victims"]) or "nothing"
        yield prose(f"it would preempt {victims} on {found['node']}")
    for key, text in report["annotations"].items():
        yield prose(f"it would have {key}: {text}")
    yield from _blockers(report["blockers"])
    if report["advice"]:
        yield heading("")
        yield heading("what would help")
        for text in report["advice"]:
            yield prose(f"- {text}")
    if report["scores"]:
        yield heading("")
        yield _score_table(report["scores"][:most])
        yield from _more(len(report["scores"]) - most, "feasible nodes")
    if report["excluded"]:
        yield heading("")
        yield _excluded_table(report["excluded"][:most])
        yield from _more(len(report["excluded"]) - most, "excluded nodes")


def explanation_view(report: _Report, most: int) -> Iterator[RenderableType]:
    """The lines of a response of a running scheduler."""
    yield heading(_state(report))
    decision = report["decision"]
    if decision is None:
        known = ", ".join(report["schedulers"])
        yield prose(f'its schedulerName is "{report["schedulerName"]}"; here are: {known}')
        return
    if report["gatedBy"]:
        yield prose(f"{report['gatedBy']} keeps it from being tried", "yellow")
    elif report["rejectedBy"]:
        tried = f"tried {report['attempts']} times, rejected by {', '.join(report['rejectedBy'])}"
        yield prose(f"{tried}; as things are now:")
    yield from placement_view(decision, most)


def _state(report: _Report) -> str:
    """Where a pod is, and whether that is certain."""
    if report["boundTo"]:
        how = "is on its way to" if report["assumed"] else "is on"
        return f"{report['pod']} {how} {report['boundTo']}"
    return f"{report['pod']} is pending: {_PLACES.get(report['queue'], 'not in the queue')}"


_PLACES = {
    "active": "its turn comes soon",
    "backoff": "it is tried again after its backoff",
    "unschedulable": "it waits until something happens that may help",
    "gated": "it may not be tried yet",
    "inFlight": "it is being tried",
}


def simulation_view(report: _Report) -> Iterator[RenderableType]:
    """The lines of a simulation."""
    if "input" in report:
        yield from dump_view(report["input"])
    evicted = f", {len(report['evicted'])} are evicted" if report["evicted"] else ""
    yield heading(f"{report['placed']} pods are placed, {report['pending']} stay pending{evicted}")
    yield heading("")
    shares = table("REQUESTED", ">MEAN", ">LOWEST NODE", ">HIGHEST NODE")
    for name, one in report["utilization"].items():
        changes = (
            f"{one['before'][key]:.0%} -> {one['after'][key]:.0%}"
            for key in ("mean", "lowest", "highest")
        )
        shares.add_row(figure(name), *map(figure, changes))
    yield shares
    yield heading("")
    rows = table("POD", "NODE", "WHY NOT, OR WHAT IT HAS")
    for one in report["pods"]:
        has = (f"{key.rpartition('/')[2]} {text}" for key, text in one["annotations"].items())
        text = one["message"] or ", ".join(has)
        rows.add_row(Name(one["pod"]), Name(one["node"] or ABSENT), prose(text))
    yield rows
    if report["evicted"]:
        yield heading("")
        victims = table("EVICTED", "FROM", "FOR")
        for one in report["evicted"]:
            victims.add_row(Name(one["pod"]), Name(one["node"]), Name(one["by"]))
        yield victims


def _outcome(report: _Report) -> str:
    whole = f"{report['feasible']} of {report['nodes']} nodes are feasible"
    if report["node"] is None:
        return f"{report['pod']} stays pending: {whole}"
    same = report["equallyGood"]
    more = "another one that is" if same == 1 else f"one of {same} others that are"
    others = f", or to {more} as good" if same else ""
    return f"{report['pod']} would go to {report['node']}{others}: {whole}"


def _blockers(blockers: Sequence[_Report]) -> Iterator[RenderableType]:
    if not blockers:
        return
    yield heading("")
    rows = table("REJECTED BY", ">NODES", ">ALONE", "WHY")
    for one in blockers:
        why = ", ".join(f"{nodes} {reason}" for reason, nodes in one["reasons"].items())
        rows.add_row(figure(one["plugin"]), figure(one["nodes"]), figure(one["alone"]), prose(why))
    yield rows


def _score_table(nodes: Sequence[_Report]) -> RenderableType:
    plugins = list(nodes[0]["plugins"])
    rows = table("NODE", ">TOTAL", *(f">{name}" for name in plugins))
    for one in nodes:
        total = ABSENT if one["total"] is None else one["total"]
        rows.add_row(
            Name(one["node"]), figure(total), *(figure(one["plugins"][name]) for name in plugins)
        )
    return rows


def _excluded_table(nodes: Sequence[_Report]) -> RenderableType:
    rows = table("EXCLUDED", "<BY", "WHY")
    for one in nodes:
        rows.add_row(Name(one["node"]), figure(one["plugin"] or ABSENT), prose(one["reason"]))
    return rows


def _more(count: int, what: str) -> Iterator[RenderableType]:
    if count > 0:
        yield prose(f"and {count} more {what}", "dim")


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
