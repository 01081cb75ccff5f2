"""Decisions as tables. Only commands import it: it brings rich, which takes 4 MiB."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from koord.component.terminal import ABSENT, Name, figure, heading, prose, table
from koord.controlplane.commands import dump_view

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
