"""Outcomes of each collector's rounds: metrics, logs at start and end, health."""

from dataclasses import dataclass
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary

from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.logs import LogState, get_logger
from koordlet.collectors.engine.collector import Collector

_PASS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


class CollectorMetrics:
    """Work and cost of the collectors and of the kernel reads behind them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.rounds = Counter(
            "koordlet_collector_rounds_total",
            "Collector rounds by outcome: ok, unsupported, failed or late.",
            ["collector", "outcome"],
            registry=registry,
        )
        self.duration = Summary(
            "koordlet_collector_duration_seconds",
            "Time that the rounds of a collector took, kernel reads included.",
            ["collector"],
            registry=registry,
        )
        self.pass_seconds = Histogram(
            "koordlet_sampling_pass_seconds",
            "Time from the start of a sampling pass until all its collectors are done.",
            buckets=_PASS_BUCKETS,
            registry=registry,
        )
        self.missed_turns = Counter(
            "koordlet_sampling_missed_turns_total",
            "Turns that were skipped because the pass before them had not finished.",
            registry=registry,
        )
        self.reads = Counter(
            "koordlet_kernel_reads_total",
            "Kernel files read, by outcome: ok, unsupported, vanished, failed or hung.",
            ["outcome"],
            registry=registry,
        )
        self.held_descriptors = Gauge(
            "koordlet_held_descriptors",
            "Kernel files that are kept open between sampling passes.",
            registry=registry,
        )
        self.threads_abandoned = Gauge(
            "koordlet_sampling_threads_given_up",
            "Threads that wait in a kernel read which does not return.",
            registry=registry,
        )


OVERDUE_ROUNDS = 3  # periods without a round that did its work, after which a collector is broken

log = get_logger("koordlet.collectors")


class RoundOutcome(StrEnum):
    """The outcome of a round; the value of the label `outcome`."""

    OK = "ok"
    UNSUPPORTED = "unsupported"  # this host lacks what the collector reads
    FAILED = "failed"  # it raised, or could read nothing
    LATE = "late"  # it took longer than its period, or hung


@dataclass(frozen=True, slots=True)
class Round:
    """One round that ended, or was ended."""

    outcome: RoundOutcome
    error: str
    at: float  # monotonic seconds
    seconds: float
    returned: bool = True  # False: it raised or hung, so its latest figures are old ones


class Rounds:
    """The rounds of one collector. Written by the sampling thread, read by any."""

    def __init__(self, collector: Collector, period: float, metrics: CollectorMetrics) -> None:
        self.collector = collector
        self.period = period
        self._metrics = metrics
        self._duration = metrics.duration.labels(collector.name)
        self._failures = LogState(log)
        self._since: float | None = None  # None: switched off
        self._last: Round | None = None
        self._worked_at: float | None = None
        self._returned_at: float | None = None

    def enable(self, now: float) -> None:
        """Note that the collector is on."""
        if self._since is None:
            self._since = now

    def disable(self) -> None:
        """Note that the collector is off: it has no health and no families."""
        self._since = self._last = self._worked_at = self._returned_at = None

    def record(self, round_: Round) -> None:
        """Count a round. A failure that lasts is logged when it starts and when it ends."""
        name = self.collector.name
        self._metrics.rounds.labels(name, round_.outcome.value).inc()
        self._duration.observe(round_.seconds)
        if round_.returned:
            self._returned_at = round_.at
            if round_.outcome is not RoundOutcome.FAILED:
                self._worked_at = round_.at
        if round_.outcome in (RoundOutcome.FAILED, RoundOutcome.LATE):
            self._failures.failed(
                "collector.failed", collector=name, outcome=round_.outcome, error=round_.error
            )
        else:
            self._failures.ended("collector.recovered", collector=name)
        self._last = round_

    @property
    def is_on(self) -> bool:
        return self._since is not None

    def fresh(self, now: float) -> bool:
        """Whether the latest figures are young enough to be shown."""
        return self._returned_at is not None and now - self._returned_at <= self._grace

    def health(self, now: float) -> PartHealth:
        """Unhealthy when no round worked in three periods; degraded when rounds are late."""
        since, last = self._since, self._last
        if since is None:
            return OK
        waited = now - (since if self._worked_at is None else self._worked_at)
        if waited > self._grace:
            reason = f"no round did its work for {waited:.0f} s"
            return PartHealth(HealthStatus.UNHEALTHY, f"{reason}: {last.error}" if last else reason)
        if last is not None and last.outcome is RoundOutcome.LATE:
            return PartHealth(HealthStatus.DEGRADED, last.error)
        return OK

    @property
    def _grace(self) -> float:
        return OVERDUE_ROUNDS * self.period
