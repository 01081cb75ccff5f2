"""The live view of koordletctl top: all pods in the order of a key, or one pod in detail."""

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
from koordlet.cli.ctl.keyboard import QUIT, SUSPEND, UP, keyboard
from koordlet.cli.ctl.podview import PodDetails, pod_details, pod_view
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
    """The latest answer, or why there is none: pods in the order asked for, or one of them."""

    def __init__(self, client: CtlClient, order: str) -> None:
        self._client = client
        self._order = order
        self._problem = ""
        self._selected: str | None = None  # UID of the pod that is marked
        self._open = False  # whether that pod is shown in detail
        self._shown: list[str] = []  # UIDs of the pods of the last picture
        self._details: PodDetails | None = None
        self._answer: Any = client.get("top")

    def look(self) -> None:
        """Ask again. An old answer is not kept: it would look like the present."""
        try:
            self._answer, self._problem = self._client.get("top"), ""
            self._look_closer()
        except KoordError as err:
            self._problem = str(err)

    def press(self, key: str) -> None:
        match key:
            case "up" | "down":
                self._move(-1 if key == UP else 1)
            case "enter":
                self._open = self._selected is not None
            case "back":
                self._selected = self._selected if self._open else None
                self._open = False
            case _:
                self._order = _KEYS.get(key, self._order)
        if self._open:
            self.look()

    def frame(self, size: ConsoleDimensions) -> Group:
        """One picture of a terminal of that size."""
        if self._problem:
            note = "asked again until it answers; q quits"
            return Group(prose(self._problem, "bold red"), prose(note))
        if self._open and self._details:
            return Group(*pod_view(self._answer, self._details, size))
        return Group(*self._table(size))

    def _move(self, by: int) -> None:
        """To the next pod of the picture; with none marked, to its first or last."""
        if not self._shown:
            return
        if self._selected in self._shown:
            at = self._shown.index(self._selected) + by
        else:
            at = 0 if by > 0 else len(self._shown) - 1
        self._selected = self._shown[min(max(at, 0), len(self._shown) - 1)]

    def _look_closer(self) -> None:
        pod = next((pod for pod in self._answer["pods"] if pod["uid"] == self._selected), None)
        self._open = self._open and pod is not None
        self._details = pod_details(self._client, pod) if pod and self._open else None

    def _table(self, size: ConsoleDimensions) -> Iterator[RenderableType]:
        pods = sort_pods(self._answer["pods"], self._order)
        room = max(size.height - _AROUND_PODS - len(self._answer["qos"]), 0)
        shown = pods[:room]
        self._shown = [str(pod["uid"]) for pod in shown]
        yield headline(self._answer)
        yield Text()
        yield rows(self._answer, shown, self._order, width=size.width, selected=self._selected)
        yield Text("\n" * max(room - len(pods), 0))
        yield self._footer(len(shown), len(pods))

    def _footer(self, shown: int, pods: int) -> Text:
        line = Text(no_wrap=True, overflow="ellipsis")
        for key, order in _KEYS.items():
            line.append(key, "bold").append(" ")
            line.append(order, "reverse" if order == self._order else "").append("  ")
        line.append("↑↓⏎", "bold").append(" pod  ")
        line.append("q", "bold").append(" quit")
        return line.append(f"  {shown} of {pods}" if shown < pods else "", "dim")
