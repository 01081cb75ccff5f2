"""CPU and memory of each NUMA node."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import Metric

from koordlet.collectors.engine.base import Tick
from koordlet.collectors.engine.exposition import gauge
from koordlet.collectors.rates import Previous
from koordlet.collectors.usageslots import NODE_NUMA_CPU, NODE_NUMA_MEMORY
from koordlet.host.proc.procfiles import TICKS_PER_SECOND
from koordlet.host.resources import NUMA_MEMINFO, PROC_STAT_PER_CPU
from koordlet.metriccache.kinds import NODE_NUMA_CPU_USAGE, NODE_NUMA_MEMORY_USAGE, Cadence
from koordlet.metriccache.sample import Sample


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
        self._previous: Previous[Mapping[int, int]] = Previous(interval)
        self._latest: tuple[Mapping[int, float], Mapping[int, int]] = ({}, {})

    def collect(self, tick: Tick) -> Iterable[Sample]:
        cores, memory = self._cores(tick), self._memory(tick)
        NODE_NUMA_CPU.put(tick, cores)
        NODE_NUMA_MEMORY.put(tick, memory)
        self._latest = cores, memory
        for numa, used in cores.items():
            yield Sample(NODE_NUMA_CPU_USAGE, used, (str(numa),))
        for numa, size in memory.items():
            yield Sample(NODE_NUMA_MEMORY_USAGE, size, (str(numa),))

    def _cores(self, tick: Tick) -> Mapping[int, float]:
        ticks = tick.get_at(PROC_STAT_PER_CPU)
        before = self._previous.swap("node", *ticks) if ticks else None
        if ticks is None or before is None:
            return {}
        return numa_cores(before[0], ticks[0], ticks[1] - before[1], self._numa_of_cpu())

    def _memory(self, tick: Tick) -> Mapping[int, int]:
        read = {numa: tick.get(NUMA_MEMINFO, str(numa)) for numa in self._numa_nodes()}
        return {numa: memory.usage for numa, memory in read.items() if memory is not None}

    def families(self) -> Iterator[Metric]:
        cores, memory = self._latest
        labels = ("node", "numa_node_id")
        yield gauge(
            "koordlet_node_numa_cpu_usage_cores",
            "CPU cores in use on the NUMA node.",
            labels,
            (((self._node, str(numa)), used) for numa, used in cores.items()),
        )
        yield gauge(
            "koordlet_node_numa_memory_usage_bytes",
            "Memory in use on the NUMA node, without page cache.",
            labels,
            (((self._node, str(numa)), size) for numa, size in memory.items()),
        )
