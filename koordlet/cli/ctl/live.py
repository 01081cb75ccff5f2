"""The live view of koordletctl top: looks every second, and sorts by the key that is pressed."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rich.console import Console, ConsoleDimensions, Group, RenderableType
from rich.live import Live
from rich.text import Text

from koord.component.tables import console, prose
from koord.util.errors import KoordError
from koordlet.cli.ctl.client import CtlClient
from koordlet.cli.ctl.keyboard import QUIT, SUSPEND, keyboard
from koordlet.cli.ctl.toptable import ORDERS, headline, rows, sort_pods

TIMEOUT = 2.0  # seconds; a key has to wait for it when the daemon hangs

_KEYS = {order[0]: order for order in ORDERS}
_AROUND_PODS = 9  # lines: headline, titles, node, keys, and the blank ones between


def watch(client: CtlClient, *, order: str, interval: float) -> None:
    """Show until the user quits.

    Raises:
        KoordError: there is nothing to show from the beginning.
    """
    view = LiveView(replace(client, timeout=TIMEOUT), order)
    while _session(view, console(), interval) == SUSPEND:
        os.kill(0, signal.SIGTSTP)  # what ^Z does elsewhere; returns when the shell lets us go on


def _session(view: "LiveView", screen: Console, interval: float) -> str:
    """Show until a key ends it, and return that; the terminal is as before then."""
    with (
        keyboard(sys.stdin.fileno()) as keys,
        Live(console=screen, screen=True, auto_refresh=False) as live,
    ):
        while True:
            due = time.monotonic() + interval
            live.update(view.frame(screen.size), refresh=True)
            while (key := keys.wait(due - time.monotonic())) is not None:
                if key in {QUIT, SUSPEND}:
                    return key
                view.press(key)
                live.update(view.frame(screen.size), refresh=True)
            view.look()


class LiveView:
    """The latest answer, or why there is none, in the order asked for."""

    def __init__(self, client: CtlClient, order: str) -> None:
        self._client = client
        self._order = order
        self._problem = ""
        self._answer: Any = client.get("top")

    def look(self) -> None:
        """Ask again. An old answer is not kept: it would look like the present."""
        try:
            self._answer, self._problem = self._client.get("top"), ""
        except KoordError as err:
            self._problem = str(err)

    def press(self, key: str) -> None:
        self._order = _KEYS.get(key, self._order)

    def frame(self, size: ConsoleDimensions) -> Group:
        """One picture of a terminal of that size."""
        if self._problem:
            note = "asked again until it answers; q quits"
            return Group(prose(self._problem, "bold red"), prose(note))
        return Group(*self._table(size))

    def _table(self, size: ConsoleDimensions) -> Iterator[RenderableType]:
        pods = sort_pods(self._answer["pods"], self._order)
        room = max(size.height - _AROUND_PODS - len(self._answer["qos"]), 0)
        yield headline(self._answer)
        yield Text()
        yield rows(self._answer, pods[:room], self._order, width=size.width)
        yield Text("\n" * max(room - len(pods), 0))
        yield self._footer(min(room, len(pods)), len(pods))

    def _footer(self, shown: int, pods: int) -> Text:
        line = Text(no_wrap=True, overflow="ellipsis")
        for key, order in _KEYS.items():
            line.append(key, "bold").append(" ")
            line.append(order, "reverse" if order == self._order else "").append("  ")
        line.append("q", "bold").append(" quit")
        return line.append(f"   {shown} of {pods} pods" if shown < pods else "", "dim")
