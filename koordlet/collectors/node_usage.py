"""Usage of the node, its NUMA nodes and the system: CPU, and memory with and without page cache."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from prometheus_client import Metric

from koordlet.collectors.engine.collector import FamilySpec, Tick
from koordlet.collectors.engine.usage import (
    HOST_APPS_SLOT,
    KUBEPODS_SLOT,
    NODE_NUMA_CPU_SLOT,
    NODE_NUMA_MEMORY_SLOT,
    NODE_SLOT,
    PODS_NUMA_MEMORY_SLOT,
    PODS_SLOT,
    HostAppsUsage,
    PreviousReadings,
    Rates,
    TickSlot,
    Usage,
)
from koordlet.host.procfiles import TICKS_PER_SECOND
from koordlet.host.resources import (
    MEMINFO,
    MEMORY_STAT,
    NUMA_MEMINFO,
    PROC_STAT_PER_CPU,
    PROC_STAT_TICKS,
)
from koordlet.metriccache.kinds import (
    CONTAINER_MEMORY_USAGE_WITH_PAGE_CACHE,
    NODE_CPU_USAGE,
    NODE_MEMORY_USAGE,
    NODE_MEMORY_USAGE_WITH_PAGE_CACHE,
    NODE_NUMA_CPU_USAGE,
    NODE_NUMA_MEMORY_USAGE,
    POD_MEMORY_USAGE_WITH_PAGE_CACHE,
    SYS_CPU_USAGE,
    SYS_MEMORY_USAGE,
    SYS_NUMA_CPU_USAGE,
    SYS_NUMA_MEMORY_USAGE,
    AnyKind,
    Cadence,
    Sample,
)

_NODE_USED_CPU_CORES = FamilySpec(
    "koordlet_node_used_cpu_cores", "CPU cores that the node uses.", ("node",), "cores"
)
_NODE_USED_MEMORY_BYTES = FamilySpec(
    "koordlet_node_used_memory_bytes",
    "Memory that the node uses, without page cache.",
    ("node",),
    "bytes",
)


class NodeResourceCollector:
    """CPU and memory are sampled together or not at all, so that their means cover one time."""

    name = "node_resource"
    gates: tuple[str, ...] = ()
    cadence = Cadence.USAGE

    def __init__(self, node: str, interval: float) -> None:
        self._node = node
        self._busy = Rates(interval)
        self._latest: Usage | None = None

    def collect(self, tick: Tick) -> Iterable[Sample]:
        self._latest = usage = self._usage(tick)
        if usage is None:
            return []
        NODE_SLOT.put(tick, usage)
        return [Sample(NODE_CPU_USAGE, usage.cpu), Sample(NODE_MEMORY_USAGE, usage.memory)]

    def _usage(self, tick: Tick) -> Usage | None:
        ticks, memory = tick.get_at(PROC_STAT_TICKS), tick.get(MEMINFO)
        if ticks is None or memory is None:
            return None
        busy = self._busy.rate("node", *ticks)
        return None if busy is None else Usage(busy / TICKS_PER_SECOND, memory.usage)

    def families(self) -> Iterable[Metric]:
        usage = self._latest
        if usage is None:
            return
        node = (self._node,)
        yield _NODE_USED_CPU_CORES.metric([(node, usage.cpu)])
        yield _NODE_USED_MEMORY_BYTES.metric([(node, usage.memory)])


def numa_cores(
    before: Mapping[int, int], now: Mapping[int, int], seconds: float, numa_of: Mapping[int, int]
) -> dict[int, float]:
    """Return the cores used on each NUMA node, from the busy ticks of each CPU.

    Left out are CPUs without a known NUMA node, that were offline before, or whose counter went
    back; and nodes that have no other CPUs. Empty when no time passed.
    """
    cores: dict[int, float] = {}
    if seconds <= 0:
        return cores
    for cpu, ticks in now.items():
        numa, previous = numa_of.get(cpu), before.get(cpu)
        if numa is not None and previous is not None and ticks >= previous:
            busy = (ticks - previous) / (seconds * TICKS_PER_SECOND)
            cores[numa] = cores.get(numa, 0.0) + busy
    return cores


_NODE_NUMA_CPU_USAGE_CORES = FamilySpec(
    "koordlet_node_numa_cpu_usage_cores",
    "CPU cores in use on the NUMA node.",
    ("node", "numa_node_id"),
    "cores",
)
_NODE_NUMA_MEMORY_USAGE_BYTES = FamilySpec(
    "koordlet_node_numa_memory_usage_bytes",
    "Memory in use on the NUMA node, without page cache.",
    ("node", "numa_node_id"),
    "bytes",
)


class NodeNumaCollector:
    """Takes the NUMA nodes and their CPUs from NodeInfoCollector."""

    name = "node_numa"
    gates: tuple[str, ...] = ()
    cadence = Cadence.USAGE

    def __init__(
        self,
        node: str,
        interval: float,
        numa_nodes: Callable[[], Iterable[int]],
        numa_of_cpu: Callable[[], Mapping[int, int]],
    ) -> None:
        self._node = node
        self._numa_nodes = numa_nodes
        self._numa_of_cpu = numa_of_cpu
        self._previous: PreviousReadings[Mapping[int, int]] = PreviousReadings(interval)
        self._latest: tuple[Mapping[int, float], Mapping[int, int]] = ({}, {})

    def collect(self, tick: Tick) -> Iterable[Sample]:
        cores, memory = self._cores(tick), self._memory(tick)
        NODE_NUMA_CPU_SLOT.put(tick, cores)
        NODE_NUMA_MEMORY_SLOT.put(tick, memory)
        self._latest = cores, memory
        for numa, used in cores.items():
            yield Sample(NODE_NUMA_CPU_USAGE, used, (str(numa),))
        for numa, size in memory.items():
            yield Sample(NODE_NUMA_MEMORY_USAGE, size, (str(numa),))

    def _cores(self, tick: Tick) -> Mapping[int, float]:
        ticks = tick.get_at(PROC_STAT_PER_CPU)
        before = self._previous.exchange("node", *ticks) if ticks else None
        if ticks is None or before is None:
            return {}
        return numa_cores(before[0], ticks[0], ticks[1] - before[1], self._numa_of_cpu())

    def _memory(self, tick: Tick) -> Mapping[int, int]:
        read = {numa: tick.get(NUMA_MEMINFO, str(numa)) for numa in self._numa_nodes()}
        return {numa: memory.usage for numa, memory in read.items() if memory is not None}

    def families(self) -> Iterator[Metric]:
        cores, memory = self._latest
        yield _NODE_NUMA_CPU_USAGE_CORES.metric(
            (((self._node, str(numa)), used) for numa, used in cores.items())
        )
        yield _NODE_NUMA_MEMORY_USAGE_BYTES.metric(
            (((self._node, str(numa)), size) for numa, size in memory.items())
        )


class PageCacheCollector:
    """Works while it is wanted: the flag is set, or the NodeMetric spec asks for page cache.

    The files were read by the collectors before it, so it costs next to nothing.
    """

    name = "page_cache"
    gates: tuple[str, ...] = ()
    cadence = Cadence.USAGE

    def __init__(self, wanted: Callable[[], bool]) -> None:
        self._wanted = wanted

    def collect(self, tick: Tick) -> Iterable[Sample]:
        if not self._wanted():
            return
        memory = tick.get(MEMINFO)
        if memory is not None:
            yield Sample(NODE_MEMORY_USAGE_WITH_PAGE_CACHE, memory.usage_with_page_cache)
        for pod in tick.pods:
            yield from _page_cache_sample(
                tick, POD_MEMORY_USAGE_WITH_PAGE_CACHE, pod.uid, pod.cgroup
            )
            for container in pod.containers:
                key, group = container.container_id, container.cgroup
                yield from _page_cache_sample(
                    tick, CONTAINER_MEMORY_USAGE_WITH_PAGE_CACHE, key, group
                )

    def families(self) -> Iterable[Metric]:
        return ()


def _page_cache_sample(tick: Tick, kind: AnyKind, key: str, group: str) -> Iterator[Sample]:
    memory = tick.get(MEMORY_STAT, group)
    if memory is not None:
        yield Sample(kind, memory.usage_with_page_cache, (key,))


T = TypeVar("T")


def system_usage(node: Usage, pods: Usage, apps: HostAppsUsage, kubepods: Usage | None) -> Usage:
    """Return node - pods - host applications, never below zero.

    pods is the sum of the pods that were measured. A pod without a figure (just created, or it
    cannot be read) is not system usage: when the kubepods group as a whole was measured, the
    larger of both counts for what runs there. That group holds the applications inside it too.
    """
    inside = pods.plus(apps.inside_kubepods)
    if kubepods is not None:
        inside = Usage(max(inside.cpu, kubepods.cpu), max(inside.memory, kubepods.memory))
    return node.minus(inside).minus(apps.outside)


def numa_cpu_shares(system_cpu: float, node: Mapping[int, float]) -> dict[int, float]:
    """Divide system CPU among the NUMA nodes as the whole CPU usage is divided among them."""
    total = sum(node.values())
    return {numa: system_cpu * cpu / total if total > 0 else 0.0 for numa, cpu in node.items()}


def numa_memory_rest(node: Mapping[int, int], pods: Mapping[int, int]) -> dict[int, int]:
    """Memory of each NUMA node outside of pods, in bytes, never below zero.

    Host applications are not taken off, as in Koordinator.
    """
    return {numa: max(used - pods.get(numa, 0), 0) for numa, used in node.items()}


_SYSTEM_CPU_USAGE_CORES = FamilySpec(
    "koordlet_system_cpu_usage_cores",
    "CPU cores used outside of pods and host applications.",
    ("node",),
    "cores",
)
_SYSTEM_MEMORY_USAGE_BYTES = FamilySpec(
    "koordlet_system_memory_usage_bytes",
    "Memory used outside of pods and host applications, without page cache.",
    ("node",),
    "bytes",
)


class SystemResourceCollector:
    """Runs after the collectors of all parts. A part may be as old as `outdated` seconds."""

    name = "system_resource"
    gates: tuple[str, ...] = ()
    cadence = Cadence.USAGE

    def __init__(self, node: str, outdated: float) -> None:
        self._label = (node,)
        self._node = _LatestUsage(NODE_SLOT, outdated)
        self._pods = _LatestUsage(PODS_SLOT, outdated)
        self._apps = _LatestUsage(HOST_APPS_SLOT, outdated)
        self._latest: Usage | None = None

    def collect(self, tick: Tick) -> Iterable[Sample]:
        self._latest = system = self._usage(tick)
        if system is None:
            return []
        return [
            Sample(SYS_CPU_USAGE, system.cpu),
            Sample(SYS_MEMORY_USAGE, system.memory),
            *_numa_cpu(tick, system),
            *_numa_memory(tick),
        ]

    def _usage(self, tick: Tick) -> Usage | None:
        node, pods, apps = self._node.get(tick), self._pods.get(tick), self._apps.get(tick)
        if node is None or pods is None or apps is None:
            return None
        return system_usage(node, pods, apps, KUBEPODS_SLOT.get(tick))

    def families(self) -> Iterator[Metric]:
        system = self._latest
        if system is None:
            return
        yield _SYSTEM_CPU_USAGE_CORES.metric([(self._label, system.cpu)])
        yield _SYSTEM_MEMORY_USAGE_BYTES.metric([(self._label, system.memory)])


class _LatestUsage(Generic[T]):
    """A part, or what it last was while that is not outdated."""

    def __init__(self, slot: TickSlot[T], outdated: float) -> None:
        self._slot = slot
        self._outdated = outdated
        self._value: T | None = None
        self._at = 0.0

    def get(self, tick: Tick) -> T | None:
        value = self._slot.get(tick)
        if value is not None:
            self._value, self._at = value, tick.monotonic
        return self._value if tick.monotonic - self._at <= self._outdated else None


def _numa_cpu(tick: Tick, system: Usage) -> Iterator[Sample]:
    for numa, cpu in numa_cpu_shares(system.cpu, NODE_NUMA_CPU_SLOT.get(tick) or {}).items():
        yield Sample(SYS_NUMA_CPU_USAGE, cpu, (str(numa),))


def _numa_memory(tick: Tick) -> Iterator[Sample]:
    node, pods = NODE_NUMA_MEMORY_SLOT.get(tick), PODS_NUMA_MEMORY_SLOT.get(tick)
    if node is None or pods is None:
        return
    for numa, memory in numa_memory_rest(node, pods).items():
        yield Sample(SYS_NUMA_MEMORY_USAGE, memory, (str(numa),))
