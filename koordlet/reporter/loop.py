"""Make a NodeMetric report in each interval, and log the reason when none can be made."""

import asyncio
import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric

from koord.api.nodemetric import NodeMetricSpec, NodeMetricStatus
from koord.api.quantity import Quantity
from koord.util.clock import Clock
from koord.util.errors import KoordError, Unavailable
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.logs import LogState, get_logger
from koord.util.stop import Stop
from koordlet.metriccache.cache import MetricCache
from koordlet.metriccache.kinds import NODE_CPU_USAGE, NODE_MEMORY_USAGE, AnyKind
from koordlet.reporter.status import (
    ObserveOnly,
    Predict,
    Report,
    ReportInputs,
    ReportNotRequested,
    Sink,
    Withheld,
    build_status,
    make_report,
    status_families,
)
from koordlet.statesinformer.informer import CallbackTarget, StatesInformer, StateType
from koordlet.statesinformer.podmeta import PodMeta, ReportTarget

CLOSEST = 10.0  # seconds that two reports are apart at least, if the interval allows
_MOST_WAIT = 1.25  # intervals from a report to the next one
_ROUND = 2.0  # seconds that a round may take and still count as one at its time


class Pace(Protocol):
    """Decides when reports are due. All times are in seconds."""

    def first(self, interval: float) -> float:
        """Return the seconds from now to the first report."""

    def next(self, began: float, interval: float) -> float:
        """Return the time of the report after the one that began; both are monotonic."""


class OwnPace:
    """The first report at once, then one in every interval."""

    def first(self, _: float) -> float:
        return 0.0

    def next(self, began: float, interval: float) -> float:
        return began + interval


class FleetPace:
    """Reports at a wall-clock offset within the interval that follows from the node's name.

    So the nodes of a cluster spread evenly over the interval, also after a restart of all agents
    at once, after an outage of the API server, and after early reports. From a report at another
    time it takes up to four intervals to come back to the offset: a node is to write once an
    interval, and a report is not to be much older.
    """

    def __init__(self, node: str, target: Callable[[], ReportTarget | None], clock: Clock) -> None:
        self._place = node_phase(node)
        self._target = target
        self._clock = clock

    def first(self, interval: float) -> float:
        """At once for an object without status; at the node's offset while its status is fresh.

        An outdated status is replaced within half an interval, not at once: after an outage of the
        API server all nodes have one.
        """
        target = self._target()
        if target is None or target.reported_at is None:
            return 0.0
        age = self._clock.wall() - target.reported_at
        if 0 <= age < interval:
            return self._until_phase(interval)
        return self._place * interval / 2

    def next(self, _: float, interval: float) -> float:
        wait = self._until_phase(interval)
        if wait < interval - min(_ROUND, interval / 6):
            wait += interval
        return self._clock.monotonic() + min(wait, _MOST_WAIT * interval)

    def _until_phase(self, interval: float) -> float:
        return (self._place * interval - self._clock.wall()) % interval


def node_phase(node: str) -> float:
    """Return a number from 0 to 1 for the node, spread evenly over all names."""
    return int.from_bytes(hashlib.sha256(node.encode()).digest()[:8]) / 2**64


WINDOW = 10.0  # seconds whose mean is compared: a spike of one second is no news


@dataclass(frozen=True, slots=True)
class _Watched:
    resource: str  # as in the node's capacity
    usage: AnyKind


_WATCHED = (_Watched("cpu", NODE_CPU_USAGE), _Watched("memory", NODE_MEMORY_USAGE))


class UsageChange:
    """Compares the usage of the last seconds with what it was when the latest report was made.

    threshold is a share of the node's capacity, of CPU or memory. An unknown capacity or usage
    counts as unchanged.
    """

    def __init__(self, cache: MetricCache, states: StatesInformer, threshold: float) -> None:
        self._cache = cache
        self._states = states
        self._threshold = threshold
        self._reported: dict[str, float] = {}

    def record(self) -> None:
        """Record the usage of now as reported."""
        self._reported = self._shares()

    def is_sharp(self) -> bool:
        """Whether usage has moved by more than the threshold since the latest report."""
        return any(
            resource in self._reported and abs(share - self._reported[resource]) > self._threshold
            for resource, share in self._shares().items()
        )

    def _shares(self) -> dict[str, float]:
        """Usage by resource as a share of capacity."""
        node = self._states.node()
        capacities = {} if node is None else node.capacity
        found = {}
        for watched in _WATCHED:
            capacity = Quantity.parse(capacities.get(watched.resource, "0")).milli / 1000
            usage = self._cache.aggregate(watched.usage, (), WINDOW)
            if usage is not None and capacity > 0:
                found[watched.resource] = usage.avg() / capacity
        return found


log = get_logger("koordlet.reporter")

DEFAULT_INTERVAL = 60.0  # seconds
SHORTEST_INTERVAL = 1.0  # seconds, standalone
_FIRST_SAMPLES = 10.0  # seconds after the start in which it is normal to have none yet
_FIRST_PODS = 5.0  # seconds that the first report waits for pods that were not measured yet
_BLIP = 5.0  # seconds of failed reports without a log line: they usually pass
_LATE = 3  # intervals without a report after which the reporter is unhealthy


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportOptions:
    """Options of the times of reports."""

    node: str
    collect_interval: float = 1.0  # seconds between samples of node usage
    hot_page_interval: float = 5.0  # seconds between samples of memory with hot pages
    interval: float | None = None  # seconds between reports; None: the NodeMetric spec decides
    sharp: float = 0.0  # change of usage, as a share of capacity, that is reported early; 0: none


def standalone_interval(flag: float) -> float:
    """Return the seconds between reports without a cluster; a flag of 0 means the default."""
    return max(flag, SHORTEST_INTERVAL) if flag else DEFAULT_INTERVAL


class NodeMetricReporter:
    """Reports at the given pace, at once on a new spec, and early when usage changes sharply.

    After a report that did not arrive, a new one is made at the time that the sink names.

    Without a pace: as soon as the data allow, then in every interval. While a report is withheld it
    tries again with each new sample; the last written report stays as it is.
    expose decides at each scrape whether the latest status is exported as gauges.
    """

    name = "node_metric_reporter"

    def __init__(
        self,
        options: ReportOptions,
        *,
        cache: MetricCache,
        states: StatesInformer,
        sink: Sink,
        clock: Clock,
        registry: CollectorRegistry,
        pace: Pace | None = None,
        expose: Callable[[], bool] = lambda: False,
        predict: Predict = lambda _pods: None,
    ) -> None:
        self._options = options
        self._cache = cache
        self._states = states
        self._sink = sink
        self._clock = clock
        self._pace = pace or OwnPace()
        self._change = UsageChange(cache, states, options.sharp) if options.sharp else None
        self._expose = expose
        self._predict = predict
        self._spec_changed = asyncio.Event()
        self._latest: Report | None = None
        self._problem = ""  # why the latest round made no report; empty: it did
        self._failing_since: float | None = None  # monotonic; the first round that failed
        self._is_asked = True
        self._reported_at = clock.monotonic()  # or began to try
        self._synced_at = clock.monotonic()  # or later: when states were not known last
        self._log_state = LogState(log)
        self._rounds = Counter(
            "koordlet_report_rounds_total",
            "Attempts to report NodeMetric by outcome: ok, left (to another agent), withheld or "
            "failed.",
            ["outcome"],
            registry=registry,
        )
        self._duration = Histogram(
            "koordlet_report_duration_seconds",
            "Time from the start of a NodeMetric report until it has arrived.",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0),
            registry=registry,
        )
        states.register_callbacks(
            StateType.NODE_METRIC_SPEC,
            self.name,
            "report at once, by the new spec",
            self._on_spec,
        )

    @property
    def interval(self) -> float:
        """Seconds between reports."""
        return self._options.interval or self._states.node_metric_spec().report_interval

    def latest(self) -> bytes:
        """The latest NodeMetric object as JSON.

        Raises:
            Unavailable: there is none yet; the message says why.
        """
        if self._latest is None:
            raise Unavailable(f"no NodeMetric yet: {self._problem or 'the first is being made'}")
        return self._latest.body

    def families(self) -> Iterable[Metric]:
        """The latest status as gauges, if they are exported."""
        latest = self._latest
        if latest is None or not self._expose():
            return []
        return status_families(self._options.node, latest.status)

    def health(self) -> PartHealth:
        """Degraded while nothing can be reported, unhealthy after three intervals of that.

        Degraded at most while the cluster does not ask for reports.
        """
        silent = self._clock.monotonic() - self._reported_at
        if self._is_asked and silent > _LATE * self.interval:
            why = f": {self._problem}" if self._problem else ""
            return PartHealth(HealthStatus.UNHEALTHY, f"no NodeMetric for {silent:.0f} s{why}")
        return PartHealth(HealthStatus.DEGRADED, self._problem) if self._problem else OK

    async def run(self, stop: Stop) -> None:
        """Report until stop."""
        await self._until_requested(stop)
        await stop.sleep(self._pace.first(self.interval))
        while not stop.is_set():
            began = self._clock.monotonic()
            self._spec_changed.clear()
            outcome = await stop.bound(self._round())
            if outcome is None:
                return
            self._rounds.labels(outcome).inc()
            if outcome == "withheld":
                due = began + min(self._options.collect_interval, self.interval)
            else:
                due = self._pace.next(began, self.interval)
            if outcome == "failed":
                due = min(due, self._clock.monotonic() + self._sink.retry_in())
            await self._until_due(stop, due)

    async def _until_requested(self, stop: Stop) -> None:
        while not stop.is_set():
            try:
                self._check()
            except ReportNotRequested as err:
                self._trouble("report.withheld", err)
            else:
                return
            await stop.sleep(self._options.collect_interval)

    def _check(self) -> None:
        """Raise ReportNotRequested unless a sink takes reports now."""
        asked = False
        try:
            self._sink.check()
            asked = True
        finally:
            if asked and not self._is_asked:
                self._reported_at = self._clock.monotonic()  # no report was due before
            self._is_asked = asked

    async def _round(self) -> str:
        """Make and write a report; return the outcome."""
        began, outcome = self._clock.monotonic(), "ok"
        try:
            self._check()
            self._latest = report = await asyncio.to_thread(self._make)
            await self._sink.write(report)
        except ObserveOnly:
            outcome = "left"
        except Withheld as err:
            self._trouble("report.withheld", err)
            return "withheld"
        except KoordError as err:
            self._failed(began, err)
            return "failed"
        self._reported_at = self._clock.monotonic()
        self._duration.observe(self._reported_at - began)
        self._problem = ""
        self._failing_since = None
        if self._change is not None:
            self._change.record()
        self._log_state.ended("report.resumed")
        return outcome

    def _make(self) -> Report:
        if not self._states.has_synced():
            self._synced_at = self._clock.monotonic()
            raise Withheld("wanted this node and its pods, found them not known yet; wait for them")
        slo = self._states.node_slo()
        spec = self._spec()
        snapshot = ReportInputs(
            spec=spec,
            pods=self._states.pods(),
            host_applications=slo.host_applications if slo is not None else (),
            now=self._clock.boottime(),
            oldest=2 * self._options.collect_interval,
            oldest_hot=2 * self._options.hot_page_interval,
        )
        status = build_status(self._cache, snapshot, self._predict)
        if self._latest is None:
            self._check_first(status, snapshot.pods)
        return make_report(self._options.node, spec, status)

    def _spec(self) -> NodeMetricSpec:
        """Return the spec that is reported by."""
        return replace(self._states.node_metric_spec(), report_interval=self.interval)

    def _check_first(self, status: NodeMetricStatus, pods: Iterable[PodMeta]) -> None:
        """Raise Withheld while pods are about to be measured: the next report is far away."""
        running = sum(1 for pod in pods if pod.containers and not pod.pod.finished)
        waited = self._clock.monotonic() - self._synced_at
        if len(status.pods) < running and waited < _FIRST_PODS:
            raise Withheld(f"wanted samples of {running} pods, found {len(status.pods)}; wait")

    def _trouble(self, event: str, err: KoordError) -> None:
        self._problem = str(err)
        waited = self._clock.monotonic() - self._reported_at
        if self._latest is not None or waited > _FIRST_SAMPLES:
            self._log_state.failed(event, error=self._problem)

    def _failed(self, began: float, err: KoordError) -> None:
        """Record a report that did not arrive; log it unless the next one may soon arrive."""
        if self._failing_since is None:
            self._failing_since = began
        self._problem = str(err)
        lasts = self._clock.monotonic() - self._failing_since
        if lasts >= _BLIP or self._sink.retry_in() >= _BLIP:
            self._trouble("report.failed", err)

    def _on_spec(self, _type: StateType, _state: object, _target: CallbackTarget) -> None:
        self._spec_changed.set()

    async def _until_due(self, stop: Stop, due: float) -> None:
        """Wait for the time, the end, a new spec or a sharp change, whichever comes first."""
        glance = self._options.collect_interval if self._change else math.inf
        while (left := due - self._clock.monotonic()) > 0:
            await stop.sleep(min(left, glance), wake=self._spec_changed)
            if stop.is_set() or self._is_new() or self._is_early_due():
                return

    def _is_new(self) -> bool:
        """Whether the spec or the object is another one than that of the latest report.

        The start itself notifies of both, mostly just after the first report.
        """
        if not self._spec_changed.is_set():
            return False
        self._spec_changed.clear()
        latest = None if self._problem else self._latest
        return latest is None or latest.spec != self._spec() or not self._sink.has_reported()

    def _is_early_due(self) -> bool:
        if self._problem or self._change is None:
            return False
        if self._clock.monotonic() - self._reported_at < CLOSEST:
            return False
        return self._change.is_sharp()
