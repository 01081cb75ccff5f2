"""The command `koord-descheduler explain`: what the last cycles decided about a node or a pod."""

import argparse
from collections.abc import Sequence
from typing import Any, Literal
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
from koord_descheduler.cli.views import explanation_view
from koord_descheduler.config import DEFAULT_PORT

NAME = "koord-descheduler explain"
ADDRESS = f"http://127.0.0.1:{DEFAULT_PORT}"

_ABOUT = """\
Ask a running koord-descheduler what its last cycles decided about a node or a pod, and why, the
newest cycle first. Only the leader decides; another replica says that it is none. Inside its
container no further option is needed:
    kubectl -n koordlet-system exec deployment/koord-descheduler -- /koord-descheduler explain NODE
With Koordinator's own manifests the namespace is koordinator-system."""


class ExplainOptions(QueryOptions):
    """The options of a command line."""

    name: str
    output: Literal["table", "json"] = "table"


def main(argv: Sequence[str]) -> int:
    """Print what was decided. Returns the exit status; see --help."""
    options = parser().parse_args(argv, namespace=ExplainOptions())
    return run_command(NAME, lambda: _explain(options))


def _explain(options: ExplainOptions) -> None:
    found = _ask(options)
    if not found["leader"]:
        wanted = "ask the holder of the Lease, or all replicas"
        print_message(
            NAME,
            f"the replica at {options.address} is not the leader: it decides nothing; {wanted}",
        )
    show(found, lambda: explanation_view(found), options.output)


def _ask(options: ExplainOptions) -> dict[str, Any]:
    kind = "pod" if "/" in options.name else "node"
    return query(options, f"/explain?{urlencode({kind: options.name})}", "Explanation")


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    command = command_parser(NAME, _ABOUT)
    add = command.add_argument
    add("name", metavar="NODE|NAMESPACE/POD", help="a node, or a pod with its namespace")
    add_options(command, ADDRESS)
    add("--output", "-o", choices=("table", "json"), help="table (default) or json")
    return command
