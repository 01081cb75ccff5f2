"""Plans and decisions as JSON, for the commands and over HTTP: /explain."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from koord.cluster.dump import Dump
from koord.component.http.responses import json_body, json_bytes
from koord.controlplane.commands import dump_report, time_text
from koord_descheduler.framework.decisions import (
    Action,
    CycleDecisions,
    Decisions,
    NodeDecision,
    PodDecision,
)
from koord_descheduler.planning.plan import Plan

Json = dict[str, Any]


def plan_report(plan: Plan, dump: Dump | None = None) -> Json:
    """Return a plan, and what was read of the dump that it is made from."""
    report: Json = {
        "kind": "Plan",
        "at": time_text(plan.at),
        "nodesConsidered": plan.considered,
        "evictions": plan.count(Action.EVICT),
        **decisions_report(plan.nodes, plan.pods),
        "errors": list(plan.errors),
    }
    if dump is not None:
        report["input"] = dump_report(dump)
    return report


def decisions_report(nodes: Sequence[NodeDecision], pods: Sequence[PodDecision]) -> Json:
    """Return decisions, in the order in which they are given."""
    return {"nodes": [_node(one) for one in nodes], "pods": [_pod(one) for one in pods]}


def _node(one: NodeDecision) -> Json:
    return {
        "profile": one.profile,
        "plugin": one.plugin,
        "node": one.node,
        "verdict": one.verdict,
        "reason": one.reason,
        "hint": one.hint,
        "facts": _facts(one.facts),
    }


def _pod(one: PodDecision) -> Json:
    return {
        "profile": one.profile,
        "plugin": one.plugin,
        "pod": one.pod,
        "node": one.node,
        "action": one.action.value,
        "reason": one.reason,
        "candidates": list(one.candidates),
        "facts": _facts(one.facts),
    }


def _facts(facts: Mapping[str, float]) -> dict[str, float | None]:
    """null where a figure is none: JSON has neither NaN nor infinity."""
    return {name: value if math.isfinite(value) else None for name, value in facts.items()}


MAX_PER_CYCLE = 1000  # decisions of one kind of a cycle in a response
MAX_NAME_LENGTH = 512  # characters of a question


@dataclass(frozen=True, slots=True)
class Question:
    """About what: a node, a pod, or with neither about all."""

    node: str = ""  # name
    pod: str = ""  # namespace/name; a name alone means pods of that name in all namespaces

    def about_node(self, one: NodeDecision) -> bool:
        return not self.pod and self.node in ("", one.node)

    def about_pod(self, one: PodDecision) -> bool:
        """Whether a pod is covered; a question about a node covers pods on it or bound for it."""
        if self.pod:
            return one.pod == self.pod or one.pod.partition("/")[2] == self.pod
        return not self.node or self.node in (one.node, *one.candidates)


def explanation(cycles: Iterable[CycleDecisions], question: Question, *, is_leader: bool) -> Json:
    """Return what was decided about the subject of a question, the newest cycle first.

    is_leader: whether this replica leads; another one decides nothing.
    """
    return {
        "kind": "Explanation",
        "leader": is_leader,
        "node": question.node,
        "pod": question.pod,
        "cycles": [_cycle(one, question) for one in reversed(tuple(cycles))],
    }


def explain_handler(
    decisions: Decisions, is_leader: Callable[[], bool]
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Return the handler of /explain?node=…|pod=…. The caller that mounts it guards it."""

    async def explain(request: web.Request) -> web.Response:
        question = Question(request.query.get("node", ""), request.query.get("pod", ""))
        if len(question.node) + len(question.pod) > MAX_NAME_LENGTH:
            raise web.HTTPBadRequest(text=f"wanted at most {MAX_NAME_LENGTH} characters\n")
        cycles = [one.copy() for one in decisions.cycles]  # the loop goes on with the others
        found = await asyncio.to_thread(explanation, cycles, question, is_leader=is_leader())
        return json_body(await asyncio.to_thread(json_bytes, found))

    return explain


def _cycle(cycle: CycleDecisions, question: Question) -> Json:
    nodes = [one for one in cycle.nodes() if question.about_node(one)]
    pods = [one for one in cycle.pods() if question.about_pod(one)]
    shown = decisions_report(nodes[:MAX_PER_CYCLE], pods[:MAX_PER_CYCLE])
    left_out = len(nodes) + len(pods) - len(shown["nodes"]) - len(shown["pods"])
    return {"began": time_text(cycle.began), **shown, "leftOut": left_out}
