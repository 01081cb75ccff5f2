"""NetworkTraffic: nodes with less network traffic are preferred.

The plugin of the tutorial, with its arguments and formulas. Traffic is read outside of the
cycles; a cycle looks at a column.
"""

import asyncio
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Protocol
from zlib import crc32

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily

from koord.plugin import OK, Clock, HealthStatus, KoordError, PartHealth, Stop, get_logger
from koord.plugin.args import takes_args
from koord.plugin.kube import ApiConfig, RequestLimits, Transport
from koord_scheduler.plugin import (
    ClusterPod,
    ClusterState,
    CycleState,
    Handle,
    NodeInfo,
    NodeScore,
    NormalizeScorePlugin,
    ScorePlugin,
    Status,
    View,
)
from koord_scheduler.plugin.vector import Scores, VectorNormalizeScorePlugin, VectorScorePlugin
from koord_scheduler_plugins.network_traffic.readings import (
    UNKNOWN,
    Direction,
    Measure,
    NetworkTrafficArgs,
    Reading,
)
from koord_scheduler_plugins.network_traffic.sources import (
    AgentsSource,
    PrometheusSource,
)

STATES = ("known", "unknown", "stale")
RESULTS = ("answered", "failed")


@dataclass(frozen=True, slots=True)
class TrafficStats:
    """Statistics of one meter at one time."""

    newest: float | None = None  # monotonic seconds of its newest reading; None: there is none
    nodes: Mapping[str, int] = field(default_factory=dict)  # their number by state
    without_capacity: int = 0  # of those that are known


class Metered(Protocol):
    """A meter, as its metrics see it."""

    stats: TrafficStats

    def age(self) -> float | None:
        """Seconds since the newest reading; None: there is none."""


class TrafficMetrics:
    """Metrics of all meters of a process, each by its name: the one in health checks."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.queries = Counter(
            "scheduler_network_traffic_queries_total",
            "Questions to Prometheus or to agents by result: answered, or failed.",
            ["meter", "result"],
            registry=registry,
        )
        self._meters: dict[str, Metered] = {}
        registry.register(self)

    def add(self, name: str, meter: Metered) -> None:
        """Show a meter from now on."""
        self._meters[name] = meter
        for result in RESULTS:
            self.queries.labels(name, result)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the families with their present values, for prometheus_client."""
        age, nodes, capacity = self.describe()
        for name, meter in tuple(self._meters.items()):
            stats, seconds = meter.stats, meter.age()
            if seconds is not None:
                age.add_metric([name], seconds)
            for state in STATES:
                nodes.add_metric([name, state], stats.nodes.get(state, 0))
            capacity.add_metric([name], stats.without_capacity)
        yield from (age, nodes, capacity)

    def describe(self) -> tuple[GaugeMetricFamily, GaugeMetricFamily, GaugeMetricFamily]:
        """Return the families without values: registering them asks no meter."""
        return (
            GaugeMetricFamily(
                "scheduler_network_traffic_newest_age_seconds",
                "Seconds since the newest figures of any node.",
                labels=["meter"],
            ),
            GaugeMetricFamily(
                "scheduler_network_traffic_nodes",
                "Nodes by what is known of their traffic: known, unknown, or stale (it was known, "
                "and has expired).",
                labels=["meter", "state"],
            ),
            GaugeMetricFamily(
                "scheduler_network_traffic_capacity_unknown_nodes",
                "Nodes whose traffic is known, and the speed of their links is not.",
                labels=["meter"],
            ),
        )


FIRST_WAIT = 10.0  # seconds that the first cycle waits for figures
MAX_LOG_LINES = 1000  # of nodes, in the log of one round
LOG_LINES_PER_TURN = 100
BYTES_OF_MEGABIT = 125_000

log = get_logger("NetworkTraffic")


class Source(Protocol):
    """Where readings come from."""

    interval: float
    """Seconds between two calls of read."""

    async def read(self, nodes: Mapping[str, str]) -> Mapping[str, Reading]:
        """Return what is new about these nodes, by name; they are given with their addresses.

        Raises:
            KoordError: nothing is, and why.
        """


class Meter:
    """A shared part. Readings count until they expire, whatever their source does meanwhile."""

    def __init__(
        self,
        args: NetworkTrafficArgs,
        source: Source,
        transport: Transport,
        cluster: ClusterState,
        clock: Clock,
    ) -> None:
        self.measure = Measure({})
        self.stats = TrafficStats()
        self._args = args
        self._direction = args.direction or Direction.SUM
        self._source = source
        self._transport = transport
        self._cluster = cluster
        self._clock = clock
        self._readings: dict[str, Reading] = {}
        self._stale: set[str] = set()  # nodes whose latest readings have expired
        self._error = ""
        self._ready = asyncio.Event()

    async def run(self, stop: Stop) -> None:
        """Read until stop."""
        try:
            async for _ in stop.every(self._source.interval):
                await stop.bound(self.refresh())
        finally:
            await self._transport.close()

    async def wait_ready(self) -> None:
        """Return after the first round, or when it takes too long: nodes are unknown then."""
        timer = self._clock.timer(FIRST_WAIT)
        ready: asyncio.Future[object] = asyncio.ensure_future(self._ready.wait())
        try:
            await asyncio.wait((ready, timer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            ready.cancel()

    def health(self) -> PartHealth:
        """Degraded while the source does not answer: cycles go on with what is known."""
        if not self._error:
            return OK
        known = len(self.measure.raw)
        detail: dict[str, object] = {"nodes_known": known}
        return PartHealth(HealthStatus.DEGRADED, self._error, detail)

    def age(self) -> float | None:
        """Seconds since the newest reading; None: there is none. Callable from any thread."""
        newest = self.stats.newest
        return None if newest is None else self._clock.monotonic() - newest

    async def refresh(self) -> None:
        """Read once, and make the measure anew."""
        view = self._cluster.view()
        nodes = {(one := view.node(row)).name: one.internal_ip for row in range(len(view))}
        try:
            self._readings.update(await self._source.read(nodes))
        except KoordError as err:
            if not self._error:
                log.warning("traffic.missing", error=str(err))
            self._error = str(err)
        else:
            if self._error:
                log.info("traffic.recovered", nodes=len(self._readings))
            self._error = ""
        await self._renew(nodes)
        self._ready.set()
        await self._log_nodes(nodes)

    async def _renew(self, nodes: Mapping[str, str]) -> None:
        oldest = self._clock.monotonic() - self._args.expiration
        expired = {name for name, one in self._readings.items() if one.at < oldest}
        self._readings = {
            name: one
            for name, one in self._readings.items()
            if name in nodes and name not in expired
        }
        self._stale = (self._stale | expired) & nodes.keys() - self._readings.keys()
        self.measure = await asyncio.to_thread(
            self._measure_of, self._readings, self._cluster.view(), self.measure.version + 1
        )
        self.stats = self._figures_of(self.measure, len(nodes))

    def _figures_of(self, measure: Measure, nodes: int) -> TrafficStats:
        known, stale = sum(score >= 0 for score in measure.raw.values()), len(self._stale)
        newest = max((one.at for one in self._readings.values()), default=self.stats.newest)
        states = {"known": known, "stale": stale, "unknown": nodes - known - stale}
        return TrafficStats(newest, states, measure.without_capacity)

    def _measure_of(self, readings: Mapping[str, Reading], view: View, version: int) -> Measure:
        measure = Measure.of(
            readings,
            direction=self._direction,
            scoring=self._args.scoring,
            default_speed=self._args.link_speed_mbps * BYTES_OF_MEGABIT or None,
            idle_below=self._args.idle_below,
            version=version,
        )
        measure.column(view)  # so that no cycle has to make it
        return measure

    async def _log_nodes(self, nodes: Mapping[str, str]) -> None:
        unit = "percent of the link" if self.measure.by_capacity else "bytes"
        for number, name in enumerate(islice(nodes, MAX_LOG_LINES), 1):
            found, raw = self._readings.get(name), self.measure.raw.get(name, UNKNOWN)
            if found is None or raw == UNKNOWN:
                log.debug("node.bandwidth", node=name, known=False)
            elif found.error:
                log.debug("node.bandwidth", node=name, error=found.error)
            else:
                amount = found.traffic.amount(self._direction)
                log.debug("node.bandwidth", node=name, bandwidth=amount, score=raw, unit=unit)
            if number % LOG_LINES_PER_TURN == 0:
                await asyncio.sleep(0)
        if len(nodes) > MAX_LOG_LINES:
            log.debug("nodes.omitted", count=len(nodes) - MAX_LOG_LINES)


@takes_args(NetworkTrafficArgs)
class NetworkTraffic(
    ScorePlugin, VectorScorePlugin, NormalizeScorePlugin, VectorNormalizeScorePlugin
):
    """Score is a node's traffic; NormalizeScore turns it round: the least has 100."""

    def __init__(self, args: NetworkTrafficArgs, handle: Handle) -> None:
        """Profiles with the same arguments share what is read."""
        services, name = handle.services, f"NetworkTraffic-{crc32(repr(args).encode()):08x}"

        def make() -> Meter:
            metrics = services.metrics.own(TrafficMetrics)
            transport = transport_of(args, handle)
            kind = PrometheusSource if args.prometheus_address else AgentsSource
            source = kind(
                args,
                transport,
                services.clock,
                lambda result: metrics.queries.labels(name, result).inc(),
            )
            meter = Meter(args, source, transport, services.cluster, services.clock)
            metrics.add(name, meter)
            return meter

        self.meter = services.shared.get(name, make)

    def score_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        return self.meter.measure.version

    def score(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
        return self.meter.measure.score(node.name)

    def score_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Scores:
        return self.meter.measure.column(nodes)

    def normalize_score(
        self, state: CycleState, pod: ClusterPod, scores: list[NodeScore]
    ) -> Status | None:
        highest = max((one.score for one in scores), default=0)
        for one in scores:
            one.score = self.meter.measure.normalize(one.score, highest)
        return None

    def normalize_scores(self, state: CycleState, pod: ClusterPod, scores: Scores) -> Scores:
        return self.meter.measure.normalize_all(scores)


def transport_of(args: NetworkTrafficArgs, handle: Handle) -> Transport:
    """The connections to Prometheus, or to all agents."""
    config = ApiConfig(
        server=(args.prometheus_address or args.agent_address).rstrip("/"),
        source="the arguments of NetworkTraffic",
        server_setting="prometheusAddress" if args.prometheus_address else "agentAddress",
        verify_setting="insecureSkipVerify",
        ca=Path(args.ca_file) if args.ca_file else None,
        verify=not args.insecure_skip_verify,
        tls_server_name=args.server_name,
        token_file=Path(args.token_file) if args.token_file else None,
        certificate=Path(args.cert_file) if args.cert_file else None,
        key=Path(args.key_file) if args.key_file else None,
    )
    limits = RequestLimits(
        connect=args.timeout,
        headers=args.timeout,
        body=args.timeout,
        qps=0,
        connections=args.concurrency,
        keepalive=60.0 if args.prometheus_address else 0.0,
    )
    return Transport(config, handle.services.clock, limits=limits, user_agent="koord-scheduler")
