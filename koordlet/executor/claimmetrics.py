"""Claims and kernel writes, counted: Koordinator's histogram and our own families."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from koordlet.executor.claims.desired import Change
from koordlet.executor.journal.journal import Journal
from koordlet.executor.kernel.writerstats import WriterStats

_Claims = Callable[[], Mapping[str, Mapping[str, int]]]

_BUCKETS = tuple(0.01 * 4**n for n in range(8))  # milliseconds, as in Koordinator


class ClaimMetrics(Collector):
    """Register it with the daemon's registry; rendered on any thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.stats = WriterStats(self._observe)
        self._durations = Histogram(
            "koordlet_resource_update_duration_milliseconds",
            "How long writes to the kernel took, by kind of file and whether it was accepted.",
            ["type", "status"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self._changes = Counter(
            "koordlet_kernel_value_changes_total",
            "What became of kernel values that plugins claim: set, restored, failed; foreign, "
            "retaken, yielded when another agent changed one; would_set and would_restore in "
            "dry-run.",
            ["plugin", "change"],
            registry=registry,
        )
        self._registry = registry
        self._claims: _Claims = dict
        self._journal: Journal | None = None

    def watch(self, claims: _Claims, journal: Journal) -> None:
        """Show claims and the journal's extent, too. claims: counts by plugin and state."""
        self._claims, self._journal = claims, journal
        self._registry.register(self)

    def note(self, change: Change) -> None:
        """Count a change, for each plugin that has a part in it."""
        for plugin in change.owners:
            self._changes.labels(plugin, change.what).inc()

    def describe(self) -> list[Metric]:
        return []  # otherwise registering would collect

    def collect(self) -> Iterator[Metric]:
        claims = GaugeMetricFamily(
            "koordlet_claims",
            "Kernel values that plugins claim, by what became of the claims.",
            labels=["plugin", "state"],
        )
        for plugin, states in self._claims().items():
            for state, count in states.items():
                claims.add_metric([plugin, state], count)
        writes = CounterMetricFamily(
            "koordlet_kernel_writes",
            "Writes to kernel files, by value and outcome: accepted or refused.",
            labels=["resource", "outcome"],
        )
        for (resource, accepted), count in list(self.stats.writes.items()):
            writes.add_metric([resource, "accepted" if accepted else "refused"], count)
        skips = CounterMetricFamily(
            "koordlet_kernel_write_skips",
            "Claims that needed no write, as the value was in force already.",
            value=self.stats.skips,
        )
        records = GaugeMetricFamily(
            "koordlet_journal_records",
            "Kernel values that are changed, and whose originals are on disk to be restored.",
            value=len(self._journal.records) if self._journal else 0,
        )
        yield from (claims, writes, skips, records)

    def _observe(self, kind: str, accepted: bool, milliseconds: float) -> None:
        self._durations.labels(kind, "success" if accepted else "failed").observe(milliseconds)
