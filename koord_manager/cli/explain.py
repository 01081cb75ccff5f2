"""The command `koord-manager explain`: what a node offers, and why."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import urlencode

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from koord.component.terminal import show
from koord.controlplane.commands import (
    QueryOptions,
    add_options,
    command_parser,
    print_message,
    query,
    run_command,
)
from koord_manager.config import DEFAULT_PORT

NAME = "koord-manager explain"
ADDRESS = f"http://127.0.0.1:{DEFAULT_PORT}"

_ABOUT = """\
Ask a running koord-manager what a node offers to batch and mid pods, what of its capacity takes
how much off, and which pods hold more than it offers. Only the leader writes nodes; another replica
says that it is none. Inside its container no further option is needed:
    kubectl -n koordinator-system exec deployment/koord-manager -- /koord-manager explain NODE"""


class ExplainOptions(QueryOptions):
    """The options of a command line."""

    name: str
    output: Literal["table", "json"] = "table"


def main(argv: Sequence[str]) -> int:
    """Print what a node offers. Returns the exit status; see --help."""
    options = parser().parse_args(argv, namespace=ExplainOptions())
    return run_command(NAME, lambda: _explain(options))


def _explain(options: ExplainOptions) -> None:
    found = query(options, f"/explain?{urlencode({'node': options.name})}", "Explanation")
    if not found["leader"]:
        note = "its answer is what it would write"
        print_message(NAME, f"the replica at {options.address} is not the leader: {note}")
    show(found, lambda: explanation_view(found), options.output)


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    command = command_parser(NAME, _ABOUT)
    add = command.add_argument
    add("name", metavar="NODE", help="the name of a node")
    add_options(command, ADDRESS)
    add("--output", "-o", choices=("table", "json"), help="table (default) or json")
    return command


def explanation_view(report: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield the tables of an explanation."""
    about = report["report"]
    yield Text(f"node {report['node']}", style="bold")
    if about["stale"]:
        yield Text(f"  {about['stale']}")
    for doubt in about["doubts"]:
        yield Text(f"  doubtful: {doubt}")
    for problem in report["problems"]:
        yield Text(f"  {problem}")
    absent: dict[str, list[str]] = {}  # by reason
    for name, one in report["resources"].items():
        if one["offered"] is None and one["onNode"] is None and "held" not in one:
            absent.setdefault(one["reason"], []).append(name)
        else:
            yield from _resource_view(name, one)
    for reason, names in absent.items():
        yield Text(f"\nnone of {', '.join(names)}: {reason}")
    for key, text in report["annotations"].items():
        if text is not None:
            yield Text(f"\nannotation {key}: {text}")


def _resource_view(name: str, one: Mapping[str, Any]) -> Iterator[RenderableType]:
    offered = one["offered"] if one["offered"] is not None else "none"
    on_node = one["onNode"] if one["onNode"] is not None else "none"
    yield Text(f"\n{name}: {offered} (on the node: {on_node}), by {one['plugin']}", style="bold")
    if one["terms"]:
        table = Table(show_header=False, box=None, pad_edge=True)
        table.add_column(justify="left")
        table.add_column(justify="right")
        for term in one["terms"]:
            table.add_row(term["name"], f"{term['amount']:,}")
        table.add_row("calculated", str(one["calculated"]))
        if one["factor"] != 1.0:
            table.add_row("factor", f"{one['factor']:.2f}")
        if one["thirdParties"]:
            table.add_row("third parties", f"{-one['thirdParties']:,}")
        yield table
    if one["reason"]:
        yield Text(f"  {one['reason']}")
    held = one.get("held")
    if held:
        pods = ", ".join(held["pods"][:5])
        yield Text(f"  {held['amount']} held by {len(held['pods'])} pods: {pods}")
