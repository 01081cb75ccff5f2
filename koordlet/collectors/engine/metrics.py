"""The sampling pass about itself."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary

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
        self.threads_given_up = Gauge(
            "koordlet_sampling_threads_given_up",
            "Threads that wait in a kernel read which does not return.",
            registry=registry,
        )
