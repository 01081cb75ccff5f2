"""koordletctl plugins: state and cost of the QoS plugins; release takes one out of quarantine."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from koord.component.tables import figure, pairs, prose, show, table
from koordlet.cli.ctl.arguments import Options
from koordlet.cli.ctl.client import CtlClient
from koordlet.cli.ctl.units import size

_STYLES = {
    "running": "green",
    "disabled": "dim",
    "retrying": "yellow",
    "broken": "red",
    "quarantined": "red",
}


def run(client: CtlClient, options: Options) -> int:
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
