"""The result of a replay, as JSON and as tables."""

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from rich.console import RenderableType

from koord.component.terminal import Name, figure, heading, pairs, prose, table
from koord_descheduler.backtest.player import Replay

MAX_SHOWN = 40  # evictions in a table

_Report = Mapping[str, Any]


def replay_report(replay: Replay) -> dict[str, Any]:
    """The shape that docs/backtest.md describes."""
    found, hours = replay.survey, replay.hours
    same = sum(one.is_recorded for one in replay.evictions)
    return {
        "kind": "Replay",
        "from": _moment(found.began),
        "to": _moment(found.ended),
        "hours": round(hours, 3),
        "nodes": replay.nodes,
        "cycles": replay.cycles,
        "evictions": {
            "recorded": len(found.evictions),
            "replayed": len(replay.evictions),
            "same": same,
            "recordedPerHour": _per(len(found.evictions), hours),
            "replayedPerHour": _per(len(replay.evictions), hours),
            "byPlugin": dict(sorted(Counter(one.plugin for one in replay.evictions).items())),
        },
        "hotNodeMinutes": {
            "recorded": round(replay.hot_recorded / 60, 1),
            "replayed": round(replay.hot_played / 60, 1),
        },
        "evicted": [
            {
                "at": _moment(one.at),
                "pod": one.pod,
                "node": one.node,
                "target": one.target,
                "recorded": one.is_recorded,
                "plugin": one.plugin,
                "reason": one.reason,
            }
            for one in replay.evictions
        ],
        "fitNowhere": list(replay.unplaced),
        "errors": list(replay.errors),
        "damage": replay.damage or found.damage,
    }


def replay_view(report: _Report) -> Iterator[RenderableType]:
    """The lines of a report."""
    evictions, hot = report["evictions"], report["hotNodeMinutes"]
    yield heading(
        f"{report['hours']:g} hours from {report['from']}, {report['nodes']} nodes, "
        f"{report['cycles']} cycles"
    )
    rows = table("", ">RECORDED", ">REPLAYED")
    rows.add_row("evictions", str(evictions["recorded"]), str(evictions["replayed"]))
    rows.add_row(
        "evictions per hour", f"{evictions['recordedPerHour']}", f"{evictions['replayedPerHour']}"
    )
    rows.add_row("hot node minutes", f"{hot['recorded']}", f"{hot['replayed']}")
    yield rows
    by_plugin = ", ".join(f"{name} {count}" for name, count in evictions["byPlugin"].items())
    facts = [("evictions in both", figure(str(evictions["same"])))]
    if by_plugin:
        facts.append(("by plugin", prose(by_plugin)))
    yield pairs(facts)
    for text in (*report["errors"], report["damage"]):
        if text:
            yield prose(text, "yellow")
    if report["fitNowhere"]:
        yield prose(f"fit nowhere in the end: {', '.join(report['fitNowhere'])}", "yellow")
    if report["evicted"]:
        yield heading("")
        yield _evicted(report["evicted"])


def _evicted(found: list[_Report]) -> RenderableType:
    rows = table("<AT", "POD", "FROM", "TO", "<BY", "WHY")
    for one in found[:MAX_SHOWN]:
        target = "as recorded" if one["recorded"] else one["target"] or "nowhere"
        rows.add_row(
            figure(one["at"]),
            Name(one["pod"]),
            Name(one["node"]),
            Name(target),
            figure(one["plugin"]),
            prose(one["reason"]),
        )
    if len(found) > MAX_SHOWN:
        more = f"and {len(found) - MAX_SHOWN} more; --output json has them all"
        rows.add_row(figure(""), prose(more))
    return rows


def _per(count: int, hours: float) -> float:
    return round(count / hours, 2) if hours > 0 else 0.0


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
