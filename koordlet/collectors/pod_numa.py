"""Memory of pods on each NUMA node, which the system's share of it needs."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import Metric

from koordlet.collectors.engine.base import Tick
from koordlet.collectors.usageslots import PODS_NUMA_MEMORY
from koordlet.host.resources import MEMORY_NUMA
from koordlet.metriccache.kinds import Cadence
from koordlet.metriccache.sample import Sample
from koordlet.statesinformer.model import PodMeta

TURNS = 5  # ticks in which every pod is read once: the kernel works hard for memory.numa_stat
REMEMBERED = 10.0  # seconds for which a reading counts for its pod


class PodNumaCollector:
    """Samples nothing; hands the sums to SystemResource. Off where there are no NUMA nodes."""

    name = "pod_numa"
    gates: tuple[str, ...] = ()
    cadence = Cadence.USAGE

    def __init__(self, numa_nodes: Callable[[], Iterable[int]]) -> None:
        self._numa_nodes = numa_nodes
        self._turn = 0
        self._known: dict[str, tuple[float, Mapping[int, int]]] = {}  # by pod UID

    def collect(self, tick: Tick) -> Iterable[Sample]:
        if not list(self._numa_nodes()):
            return ()
        self._turn = (self._turn + 1) % TURNS
        self._known = {
            pod.uid: read
            for position, pod in enumerate(tick.pods)
            if (read := self._reading(tick, pod, due=position % TURNS == self._turn)) is not None
        }
        if self._known or not tick.pods:
            PODS_NUMA_MEMORY.put(tick, _sums(read for _, read in self._known.values()))
        return ()

    def _reading(
        self, tick: Tick, pod: PodMeta, *, due: bool
    ) -> tuple[float, Mapping[int, int]] | None:
        known = self._known.get(pod.uid)
        if known is not None and tick.monotonic - known[0] > REMEMBERED:
            known = None
        if due or known is None:
            read = tick.get_at(MEMORY_NUMA, pod.cgroup)
            if read is not None:
                return read[1], read[0]
        return known

    def families(self) -> Iterable[Metric]:
        return ()


def _sums(readings: Iterable[Mapping[int, int]]) -> Mapping[int, int]:
    sums: dict[int, int] = {}
    for reading in readings:
        for numa, size in reading.items():
            sums[numa] = sums.get(numa, 0) + size
    return sums
