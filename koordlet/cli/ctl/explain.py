"""koordletctl explain: what was decided about pods, and why."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType

from koordlet.cli.ctl.arguments import Options
from koordlet.cli.ctl.client import Client
from koordlet.cli.ctl.tables import figure, pairs, prose, show, table

_STYLES = {"evicted": "green", "would_evict": "cyan", "gone": "dim", "failed": "red"}


def run(client: Client, options: Options) -> int:
    """Show the decisions, latest first."""
    found = client.get("explain", query={"pod": options.pod})
    show(found, lambda: view(found, options.pod), options.output)
    return 0


def view(found: Mapping[str, Any], pod: str | None) -> Iterator[RenderableType]:
    """What holds for all, then one block per decision."""
    budget = found["evictionBudget"]
    limit = f"of {budget['perHour']}" if budget["perHour"] else "without bound"
    yield pairs(
        [
            ("evictions", prose(f"{budget['used']} {limit} in the past hour")),
            ("dry-run", prose(_dry_run(found["dryRun"], found["observeOnly"]))),
        ]
    )
    decisions = found["decisions"]
    if not decisions:
        yield prose("")
        yield prose(f"nothing was decided about {pod}" if pod else "nothing was decided yet")
        return
    rows = table("<LAST", ">TIMES", "<PLUGIN", "<POD", "<OUTCOME", "<WHY")
    for each in decisions:
        rows.add_row(
            figure(each["last"]),
            str(each["times"]),
            figure(each["plugin"]),
            prose(each["pod"]),
            figure(each["outcome"], _STYLES.get(each["outcome"], "yellow")),
            prose("; ".join(filter(None, (each["reason"], each["message"])))),
        )
    yield prose("")
    yield rows


def _dry_run(value: bool | list[str], observe_only: str) -> str:
    if observe_only:
        return f"all plugins: {observe_only}"
    if isinstance(value, list):
        return ", ".join(value)
    return "all plugins" if value else "off"
