"""Terminal output of commands: tables and progress."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from koord.util.text import printable, printable_json

ABSENT = "-"  # a figure that there is none of
GAP = 2  # spaces between columns

_UNBOUNDED = 10_000  # columns of a terminal that is none: every row stays one line
_SHORTEST_NAME = 12


class Name:
    """A name that is shortened where the table is too wide: cut in the middle, never wrapped."""

    def __init__(self, text: str, style: str = "") -> None:
        self._text = printable(text)
        self._style = style

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield Text(shorten(self._text, options.max_width), self._style, no_wrap=True)

    def __rich_measure__(self, _: Console, options: ConsoleOptions) -> Measurement:
        length = len(self._text)
        return Measurement(min(length, _SHORTEST_NAME), length).with_maximum(options.max_width)


def prose(text: object, style: str = "") -> Text:
    """A cell or line that may be wrapped."""
    return Text(printable(text), style)


def figure(text: object, style: str = "") -> Text:
    """A cell that stays on one line."""
    return Text(printable(text), "dim" if text == ABSENT else style, no_wrap=True)


def heading(text: str) -> Text:
    return prose(text, "bold")


def table(*columns: str | Column, gap: int = GAP) -> Table:
    """An empty table without lines.

    A title's first character may say how its column is set: "<" to the left, ">" to the right, both
    never wrapped; the others are shortened where the terminal is narrow.
    """
    return Table(
        *(_column(column) if isinstance(column, str) else column for column in columns),
        box=None,
        header_style="bold",
        padding=(0, gap, 0, 0),
        pad_edge=False,
    )


def pairs(rows: Iterable[tuple[str, RenderableType]], style: str = "bold") -> Table:
    """Names in that style, and values, one per line."""
    grid = Table.grid(
        Column(style=style, no_wrap=True), Column(overflow="fold"), padding=(0, GAP, 0, 0)
    )
    for name, value in rows:
        grid.add_row(figure(name), value)
    return grid


def show(response: object, view: Callable[[], Iterable[RenderableType]], output: str) -> None:
    """Print a response: as it is in JSON, otherwise what view makes of it."""
    if output == "json":
        print(printable_json(response, indent=2))
    else:
        emit(view())


def emit(parts: Iterable[RenderableType]) -> None:
    """Print, in colour and wrapped on a terminal, plain elsewhere."""
    if sys.stdout.isatty():
        console().print(*parts, sep="\n")
    else:
        sys.stdout.write(plain(parts))


def plain(parts: Iterable[RenderableType]) -> str:
    """Return lines without colour and without spaces at their end."""
    unbounded = console(width=_UNBOUNDED, color_system=None)
    with unbounded.capture() as captured:
        unbounded.print(*parts, sep="\n")
    return "".join(f"{line.rstrip()}\n" for line in captured.get().split("\n")[:-1])


class _Console(Console):
    """Escapes also text that comes to it as a plain string."""

    def render_str(self, text: str, **settings: Any) -> Text:
        return super().render_str(printable(text), **settings)


def console(**settings: object) -> Console:
    """A console that prints text as it is, as far as it is printable: no markup."""
    return _Console(markup=False, emoji=False, highlight=False, **settings)  # type: ignore[arg-type]


def _column(title: str) -> Column:
    if title.startswith(">"):
        return Column(title[1:], justify="right", no_wrap=True)
    if title.startswith("<"):
        return Column(title[1:], no_wrap=True)
    return Column(title, overflow="fold")


def shorten(text: str, width: int) -> str:
    """Return the text in at most that many characters, cut in the middle.

    Names of pods differ at their ends: in the namespace, and in what the ReplicaSet appended.
    """
    if len(text) <= width:
        return text
    tail = max(width - 1, 0) // 2
    return text[: max(width - 1 - tail, 0)] + "…" * (width > 0) + text[len(text) - tail :]


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
