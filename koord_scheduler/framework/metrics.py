"""Metrics of the framework, with kube-scheduler's names."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.metrics_core import CounterMetricFamily

from koord.component.plainhistogram import PlainHistogram
from koord.component.plugins.ownmetrics import OwnMetrics


class PluginEvaluations:
    """scheduler_plugin_evaluation_total: counted twenty times a cycle, so by plain numbers."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, str], list[int]] = {}

    def of(self, plugin: str, point: str, profile: str) -> list[int]:
        """The only item is the number of evaluations, for the caller to raise."""
        return self._counts.setdefault((plugin, point, profile), [0])

    def collect(self) -> Iterator[CounterMetricFamily]:
        """As prometheus_client's Collector."""
        (family,) = self.describe()
        for labels, (count,) in tuple(self._counts.items()):
            family.add_metric(labels, count)
        yield family

    def describe(self) -> Iterator[CounterMetricFamily]:
        """As prometheus_client's Collector."""
        yield CounterMetricFamily(
            "scheduler_plugin_evaluation",
            "Number of attempts to schedule pods by each plugin and the extension point.",
            labels=("plugin", "extension_point", "profile"),
        )


class FrameworkMetrics(OwnMetrics):
    """Durations of extension points and of plugins, and how often plugins are called."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.points = PlainHistogram(
            "scheduler_framework_extension_point_duration_seconds",
            "Latency for running all plugins of a specific extension point.",
            ["extension_point", "status", "profile"],
            buckets=exponential(0.0001, 2, 12),
            registry=registry,
        )
        self.plugins = PlainHistogram(
            "scheduler_plugin_execution_duration_seconds",
            "Duration for running a plugin at a specific extension point, of some of the cycles.",
            ["plugin", "extension_point", "status"],
            buckets=exponential(0.00001, 1.5, 20),
            registry=registry,
        )
        self.evaluations = PluginEvaluations()
        registry.register(self.evaluations)
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
