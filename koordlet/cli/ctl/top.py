"""koordletctl top: the use of node, QoS classes and pods, live on a terminal."""

import os
import sys
from collections.abc import Iterator

from rich.console import RenderableType

from koord.component.tables import prose, show
from koordlet.cli.ctl.arguments import Options
from koordlet.cli.ctl.client import CtlClient
from koordlet.cli.ctl.toptable import TopRow, headline, rows, sort_pods


def run(client: CtlClient, options: Options) -> int:
    """Watch on a terminal, otherwise print once."""
    if options.output == "table" and not options.once and _on_terminal():
        from koordlet.cli.ctl.live import watch

        watch(client, order=options.sort, interval=options.interval)
        return 0
    answer = client.get("top")
    answer["pods"] = sort_pods(answer["pods"], options.sort)
    show(answer, lambda: view(answer, options.sort), options.output)
    return 0


def view(answer: TopRow, order: str) -> Iterator[RenderableType]:
    """The headline and all rows."""
    yield headline(answer)
    yield prose("")
    yield rows(answer, answer["pods"], order)


def _on_terminal() -> bool:
    return (
        sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") not in {None, "dumb"}
    )
