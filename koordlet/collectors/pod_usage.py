"""Usage and CPU throttling of pods and their containers."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client import Metric

from koordlet.collectors.engine.collector import FamilySpec, Tick
from koordlet.collectors.engine.usage import (
    PODS_NUMA_MEMORY_SLOT,
    PODS_SLOT,
    PreviousReadings,
    Rates,
    Usage,
)
from koordlet.host.cgroups.cgroupfiles import CpuThrottle
from koordlet.host.resources import CPU_THROTTLE, CPU_USAGE, MEMORY_NUMA, MEMORY_STAT
from koordlet.metriccache.kinds import (
    CONTAINER_CPU_THROTTLED,
    CONTAINER_CPU_USAGE,
    CONTAINER_MEMORY_USAGE,
    POD_CPU_THROTTLED,
    POD_CPU_USAGE,
    POD_MEMORY_USAGE,
    Cadence,
    Sample,
)
from koordlet.statesinformer.podmeta import PodMeta

POD_NAME_LABELS = ("node", "pod_uid", "pod_namespace", "pod_name")  # as Koordinator spells them
POD_LABELS = (*POD_NAME_LABELS, "qos")


def pod_name_labels(node: str, pod: PodMeta) -> tuple[str, ...]:
    """Values of POD_NAME_LABELS."""
    return node, pod.uid, pod.pod.namespace, pod.pod.name


def pod_labels(node: str, pod: PodMeta) -> tuple[str, ...]:
    """Values of POD_LABELS; qos is Koordinator's class: LSE, LSR, LS, BE or SYSTEM."""
    return *pod_name_labels(node, pod), pod.qos.value


class GroupRow(NamedTuple):
    """One pod or container."""

    key: str  # UID of the pod, or id of the container
    series: tuple[str]  # the key of its samples
    group: str  # its cgroup
    absent_at: float | None  # a monotonic time at which it did not exist yet, if one is known
    pod: PodMeta | None  # None: a container


class PodGroups:
    """Makes the rows of the pods of a tick, anew only when those have changed.

    For one thread. Collectors share one of these.
    """

    def __init__(self) -> None:
        self._pods: tuple[PodMeta, ...] = ()
        self._rows: tuple[GroupRow, ...] = ()
        self._groups: tuple[str, ...] = ()

    def of(self, pods: tuple[PodMeta, ...]) -> tuple[tuple[GroupRow, ...], tuple[str, ...]]:
        """Return the rows, each pod before its containers, and the cgroup of each."""
        if pods is not self._pods:
            self._pods, self._rows = pods, tuple(_rows(pods))
            self._groups = tuple(row.group for row in self._rows)
        return self._rows, self._groups


def _rows(pods: tuple[PodMeta, ...]) -> Iterator[GroupRow]:
    for pod in pods:
        yield GroupRow(pod.uid, (pod.uid,), pod.cgroup, pod.absent_at, pod)
        for container in pod.containers:
            key = container.container_id
            yield GroupRow(key, (key,), container.cgroup, container.absent_at, None)


_NS = 1e-9  # seconds in the unit of CPU counters


_POD_CPU_USAGE_CORES = FamilySpec(
    "koordlet_pod_cpu_usage_cores", "CPU cores that the pod uses.", POD_LABELS, "cores"
)
_POD_MEMORY_USAGE_BYTES = FamilySpec(
    "koordlet_pod_memory_usage_bytes",
    "Memory that the pod uses, without page cache.",
    POD_LABELS,
    "bytes",
)


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
        PODS_SLOT.put(tick, Usage(sum(m[1] for m in measured), sum(m[2] for m in measured)))
        return samples

    def families(self) -> Iterator[Metric]:
        latest = [(pod_labels(self._node, pod), cpu, memory) for pod, cpu, memory in self._latest]
        yield _POD_CPU_USAGE_CORES.metric(((labels, cpu) for labels, cpu, _ in latest))
        yield _POD_MEMORY_USAGE_BYTES.metric(((labels, memory) for labels, _, memory in latest))


def throttled_ratio(before: CpuThrottle, now: CpuThrottle) -> float:
    """Share of the enforcement periods since the reading before in which tasks had to wait, 0 to 1.

    0 when no period passed: the group was idle, has no limit, or was created anew.
    """
    periods = now.nr_periods - before.nr_periods
    throttled = now.nr_throttled - before.nr_throttled
    return max(throttled, 0) / periods if periods > 0 else 0.0


_POD_CPU_THROTTLED_RATIO = FamilySpec(
    "koordlet_pod_cpu_throttled_ratio",
    "Share of the latest CPU enforcement periods in which the pod was throttled, 0 to 1.",
    POD_LABELS,
    "0 to 1",
)


UNLIMITED_TURNS = 5  # ticks in which each group without a CPU limit is read once


class PodThrottledCollector:
    """Ratios need two readings; a container does not wait for its pod.

    A group that never had an enforcement period has no CPU limit, so its ratio is 0. It is read
    once in UNLIMITED_TURNS ticks: these are a third of all reads on a node without limits. The
    first periods after a limit was set count whole, at most that much later.
    """

    name = "pod_throttled"
    gates: tuple[str, ...] = ()
    cadence = Cadence.USAGE

    def __init__(self, node: str, interval: float, groups: PodGroups) -> None:
        self._node = node
        self._groups = groups
        self._previous: PreviousReadings[CpuThrottle] = PreviousReadings(interval)
        self._unlimited: set[str] = set()  # keys of groups
        self._turn = 0
        self._latest: tuple[tuple[PodMeta, float], ...] = ()

    def collect(self, tick: Tick) -> Iterable[Sample]:
        samples: list[Sample] = []
        measured: list[tuple[PodMeta, float]] = []
        known, self._unlimited = self._unlimited, set()
        self._turn = (self._turn + 1) % UNLIMITED_TURNS
        for position, row in enumerate(self._groups.of(tick.pods)[0]):
            ratio: float | None = 0.0
            if row.key not in known or position % UNLIMITED_TURNS == self._turn:
                ratio = self._read(tick, row)
            else:
                self._unlimited.add(row.key)
            if ratio is None:
                continue
            if row.pod is None:
                samples.append(Sample(CONTAINER_CPU_THROTTLED, ratio, row.series))
            else:
                measured.append((row.pod, ratio))
                samples.append(Sample(POD_CPU_THROTTLED, ratio, row.series))
        self._previous.purge(tick.monotonic)
        self._latest = tuple(measured)
        return samples

    def _read(self, tick: Tick, row: GroupRow) -> float | None:
        stat = tick.get_at(CPU_THROTTLE, row.group)
        if stat is None:
            return None
        if stat[0].nr_periods == 0:
            self._unlimited.add(row.key)
        before = self._previous.exchange(row.key, stat[0], stat[1])
        return None if before is None else throttled_ratio(before[0], stat[0])

    def families(self) -> Iterator[Metric]:
        yield _POD_CPU_THROTTLED_RATIO.metric(
            ((pod_labels(self._node, pod), ratio) for pod, ratio in self._latest)
        )


PODS_PER_TURN = (
    5  # ticks in which every pod is read once: the kernel works hard for memory.numa_stat
)
READING_TTL = 10.0  # seconds for which a reading counts for its pod


class PodNumaCollector:
    """Samples nothing; hands the sums to SystemResourceCollector. Off without NUMA nodes."""

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
        self._turn = (self._turn + 1) % PODS_PER_TURN
        self._known = {
            pod.uid: read
            for position, pod in enumerate(tick.pods)
            if (read := self._reading(tick, pod, due=position % PODS_PER_TURN == self._turn))
            is not None
        }
        if self._known or not tick.pods:
            PODS_NUMA_MEMORY_SLOT.put(tick, _sum_by_node(read for _, read in self._known.values()))
        return ()

    def _reading(
        self, tick: Tick, pod: PodMeta, *, due: bool
    ) -> tuple[float, Mapping[int, int]] | None:
        known = self._known.get(pod.uid)
        if known is not None and tick.monotonic - known[0] > READING_TTL:
            known = None
        if due or known is None:
            read = tick.get_at(MEMORY_NUMA, pod.cgroup)
            if read is not None:
                return read[1], read[0]
        return known

    def families(self) -> Iterable[Metric]:
        return ()


def _sum_by_node(readings: Iterable[Mapping[int, int]]) -> Mapping[int, int]:
    sums: dict[int, int] = {}
    for reading in readings:
        for numa, size in reading.items():
            sums[numa] = sums.get(numa, 0) + size
    return sums
