"""Node usage: CPU of all processors together, and memory without page cache."""

from collections.abc import Iterable

from prometheus_client import Metric

from koordlet.collectors.engine.base import Tick
from koordlet.collectors.engine.exposition import gauge
from koordlet.collectors.rates import Rates
from koordlet.collectors.usageslots import NODE, Usage
from koordlet.host.proc.procfiles import TICKS_PER_SECOND
from koordlet.host.resources import MEMINFO, PROC_STAT_TICKS
from koordlet.metriccache.kinds import NODE_CPU_USAGE, NODE_MEMORY_USAGE, Cadence
from koordlet.metriccache.sample import Sample


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
        NODE.put(tick, usage)
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
        yield gauge(
            "koordlet_node_used_cpu_cores",
            "CPU cores that the node uses.",
            ["node"],
            [(node, usage.cpu)],
        )
        yield gauge(
            "koordlet_node_used_memory_bytes",
            "Memory that the node uses, without page cache.",
            ["node"],
            [(node, usage.memory)],
        )
