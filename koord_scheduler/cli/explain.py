"""The command `koord-scheduler explain`: why a pod is where it is, or nowhere."""

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
from koord_scheduler.daemon.settings import DEFAULTS
from koord_scheduler.planning.report import KIND
from koord_scheduler.planning.views import explanation_view

NAME = "koord-scheduler explain"
ADDRESS = f"http://127.0.0.1:{DEFAULTS.port}"
SHOWN = 20  # nodes of a table

_ABOUT = """\
Ask a running koord-scheduler about a pod: for one that is pending the cause first and then what
would help, for one that is placed where it would go now; with the scores by plugin and node. Inside
its container no further option is needed:
    kubectl -n koordlet-system exec deployment/koord-scheduler -- /koord-scheduler explain POD
With Koordinator's own manifests the namespace is koordinator-system."""


class ExplainOptions(QueryOptions):
    """The options of a command line."""

    pod: str
    output: Literal["table", "json"] = "table"


def main(argv: Sequence[str]) -> int:
    """Print the response. Returns the exit status; see --help."""
    options = parser().parse_args(argv, namespace=ExplainOptions())
    return run_command(NAME, lambda: _explain(options))


def _explain(options: ExplainOptions) -> None:
    found = query(options, f"/explain?{urlencode({'pod': options.pod})}", KIND)
    if not found["leader"]:
        wanted = "its queue is its own; ask the holder of the Lease"
        print_message(NAME, f"the replica at {options.address} is not the leader: {wanted}")
    show(found, lambda: explanation_view(found, SHOWN), options.output)


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    command = command_parser(NAME, _ABOUT)
    add = command.add_argument
    add("pod", metavar="NAMESPACE/POD", help="the pod; without a namespace one of default")
    add_options(command, ADDRESS)
    add("--output", "-o", choices=("table", "json"), help="table (default) or json")
    return command
