"""koordletctl status: the daemon's health, gates and extent."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from koord.component.terminal import figure, heading, pairs, prose, show, table
from koordlet.cli.ctl.arguments import CtlOptions
from koordlet.cli.ctl.client import CtlClient, NoDaemon
from koordlet.cli.ctl.explain import budget_text
from koordlet.cli.ctl.plugins import dry_run_text
from koordlet.cli.ctl.units import size, span

HEALTH_STYLES = {"ok": "green", "degraded": "yellow", "unhealthy": "red"}


def run(client: CtlClient, options: CtlOptions) -> int:
    """Show the state; fails when the daemon is unhealthy, or not there."""
    try:
        status = client.get("status")
    except NoDaemon as err:
        kept, why = _kept_values(client.run_dirs), str(err)
        if not kept:
            raise
        show(kept, lambda: kept_view(kept, why), options.output)
        return 1
    show(status, lambda: view(status, datetime.now(UTC)), options.output)
    return 1 if status["health"] == "unhealthy" else 0


def kept_view(kept: Sequence[Mapping[str, Any]], why: str) -> Iterator[RenderableType]:
    """Kernel values that a daemon that is gone has left."""
    yield prose(why)
    yield prose("")
    yield heading(f"{len(kept)} kernel values are still changed; koordletctl restore ends that")
    rows = table("<CGROUP", "<VALUE", "SET TO", "WAS")
    for value in kept:
        place, resource = figure(value["place"]), figure(value["resource"])
        rows.add_row(place, resource, prose(value["value"]), prose(value["original"]))
    yield rows


def boot_id() -> str:
    """The id of this boot."""
    from koordlet.host.files import parse_file
    from koordlet.host.procfiles import parse_boot_id

    return parse_file(Path("/proc/sys/kernel/random/boot_id"), parse_boot_id)


def _kept_values(run_dirs: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the values in the journal; imported here, as asking a daemon does not need it."""
    from koord.util.ownedfiles import OwnedDirectory
    from koordlet.executor.journal import records_left_in

    boot = boot_id()
    found: list[OwnedDirectory] = []
    for path in run_dirs:
        with suppress(OSError):  # one that is not there, or not to be trusted
            found.append(OwnedDirectory.open(path, create=False))
    return [
        {
            "place": record.place or record.level,
            "resource": record.resource,
            "value": record.intended,
            "original": record.original,
            "plugins": list(record.owners),
        }
        for directory in found
        for record in records_left_in(directory, boot)
    ]


def view(status: Mapping[str, Any], now: datetime) -> Iterator[RenderableType]:
    """The state as lines, and a table of what is wrong."""
    yield pairs((name, prose(text, style)) for name, text, style in _facts(status, now))
    if status["problems"]:
        problems = table("<PROBLEM", "REASON")
        for part, reason in status["problems"].items():
            problems.add_row(figure(part), prose(reason))
        yield heading("")
        yield problems


def _facts(status: Mapping[str, Any], now: datetime) -> Iterator[tuple[str, str, str]]:
    started = datetime.fromisoformat(status["started"])
    yield "health", status["health"], HEALTH_STYLES.get(status["health"], "")
    yield "node", status["node"], ""
    up = span(max((now - started).total_seconds(), 0))
    yield "daemon", f"{status['version']}, process {status['pid']}, up {up}", ""
    yield "mode", f"{status['mode']} ({status['mode_reason']})", ""
    yield "address", status["address"], ""
    yield "run dir", status["run_dir"], ""
    yield "cgroups", f"{status['cgroups']}, {status['cgroup_driver']} driver", ""
    kept = f"{status['series']} series in {size(status['cache_bytes'])}"
    yield "measures", f"{status['pods']} pods, {kept}", ""
    if dropped := status["samples_dropped"]:
        counts = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
        yield "dropped", f"samples: {counts}", "yellow"
    if reason := status["observe_only"]:
        yield "only observes", reason, "yellow"
    for kind, state in status["manager_duties"].items():
        yield kind, f"spec {state}", ""
    yield "changes", _claims(status["claims"]), ""
    if kept := status["values"]["kept"]:
        yield "kept", f"{kept} values of an earlier process wait to be claimed again", "yellow"
    budget = status["evictions"]
    yield "evictions", budget_text(budget["used"], budget["per_hour"]), ""
    if dry_run := status["dry_run"]:
        yield "dry-run", dry_run_text(dry_run, ""), "yellow"
    yield "gates on", ", ".join(status["gates_on"]) or "none", ""
    if missing := status["gates_not_built"]:
        yield "not built", ", ".join(missing), "dim"
    if waiting := status["needs_restart"]:
        yield "restart for", ", ".join(waiting), "yellow"


def _claims(claims: Mapping[str, Mapping[str, int]]) -> str:
    """The number of kernel values that each plugin has claimed, by state."""
    return (
        "; ".join(
            f"{plugin}: " + ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
            for plugin, states in sorted(claims.items())
        )
        or "none"
    )
