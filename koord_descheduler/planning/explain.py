"""The decisions of the last cycles about a node or a pod, over HTTP: /explain."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from aiohttp import web

from koord.component.http.responses import json_body, json_bytes
from koord.controlplane.dumpreport import moment
from koord_descheduler.framework.decisions import (
    CycleDecisions,
    Decisions,
    NodeDecision,
    PodDecision,
)
from koord_descheduler.planning.report import Json, decisions_report

MOST_OF_CYCLE = 1000  # decisions of one kind of a cycle in an answer
LONGEST_NAME = 512  # characters of a question


@dataclass(frozen=True, slots=True)
class Question:
    """About what: a node, a pod, or with neither about all."""

    node: str = ""  # name
    pod: str = ""  # namespace/name; a name alone means pods of that name in all namespaces

    def about_node(self, one: NodeDecision) -> bool:
        return not self.pod and self.node in ("", one.node)

    def about_pod(self, one: PodDecision) -> bool:
        """Of a node, the pods on it and those that could come to it."""
        if self.pod:
            return one.pod == self.pod or one.pod.partition("/")[2] == self.pod
        return not self.node or self.node in (one.node, *one.candidates)


def explanation(cycles: Iterable[CycleDecisions], question: Question, *, leads: bool) -> Json:
    """Return what was decided about the subject of a question, the newest cycle first.

    leads: whether this replica is the leader; another one decides nothing.
    """
    return {
        "kind": "Explanation",
        "leader": leads,
        "node": question.node,
        "pod": question.pod,
        "cycles": [_cycle(one, question) for one in reversed(tuple(cycles))],
    }


def explain_handler(
    decisions: Decisions, leads: Callable[[], bool]
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Return the handler of /explain?node=…|pod=…. Whoever mounts it guards it."""

    async def explain(request: web.Request) -> web.Response:
        question = Question(request.query.get("node", ""), request.query.get("pod", ""))
        if len(question.node) + len(question.pod) > LONGEST_NAME:
            raise web.HTTPBadRequest(text=f"wanted at most {LONGEST_NAME} characters\n")
        cycles = [one.copy() for one in decisions.cycles]  # the loop goes on with the others
        found = await asyncio.to_thread(explanation, cycles, question, leads=leads())
        return json_body(await asyncio.to_thread(json_bytes, found))

    return explain


def _cycle(cycle: CycleDecisions, question: Question) -> Json:
    nodes = [one for one in cycle.nodes() if question.about_node(one)]
    pods = [one for one in cycle.pods() if question.about_pod(one)]
    shown = decisions_report(nodes[:MOST_OF_CYCLE], pods[:MOST_OF_CYCLE])
    left_out = len(nodes) + len(pods) - len(shown["nodes"]) - len(shown["pods"])
    return {"began": moment(cycle.began), **shown, "leftOut": left_out}
