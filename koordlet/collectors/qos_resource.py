"""Usage of the Kubernetes QoS classes, from their groups in the cgroup tree."""

from collections.abc import Iterable, Iterator, Mapping
from functools import reduce

from prometheus_client import Metric

from koord.api.qos import KubeQoS
from koordlet.collectors.engine.base import Tick
from koordlet.collectors.engine.exposition import gauge
from koordlet.collectors.rates import Rates
from koordlet.collectors.usageslots import KUBEPODS, Usage
from koordlet.host.resources import CPU_USAGE, MEMORY_STAT
from koordlet.metriccache.kinds import QOS_CPU_USAGE, QOS_MEMORY_USAGE, Cadence
from koordlet.metriccache.sample import Sample

GUARANTEED, BURSTABLE, BEST_EFFORT = "guaranteed", "burstable", "besteffort"  # qos_class values


def divide(kubepods: Usage, burstable: Usage | None, best_effort: Usage | None) -> dict[str, Usage]:
    """Return the usage by QoS class.

    Guaranteed pods have no group of their own: they lie in kubepods beside the two groups of the
    other classes, so theirs is the rest, known only when all three were measured.
    """
    measured = {BURSTABLE: burstable, BEST_EFFORT: best_effort}
    classes = {name: usage for name, usage in measured.items() if usage is not None}
    if burstable is not None and best_effort is not None:
        classes[GUARANTEED] = kubepods.minus(burstable).minus(best_effort)
    return classes


class QosResourceCollector:
    """Reads three groups, and hands the usage of kubepods as a whole to SystemResource."""

    name = "qos_resource"
    gates: tuple[str, ...] = ()
    cadence = Cadence.USAGE

    def __init__(self, node: str, interval: float) -> None:
        self._node = node
        self._cpu = Rates(interval)
        self._latest: Mapping[str, Usage] = {}

    def collect(self, tick: Tick) -> Iterable[Sample]:
        self._latest = classes = self._classes(tick)
        for name, usage in classes.items():
            yield Sample(QOS_CPU_USAGE, usage.cpu, (name,))
            yield Sample(QOS_MEMORY_USAGE, usage.memory, (name,))

    def _classes(self, tick: Tick) -> Mapping[str, Usage]:
        kubepods = self._sum(tick, KubeQoS.GUARANTEED)
        burstable = self._sum(tick, KubeQoS.BURSTABLE)
        best_effort = self._sum(tick, KubeQoS.BEST_EFFORT)
        if kubepods is None:
            return {}
        KUBEPODS.put(tick, kubepods)
        return divide(kubepods, burstable, best_effort)

    def _sum(self, tick: Tick, qos: KubeQoS) -> Usage | None:
        """Usage of a class's groups in all kubepods cgroups; GUARANTEED is kubepods as a whole."""
        groups = (self._usage(tick, layout.qos_dir(qos)) for layout in tick.layouts)
        measured = [usage for usage in groups if usage is not None]
        return reduce(Usage.plus, measured) if measured else None

    def _usage(self, tick: Tick, group: str) -> Usage | None:
        cpu, memory = tick.get_at(CPU_USAGE, group), tick.get(MEMORY_STAT, group)
        if cpu is None or memory is None:
            return None
        rate = self._cpu.rate(group, *cpu)
        return None if rate is None else Usage(rate / 1e9, memory.usage)

    def families(self) -> Iterator[Metric]:
        latest = [((self._node, name), usage) for name, usage in self._latest.items()]
        labels = ("node", "qos_class")
        yield gauge(
            "koordlet_qos_cpu_usage_cores",
            "CPU cores that the pods of a Kubernetes QoS class use.",
            labels,
            ((values, usage.cpu) for values, usage in latest),
        )
        yield gauge(
            "koordlet_qos_memory_usage_bytes",
            "Memory that the pods of a Kubernetes QoS class use, without page cache.",
            labels,
            ((values, usage.memory) for values, usage in latest),
        )
