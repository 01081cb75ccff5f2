"""System usage: what the node uses outside of pods and host applications."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from prometheus_client import Metric

from koordlet.collectors.engine.base import Tick
from koordlet.collectors.engine.exposition import gauge
from koordlet.collectors.usageslots import (
    HOST_APPS,
    KUBEPODS,
    NODE,
    NODE_NUMA_CPU,
    NODE_NUMA_MEMORY,
    PODS,
    PODS_NUMA_MEMORY,
    HostAppsUsage,
    Slot,
    Usage,
)
from koordlet.metriccache.kinds import (
    SYS_CPU_USAGE,
    SYS_MEMORY_USAGE,
    SYS_NUMA_CPU_USAGE,
    SYS_NUMA_MEMORY_USAGE,
    Cadence,
)
from koordlet.metriccache.sample import Sample

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


class SystemResourceCollector:
    """Runs after the collectors of all parts. A part may be as old as `outdated` seconds."""

    name = "system_resource"
    gates: tuple[str, ...] = ()
    cadence = Cadence.USAGE

    def __init__(self, node: str, outdated: float) -> None:
        self._label = (node,)
        self._node = _Latest(NODE, outdated)
        self._pods = _Latest(PODS, outdated)
        self._apps = _Latest(HOST_APPS, outdated)
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
        return system_usage(node, pods, apps, KUBEPODS.get(tick))

    def families(self) -> Iterator[Metric]:
        system = self._latest
        if system is None:
            return
        yield gauge(
            "koordlet_system_cpu_usage_cores",
            "CPU cores used outside of pods and host applications.",
            ["node"],
            [(self._label, system.cpu)],
        )
        yield gauge(
            "koordlet_system_memory_usage_bytes",
            "Memory used outside of pods and host applications, without page cache.",
            ["node"],
            [(self._label, system.memory)],
        )


class _Latest(Generic[T]):
    """A part, or what it last was while that is not outdated."""

    def __init__(self, slot: Slot[T], outdated: float) -> None:
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
    for numa, cpu in numa_cpu_shares(system.cpu, NODE_NUMA_CPU.get(tick) or {}).items():
        yield Sample(SYS_NUMA_CPU_USAGE, cpu, (str(numa),))


def _numa_memory(tick: Tick) -> Iterator[Sample]:
    node, pods = NODE_NUMA_MEMORY.get(tick), PODS_NUMA_MEMORY.get(tick)
    if node is None or pods is None:
        return
    for numa, memory in numa_memory_rest(node, pods).items():
        yield Sample(SYS_NUMA_MEMORY_USAGE, memory, (str(numa),))
