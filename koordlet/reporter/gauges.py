"""The latest NodeMetric status as Prometheus families; names and labels are Koordinator's."""

import math
from collections.abc import Iterable, Iterator

from prometheus_client import Metric

from koord.api.nodemetric import NodeMetricStatus, Usage
from koordlet.collectors.engine.exposition import LabelledValue, gauge

_Rows = Iterable[tuple[tuple[str, ...], Usage | None]]


def status_families(node: str, status: NodeMetricStatus) -> Iterator[Metric]:
    """Return koordlet_node_metric_*: the values of the status; absent ones have no series."""
    whole, numa = ("node",), ("node", "numa_node_id")
    yield _family("node_usage", "of the node", whole, [((node,), status.node_usage)])
    yield _family("system_usage", "of the system", whole, [((node,), status.system_usage)])
    numa_nodes = [((node, str(part.numa_node_id)), part) for part in status.numa_usages]
    yield _family(
        "numa_node_usage",
        "of a NUMA node",
        numa,
        ((labels, part.node_usage) for labels, part in numa_nodes),
    )
    yield _family(
        "numa_system_usage",
        "of the system on a NUMA node",
        numa,
        ((labels, part.system_usage) for labels, part in numa_nodes),
    )


def _family(name: str, subject: str, labels: tuple[str, ...], rows: _Rows) -> Metric:
    return gauge(
        f"koordlet_node_metric_{name}",
        f"Usage {subject} in the latest NodeMetric: CPU in cores, memory in bytes.",
        (*labels, "resource", "unit"),
        _values(rows),
    )


def _values(rows: _Rows) -> Iterator[LabelledValue]:
    for labels, usage in rows:
        if usage is not None:
            yield (*labels, "cpu", "core"), math.trunc(usage.cores * 1000) / 1000
            yield (*labels, "memory", "byte"), math.trunc(usage.memory_bytes)
