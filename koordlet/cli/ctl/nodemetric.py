"""koordletctl nodemetric: the NodeMetric that was reported last."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from koord.api.quantity import Quantity
from koord.component.tables import ABSENT, Name, figure, heading, pairs, prose, show, table
from koordlet.cli.ctl.arguments import Options
from koordlet.cli.ctl.client import CtlClient
from koordlet.cli.ctl.units import cores, size

_AGGREGATIONS = ("avg", "p50", "p90", "p95", "p99")


def run(client: CtlClient, options: Options) -> int:
    """Show the object; fails while there is none."""
    found = client.get("nodemetric")
    show(found, lambda: view(found), options.output)
    return 0


def view(found: Mapping[str, Any]) -> Iterator[RenderableType]:
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
