"""Explains what a node offers and why, as JSON."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from koord.component.http.responses import json_body, json_bytes
from koord_manager.controllers.noderesource import InsufficientResource, NodeResources
from koord_manager.framework.calculator import NodeResult, OfferedResource, amount_text
from koord_manager.framework.facts import NodeFacts

Json = dict[str, Any]
MAX_NAME_LENGTH = 253
MAX_PODS = 100  # that are named as holding more than there is


def node_report(
    facts: NodeFacts, result: NodeResult, short: Mapping[str, InsufficientResource]
) -> Json:
    """Return what a node offers: each resource with the lines that lead to it."""
    present = dict(facts.node.allocatable)
    report = facts.report
    return {
        "node": facts.name,
        "enabled": facts.strategy.enable,
        "report": {
            "time": None if report is None else report.update_time,
            "stale": facts.stale,
            "doubts": list(result.doubts),
        },
        "resources": {
            name: _resource(name, one, present.get(name), short.get(name))
            for name, one in result.resources.items()
        },
        "annotations": dict(result.annotations),
        "labels": dict(result.labels),
        "zones": {
            zone: {name: None if one is None else str(one) for name, one in amounts.items()}
            for zone, amounts in result.zones.items()
        },
        "problems": list(result.problems),
    }


def _resource(
    name: str, one: OfferedResource, present: int | None, short: InsufficientResource | None
) -> Json:
    found: Json = {
        "plugin": one.plugin,
        "offered": _text(name, one.amount),
        "onNode": _text(name, present),
        "calculated": _text(name, one.calculated),
        "terms": [{"name": term.name, "amount": term.amount} for term in one.terms],
        "factor": one.factor,
        "thirdParties": one.given or 0,
        "reason": one.reason,
    }
    if short is not None:
        found["held"] = {"amount": short.held, "pods": list(short.pods[:MAX_PODS])}
    return found


def _text(name: str, amount: int | None) -> str | None:
    return None if amount is None else amount_text(name, amount)


def explain_handler(
    resources: NodeResources, is_leader: Callable[[], bool]
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Return the handler of /explain?node=NAME. The caller that mounts it guards it."""

    async def explain(request: web.Request) -> web.Response:
        name = request.query.get("node", "")
        if not 0 < len(name) <= MAX_NAME_LENGTH:
            raise web.HTTPBadRequest(text="wanted ?node=NAME\n")
        found = resources.explain(name)
        if found is None:
            raise web.HTTPNotFound(text=f"node {name}: not known, or there is no configuration\n")
        body = {"kind": "Explanation", "leader": is_leader(), **node_report(*found)}
        return json_body(await asyncio.to_thread(json_bytes, body))

    return explain
