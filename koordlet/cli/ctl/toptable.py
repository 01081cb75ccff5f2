"""The table of koordletctl top: a headline, and a row each for node, QoS classes and pods."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.table import Column, Table
from rich.text import Text

from koord.component.tables import GAP, Name, figure, prose, table
from koordlet.cli.ctl.units import cores, number, percent, rate, share, size

TopRow = Mapping[str, Any]  # as koordlet.server.ctl.top says
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


def headline(answer: TopRow) -> Text:
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


def rows(
    answer: TopRow,
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

    add(answer["node"], Name(answer["node"]["name"], "bold"), Text())
    grid.add_row()
    for qos in answer["qos"]:
        add(qos, Name(qos["name"]), _squeezed(qos, ""))
    grid.add_row()
    for pod in pods:
        style = "reverse" if pod["uid"] == selected else ""
        add(pod, Name(pod_name(pod), style), _squeezed(pod, pod["qos"]))
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


def _squeezed(row: TopRow, qos: str) -> Text:
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
