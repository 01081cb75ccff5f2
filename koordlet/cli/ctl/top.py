"""koordletctl top: the usage of node, QoS classes and pods as a table, live on a terminal."""

import os
import select
import signal
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from rich.console import Console, ConsoleDimensions, Group, RenderableType
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from koord.component.terminal import GAP, Name, console, figure, heading, prose, show, table
from koord.util.errors import KoordError
from koordlet.cli.ctl import explain
from koordlet.cli.ctl.arguments import CtlOptions
from koordlet.cli.ctl.client import CtlClient
from koordlet.cli.ctl.units import cores, number, percent, rate, share, size

TopRow = Mapping[str, Any]  # as koordlet.server.top says
_Figures = tuple[str, ...]

# What each order looks at. Pods with the largest figure come first, those without any last.
ORDERS: Mapping[str, _Figures] = {
    "cpu": ("cpu_cores",),
    "memory": ("memory_bytes",),
    "pressure": ("cpu_pressure", "memory_pressure", "io_pressure"),
    "throttling": ("throttled_ratio",),
    "network": ("receive_bytes_per_second", "transmit_bytes_per_second"),
}

# Figure, the two lines of its title, how it is written, from where on it is worth a colour.
_COLUMNS: tuple[tuple[str, str, str, Callable[[float | None], str], float], ...] = (
    ("cpu_cores", "CPU", "cores", cores, 0),
    ("memory_bytes", "MEMORY", "bytes", size, 0),
    ("cpu_pressure", "PSI%", "cpu", percent, 10),
    ("memory_pressure", "PSI%", "mem", percent, 10),
    ("io_pressure", "PSI%", "io", percent, 10),
    ("throttled_ratio", "THROT", "%", share, 0.1),
    ("receive_bytes_per_second", "NET", "in/s", rate, 0),
    ("transmit_bytes_per_second", "NET", "out/s", rate, 0),
)
_HOT = 4  # so many times the worth of a colour is worth a stronger one
_NARROW, _WIDE = 100, 110  # columns of a terminal: below gaps are single, from there on history
_BARS = "▁▂▃▄▅▆▇█"


def sort_pods(pods: Iterable[TopRow], order: str) -> list[TopRow]:
    """Pods in one of ORDERS; equal ones by name."""
    figures = ORDERS[order]
    combine = max if order == "pressure" else sum

    def key(pod: TopRow) -> tuple[bool, float, str]:
        known = [pod[figure] for figure in figures if pod[figure] is not None]
        return not known, -combine(known) if known else 0.0, str(pod["name"])

    return sorted(pods, key=key)


def headline(response: TopRow) -> Text:
    """Node, time of the data, and how much of the node is in use."""
    node, capacity = response["node"], response["capacity"]
    measured = response["measured"]
    time = datetime.fromisoformat(measured).astimezone().strftime("%H:%M:%S") if measured else ""
    cpu = cores(node["cpu_cores"]) + _of(node["cpu_cores"], capacity["cpu_cores"], number)
    memory = size(node["memory_bytes"]) + _of(node["memory_bytes"], capacity["memory_bytes"], size)
    pods = f"{len(response['pods'])} pods"
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append_text(prose(node["name"], "bold"))
    return line.append(
        f"   {time or 'nothing measured yet'}   cpu {cpu}   memory {memory}   {pods}"
    )


def rows(
    response: TopRow,
    pods: Iterable[TopRow],
    order: str,
    *,
    width: int = _NARROW,
    selected: str | None = None,
) -> Table:
    """One row each for the node, the QoS classes and these pods, for a terminal of that width.

    selected: the UID of the pod whose name is marked.
    """
    wide = width >= _WIDE
    grid = table(*_titles(order), gap=1 if width < _NARROW else GAP)
    if wide:
        grid.add_column(Text("CPU\nlast minute"), no_wrap=True)

    def add(row: TopRow, name: Name, qos: Text) -> None:
        history = [sparkline(row.get("cpu_history", ()))] if wide else []
        grid.add_row(name, qos, *_cells(row), *history)

    add(response["node"], Name(response["node"]["name"], "bold"), Text())
    grid.add_row()
    for qos in response["qos"]:
        add(qos, Name(qos["name"]), _qos_with_limit(qos, ""))
    grid.add_row()
    for pod in pods:
        style = "reverse" if pod["uid"] == selected else ""
        add(pod, Name(pod_name(pod), style), _qos_with_limit(pod, pod["qos"]))
    return grid


def pod_name(pod: TopRow) -> str:
    """Namespace and name; the UID of a pod that is known by its cgroup only."""
    return str(pod["name"].removeprefix("unknown/"))


def sparkline(values: Sequence[float | None]) -> Text:
    """A bar each, in eighths of the largest; a blank where there is no value."""
    largest = max((value for value in values if value is not None), default=0.0)
    top = len(_BARS) - 1
    return Text(
        "".join(
            " " if value is None else _BARS[round(value / largest * top) if largest > 0 else 0]
            for value in values
        ),
        no_wrap=True,
    )


def _qos_with_limit(row: TopRow, qos: str) -> Text:
    """The QoS, and the cores that plugins hold the row to at present."""
    limit = row["cpu_limit_cores"]
    return figure(qos) if limit is None else figure(f"{qos} ≤{cores(limit)}".strip(), "yellow")


def _titles(order: str) -> Iterator[Column]:
    yield Column(Text("\nNAME"))
    yield Column(Text("\nQOS"), no_wrap=True)
    for name, above, below, *_ in _COLUMNS:
        style = "reverse" if name in ORDERS[order] else ""
        title = Text(above + "\n").append(below, style)
        yield Column(title, justify="right", no_wrap=True, min_width=len(above))


def _cells(row: TopRow) -> Iterator[Text]:
    for name, _, _, write, notable in _COLUMNS:
        value = row[name]
        style = ""
        if notable and value is not None and value >= notable:
            style = "bold red" if value >= notable * _HOT else "yellow"
        yield figure(write(value), style)


def _of(used: float | None, capacity: float | None, write: Callable[[float | None], str]) -> str:
    if used is None or not capacity:
        return ""
    return f" of {write(capacity)} ({share(used / capacity)}%)"


def run(client: CtlClient, options: CtlOptions) -> int:
    """Watch on a terminal, otherwise print once."""
    if options.output == "table" and not options.once and _on_terminal():
        watch(client, order=options.sort, interval=options.interval)
        return 0
    response = client.get("top")
    response["pods"] = sort_pods(response["pods"], options.sort)
    show(response, lambda: view(response, options.sort), options.output)
    return 0


def view(response: TopRow, order: str) -> Iterator[RenderableType]:
    """The headline and all rows."""
    yield headline(response)
    yield prose("")
    yield rows(response, response["pods"], order)


def _on_terminal() -> bool:
    return (
        sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") not in {None, "dumb"}
    )


_WINDOW = "10s"  # of the containers' figures
_KINDS = {
    "cpu": "container_cpu_usage",
    "memory": "container_memory_usage",
    "throttled": "container_cpu_throttled",
}


@dataclass(frozen=True, slots=True)
class PodDetails:
    """A pod's row of top, the figures of its containers, and what explain says."""

    row: TopRow
    containers: Mapping[str, Mapping[str, Any]]  # name and figures, by ID
    explained: Mapping[str, Any]
    at: datetime


def pod_details(client: CtlClient, pod: TopRow) -> PodDetails:
    """Ask for all about a pod of top.

    Raises:
        KoordError: the daemon does not answer.
    """
    containers: dict[str, dict[str, Any]] = {}
    for name, kind in _KINDS.items():
        found = client.get("metrics", kind, query={"pod": pod["uid"], "window": _WINDOW})
        for series in found["series"]:
            one = containers.setdefault(series["container_id"], {"name": series["container"]})
            one[name] = series["last"]
    explained = client.get("explain", query={"pod": pod["uid"]})
    return PodDetails(pod, containers, explained, datetime.now(UTC))


def pod_view(
    response: TopRow, details: PodDetails, size: ConsoleDimensions
) -> Iterator[RenderableType]:
    """The picture of a pod, for a terminal of that size; what is longer is cut."""
    pod = details.row
    yield headline(response)
    yield Text()
    yield rows({**response, "qos": []}, [pod], "cpu", width=size.width)
    yield Text()
    yield from _containers(details.containers)
    yield from explain.view(details.explained, str(pod["name"]), details.at)
    line = Text(no_wrap=True, overflow="ellipsis")
    yield line.append("\nesc", "bold").append(" all pods  ").append("q", "bold").append(" quit")


def _containers(containers: Mapping[str, Mapping[str, Any]]) -> Sequence[RenderableType]:
    if not containers:
        return [prose("no figures of its containers in the last 10 s"), Text()]
    grid = table("CONTAINER", ">CPU cores", ">MEMORY", ">THROTTLED %")
    for figures in sorted(containers.values(), key=lambda figures: str(figures["name"])):
        grid.add_row(
            Name(figures["name"]),
            figure(cores(figures.get("cpu"))),
            figure(size(figures.get("memory"))),
            figure(share(figures.get("throttled"))),
        )
    return [heading("Containers"), grid, Text()]


QUIT, SUSPEND, REDRAW = "q", "\x1a", ""  # SUSPEND is ^Z
UP, DOWN, ENTER, BACK = "up", "down", "enter", "back"  # BACK is the escape key

_ENDING = (signal.SIGTERM, signal.SIGHUP)
_NAMED = {
    **dict.fromkeys(("\x03", "\x04", "\x1c"), QUIT),  # ^C, ^D, ^\: nothing is cut short by them
    **dict.fromkeys(("\r", "\n"), ENTER),
}
_ESCAPE = b"\x1b"  # begins what arrows and function keys send
_SEQUENCES = {b"\x1b[A": UP, b"\x1bOA": UP, b"\x1b[B": DOWN, b"\x1bOB": DOWN, _ESCAPE: BACK}


class Keyboard:
    """The user's keys, one by one. Made by `keyboard`."""

    def __init__(self, terminal: int, signals: int) -> None:
        self._terminal = terminal
        self._signals = signals
        self._typed: deque[str] = deque()

    def wait(self, seconds: float) -> str | None:
        """Return the next key in lower case or one of the names above; None when time is up."""
        if not self._typed:
            ready, _, _ = select.select([self._signals, self._terminal], [], [], max(seconds, 0))
            if not ready:
                return None
            self._typed.extend(self._arrived() if self._signals in ready else self._keys())
        return self._typed.popleft()

    def _arrived(self) -> list[str]:
        numbers = os.read(self._signals, 64)
        return [QUIT if any(number in numbers for number in _ENDING) else REDRAW]

    def _keys(self) -> list[str]:
        try:
            typed = os.read(self._terminal, 64)
        except OSError:
            typed = b""
        if not typed:
            return [QUIT]  # the terminal is gone
        if typed.startswith(_ESCAPE):
            return [_SEQUENCES.get(typed, REDRAW)]
        return [_NAMED.get(key, key) for key in typed.decode("ascii", "replace").lower()]


@contextmanager
def keyboard(terminal: int) -> Iterator[Keyboard]:
    """Take the keys of a terminal one by one and unseen; it is as before afterwards."""
    before = termios.tcgetattr(terminal)
    with _signals() as signals:
        tty.setcbreak(terminal, termios.TCSADRAIN)
        mode = termios.tcgetattr(terminal)
        mode[3] &= ~(termios.ISIG | termios.IEXTEN)
        termios.tcsetattr(terminal, termios.TCSADRAIN, mode)
        try:
            yield Keyboard(terminal, signals)
        finally:
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)


@contextmanager
def _signals() -> Iterator[int]:
    """Let ending signals and resizes wake a select instead; yields the descriptor they come by."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    before = {number: signal.signal(number, _ignore) for number in (*_ENDING, signal.SIGWINCH)}
    try:
        yield reader
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        os.close(reader)
        os.close(writer)


def _ignore(_number: int, _frame: object) -> None:
    """A handler must exist for the wakeup descriptor to be written to."""


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
    """The latest response, or why there is none: pods in the order asked for, or one of them."""

    def __init__(self, client: CtlClient, order: str) -> None:
        self._client = client
        self._order = order
        self._problem = ""
        self._selected: str | None = None  # UID of the pod that is marked
        self._open = False  # whether that pod is shown in detail
        self._shown: list[str] = []  # UIDs of the pods of the last picture
        self._details: PodDetails | None = None
        self._response: Any = client.get("top")

    def look(self) -> None:
        """Ask again. An old answer is not kept: it would look like the present."""
        try:
            self._response, self._problem = self._client.get("top"), ""
            self._open_pod()
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
            return Group(*pod_view(self._response, self._details, size))
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

    def _open_pod(self) -> None:
        pod = next((pod for pod in self._response["pods"] if pod["uid"] == self._selected), None)
        self._open = self._open and pod is not None
        self._details = pod_details(self._client, pod) if pod and self._open else None

    def _table(self, size: ConsoleDimensions) -> Iterator[RenderableType]:
        pods = sort_pods(self._response["pods"], self._order)
        height = max(size.height - _AROUND_PODS - len(self._response["qos"]), 0)
        shown = pods[:height]
        self._shown = [str(pod["uid"]) for pod in shown]
        yield headline(self._response)
        yield Text()
        yield rows(self._response, shown, self._order, width=size.width, selected=self._selected)
        yield Text("\n" * max(height - len(pods), 0))
        yield self._footer(len(shown), len(pods))

    def _footer(self, shown: int, pods: int) -> Text:
        line = Text(no_wrap=True, overflow="ellipsis")
        for key, order in _KEYS.items():
            line.append(key, "bold").append(" ")
            line.append(order, "reverse" if order == self._order else "").append("  ")
        line.append("↑↓⏎", "bold").append(" pod  ")
        line.append("q", "bold").append(" quit")
        return line.append(f"  {shown} of {pods}" if shown < pods else "", "dim")
