"""The command `koord-descheduler replay`: another configuration, played on a record."""

import argparse
import asyncio
import gc
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from rich.console import RenderableType

from koord.component.config.document import read_config
from koord.component.terminal import (
    Name,
    ProgressReport,
    figure,
    heading,
    pairs,
    prose,
    show,
    table,
)
from koord.controlplane.commands import command_parser, print_message, run_command
from koord.util.errors import OptionError
from koord_descheduler.backtest.player import (
    HotRule,
    RecordSummary,
    Replay,
    hot_rules,
    play,
    summarize,
)
from koord_descheduler.config import Configuration, config_parser, parse_configuration
from koord_descheduler.framework.profile import PluginRegistry, known_plugins
from koord_descheduler.planning import DEFAULT_HIGH_THRESHOLDS, installed_plugins, percents

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
        "unknown": list(replay.unknown),
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
    for text in (*report["errors"], report["damage"], *report["unknown"]):
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


NAME = "koord-descheduler replay"
COLLECT_AFTER = 200_000  # young objects; a report makes a hundred, which no cycle keeps alive

_ABOUT = """\
Play a configuration on a record of `koord-descheduler record`: the profiles run at the recorded
times, those in dry-run too, and what they evict goes to the node that fits and has the lowest load.
Shows evictions per hour, and for how many minutes nodes were hot, as recorded and as they would
have been. No API server is asked."""


class ReplayOptions(argparse.Namespace):
    """The options of a command line."""

    record: Path
    config: Path | None = None  # None: the recorded one
    hot: Mapping[str, float] | None = None  # None: the configuration's high thresholds, or HIGH
    output: Literal["table", "json"] = "table"


def main(argv: Sequence[str], registry: PluginRegistry | None = None) -> int:
    """Print what a replay shows. Returns the exit status; see --help.

    registry has the plugins that can be enabled; None: those that are installed.
    """
    options = parser().parse_args(argv, namespace=ReplayOptions())
    return run_command(NAME, lambda: _replay(options, registry or installed_plugins(NAME)))


def _replay(options: ReplayOptions, registry: PluginRegistry) -> None:
    try:
        found = summarize(options.record)
    except OSError as err:
        hint = "name a file of `koord-descheduler record`"
        raise OptionError("FILE", f"{options.record}: {err.strerror}", hint) from err
    configuration = _configuration(options, found, registry)
    if options.hot is not None:
        rules: tuple[HotRule, ...] = (HotRule(options.hot),)
    else:
        rules = hot_rules(configuration) or (HotRule(DEFAULT_HIGH_THRESHOLDS),)
    gc.set_threshold(COLLECT_AFTER, 50, 50)
    with ProgressReport(f"replaying {options.record}") as report:
        playing = play(options.record, found, configuration, registry, rules, report.show)
        replay = asyncio.run(playing)
    response = replay_report(replay)
    show(response, lambda: replay_view(response), options.output)


def _configuration(
    options: ReplayOptions, found: RecordSummary, registry: PluginRegistry
) -> Configuration:
    known = known_plugins(registry)
    if options.config is not None:
        read = read_config(options.config, config_parser(known))
    elif found.header.config:
        where = Path(f"configuration in {options.record}")
        read = parse_configuration(found.header.config.encode(), where, known)
    else:
        hint = "the record has none: name a DeschedulerConfiguration"
        raise OptionError("--config", "nothing", hint)
    for fault in read.warnings:
        print_message(NAME, f"warning: {fault}")
    configuration = read.configuration
    if configuration.descheduling_interval <= 0:
        hint = "set deschedulingInterval: without one there is a single cycle"
        raise OptionError("--config", "no interval", hint)
    return configuration


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    command = command_parser(NAME, _ABOUT)
    add = command.add_argument
    add("record", type=Path, metavar="FILE", help="a file of `koord-descheduler record`")
    add("--config", type=Path, metavar="FILE", help="a DeschedulerConfiguration; or the recorded")
    add("--hot", type=percents, metavar="CPU,MEMORY", help=_HOT_HELP)
    add("--output", "-o", choices=("table", "json"), help="table (default) or json")
    return command


_HOT_HELP = (
    "percent of allocatable above which a node is hot, as cpu=75,memory=80; by default the high "
    "thresholds of LowNodeLoad in the configuration"
)
