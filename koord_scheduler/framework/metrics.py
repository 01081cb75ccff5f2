"""Metrics of the framework, with kube-scheduler's names."""

from prometheus_client import CollectorRegistry, Counter, Histogram


class FrameworkMetrics:
    """Durations of extension points and of plugins, and how often plugins are called."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.exposition = registry
        """Where plugins add their own metrics."""
        self.points = Histogram(
            "scheduler_framework_extension_point_duration_seconds",
            "Latency for running all plugins of a specific extension point.",
            ["extension_point", "status", "profile"],
            buckets=exponential(0.0001, 2, 12),
            registry=registry,
        )
        self.plugins = Histogram(
            "scheduler_plugin_execution_duration_seconds",
            "Duration for running a plugin at a specific extension point, of some of the cycles.",
            ["plugin", "extension_point", "status"],
            buckets=exponential(0.00001, 1.5, 20),
            registry=registry,
        )
        self.evaluations = Counter(
            "scheduler_plugin_evaluation_total",
            "Number of attempts to schedule pods by each plugin and the extension point.",
            ["plugin", "extension_point", "profile"],
            registry=registry,
        )
        self.permit_waits = Histogram(
            "scheduler_permit_wait_duration_seconds",
            "Duration of waiting on permit.",
            ["result"],
            buckets=exponential(0.001, 2, 15),
            registry=registry,
        )


def exponential(start: float, factor: float, count: int) -> tuple[float, ...]:
    """Bounds of so many buckets, each the factor times the one before."""
    return tuple(start * factor**power for power in range(count))
