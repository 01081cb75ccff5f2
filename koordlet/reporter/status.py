"""Build a NodeMetric status from the metric cache and a snapshot of the states."""

import asyncio
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from prometheus_client import Metric

from koord.api.nodemetric import (
    AggregatedUsage,
    GpuUsage,
    HostApplicationMetric,
    MemoryPolicy,
    NodeMetricSpec,
    NodeMetricStatus,
    NumaUsage,
    PodMetric,
    ProdPrediction,
    Usage,
    node_metric,
)
from koord.api.nodeslo import HostApplication
from koord.api.pod import Pod
from koord.util.errors import KoordError
from koordlet.collectors.engine.collector import FamilySpec, LabelledValue
from koordlet.metriccache.aggregate import Aggregate
from koordlet.metriccache.cache import MetricCache
from koordlet.metriccache.keys import GpuKey
from koordlet.metriccache.kinds import (
    HOST_APP_CPU_USAGE,
    HOST_APP_MEMORY_USAGE,
    HOST_APP_MEMORY_USAGE_WITH_PAGE_CACHE,
    HOST_APP_MEMORY_WITH_HOT_PAGE_USAGE,
    NODE_CPU_USAGE,
    NODE_GPU_CORE_USAGE,
    NODE_GPU_MEMORY_TOTAL,
    NODE_GPU_MEMORY_USAGE,
    NODE_MEMORY_USAGE,
    NODE_MEMORY_USAGE_WITH_PAGE_CACHE,
    NODE_MEMORY_WITH_HOT_PAGE_USAGE,
    NODE_NUMA_CPU_USAGE,
    NODE_NUMA_MEMORY_USAGE,
    POD_CPU_USAGE,
    POD_GPU_CORE_USAGE,
    POD_GPU_MEMORY_USAGE,
    POD_MEMORY_USAGE,
    POD_MEMORY_USAGE_WITH_PAGE_CACHE,
    POD_MEMORY_WITH_HOT_PAGE_USAGE,
    SYS_CPU_USAGE,
    SYS_MEMORY_USAGE,
    SYS_NUMA_CPU_USAGE,
    SYS_NUMA_MEMORY_USAGE,
    AnyKind,
)
from koordlet.statesinformer.podmeta import PodMeta

HEALTHY_GPUS = "healthy_gpus"  # key in the metric cache: their UUIDs, a frozenset


class GpuUsages:
    """Adds the GPUs to usages: those that are measured now, so none where NVML is away.

    All windows end at the same time.
    """

    def __init__(self, cache: MetricCache, end: float) -> None:
        self._cache = cache
        self._end = end
        self._totals = dict(cache.last_values(NODE_GPU_MEMORY_TOTAL))
        healthy = cache.get(HEALTHY_GPUS) if self._totals else None
        self._healthy = healthy if isinstance(healthy, frozenset) else frozenset()

    def with_gpus(self, usage: Usage | None, window: float) -> Usage | None:
        """The usage of the node with the means of its GPUs."""
        return self._with(usage, window, Aggregate.avg)

    def with_gpus_each(self, usages: AggregatedUsage) -> AggregatedUsage:
        """The same for all aggregates of a window; a cold one stays empty."""
        window = usages.duration
        return AggregatedUsage(
            window,
            self._with(usages.avg, window, Aggregate.avg),
            self._with(usages.p50, window, lambda found: found.percentile(50)),
            self._with(usages.p90, window, lambda found: found.percentile(90)),
            self._with(usages.p95, window, lambda found: found.percentile(95)),
            self._with(usages.p99, window, lambda found: found.percentile(99)),
        )

    def of_pods(
        self, pods: list[tuple[PodMeta, Usage]], window: float
    ) -> list[tuple[PodMeta, Usage]]:
        """The usages of pods with the means of the GPUs that each of them uses."""
        if not self._totals:
            return pods
        cores = self._cache.aggregate_all(POD_GPU_CORE_USAGE, window, self._end)
        memories = self._cache.aggregate_all(POD_GPU_MEMORY_USAGE, window, self._end)
        found: dict[str, list[GpuUsage]] = {}
        for key, core in cores.items():
            uid, minor, uuid = key
            total = self._totals.get(GpuKey(minor, uuid))
            if total is not None and key in memories:
                usage = self._usage(minor, uuid, core.avg(), memories[key].avg(), total)
                found.setdefault(uid, []).append(usage)
        return [(pod, replace(usage, gpus=_sorted(found.get(pod.uid, ())))) for pod, usage in pods]

    def _with(
        self, usage: Usage | None, window: float, figure: Callable[[Aggregate], float]
    ) -> Usage | None:
        if usage is None or not self._totals:
            return usage
        cores = self._cache.aggregate_all(NODE_GPU_CORE_USAGE, window, self._end)
        memories = self._cache.aggregate_all(NODE_GPU_MEMORY_USAGE, window, self._end)
        gpus = _sorted(
            self._usage(*key, figure(cores[key]), figure(memories[key]), total)
            for key, total in self._totals.items()
            if key in cores and key in memories
        )
        return replace(usage, gpus=gpus)

    def _usage(self, minor: str, uuid: str, core: float, memory: float, total: float) -> GpuUsage:
        return GpuUsage(
            uuid=uuid,
            minor=int(minor),
            core=core,
            memory=memory,
            total=total,
            healthy=uuid in self._healthy,
        )


def _sorted(usages: Iterable[GpuUsage]) -> tuple[GpuUsage, ...]:
    return tuple(sorted(usages, key=lambda usage: (usage.minor, usage.uuid)))


Predict = Callable[[Collection[Pod]], ProdPrediction | None]
"""Predicts for the pods of a report; None: nothing can be predicted."""

WARM = 0.5  # share of a window that a series must span before its aggregates count


class Withheld(KoordError):
    """No honest report can be made now."""


class ReportNotRequested(Withheld):
    """The cluster has not asked for reports. Not a failure of this daemon."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportInputs:
    """The states that a report covers, and its time."""

    spec: NodeMetricSpec
    pods: tuple[PodMeta, ...]
    host_applications: tuple[HostApplication, ...]
    now: float  # seconds since boot: the end of all windows
    oldest: float  # seconds that the newest sample of node CPU and memory may be old
    oldest_hot: float = 10.0  # that of memory with hot pages, which has a period of its own

    def oldest_of(self, kind: AnyKind) -> float:
        """Return how old the newest sample of a kind may be, in seconds."""
        return self.oldest_hot if kind is NODE_MEMORY_WITH_HOT_PAGE_USAGE else self.oldest


@dataclass(frozen=True, slots=True)
class MemoryKinds:
    """The series that a memory policy counts."""

    node: AnyKind
    pod: AnyKind
    host_application: AnyKind


WITHOUT_PAGE_CACHE = MemoryKinds(NODE_MEMORY_USAGE, POD_MEMORY_USAGE, HOST_APP_MEMORY_USAGE)
WITH_PAGE_CACHE = MemoryKinds(
    NODE_MEMORY_USAGE_WITH_PAGE_CACHE,
    POD_MEMORY_USAGE_WITH_PAGE_CACHE,
    HOST_APP_MEMORY_USAGE_WITH_PAGE_CACHE,
)
WITH_HOT_PAGE_CACHE = MemoryKinds(
    NODE_MEMORY_WITH_HOT_PAGE_USAGE,
    POD_MEMORY_WITH_HOT_PAGE_USAGE,
    HOST_APP_MEMORY_WITH_HOT_PAGE_USAGE,
)
_BY_POLICY = {
    MemoryPolicy.WITH_PAGE_CACHE: WITH_PAGE_CACHE,
    MemoryPolicy.WITH_HOT_PAGE_CACHE: WITH_HOT_PAGE_CACHE,
}


def build_status(
    cache: MetricCache, snapshot: ReportInputs, predict: Predict = lambda _pods: None
) -> NodeMetricStatus:
    """Return the status. Takes tens of milliseconds on a full node: not for the event loop.

    Raises:
        Withheld: the newest sample of node CPU or memory is too old, or there is none.
    """
    spec, window = snapshot.spec, snapshot.spec.aggregate_duration
    memory = memory_kinds(cache, snapshot)
    measured_at = _measured_at(cache, memory.node, snapshot)
    reader = _Reader(cache, snapshot.now)
    gpus = GpuUsages(cache, snapshot.now)
    pods = gpus.of_pods(_measured_pods(reader, memory.pod, window, snapshot.pods), window)
    return NodeMetricStatus(
        update_time=measured_at,
        node_usage=gpus.with_gpus(reader.mean(NODE_CPU_USAGE, memory.node, window), window),
        aggregated_node_usages=tuple(
            gpus.with_gpus_each(reader.aggregated(NODE_CPU_USAGE, memory.node, duration))
            for duration in spec.durations
        ),
        system_usage=reader.mean(SYS_CPU_USAGE, SYS_MEMORY_USAGE, window),
        aggregated_system_usages=tuple(
            reader.aggregated(SYS_CPU_USAGE, SYS_MEMORY_USAGE, duration)
            for duration in spec.durations
        ),
        numa_usages=tuple(_numa_usages(reader, window)),
        pods=tuple(_pod_metric(pod, usage) for pod, usage in pods),
        host_applications=tuple(
            _host_applications(reader, memory.host_application, window, snapshot.host_applications)
        ),
        prod=predict([pod.pod for pod, _ in pods]),
    )


def memory_kinds(cache: MetricCache, snapshot: ReportInputs) -> MemoryKinds:
    """Return the series of the spec's policy; without page cache where they have no new sample."""
    kinds = _BY_POLICY.get(snapshot.spec.memory_policy)
    if kinds is not None:
        newest = cache.newest(kinds.node)
        if newest is not None and snapshot.now - newest.boot <= snapshot.oldest_of(kinds.node):
            return kinds
    return WITHOUT_PAGE_CACHE


def _measured_at(cache: MetricCache, memory: AnyKind, snapshot: ReportInputs) -> float:
    """Unix seconds of the newest sample of node CPU and memory, the older of both."""
    stamps = []
    for kind in (NODE_CPU_USAGE, memory):
        newest = cache.newest(kind)
        if newest is None:
            raise Withheld(f"wanted a sample of {kind.name}, found none yet; wait for one")
        stamps.append(newest)
        age, oldest = snapshot.now - newest.boot, snapshot.oldest_of(kind)
        if age > oldest:
            raise Withheld(
                f"wanted node CPU and memory samples of the last {oldest:g} s, "
                f"found the newest {age:.1f} s old; see which collector fails"
            )
    return min(stamps, key=lambda stamp: stamp.boot).wall


class _Reader:
    """Reads usages from the cache; all windows of one report have the same end."""

    def __init__(self, cache: MetricCache, end: float) -> None:
        self._cache = cache
        self._end = end

    def mean(self, cpu: AnyKind, memory: AnyKind, seconds: float) -> Usage | None:
        """Means of a pair of series without properties; None: one of them has no sample."""
        return _mean(*self._pair(cpu, memory, seconds))

    def means(self, cpu: AnyKind, memory: AnyKind, seconds: float) -> dict[str, Usage]:
        """Means by property; a property with samples of only one of the two kinds is left out."""
        cores = self._cache.aggregate_all(cpu, seconds, self._end)
        memories = self._cache.aggregate_all(memory, seconds, self._end)
        return {
            key[0]: Usage(series.avg(), memories[key].avg())
            for key, series in cores.items()
            if key in memories
        }

    def aggregated(self, cpu: AnyKind, memory: AnyKind, seconds: float) -> AggregatedUsage:
        """All aggregates of one window; none of them while a series spans less than half of it."""
        cores, size = self._pair(cpu, memory, seconds)
        if cores is None or size is None or min(cores.span, size.span) < WARM * seconds:
            return AggregatedUsage(seconds)
        return AggregatedUsage(
            seconds,
            _mean(cores, size),
            *(Usage(cores.percentile(p), size.percentile(p)) for p in (50, 90, 95, 99)),
        )

    def _pair(
        self, cpu: AnyKind, memory: AnyKind, seconds: float
    ) -> tuple[Aggregate | None, Aggregate | None]:
        return (
            self._cache.aggregate(cpu, (), seconds, self._end),
            self._cache.aggregate(memory, (), seconds, self._end),
        )


def _mean(cores: Aggregate | None, memory: Aggregate | None) -> Usage | None:
    return Usage(cores.avg(), memory.avg()) if cores is not None and memory is not None else None


def _numa_usages(reader: _Reader, window: float) -> Iterator[NumaUsage]:
    nodes = reader.means(NODE_NUMA_CPU_USAGE, NODE_NUMA_MEMORY_USAGE, window)
    systems = reader.means(SYS_NUMA_CPU_USAGE, SYS_NUMA_MEMORY_USAGE, window)
    for numa_node in sorted(nodes, key=int):
        yield NumaUsage(int(numa_node), nodes[numa_node], systems.get(numa_node))


def _measured_pods(
    reader: _Reader, memory: AnyKind, window: float, pods: Iterable[PodMeta]
) -> list[tuple[PodMeta, Usage]]:
    """The pods that belong in the report with their usage, by namespace and name."""
    usages = reader.means(POD_CPU_USAGE, memory, window)
    measured = [pod for pod in pods if pod.uid in usages and not pod.pod.finished]
    measured.sort(key=lambda pod: (pod.pod.namespace, pod.pod.name))
    return [(pod, usages[pod.uid]) for pod in measured]


def _pod_metric(pod: PodMeta, usage: Usage) -> PodMetric:
    return PodMetric(
        name=pod.pod.name,
        namespace=pod.pod.namespace,
        usage=usage,
        priority=pod.pod.priority_class.value,
        qos=pod.qos.value,
    )


def _host_applications(
    reader: _Reader, memory: AnyKind, window: float, applications: Iterable[HostApplication]
) -> Iterator[HostApplicationMetric]:
    usages = reader.means(HOST_APP_CPU_USAGE, memory, window)
    for application in sorted(applications, key=lambda application: application.name):
        if application.name in usages:
            yield HostApplicationMetric(
                name=application.name,
                usage=usages[application.name],
                priority=application.priority,
                qos=application.qos,
            )


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

    def has_reported(self) -> bool:
        """Whether the object that reports go to now has had one of them."""


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

    def has_reported(self) -> bool:
        """Return True: it is always the same file."""
        return True


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

    def has_reported(self) -> bool:
        """Whether that is so of all sinks."""
        return all(sink.has_reported() for sink in self._sinks)


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
