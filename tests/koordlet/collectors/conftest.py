"""A sampling pass over a fake host, one tick at a time."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from koord.api.nodeslo import NodeSLO
from koord.util.clock import Stamp
from koordlet.collectors.engine.collector import Collector
from koordlet.collectors.engine.reader import Reader, ReadLease, SkippedReads
from koordlet.collectors.engine.rounds import CollectorMetrics
from koordlet.collectors.engine.sampler import SamplingContext, SamplingPass
from koordlet.collectors.registry import CollectorOptions, build_collectors
from koordlet.host.host import Host
from koordlet.metriccache.kinds import Cadence, Kind, Sample
from koordlet.plugin.testing import FakeHost, FakePod, SimulatedClock, make_pod
from koordlet.statesinformer.podmeta import ContainerMeta, PodMeta

PERIODS = {
    Cadence.USAGE: 1.0,
    Cadence.PSI: 10.0,
    Cadence.NETWORK: 1.0,
    Cadence.NODE_INFO: 60.0,
    Cadence.STORAGE: 60.0,
    Cadence.DEVICES: 1.0,
    Cadence.CPI: 60.0,
    Cadence.COLD_PAGE: 5.0,
    Cadence.RESCTRL: 10.0,
}


class Machine:
    """All collectors on a fake host, with everything they produced."""

    def __init__(self, host: FakeHost) -> None:
        self.host = host
        self.clock = SimulatedClock()
        self.registry = CollectorRegistry()
        self.metrics = CollectorMetrics(self.registry)
        self.gates: set[str] = set()
        self.pods: tuple[PodMeta, ...] = ()
        self.slo: NodeSLO | None = None
        self.page_cache = False
        self.published: dict[str, object] = {}
        self.collectors: list[Collector] = build_collectors(
            CollectorOptions(
                node="n1",
                periods=PERIODS,
                exporter_compat=True,
                constant_label=("zone", "a"),
                resctrl=True,
            ),
            host.paths,
            self.published.__setitem__,
            lambda: self.page_cache,
            self.gates.__contains__,
        )
        self.skips = SkippedReads(self.clock)
        self.reader = self.make_reader()
        self.use(self.collectors)
        self.samples: dict[tuple[str, ...], float] = {}

    def make_reader(self) -> Reader:
        host = Host(self.host.paths, monotonic=self.clock.monotonic)
        return Reader(host, ReadLease(self.clock), self.skips, self.clock)

    def use(self, collectors: Iterable[Collector]) -> None:
        """Run these collectors from now on."""
        self.sampling = SamplingPass(
            list(collectors),
            PERIODS,
            SamplingContext(
                enabled=self.gates.__contains__,
                pods=lambda: self.pods,
                slo=lambda: self.slo,
                append=self._append,
            ),
            self.clock,
            self.metrics,
        )

    def tick(self, seconds: float = 1.0) -> dict[tuple[str, ...], float]:
        """Let time pass, run all collectors, and return the samples: (kind, *key) -> value."""
        self.clock.tick(seconds)
        self.samples = {}
        self.sampling.run(PERIODS.keys(), self.reader)
        return self.samples

    def value(self, kind: Kind, *key: str) -> float | None:
        """The latest tick's sample of a series; None: there was none."""
        return self.samples.get((kind.name, *key))

    def metric(self, name: str, **labels: str) -> float | None:
        """The value of a family made from the latest figures."""
        for collector in self.sampling.sources():
            for family in collector.families():
                for sample in family.samples:
                    if sample.name == name and labels.items() <= sample.labels.items():
                        return sample.value
        return None

    def own_metric(self, name: str, **labels: str) -> float | None:
        """The value of one of the pass's own metrics."""
        return self.registry.get_sample_value(name, labels)

    def run_pod(self, uid: str, absent_at: float | None = None, **pod: object) -> FakePod:
        """Start a pod with one container."""
        made = make_pod(uid, **pod)
        fake = self.host.add_pod(uid, made.kube_qos, containers=(f"c-{uid}",))
        containers = tuple(
            ContainerMeta(name, f"containerd://{name}", group.path, absent_at)
            for name, group in fake.containers.items()
        )
        meta = PodMeta(
            made.pod, fake.group.path, containers, made.qos, made.kube_qos, absent_at=absent_at
        )
        self.pods = (*self.pods, meta)
        return fake

    def _append(self, at: Stamp, samples: Iterable[Sample]) -> None:
        for kind, value, key in samples:
            assert len(key) == len(kind.properties)
            self.samples[(kind.name, *key)] = value


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    return Machine(FakeHost(tmp_path, request.param))


@pytest.fixture
def make_machine(tmp_path: Path) -> Callable[..., Machine]:
    """Builds a machine whose fake host takes these options."""
    return lambda **options: Machine(FakeHost(tmp_path, **options))
