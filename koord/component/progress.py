"""How far a long command is, on stderr: a bar on a terminal, otherwise lines with percentages."""

import sys
import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from koord.util.printable import printable

AFTER = 1.0  # seconds; what is done sooner shows nothing
_BETWEEN = 0.1  # seconds between two pictures of a bar
_STEP = 10  # percent between two lines


class ProgressReport:
    """Shows the shares that it is given, from the moment that the command takes long.

    A context manager; a bar is gone at the end, also after an exception.
    """

    def __init__(self, what: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """what the command does, as "replaying x.gz". clock: in seconds."""
        self._what = printable(what)
        self._clock = clock
        self._bar: Progress | None = None
        self._due = self._line = 0.0
        self._console = Console(stderr=True, markup=False, emoji=False, highlight=False)

    def __enter__(self) -> "ProgressReport":
        self._due = self._clock() + AFTER
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, share: float) -> None:
        """Take the share that is done, from 0 to 1. Cheap: a clock's reading unless it is due."""
        now = self._clock()
        if now < self._due:
            return
        percent = min(max(share, 0.0), 1.0) * 100
        if self._console.is_terminal:
            self._due = now + _BETWEEN
            self._draw(percent)
        elif percent >= self._line:
            print(f"{self._what}: {percent:.0f} %", file=sys.stderr, flush=True)
            self._line = percent // _STEP * _STEP + _STEP

    def _draw(self, percent: float) -> None:
        if self._bar is None:
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TaskProgressColumn(),
                TimeRemainingColumn(),
                console=self._console,
                auto_refresh=False,
                transient=True,
                get_time=self._clock,
            )
            self._bar.add_task(self._what, total=100.0)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=percent)
        self._bar.refresh()
