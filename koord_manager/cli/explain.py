"""The command `koord-manager explain`: what a node offers, and why."""

import argparse
from collections.abc import Sequence
from typing import Literal
from urllib.parse import urlencode

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
from koord_manager.explanation import explanation_view

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
