"""Metrics of the ledger."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class LedgerMetrics:
    """Outcomes of evictions, and workloads that are left alone."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.outcomes = Counter(
            "descheduler_eviction_outcomes_total",
            "Evictions for load by outcome: relieved, not-relieved, returned or unknown.",
            ["outcome"],
            registry=registry,
        )
        self.paused = Gauge(
            "descheduler_paused_workloads",
            "Workloads that are left alone because their evictions did not relieve.",
            registry=registry,
        )
        self.writes = Counter(
            "descheduler_ledger_writes_total",
            "Writes of the ledger to the API by outcome: ok, conflict or failed.",
            ["outcome"],
            registry=registry,
        )
