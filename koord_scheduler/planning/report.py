"""Decisions as JSON: the shape that docs/placement.md describes."""

from typing import Any

import numpy as np

from koord_scheduler.framework.diagnosis import NodeStatuses
from koord_scheduler.framework.results import PostFilterResult
from koord_scheduler.planning.blockers import Blocker, Blockers
from koord_scheduler.planning.decision import Decision
from koord_scheduler.planning.simulation import Simulated, Utilization

Json = dict[str, Any]

MOST_NODES = 1000  # nodes of one decision that are listed with their scores, or why not


def decision_report(
    decision: Decision, blockers: Blockers, preemption: PostFilterResult | None = None
) -> Json:
    """Return a decision: the node and the scores, or the cause and what would help.

    preemption: what PostFilter would do; None: nothing, or it is not known.
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
        "advice": [] if decision.status.ok else list(blockers.advice),
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
            {"pod": one.pod.key, "node": one.node, "message": one.message} for one in simulated.pods
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
        for at in order[:MOST_NODES]
    ]


def _excluded(decision: Decision) -> list[Json]:
    """Nodes that are not feasible, by name, each with the plugin that rejects it first."""
    statuses = decision.found.statuses
    if statuses is None:
        return []
    nodes = decision.nodes
    rows = np.flatnonzero(~decision.found.feasible).tolist()
    named = sorted((nodes.node(row).name, row) for row in rows)[:MOST_NODES]
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
