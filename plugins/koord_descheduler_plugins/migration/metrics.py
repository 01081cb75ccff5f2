"""Metrics of migrations."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily

PHASES = ("Pending", "Running", "Succeeded", "Failed", "Aborted")


class MigrationMetrics:
    """Jobs by phase, their ends and errors."""

    def __init__(
        self, registry: CollectorRegistry, phases: Callable[[], Mapping[str, int]]
    ) -> None:
        """phases returns how many jobs there are in each phase."""
        self._phases = phases
        registry.register(self)
        self.errors = Counter(
            "descheduler_migration_reconcile_errors_total",
            "Looks at PodMigrationJobs that failed and are repeated, by the kind of the error.",
            ["error"],
            registry=registry,
        )
        self.ended = Counter(
            "descheduler_migration_jobs_ended_total",
            "PodMigrationJobs that this process has brought to an end, by phase and reason.",
            ["phase", "reason"],
            registry=registry,
        )

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """As prometheus_client's Collector."""
        family = self._family()
        counts = self._phases()
        for phase in PHASES:
            family.add_metric([phase], counts.get(phase, 0))
        yield family

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """As prometheus_client's Collector."""
        yield self._family()

    def _family(self) -> GaugeMetricFamily:
        help_ = "PodMigrationJobs in the cluster, by phase."
        return GaugeMetricFamily("descheduler_migration_jobs", help_, labels=["phase"])
