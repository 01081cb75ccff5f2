"""Plans and explanations as tables. Only commands import it: it brings rich, which takes 4 MiB."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from koord.component.terminal import Name, figure, heading, prose, table
from koord.controlplane.commands import dump_view

MAX_CANDIDATES = 3  # of a pod that are shown by name

_Report = Mapping[str, Any]
_STYLES = {"evict": "cyan", "refused": "yellow", "stay": "dim"}


def plan_view(report: _Report) -> Iterator[RenderableType]:
    """The lines of a plan."""
    counts = {name: _count(report["pods"], name) for name in ("evict", "refused", "stay")}
    yield heading(
        f"plan for {report['at']}: of {report['nodesConsidered']} nodes, "
        f"{counts['evict']} pods would be evicted, {counts['refused']} are refused, "
        f"{counts['stay']} stay"
    )
    if "input" in report:
        yield from dump_view(report["input"])
    for error in report["errors"]:
        yield prose(f"failed: {error}", "red")
    for text in report["unknown"]:
        yield prose(text, "yellow")
    yield from decisions_view(report)


def explanation_view(report: _Report) -> Iterator[RenderableType]:
    """The lines of a response of /explain, cycle by cycle."""
    name = report["node"] or report["pod"]
    decided = [one for one in report["cycles"] if one["nodes"] or one["pods"]]
    yield prose(f"{len(report['cycles'])} cycles are known, {len(decided)} have looked at {name}")
    for cycle in decided:
        yield heading("")
        yield heading(f"cycle of {cycle['began']}")
        yield from decisions_view(cycle)
        if cycle["leftOut"]:
            yield prose(f"and {cycle['leftOut']} more decisions")


def decisions_view(report: _Report) -> Iterator[RenderableType]:
    """The nodes, the pods that would go, and those that stay."""
    if not report["nodes"] and not report["pods"]:
        yield prose("nothing was decided")
    if report["nodes"]:
        yield heading("")
        yield _node_table(report["nodes"])
    going = [one for one in report["pods"] if one["action"] == "evict"]
    staying = [one for one in report["pods"] if one["action"] != "evict"]
    if going:
        yield heading("")
        yield _going(going)
    if staying:
        yield heading("")
        yield _staying(staying)


def _node_table(nodes: Sequence[_Report]) -> RenderableType:
    rows = table("NODE", "<VERDICT", "<BY", "WHY", "WOULD CHANGE WITH")
    for one in nodes:
        rows.add_row(
            Name(one["node"]),
            figure(one["verdict"]),
            figure(one["plugin"]),
            prose(one["reason"]),
            prose(one["hint"]),
        )
    return rows


def _going(pods: Sequence[_Report]) -> RenderableType:
    rows = table("EVICT", "FROM", "TO ONE OF", "<BY", "WHY")
    for one in pods:
        rows.add_row(
            Name(one["pod"], _STYLES["evict"]),
            Name(one["node"]),
            prose(_candidates(one["candidates"])),
            figure(one["plugin"]),
            prose(one["reason"]),
        )
    return rows


def _staying(pods: Sequence[_Report]) -> RenderableType:
    rows = table("STAYS", "ON", "<OUTCOME", "<BY", "WHY")
    for one in pods:
        rows.add_row(
            Name(one["pod"]),
            Name(one["node"]),
            figure(one["action"], _STYLES[one["action"]]),
            figure(one["plugin"]),
            prose(one["reason"]),
        )
    return rows


def _candidates(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MAX_CANDIDATES])
    more = len(names) - MAX_CANDIDATES
    return f"{shown} and {more} more" if more > 0 else shown or "-"


def _count(pods: Sequence[_Report], action: str) -> int:
    return sum(one["action"] == action for one in pods)
