"""CPU throttling of pods and their containers."""

from collections.abc import Iterable, Iterator

from prometheus_client import Metric

from koordlet.collectors.engine.base import Tick
from koordlet.collectors.engine.exposition import gauge
from koordlet.collectors.pod_labels import POD_LABELS, pod_labels
from koordlet.collectors.podgroups import PodGroups
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

    def __init__(self, node: str, interval: float, groups: PodGroups) -> None:
        self._node = node
        self._groups = groups
        self._previous: Previous[CpuThrottle] = Previous(interval)
        self._latest: tuple[tuple[PodMeta, float], ...] = ()

    def collect(self, tick: Tick) -> Iterable[Sample]:
        samples: list[Sample] = []
        measured: list[tuple[PodMeta, float]] = []
        rows, groups = self._groups.of(tick.pods)
        swap = self._previous.swap
        for row, stat in zip(rows, tick.get_all(CPU_THROTTLE, groups), strict=True):
            if stat is None or (before := swap(row.key, stat[0], stat[1])) is None:
                continue
            ratio = throttled_ratio(before[0], stat[0])
            if row.pod is None:
                samples.append(Sample(CONTAINER_CPU_THROTTLED, ratio, row.series))
            else:
                measured.append((row.pod, ratio))
                samples.append(Sample(POD_CPU_THROTTLED, ratio, row.series))
        self._previous.purge(tick.monotonic)
        self._latest = tuple(measured)
        return samples

    def families(self) -> Iterator[Metric]:
        yield gauge(
            "koordlet_pod_cpu_throttled_ratio",
            "Share of the latest CPU enforcement periods in which the pod was throttled, 0 to 1.",
            POD_LABELS,
            ((pod_labels(self._node, pod), ratio) for pod, ratio in self._latest),
        )
