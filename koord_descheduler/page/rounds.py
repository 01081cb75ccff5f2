"""A cycle's decisions for the page: what became of nodes and pods, and a map of the nodes."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from koord_descheduler.framework.decisions import (
    Action,
    CycleDecisions,
    NodeDecision,
    PodDecision,
)

MOST_NODES = 10_000  # of a map
MOST_MAPS = 8  # of a cycle: profiles and their plugins
MOST_MOVES = 200  # of a cycle

Json = dict[str, Any]

_USAGE, _LOW, _HIGH = "_usage_percent", "_low_percent", "_high_percent"


@dataclass(frozen=True, slots=True)
class Round:
    """One cycle as the page has it."""

    summary: Json
    moves: list[Json]
    maps: list[Json]


def read_round(cycle: CycleDecisions) -> Round:
    """Find the words of a cycle's decisions, which takes a while with many nodes."""
    nodes, pods = cycle.nodes(), cycle.pods()
    moves = [one for one in pods if one.action is not Action.STAY]
    summary = {
        "t": cycle.began,
        "nodes": Counter(one.verdict for one in nodes),
        "pods": Counter(one.action.value for one in pods),
        "left_out": max(0, len(moves) - MOST_MOVES),
    }
    return Round(
        summary=summary,
        moves=[_move(cycle.began, one) for one in moves[:MOST_MOVES]],
        maps=_maps(cycle.began, nodes),
    )


def _move(began: float, one: PodDecision) -> Json:
    return {
        "t": began,
        "plugin": f"{one.profile}/{one.plugin}",
        "pod": one.pod,
        "node": one.node,
        "action": one.action.value,
        "to": list(one.candidates[:3]),
        "reason": one.reason,
    }


def _maps(began: float, nodes: Iterable[NodeDecision]) -> list[Json]:
    """A map for each plugin that has judged nodes."""
    by_plugin: dict[str, list[NodeDecision]] = {}
    for one in nodes:
        by_plugin.setdefault(f"{one.profile}/{one.plugin}", []).append(one)
    return [
        {"t": began, **_map(name, found)} for name, found in list(by_plugin.items())[:MOST_MAPS]
    ]


def _map(name: str, nodes: Sequence[NodeDecision]) -> Json:
    """Columns, in the order of the nodes' names. A figure that is not known is null."""
    shown = sorted(nodes, key=lambda one: one.node)[:MOST_NODES]
    resources = sorted(
        {fact.removesuffix(_USAGE) for one in shown for fact in one.facts if fact.endswith(_USAGE)}
    )
    return {
        "plugin": name,
        "left_out": len(nodes) - len(shown),
        "nodes": [one.node for one in shown],
        "verdicts": [one.verdict for one in shown],
        "resources": {
            each: {
                "usage": [_figure(one.facts, each + _USAGE) for one in shown],
                "low": [_figure(one.facts, each + _LOW) for one in shown],
                "high": [_figure(one.facts, each + _HIGH) for one in shown],
            }
            for each in resources
        },
    }


def _figure(facts: Mapping[str, float], name: str) -> float | None:
    value = facts.get(name)
    return None if value is None else round(value, 1)
