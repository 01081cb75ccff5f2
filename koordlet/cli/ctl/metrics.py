"""koordletctl metrics and nodemetric: aggregates of one kind, and the last reported NodeMetric."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from koord.api.quantity import Quantity
from koord.component.terminal import ABSENT, Name, figure, heading, pairs, prose, show, table
from koordlet.cli.ctl.arguments import CtlOptions
from koordlet.cli.ctl.client import CtlClient
from koordlet.cli.ctl.units import cores, formatter, size, span
from koordlet.metriccache.kinds import KINDS

_FIGURES = ("last", "avg", "p50", "p90", "p95", "p99")
_NOT_PROPERTIES = {*_FIGURES, "count", "span_seconds"}


def run(client: CtlClient, options: CtlOptions) -> int:
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
    """Return the series with pod in place of pod_uid; a pod that is gone keeps its UID."""
    if "pod_uid" not in series:
        return series if "container_id" not in series else {"pod": "", **series}
    return {"pod": series["pod_uid"]} | {
        name: value for name, value in series.items() if name != "pod_uid"
    }


_AGGREGATIONS = ("avg", "p50", "p90", "p95", "p99")


def run_nodemetric(client: CtlClient, options: CtlOptions) -> int:
    """Show the object; fails while there is none."""
    found = client.get("nodemetric")
    show(found, lambda: nodemetric_view(found), options.output)
    return 0


def nodemetric_view(found: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Its figures of the node, by window, and of the pods."""
    policy, status = found["spec"]["metricCollectPolicy"], found["status"]
    node = status["nodeMetric"]
    yield pairs(
        [
            ("node", prose(found["metadata"]["name"])),
            ("measured", prose(status.get("updateTime", ABSENT))),
            ("reported", prose(f"every {policy['reportIntervalSeconds']} s")),
            ("averages of", prose(f"{policy['aggregateDurationSeconds']} s")),
        ]
    )
    yield heading("")
    yield _whole(node, status)
    yield heading("")
    yield _by_window(node)
    if pods := status.get("podsMetric"):
        yield heading("")
        yield _pods(pods)


def _whole(node: Mapping[str, Any], status: Mapping[str, Any]) -> Table:
    rows = table("<USE", ">CPU", ">MEMORY")
    rows.add_row("node", *_usage(node.get("nodeUsage")))
    rows.add_row("system", *_usage(node.get("systemUsage")))
    for numa in node.get("numaUsages", ()):
        rows.add_row(f"NUMA node {numa['numaNodeID']}", *_usage(numa["nodeUsage"]))
    for app in status.get("hostApplicationMetric", ()):
        rows.add_row(Name(f"application {app['name']}"), *_usage(app["usage"]))
    rows.add_row("prod reclaimable", *_usage(status["prodReclaimableMetric"]["resource"]))
    if peak := status.get("prodPeakMetric"):
        rows.add_row("prod peak", *_usage(peak["resource"]))
    return rows


def _by_window(node: Mapping[str, Any]) -> Table:
    rows = table("<WINDOW", "<OF", *(f">{name.upper()}" for name in _AGGREGATIONS))
    for of, key in (("node", "aggregatedNodeUsages"), ("system", "aggregatedSystemUsages")):
        for window in node.get(key, ()):
            usages = [_usage(window["usage"].get(name)) for name in _AGGREGATIONS]
            rows.add_row(window["duration"], f"{of} cpu", *(cpu for cpu, _ in usages))
            rows.add_row("", f"{of} memory", *(memory for _, memory in usages))
    return rows


def _pods(pods: list[Mapping[str, Any]]) -> Table:
    rows = table("POD", "<QOS", "<PRIORITY", ">CPU", ">MEMORY")
    for pod in pods:
        rows.add_row(
            Name(f"{pod['namespace']}/{pod['name']}"),
            figure(pod.get("qos") or ABSENT),
            figure(pod.get("priority") or ABSENT),
            *_usage(pod["podUsage"]),
        )
    return rows


def _usage(usage: Mapping[str, Any] | None) -> tuple[RenderableType, RenderableType]:
    resources = (usage or {}).get("resources", {})
    return (
        figure(cores(_amount(resources.get("cpu")))),
        figure(size(_amount(resources.get("memory")))),
    )


def _amount(quantity: str | None) -> float | None:
    return None if quantity is None else Quantity.parse(quantity).milli / 1000
