"""CPU throttling of pods and their containers."""

from collections.abc import Iterable, Iterator

from prometheus_client import Metric

from koordlet.collectors.engine.base import Tick
from koordlet.collectors.engine.exposition import gauge
from koordlet.collectors.pod_labels import POD_LABELS, pod_labels
from koordlet.collectors.rates import Previous
from koordlet.host.cgroups.cgroupfiles import CpuThrottle
from koordlet.host.resources import CPU_THROTTLE
from koordlet.metriccache.kinds import CONTAINER_CPU_THROTTLED, POD_CPU_THROTTLED, Cadence
from koordlet.metriccache.sample import Sample
from koordlet.statesinformer.model import PodMeta


def throttled_ratio(before: CpuThrottle, now: CpuThrottle) -> float:
    """Share of the enforcement periods since the reading before in which tasks had to wait, 0 to 1.

    0 when no period passed: the group was idle, has no limit, or was created anew.
    """
    periods = now.nr_periods - before.nr_periods
    throttled = now.nr_throttled - before.nr_throttled
    return max(throttled, 0) / periods if periods > 0 else 0.0


class PodThrottledCollector:
    """Ratios need two readings; a container does not wait for its pod."""

    name = "pod_throttled"
    gates: tuple[str, ...] = ()
    cadence = Cadence.USAGE

    def __init__(self, node: str, interval: float) -> None:
        self._node = node
        self._previous: Previous[CpuThrottle] = Previous(interval)
        self._latest: tuple[tuple[PodMeta, float], ...] = ()

    def collect(self, tick: Tick) -> Iterable[Sample]:
        samples: list[Sample] = []
        measured: list[tuple[PodMeta, float]] = []
        for pod in tick.pods:
            ratio = self._ratio(tick, pod.uid, pod.cgroup)
            if ratio is not None:
                measured.append((pod, ratio))
                samples.append(Sample(POD_CPU_THROTTLED, ratio, (pod.uid,)))
            for container in pod.containers:
                ratio = self._ratio(tick, container.container_id, container.cgroup)
                if ratio is not None:
                    key = (container.container_id,)
                    samples.append(Sample(CONTAINER_CPU_THROTTLED, ratio, key))
        self._previous.purge(tick.monotonic)
        self._latest = tuple(measured)
        return samples

    def _ratio(self, tick: Tick, key: str, group: str) -> float | None:
        stat = tick.get_at(CPU_THROTTLE, group)
        if stat is None:
            return None
        before = self._previous.swap(key, stat[0], stat[1])
        return None if before is None else throttled_ratio(before[0], stat[0])

    def families(self) -> Iterator[Metric]:
        yield gauge(
            "koordlet_pod_cpu_throttled_ratio",
            "Share of the latest CPU enforcement periods in which the pod was throttled, 0 to 1.",
            POD_LABELS,
            ((pod_labels(self._node, pod), ratio) for pod, ratio in self._latest),
        )
