"""Usage of pods and their containers: CPU, and memory without page cache."""

from collections.abc import Iterable, Iterator

from prometheus_client import Metric

from koordlet.collectors.engine.base import Tick
from koordlet.collectors.engine.exposition import gauge
from koordlet.collectors.pod_labels import POD_LABELS, pod_labels
from koordlet.collectors.podgroups import PodGroups
from koordlet.collectors.rates import Rates
from koordlet.collectors.usageslots import PODS, Usage
from koordlet.host.resources import CPU_USAGE, MEMORY_STAT
from koordlet.metriccache.kinds import (
    CONTAINER_CPU_USAGE,
    CONTAINER_MEMORY_USAGE,
    POD_CPU_USAGE,
    POD_MEMORY_USAGE,
    Cadence,
)
from koordlet.metriccache.sample import Sample
from koordlet.statesinformer.model import PodMeta

_NS = 1e-9  # seconds in the unit of CPU counters


class PodResourceCollector:
    """CPU and memory of a pod or container are sampled together or not at all.

    A container does not wait for its pod: it is sampled as soon as it has two readings, or one
    when it is so young that it started from zero after the last scan (absent_at).
    """

    name = "pod_resource"
    gates: tuple[str, ...] = ()
    cadence = Cadence.USAGE

    def __init__(self, node: str, interval: float, groups: PodGroups) -> None:
        self._node = node
        self._groups = groups
        self._cpu = Rates(interval)
        self._latest: tuple[tuple[PodMeta, float, int], ...] = ()  # cores, bytes

    def collect(self, tick: Tick) -> Iterable[Sample]:
        """Runs for 450 groups a second on a full node, hence no call per group of its own."""
        samples: list[Sample] = []
        measured: list[tuple[PodMeta, float, int]] = []
        rows, groups = self._groups.of(tick.pods)
        cpus, memories = tick.get_all(CPU_USAGE, groups), tick.get_all(MEMORY_STAT, groups)
        rate_of = self._cpu.rate
        for (key, series, _, absent_at, pod), cpu, memory in zip(rows, cpus, memories, strict=True):
            if cpu is None or memory is None:
                continue
            rate = rate_of(key, cpu[0], cpu[1], absent_at)
            if rate is None:
                continue
            cores, used = rate * _NS, memory[0].usage
            if pod is None:
                samples.append(Sample(CONTAINER_CPU_USAGE, cores, series))
                samples.append(Sample(CONTAINER_MEMORY_USAGE, used, series))
            else:
                measured.append((pod, cores, used))
                samples.append(Sample(POD_CPU_USAGE, cores, series))
                samples.append(Sample(POD_MEMORY_USAGE, used, series))
        self._cpu.purge(tick.monotonic)
        self._latest = tuple(measured)
        PODS.put(tick, Usage(sum(m[1] for m in measured), sum(m[2] for m in measured)))
        return samples

    def families(self) -> Iterator[Metric]:
        latest = [(pod_labels(self._node, pod), cpu, memory) for pod, cpu, memory in self._latest]
        yield gauge(
            "koordlet_pod_cpu_usage_cores",
            "CPU cores that the pod uses.",
            POD_LABELS,
            ((labels, cpu) for labels, cpu, _ in latest),
        )
        yield gauge(
            "koordlet_pod_memory_usage_bytes",
            "Memory that the pod uses, without page cache.",
            POD_LABELS,
            ((labels, memory) for labels, _, memory in latest),
        )
