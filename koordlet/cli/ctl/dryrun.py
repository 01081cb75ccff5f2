"""koordletctl dry-run: shows the plugins in dry-run, and switches it while the daemon runs."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType

from koord.component.tables import figure, prose, show, table
from koordlet.cli.ctl.arguments import Options
from koordlet.cli.ctl.client import CtlClient


def run(client: CtlClient, options: Options) -> int:
    """Switch a plugin if one is named, then show all."""
    if options.plugin:
        found = client.post("dry-run", options.plugin, options.switch)
    else:
        found = client.get("dry-run")
    show(found, lambda: view(found), options.output)
    return 0


def view(found: Mapping[str, Any]) -> Iterator[RenderableType]:
    """One row per plugin."""
    rows = table("<PLUGIN", "<DRY-RUN", "BY")
    for plugin in found["plugins"]:
        on = plugin["dryRun"]
        by = "hand, until the next start" if plugin["byHand"] else "flag or config file"
        rows.add_row(figure(plugin["name"]), figure("on" if on else "off", "cyan" * on), prose(by))
    yield rows if found["plugins"] else prose("no plugins are installed")
    if found["observeOnly"]:
        yield prose(f"all in dry-run: {found['observeOnly']}", "yellow")


def dry_run_text(value: bool | list[str], observe_only: str) -> str:
    """The plugins in dry-run, in a line."""
    if observe_only:
        return f"all plugins: {observe_only}"
    if isinstance(value, list):
        return ", ".join(value)
    return "all plugins" if value else "off"
