"""A finished report: its object, its Prometheus families, and the sinks that write it."""

import asyncio
import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import Metric

from koord.api.nodemetric import NodeMetricSpec, NodeMetricStatus, Usage, node_metric
from koord.util.errors import KoordError
from koordlet.collectors.engine.collector import FamilySpec, LabelledValue


@dataclass(frozen=True, slots=True)
class Report:
    """A status and the NodeMetric object with it, as JSON."""

    spec: NodeMetricSpec
    status: NodeMetricStatus
    body: bytes


def make_report(node: str, spec: NodeMetricSpec, status: NodeMetricStatus) -> Report:
    """Encode the object as Koordinator's own encoder does: compact, fields in its order."""
    text = json.dumps(node_metric(node, spec, status), separators=(",", ":"), ensure_ascii=False)
    return Report(spec, status, (text + "\n").encode("utf-8", "replace"))


class ObserveOnly(KoordError):
    """The report was made, but another agent writes the one that counts."""


class Sink(Protocol):
    """A place that reports are written to."""

    def check(self) -> None:
        """Return if a report would be taken now.

        Raises:
            ReportNotRequested: the cluster asks for no reports.
        """

    async def write(self, report: Report) -> None:
        """Write one report. Its time is that of its samples, also when it is sent late.

        Raises:
            ObserveOnly: another agent writes this object.
            KoordError: it did not arrive; the message says why. The next report is new.
        """

    def retry_in(self) -> float:
        """Return after how many seconds a new report is worth sending, if the latest failed.

        math.inf: not before the next one is due.
        """


class FileSink:
    """Keeps the latest report in a file; readers never see a part of one."""

    def __init__(self, replace: Callable[[bytes], None]) -> None:
        """replace writes the whole file in one step; it may block."""
        self._replace = replace

    def check(self) -> None:
        """Return at once: a file takes every report."""

    async def write(self, report: Report) -> None:
        """Replace the file with the report."""
        await asyncio.to_thread(self._replace, report.body)

    def retry_in(self) -> float:
        """Return math.inf: a fault of a file lasts, so no retry before the next report is due."""
        return math.inf


class AllSinks:
    """Writes a report to several sinks; the failure of one does not stop the others."""

    def __init__(self, *sinks: Sink) -> None:
        self._sinks = sinks

    def check(self) -> None:
        """Check all sinks; raises the first error."""
        for sink in self._sinks:
            sink.check()

    async def write(self, report: Report) -> None:
        """Write to all sinks; raise the first error, ObserveOnly only if there is no other."""
        found = await asyncio.gather(
            *(sink.write(report) for sink in self._sinks), return_exceptions=True
        )
        errors = [error for error in found if error is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, ObserveOnly)):
            raise error

    def retry_in(self) -> float:
        """Return the shortest time of all sinks, in seconds; math.inf without sinks."""
        return min((sink.retry_in() for sink in self._sinks), default=math.inf)


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
    spec = FamilySpec(
        f"koordlet_node_metric_{name}",
        f"Usage {subject} in the latest NodeMetric: CPU in cores, memory in bytes.",
        (*labels, "resource", "unit"),
        "cores, bytes",
    )
    return spec.metric(_values(rows))


def _values(rows: _Rows) -> Iterator[LabelledValue]:
    for labels, usage in rows:
        if usage is not None:
            yield (*labels, "cpu", "core"), math.trunc(usage.cores * 1000) / 1000
            yield (*labels, "memory", "byte"), math.trunc(usage.memory_bytes)
