"""koordletctl plugins and dry-run: state and cost of the QoS plugins, and the switch of dry-run."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from koord.component.terminal import figure, pairs, prose, show, table
from koordlet.cli.ctl.arguments import CtlOptions
from koordlet.cli.ctl.client import CtlClient
from koordlet.cli.ctl.units import size

_STYLES = {
    "running": "green",
    "disabled": "dim",
    "retrying": "yellow",
    "broken": "red",
    "quarantined": "red",
}


def run(client: CtlClient, options: CtlOptions) -> int:
    """Show the plugins, or release one."""
    if options.action == "release":
        released = client.post("plugins", options.plugin, "release")
        show(released, lambda: [prose(f"{released['released']} is released")], options.output)
    else:
        plugins = client.get("plugins")
        show(plugins, lambda: view(plugins), options.output)
    return 0


def view(plugins: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    """One row per plugin; below it why some do not work."""
    rows = table("<PLUGIN", "<STATE", "GATES", ">ROUNDS", ">ERRORS", ">CPU", ">STEP", ">GROWTH")
    for plugin in plugins:
        rows.add_row(
            figure(plugin["name"]),
            figure(plugin["state"], _STYLES.get(plugin["state"], "")),
            prose(", ".join(plugin["gates"])),
            str(plugin["rounds"]["ok"]),
            figure(plugin["errors"], "red" if plugin["errors"] else ""),
            f"{plugin['cpu_seconds']:.2f} s",
            f"{plugin['longest_step_ms']:.1f} ms",
            size(plugin["memory_growth_bytes"]),
        )
    yield rows if plugins else prose("no plugins are installed")
    reasons = [(plugin["name"], prose(plugin["reason"])) for plugin in plugins if plugin["reason"]]
    if reasons:
        yield prose("")
        yield pairs(reasons)


def run_dry_run(client: CtlClient, options: CtlOptions) -> int:
    """Switch a plugin if one is named, then show all."""
    if options.plugin:
        found = client.post("dry-run", options.plugin, options.switch)
    else:
        found = client.get("dry-run")
    show(found, lambda: dry_run_view(found), options.output)
    return 0


def dry_run_view(found: Mapping[str, Any]) -> Iterator[RenderableType]:
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
