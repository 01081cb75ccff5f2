"""koordletctl top: what node, QoS classes and pods use, live on a terminal."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from rich.console import RenderableType
from rich.table import Column, Table
from rich.text import Text

from koordlet.cli.ctl.arguments import Options
from koordlet.cli.ctl.client import Client
from koordlet.cli.ctl.tables import GAP, Name, figure, prose, show, table
from koordlet.cli.ctl.units import cores, number, percent, rate, share, size

_Row = Mapping[str, Any]  # as koordlet.server.ctl.top says
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
_NARROW = 100  # columns of a terminal below which gaps are single


def run(client: Client, options: Options) -> int:
    """Watch on a terminal, otherwise print once."""
    if options.output == "table" and not options.once and _on_terminal():
        from koordlet.cli.ctl.live import watch

        watch(client, order=options.sort, interval=options.interval)
        return 0
    answer = client.get("top")
    answer["pods"] = sort_pods(answer["pods"], options.sort)
    show(answer, lambda: view(answer, options.sort), options.output)
    return 0


def sort_pods(pods: Iterable[_Row], order: str) -> list[_Row]:
    """Pods in one of ORDERS; equal ones by name."""
    figures = ORDERS[order]
    combine = max if order == "pressure" else sum

    def key(pod: _Row) -> tuple[bool, float, str]:
        known = [pod[figure] for figure in figures if pod[figure] is not None]
        return not known, -combine(known) if known else 0.0, str(pod["name"])

    return sorted(pods, key=key)


def view(answer: _Row, order: str) -> Iterator[RenderableType]:
    """The headline and all rows."""
    yield headline(answer)
    yield prose("")
    yield rows(answer, answer["pods"], order)


def headline(answer: _Row) -> Text:
    """Node, time of the data, and how much of the node is in use."""
    node, capacity = answer["node"], answer["capacity"]
    measured = answer["measured"]
    time = datetime.fromisoformat(measured).astimezone().strftime("%H:%M:%S") if measured else ""
    cpu = cores(node["cpu_cores"]) + _of(node["cpu_cores"], capacity["cpu_cores"], number)
    memory = size(node["memory_bytes"]) + _of(node["memory_bytes"], capacity["memory_bytes"], size)
    pods = f"{len(answer['pods'])} pods"
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append_text(prose(node["name"], "bold"))
    return line.append(
        f"   {time or 'nothing measured yet'}   cpu {cpu}   memory {memory}   {pods}"
    )


def rows(answer: _Row, pods: Iterable[_Row], order: str, *, width: int = _NARROW) -> Table:
    """One row each for the node, the QoS classes and these pods, for a terminal of that width."""
    grid = table(*_titles(order), gap=1 if width < _NARROW else GAP)
    grid.add_row(Name(answer["node"]["name"], "bold"), "", *_cells(answer["node"]))
    grid.add_row()
    for qos in answer["qos"]:
        grid.add_row(Name(qos["name"]), _squeezed(qos, ""), *_cells(qos))
    grid.add_row()
    for pod in pods:
        name = pod["name"].removeprefix("unknown/")  # known by its cgroup only: the name is the UID
        grid.add_row(Name(name), _squeezed(pod, pod["qos"]), *_cells(pod))
    return grid


def _squeezed(row: _Row, qos: str) -> Text:
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


def _cells(row: _Row) -> Iterator[Text]:
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


def _on_terminal() -> bool:
    return (
        sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") not in {None, "dumb"}
    )
