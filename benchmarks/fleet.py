"""A fleet of reporters against kube-apiserver on etcd."""

import asyncio
import contextlib
import math
import statistics
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from prometheus_client import CollectorRegistry

from benchmarks import history
from benchmarks.table import Row
from benchmarks.tree import NotHereError
from koord.api.node import Node
from koord.kube.client import NODE_METRICS, ApiClient, Resource
from koord.kube.credentials import ApiConfig
from koord.kube.errors import NotFound
from koord.kube.transport import Limits, Traffic, Transport
from koord.util import documents
from koord.util.clock import SystemClock, stamp
from koord.util.stop import Stop
from koordlet.metriccache import kinds
from koordlet.metriccache.cache import MetricCache
from koordlet.metriccache.kinds import Sample
from koordlet.plugin.testing import make_pod
from koordlet.reporter.cluster_sink import ClusterSink
from koordlet.reporter.loop import FleetPace, NodeMetricReporter, ReportOptions
from koordlet.statesinformer.informer import StatesInformer
from koordlet.statesinformer.kube_sources import KubeNodeMetric
from koordlet.statesinformer.podmeta import PodMeta
from tests.support.programs import KUBERNETES, REPOSITORY
from tests.support.real_apiserver.control_plane import ControlPlane, missing

PODS = 150
INTERVAL = 60  # seconds between reports
STEADY = 2  # intervals that are measured
FLEETS = (5_000, 15_000)
CRDS = Resource("apiextensions.k8s.io/v1", "customresourcedefinitions")


@dataclass
class Record:
    """The reports that the agents sent since the last reset: time, seconds and bytes of each."""

    reports: list[tuple[float, float, int]] = field(default_factory=list)
    failed: int = 0

    def observe(self, traffic: Traffic) -> None:
        if traffic.call.method != "PATCH":
            return
        if traffic.status == 200:
            size = len(traffic.call.body or b"")
            self.reports.append((time.monotonic(), traffic.seconds, size))
        else:
            self.failed += 1

    def p99(self) -> float:
        return statistics.quantiles([seconds for _, seconds, _ in self.reports], n=100)[98]


def run(*, smoke: bool) -> Iterator[Row]:
    """Yield requests a second, latency and bytes of a fleet, and estimates for larger ones."""
    if lacking := missing():
        raise NotHereError(f"wanted {lacking}")
    KUBERNETES.build()
    with tempfile.TemporaryDirectory() as directory:
        plane = ControlPlane(Path(directory))
        try:
            plane.start()
            rows = asyncio.run(_measure(plane, agents=30 if smoke else 1000, smoke=smoke))
        finally:
            plane.stop()
    yield from rows


async def _measure(plane: ControlPlane, *, agents: int, smoke: bool) -> list[Row]:
    record = Record()
    names = [f"node-{number}" for number in range(agents)]
    async with _fleet(plane.config, names, record) as fleet:
        before, begun = _cpu_seconds(plane), time.monotonic()
        await fleet.start()
        await fleet.until_all_reported()
        if not smoke:
            await asyncio.sleep(INTERVAL)  # until each reports at its own offset
            record.reports.clear()
            before, begun = _cpu_seconds(plane), time.monotonic()
            await asyncio.sleep(STEADY * INTERVAL)
        steady, seconds = list(record.reports), time.monotonic() - begun
        cpu = _cpu_seconds(plane) - before
        latency = record.p99()
        await fleet.stop()
        record.reports.clear()
        await fleet.start()
        if not smoke:
            await fleet.until_all_reported()
        spread = _spread([at for at, _, _ in record.reports])
    body = statistics.mean(size for _, _, size in steady)
    fleet_name = f"{agents} nodes"
    rows = [
        Row(f"reports a second, {fleet_name}", len(steady) / seconds, "",
            None, agents / INTERVAL, "one a minute and node"),
        Row(f"p99 of a report, {fleet_name}", latency * 1e3, "ms"),
        Row(f"one report, {PODS} pods", body / 1e3, "kB", None, 24.2, "Koordinator's koordlet"),
        Row(f"failed reports, {fleet_name}", record.failed, "", 0.0),
    ]  # fmt: skip
    if not smoke:
        rows.append(Row(f"restart of {fleet_name}: 90 % report within", spread, "s",
                        None, INTERVAL / 2, "half an interval"))  # fmt: skip
    for size in FLEETS:
        rate = size / INTERVAL
        rows += [
            Row(f"{size} nodes would send", rate, "/s"),
            Row(f"{size} nodes would send", rate * body / 1e6, "MB/s"),
            Row(f"{size} nodes: API server and etcd", rate * cpu / len(steady), "cores"),
        ]
    return rows


def _spread(times: list[float]) -> float:
    """Seconds between the first and the last of the middle 90 %."""
    cuts = statistics.quantiles(times, n=20) if len(times) > 1 else [math.nan]
    return cuts[-1] - cuts[0]


def _cpu_seconds(plane: ControlPlane) -> float:
    """CPU seconds that etcd and the API server have used."""
    times = [psutil.Process(pid).cpu_times() for pid in plane.pids]
    return sum(each.user + each.system for each in times)


class Fleet:
    """Reporters of many nodes in one process, each with a client and a watch of its own.

    They share one metric cache, and each makes its reports of it anew.
    """

    def __init__(
        self, config: ApiConfig, names: list[str], record: Record, cache: MetricCache
    ) -> None:
        self._config = config
        self._names = names
        self._record = record
        self._cache = cache
        self._clock = SystemClock()
        self._pods = tuple(_pod(number) for number in range(PODS))
        self._tasks: list[asyncio.Task[None]] = []
        self._clients: list[ApiClient] = []
        self._stop = Stop(self._clock)

    async def start(self) -> None:
        """Start all agents at once."""
        self._stop = Stop(self._clock)
        for name in self._names:
            transport = Transport(
                self._config, self._clock, limits=Limits(qps=0), observe=self._record.observe
            )
            client = ApiClient(transport, self._clock)
            self._clients.append(client)
            states = StatesInformer(self._clock)
            states.set_node(Node(name, capacity={"cpu": "64", "memory": "256Gi"}))
            states.set_pods(self._pods)
            metric = KubeNodeMetric(client, name, states, self._clock)
            reporter = NodeMetricReporter(
                ReportOptions(node=name),
                cache=self._cache,
                states=states,
                sink=ClusterSink(client, name, metric.target, self._clock, observe_only=_alone),
                pace=FleetPace(name, metric.target, self._clock),
                clock=self._clock,
                registry=CollectorRegistry(),
            )
            parts = (states, metric, reporter)
            self._tasks += [asyncio.create_task(part.run(self._stop)) for part in parts]

    async def until_all_reported(self) -> None:
        """Return when as many reports have come as there are agents."""
        while len(self._record.reports) < len(self._names):  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    async def stop(self) -> None:
        """Stop all agents."""
        self._stop.set()
        await asyncio.gather(*self._tasks)
        await asyncio.gather(*(client.close() for client in self._clients))
        self._tasks.clear()
        self._clients.clear()

    async def sample(self) -> None:
        """Measure every second, until cancelled."""
        while True:
            samples = [Sample(kinds.NODE_CPU_USAGE, 1.0), Sample(kinds.NODE_MEMORY_USAGE, 2.0**30)]
            for pod in self._pods:
                samples.append(Sample(kinds.POD_CPU_USAGE, 0.123, (pod.uid,)))
                samples.append(Sample(kinds.POD_MEMORY_USAGE, 123 * 2.0**20, (pod.uid,)))
            self._cache.append(stamp(self._clock), samples)
            await asyncio.sleep(1)


@contextlib.asynccontextmanager
async def _fleet(config: ApiConfig, names: list[str], record: Record) -> AsyncIterator[Fleet]:
    """The objects of a fleet on the server, and its agents, not started yet."""
    clock = SystemClock()
    admin = ApiClient(Transport(config, clock, limits=Limits(qps=0)), clock)
    cache = history.open_cache(None, "benchmark", clock)
    try:
        await _create(admin, names)
        fleet = Fleet(config, names, record, cache)
        history.fill(cache, clock, [_pod(number) for number in range(PODS)])
        sampling = asyncio.create_task(fleet.sample())
        try:
            yield fleet
        finally:
            sampling.cancel()
            await fleet.stop()
    finally:
        await admin.close()
        cache.close()


async def _create(admin: ApiClient, names: list[str]) -> None:
    path = REPOSITORY / "deploy" / "crds" / "nodemetrics.yaml"
    crd = documents.decode(path.read_bytes(), str(path))
    assert isinstance(crd, dict)
    await admin.create(CRDS.collection(), crd)
    while True:
        with contextlib.suppress(NotFound):  # until it is served
            await admin.list(NODE_METRICS.collection())
            break
        await asyncio.sleep(0.1)
    for name in names:
        await admin.create(
            NODE_METRICS.collection(),
            {
                "apiVersion": NODE_METRICS.api_version,
                "kind": "NodeMetric",
                "metadata": {"name": name},
                "spec": {"metricCollectPolicy": {"reportIntervalSeconds": INTERVAL}},
            },
        )


async def _alone() -> str:
    """The reason why nothing may be written: none, as these nodes have no other agent."""
    return ""


def _pod(number: int) -> PodMeta:
    name = f"web-7c9d8b6f5b-{number:05d}"  # as a Deployment names them
    return make_pod(name, namespace=f"shop-{number % 10}", uid=str(uuid.UUID(int=number)))
