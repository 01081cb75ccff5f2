"""One pod in koordletctl top: its use, its containers, what is in force for it, and why."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rich.console import ConsoleDimensions, RenderableType
from rich.text import Text

from koord.component.tables import Name, figure, heading, prose, table
from koordlet.cli.ctl import explain
from koordlet.cli.ctl.client import CtlClient
from koordlet.cli.ctl.toptable import TopRow, headline, rows
from koordlet.cli.ctl.units import cores, share, size

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
    answer: TopRow, details: PodDetails, room: ConsoleDimensions
) -> Iterator[RenderableType]:
    """The picture of a pod, for a terminal of that size; what is longer is cut."""
    pod = details.row
    yield headline(answer)
    yield Text()
    yield rows({**answer, "qos": []}, [pod], "cpu", width=room.width)
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
