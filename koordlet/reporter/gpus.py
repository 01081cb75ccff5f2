"""GPUs in a report: what is used of each, beside the CPU and memory of node and pods."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from koord.api.nodemetric import AggregatedUsage, GpuUsage, Usage
from koordlet.metriccache.aggregate import Aggregate
from koordlet.metriccache.cache import MetricCache
from koordlet.metriccache.keys import GpuKey
from koordlet.metriccache.kinds import (
    NODE_GPU_CORE_USAGE,
    NODE_GPU_MEMORY_TOTAL,
    NODE_GPU_MEMORY_USAGE,
    POD_GPU_CORE_USAGE,
    POD_GPU_MEMORY_USAGE,
)
from koordlet.statesinformer.model import PodMeta

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

    def beside(self, usage: Usage | None, window: float) -> Usage | None:
        """The usage of the node with the means of its GPUs."""
        return self._with(usage, window, Aggregate.avg)

    def beside_each(self, usages: AggregatedUsage) -> AggregatedUsage:
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
