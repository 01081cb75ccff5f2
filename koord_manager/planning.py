"""What the nodes of a dump offer by one strategy, and would offer by another. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from koord.cluster.facts import ClusterNode
from koord.cluster.state import ClusterState
from koord_manager.controllers.noderesource import Shortage, shortages
from koord_manager.framework.calculator import Calculator, amount_text
from koord_manager.framework.decrease import History
from koord_manager.framework.facts import ClusterConfig, NodeFacts, gather_facts
from koord_manager.framework.objects import NodeDevices, NodeTopology

Json = dict[str, Any]
MAX_ROWS = 50  # nodes in the table; JSON has all


@dataclass(frozen=True, slots=True)
class PlannedCluster:
    """What a plan is made for. Objects beside nodes are by node."""

    state: ClusterState
    topologies: Mapping[str, NodeTopology] = field(default_factory=dict)
    devices: Mapping[str, NodeDevices] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What one node offers by each strategy, by resource; None: nothing of it."""

    name: str
    before: Mapping[str, int | None]
    after: Mapping[str, int | None]
    short: Mapping[str, Shortage]  # by the second strategy
    reason: str  # why it would offer nothing of some; "": it offers
    zones: Mapping[str, Mapping[str, str | None]]  # by the second strategy, as they are written


@dataclass(frozen=True, slots=True)
class Plan:
    """All nodes, in the order of their names."""

    at: float  # Unix seconds
    nodes: tuple[NodePlan, ...]
    problems: tuple[str, ...]

    def total(self, name: str, *, after: bool) -> int:
        """Return what all nodes offer of a resource together."""
        amounts = (one.after if after else one.before for one in self.nodes)
        return sum(found.get(name) or 0 for found in amounts)

    @property
    def resources(self) -> list[str]:
        """The resources that some node offers by either strategy."""
        found = {
            name
            for one in self.nodes
            for amounts in (one.before, one.after)
            for name, amount in amounts.items()
            if amount is not None
        }
        return sorted(found)


def make_plan(
    cluster: PlannedCluster,
    calculator: Calculator,
    before: ClusterConfig,
    after: ClusterConfig,
    *,
    now: float,
    only: str = "",
) -> Plan:
    """Return what each node offers by two configurations. No earlier offer bounds a decrease.

    only: the name of the one node that is looked at.
    """
    found, problems = list[NodePlan](), dict[str, None]()
    for node in cluster.state.nodes():
        if only not in ("", node.name):
            continue
        bare = replace_offers(node)
        one = _facts(cluster, bare, before, now)
        other = _facts(cluster, bare, after, now)
        first = calculator.calculate(one, History())
        second = calculator.calculate(other, History())
        problems.update(dict.fromkeys(f"{node.name}: {each}" for each in second.problems))
        reasons = {each.reason for each in second.resources.values() if each.amount is None}
        found.append(
            NodePlan(
                node.name,
                {name: each.amount for name, each in first.resources.items()},
                {name: each.amount for name, each in second.resources.items()},
                shortages(second, other.pods),
                "; ".join(sorted(reasons - {""})),
                {
                    zone: {name: None if one is None else str(one) for name, one in each.items()}
                    for zone, each in second.zones.items()
                },
            )
        )
    return Plan(now, tuple(found), tuple(problems))


def replace_offers(node: ClusterNode) -> ClusterNode:
    """Return the node without what it offers now: a plan does not depend on that."""
    kept = tuple(one for one in node.allocatable if one[0] in ("cpu", "memory"))
    return _with_allocatable(node, kept)


def _with_allocatable(node: ClusterNode, amounts: tuple[tuple[str, int], ...]) -> ClusterNode:
    from msgspec import structs

    return structs.replace(node, allocatable=amounts)


def _facts(
    cluster: PlannedCluster, node: ClusterNode, config: ClusterConfig, now: float
) -> NodeFacts:
    facts, _ = gather_facts(
        node,
        config,
        now=now,
        report=cluster.state.reports.get(node.name),
        pods=cluster.state.pods_of_node(node.name),
        topology=cluster.topologies.get(node.name),
        devices=cluster.devices.get(node.name),
    )
    return facts


def plan_report(plan: Plan) -> Json:
    """Return a plan as JSON."""
    totals = {
        name: {
            "before": plan.total(name, after=False),
            "after": plan.total(name, after=True),
            "gained": plan.total(name, after=True) - plan.total(name, after=False),
        }
        for name in plan.resources
    }
    return {
        "kind": "Plan",
        "totals": totals,
        "nodes": [
            {
                "node": one.name,
                "before": dict(one.before),
                "after": dict(one.after),
                "reason": one.reason,
                "zones": {name: dict(each) for name, each in one.zones.items()},
                "short": {
                    name: {"offered": each.offered, "held": each.held, "pods": list(each.pods)}
                    for name, each in one.short.items()
                },
            }
            for one in plan.nodes
        ],
        "problems": list(plan.problems),
    }


def plan_view(report: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield the tables of a plan's JSON."""
    yield _totals(report["totals"])
    rows = [one for one in report["nodes"] if one["before"] != one["after"] or one["short"]]
    if rows:
        names = list(report["totals"])
        table = Table("node", *names, "held above it by", box=None, pad_edge=False)
        for one in rows[:MAX_ROWS]:
            pods = sorted({pod for each in one["short"].values() for pod in each["pods"]})
            cells = [_change(name, one["before"], one["after"]) for name in names]
            table.add_row(one["node"], *cells, _few(pods) or one["reason"])
        yield Text("")
        yield table
        if len(rows) > MAX_ROWS:
            yield Text(f"and {len(rows) - MAX_ROWS} more nodes; --output=json has all")
    for problem in report["problems"][:10]:
        yield Text(problem)


def _totals(totals: Mapping[str, Mapping[str, int]]) -> Table:
    table = Table("all nodes", "now", "then", "gained", box=None, pad_edge=False)
    for name, one in totals.items():
        gained = one["gained"]
        sign = "-" if gained < 0 else "+"
        table.add_row(
            name,
            amount_text(name, one["before"]),
            amount_text(name, one["after"]),
            f"{sign}{amount_text(name, abs(gained))}",
        )
    return table


def _change(name: str, before: Mapping[str, int], after: Mapping[str, int]) -> str:
    texts = [
        "none" if found.get(name) is None else amount_text(name, found[name])
        for found in (before, after)
    ]
    return texts[0] if texts[0] == texts[1] else " to ".join(texts)


def _few(pods: list[str]) -> str:
    more = f" and {len(pods) - 3} more" if len(pods) > 3 else ""
    return ", ".join(pods[:3]) + more
