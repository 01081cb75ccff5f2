"""All collectors on a tree of real cgroups, one tick at a time."""

import time
from collections.abc import Callable, Collection, Iterable

import pytest
from prometheus_client import CollectorRegistry

from koord.api.nodeslo import NodeSLO
from koord.util.clock import Clock, Stamp, SystemClock
from koordlet.collectors.engine.reader import Reader, ReadLease, SkippedReads
from koordlet.collectors.engine.rounds import CollectorMetrics
from koordlet.collectors.engine.sampler import SamplingContext, SamplingPass
from koordlet.collectors.node_network import NodeNetworkCollector
from koordlet.collectors.registry import CollectorOptions, build_collectors
from koordlet.host.cgroups.tree import CgroupTree
from koordlet.host.host import Host
from koordlet.host.resource import Resource
from koordlet.host.resources import CPU_USAGE
from koordlet.metriccache.cache import MetricCache
from koordlet.metriccache.kinds import Cadence, Kind, RetentionClass, Sample
from koordlet.statesinformer.podmeta import PodMeta, discovered_pod

from .conftest import VERSION, Process, Tree

PERIODS = dict.fromkeys(Cadence, 60.0)  # an emulated machine need not be in time

# Seconds of CPU that a process is charged while it reports its usage. The processors of an
# emulated machine stand still now and then, in the middle of that, too.
SLACK, PRECISION = (0.005, 0.05) if VERSION == 1 else (0.04, 0.2)


class Node:
    """A sampling pass with all gates on, and the pods that discovery finds in the tree."""

    def __init__(self, tree: Tree, clock: Clock | None = None) -> None:
        clock = clock or SystemClock()
        self.slo: NodeSLO | None = None
        self.pods: tuple[PodMeta, ...] = ()
        self.published: dict[str, object] = {}
        self.cache = MetricCache(
            None, "boot", clock, intervals=PERIODS, retentions=dict.fromkeys(RetentionClass, 300.0)
        )
        self.collectors = build_collectors(
            CollectorOptions(node="n1", periods=PERIODS),
            tree.paths,
            self.published.__setitem__,
            lambda: True,
            lambda gate: gate != "CPICollector",  # no hardware counters in virtual machines
        )
        [interfaces] = (c for c in self.collectors if isinstance(c, NodeNetworkCollector))
        self._network = interfaces._network  # which a daemon needs until its end
        self.sampling = SamplingPass(
            self.collectors,
            PERIODS,
            SamplingContext(
                enabled=lambda _: True,
                pods=lambda: self.pods,
                slo=lambda: self.slo,
                append=self._append,
            ),
            clock,
            CollectorMetrics(CollectorRegistry()),
        )
        self.reader = Reader(Host(tree.paths), ReadLease(clock), SkippedReads(clock), clock)
        self._discovery = CgroupTree(tree.base, clock)
        self._samples: dict[tuple[str, ...], float] = {}

    def tick(self, due: Collection[Cadence] = frozenset(Cadence), *, discover: bool = True) -> None:
        """Look for pods, and run all collectors of these cadences; none of them may fail."""
        if discover:
            self.pods = tuple(map(discovered_pod, self._discovery.scan().pods))
        self._samples = {}
        self.sampling.run(due, self.reader)
        assert {name: h.reason for name, h in self.sampling.health().items() if h.reason} == {}

    def tick_until(self, condition: Callable[[], bool]) -> None:
        """Tick until it holds, if it does within ten seconds: some counters lag by two."""
        deadline = time.monotonic() + 10
        self.tick()
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.1)
            self.tick()

    def value(self, kind: Kind, *key: str) -> float:
        """The sample that a series got in the latest tick."""
        return self._samples[kind.name, *key]

    def has(self, kind: Kind, *key: str) -> bool:
        """Whether a series got a sample in the latest tick."""
        return (kind.name, *key) in self._samples

    def read_at(self, resource: Resource[int], group: str) -> float:
        """Monotonic seconds at which the latest tick read a file of a group."""
        found = self.reader.get_at(resource, group)
        assert found is not None
        return found[1]

    def close(self) -> None:
        """Close kernel files and the rtnetlink socket."""
        self.reader.close()
        self._network.close()

    def _append(self, at: Stamp, samples: Iterable[Sample]) -> None:
        samples = list(samples)
        self.cache.append(at, samples)
        self._samples.update({(kind.name, *key): value for kind, value, key in samples})


class Span:
    """Two ticks, and what a process did in between."""

    def __init__(self, node: Node, process: Process, *groups: str) -> None:
        node.tick()
        self._node, self._process = node, process
        self._began = {group: node.read_at(CPU_USAGE, group) for group in groups}
        self._cpu_before = process.cpu_seconds

    def end(self, code: str) -> "Span":
        """Let the process run code, and take the second tick."""
        self._process.do(code)
        self._node.tick()
        return self

    def cores(self, group: str) -> object:
        """What the process used by its own account, between the two readings of a group.

        Equal to whatever is within 5 percent (20 when emulated), or a little more time than it
        accounts for.
        """
        seconds = self._node.read_at(CPU_USAGE, group) - self._began[group]
        used = (self._process.cpu_seconds - self._cpu_before) / seconds
        return pytest.approx(used, rel=PRECISION, abs=SLACK / seconds)
