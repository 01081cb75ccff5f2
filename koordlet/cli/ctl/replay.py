"""koordletctl replay: what the plugins would do with a record."""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from rich.console import RenderableType

from koord.api.nodeslo import NodeSLO, merge_nodeslo
from koord.component.flags import FlagSet
from koord.component.plugins.discovery import discover
from koord.component.terminal import ProgressReport, figure, heading, prose, show, table
from koord.util.documents import decode
from koord.util.errors import InvalidObject, KoordError, OptionError
from koord.util.filewatch import read_bounded
from koord.util.logs import LevelSpec, configure
from koord.util.simulatedclock import SimulatedClock
from koordlet import NAME
from koordlet.cli.ctl.arguments import CtlOptions
from koordlet.cli.ctl.client import BadRequest, CtlClient
from koordlet.cli.ctl.units import span
from koordlet.features import feature_gates as gate_table
from koordlet.plugin.base import ExtensionPlugin
from koordlet.plugin.registry import PluginRegistry
from koordlet.qosmanager.config import QOSExtensionConfig
from koordlet.replay.player import Player, ReplayResult, as_json
from koordlet.replay.record_format import LineKind, Recording

MAX_NODESLO = 1 << 20  # bytes


def run(client: CtlClient, options: CtlOptions) -> int:
    """Play the record and show the comparison; 1 when it could not be read to its end."""
    configure("console", LevelSpec("error"), NAME)
    record = Recording.open(options.file)
    slo = _read_slo(options.nodeslo) if options.nodeslo else None
    began = time.perf_counter()
    played = asyncio.run(_play(record, options, slo))
    took = time.perf_counter() - began
    if record.problem:
        played.problems.append(f"the record is not whole: {record.problem}")
    response = as_json(played) | {"tookSeconds": round(took, 3)}
    show(response, lambda: view(response, timeline=options.timeline), options.output)
    return 0 if record.complete else 1


async def _play(record: Recording, options: CtlOptions, slo: NodeSLO | None) -> ReplayResult:
    facts = record.facts
    try:
        start = {name: float(facts[name]) for name in ("wall", "monotonic", "boot")}
    except (KeyError, TypeError, ValueError) as err:
        raise InvalidObject(str(record.path), wanted="when it began", found=repr(err)) from err
    clock = SimulatedClock(wall=start["wall"], monotonic=start["monotonic"], boottime=start["boot"])
    try:
        plugins = prepare_plugins(
            facts, clock, feature_gates=_gates(options.feature_gates), flags=options.flags
        )
    except OptionError as err:
        raise BadRequest(str(err)) from err
    player = Player(facts, record.in_force, clock=clock, plugins=plugins, slo=slo)
    with ProgressReport(f"replaying {record.path}") as report:
        return await player.play(_reported(record, report))


def _reported(record: Recording, report: ProgressReport) -> Iterator[tuple[LineKind, list[Any]]]:
    """The lines of a record, with progress as far as the file is read."""
    for line in record.lines():
        report.show(record.share)
        yield line


def prepare_plugins(
    facts: Mapping[str, Any],
    clock: SimulatedClock,
    *,
    feature_gates: Mapping[str, bool] | None = None,
    flags: Sequence[str] = (),
) -> dict[str, ExtensionPlugin]:
    """The installed plugins, as their gates and flags were when it was recorded.

    feature_gates and flags ("name=value") are added to those.

    Raises:
        OptionError: a gate or flag does not exist, or its value cannot be used.
    """
    registry, gates, known = PluginRegistry(), gate_table(), FlagSet()
    discover(registry)
    config = QOSExtensionConfig(registry, gates, clock=clock, metrics=CollectorRegistry())
    config.init_flags(known)
    recorded = [
        f"--{name}={text}" for name, text in facts.get("flags", {}).items() if name in known
    ]
    known.parse([*recorded, *(f"--{flag}" for flag in flags)])
    were_on = frozenset(facts.get("gates", ()))
    as_recorded = {
        gate: gate in were_on
        for registration in registry
        for gate in registration.gates
        if gate in gates.names()
    }
    gates.replace_map({**as_recorded, **(feature_gates or {})})
    return {
        registration.name: registration.plugin
        for registration in registry
        if registration.name not in config.failures
        and any(gates.enabled(gate) for gate in registration.gates if gate in gates.names())
    }


def _gates(text: str) -> dict[str, bool]:
    """Raises OptionError."""
    flags = FlagSet()
    gates = flags.bool_map("feature-gates", {}, "")
    flags.parse([f"--feature-gates={text}"])
    return dict(gates.value)


def _read_slo(path: Path) -> NodeSLO:
    """The NodeSLO of a file; raises KoordError when anything in it is wrong."""
    try:
        slo, problems = merge_nodeslo(decode(read_bounded(path, MAX_NODESLO), str(path)))
    except KoordError as err:
        raise BadRequest(str(err)) from err
    if problems:
        raise BadRequest(f"{path}: {problems[0]}")
    return slo


def view(response: Mapping[str, Any], *, timeline: bool) -> Iterator[RenderableType]:
    """Print the length, changes value by value, evictions, and failures."""
    speed = response["seconds"] / max(response["tookSeconds"], 0.001)
    yield prose(
        f"{span(response['seconds'])} of the node in {response['tookSeconds']:.1f} s "
        f"({speed:.0f} times as fast)"
    )
    yield prose("")
    yield from _values(response["values"])
    if timeline:
        yield from _timeline(response["changes"])
    yield from _evictions(response["evictions"])
    if response["linesLost"]:
        yield prose(f"the record lacks {response['linesLost']} lines: it was read too slowly")
    for problem in response["problems"]:
        yield prose(problem, "yellow")


def _values(values: list[Mapping[str, Any]]) -> Iterator[RenderableType]:
    if not values:
        yield prose("no kernel value was changed, nor would be")
        return
    rows = table(
        "<VALUE", "<OF", ">DONE", ">HELD", ">LOW", ">MEAN", ">HIGH", ">WOULD", ">HELD", ">LOW",
        ">MEAN", ">HIGH",
    )  # fmt: skip
    for row in values:
        rows.add_row(
            figure(row["resource"]), prose(row["place"]), *_held(row["done"]), *_held(row["would"])
        )
    yield rows


def _held(held: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield figure(str(held["changes"]))
    yield figure(span(held["seconds"]) if held["seconds"] else "-")
    for name in ("lowest", "mean", "highest"):
        yield figure("-" if held[name] is None else f"{held[name]:.0f}")


def _timeline(changes: Mapping[str, list[Mapping[str, Any]]]) -> Iterator[RenderableType]:
    both = [(change, side) for side in ("done", "would") for change in changes[side]]
    rows = table(">AT", "<SIDE", "<WHAT", "<VALUE", "<OF", ">FROM", ">TO", "<WHY")
    for change, side in sorted(both, key=lambda each: each[0]["at"]):
        rows.add_row(
            figure(f"{change['at']:.1f}"),
            figure(side),
            figure(change["what"].removeprefix("would_")),
            figure(change["resource"]),
            prose(change["place"]),
            figure(change["old"]),
            figure(change["new"]),
            prose(change["reason"]),
        )
    yield prose("")
    yield rows


def _evictions(evictions: Mapping[str, list[Mapping[str, Any]]]) -> Iterator[RenderableType]:
    for title, side in (("evictions decided", "done"), ("would be decided", "would")):
        if not evictions[side]:
            continue
        yield prose("")
        yield heading(title)
        rows = table("<WHEN", "<PLUGIN", "<POD", "<OUTCOME", "<WHY")
        for each in evictions[side]:
            rows.add_row(
                figure(each["last"]),
                figure(each["plugin"]),
                prose(each["pod"]),
                figure(each["outcome"]),
                prose(each["reason"]),
            )
        yield rows
