"""koordletctl metrics: the aggregates of one kind over a window, or the list of kinds."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType

from koord.component.tables import Name, figure, prose, show, table
from koordlet.cli.ctl.arguments import Options
from koordlet.cli.ctl.client import CtlClient
from koordlet.cli.ctl.units import formatter, span
from koordlet.metriccache.kinds import KINDS

_FIGURES = ("last", "avg", "p50", "p90", "p95", "p99")
_NOT_PROPERTIES = {*_FIGURES, "count", "span_seconds"}


def run(client: CtlClient, options: Options) -> int:
    """Show a kind, or which ones there are; that needs no daemon."""
    if options.name is None:
        kinds = [
            {"name": kind.name, "unit": kind.unit, "per": kind.properties}
            for kind in KINDS.values()
        ]
        show(kinds, lambda: kinds_view(kinds), options.output)
    else:
        query = {"pod": options.pod, "window": options.window}
        found = client.get("metrics", options.name, query=query)
        show(found, lambda: view(found), options.output)
    return 0


def kinds_view(kinds: list[dict[str, Any]]) -> Iterator[RenderableType]:
    """All kinds by name."""
    rows = table("<NAME", "<UNIT", "PER")
    for kind in sorted(kinds, key=lambda kind: str(kind["name"])):
        rows.add_row(figure(kind["name"]), figure(kind["unit"]), prose(", ".join(kind["per"])))
    yield rows


def view(found: Mapping[str, Any]) -> Iterator[RenderableType]:
    """One row per series: what it is of, then its aggregates."""
    window = span(found["window_seconds"])
    series = [_named(one) for one in found["series"]]
    if not series:
        yield prose(f"{found['name']}: no samples in the last {window}")
        return
    yield prose(f"{found['name']} in {found['unit']}, last {window}")
    properties = [name for name in series[0] if name not in _NOT_PROPERTIES]
    rows = table(
        *(name.upper() for name in properties),
        *(f">{name.upper()}" for name in _FIGURES),
        ">SAMPLES",
        ">SPAN",
    )
    write = formatter(found["unit"])
    for one in series:
        rows.add_row(
            *(Name(one[name]) for name in properties),
            *(figure(write(one[name])) for name in _FIGURES),
            str(one["count"]),
            span(one["span_seconds"]),
        )
    yield rows


def _named(series: dict[str, Any]) -> dict[str, Any]:
    """With the pod's name in place of its UID; one that is gone goes on as its UID."""
    if "pod_uid" not in series:
        return series if "container_id" not in series else {"pod": "", **series}
    return {"pod": series["pod_uid"]} | {
        name: value for name, value in series.items() if name != "pod_uid"
    }
