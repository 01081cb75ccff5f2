"""Plans and decisions as JSON: the shape that docs/planning.md describes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from koord.cluster.dump import Dump
from koord.controlplane.dumpreport import dump_report, moment
from koord_descheduler.framework.decisions import Action, NodeDecision, PodDecision
from koord_descheduler.planning.plan import Plan

Json = dict[str, Any]


def plan_report(plan: Plan, dump: Dump | None = None) -> Json:
    """Return a plan, and what was read of the dump that it is made from."""
    report: Json = {
        "kind": "Plan",
        "at": moment(plan.at),
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
