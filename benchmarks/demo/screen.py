"""The demo in a terminal: nodes as bars, and what has happened; elsewhere lines of text."""

import sys
import time
from collections import deque

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from benchmarks.demo.world import World

WIDTH = 30  # characters of a bar
LINES = 12  # of what has happened


class Screen:
    """Draws the cluster; a `with` block."""

    def __init__(self, world: World, low: float, high: float) -> None:
        """low and high: thresholds, as shares of a node's cores."""
        self._world = world
        self._low, self._high = low, high
        self._lines: deque[str] = deque(maxlen=LINES)
        self._began = time.monotonic()
        self._console = Console()
        self._live = Live(console=self._console, auto_refresh=False) if self._is_terminal else None

    @property
    def _is_terminal(self) -> bool:
        return sys.stdout.isatty()

    def __enter__(self) -> "Screen":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Show what has happened."""
        line = f"{time.monotonic() - self._began:5.1f} s  {text}"
        self._lines.append(line)
        if self._live is None:
            print(line, flush=True)

    def draw(self) -> None:
        """Show the cluster as it is now."""
        if self._live is not None:
            self._live.update(Group(self._table(), Text(), *map(Text, self._lines)), refresh=True)

    def table(self) -> None:
        """Print the cluster as it is now, to stay."""
        if self._live is None:
            self._console.print(self._table())

    def _table(self) -> Table:
        columns = "NODE", "CPU THAT IS USED", "", "PODS", "TRAFFIC"
        rows = Table(*columns, box=None, pad_edge=False, header_style="bold")
        for name in self._world.nodes:
            share = self._world.share(name)
            pods = sum(pod.node == name for pod in self._world.pods.values())
            traffic = f"{self._world.traffic[name] / 1e6:.0f} MB/s"
            rows.add_row(name, self._bar(share), f"{share:4.0%}", f"{pods}", traffic)
        pending = sum(not pod.node for pod in self._world.pods.values())
        if pending:
            rows.add_row("pending", "", "", f"{pending}", "")
        return rows

    def _bar(self, share: float) -> Text:
        style = "red" if share > self._high else "green" if share < self._low else "yellow"
        full = min(round(share * WIDTH), WIDTH)
        return Text("█" * full + "·" * (WIDTH - full), style)
