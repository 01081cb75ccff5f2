"""Metrics of the framework."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import UnknownMetricFamily

from koord.component.plugins.ownmetrics import OwnMetrics

UNSUFFIXED_COUNTERS = frozenset({"descheduler_pods_evicted"})
"""Counters that Koordinator named without `_total`; for koord.component.http.families."""
MOST_SERIES = 10_000  # of evicted pods by namespace and node
BEYOND = "other"  # namespace and node of what is beyond that
_LABELS = ("result", "strategy", "namespace", "node")


class PodsEvicted:
    """descheduler_pods_evicted: evictions by result, counted where they are carried out."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, ...], int] = {}

    def count(self, *, result: str, strategy: str, namespace: str, node: str) -> None:
        """Count an eviction: result is "success" or "error", strategy the plugin that asked."""
        key = (result, strategy, namespace, node)
        if key not in self._counts and len(self._counts) >= MOST_SERIES:
            key = (result, strategy, BEYOND, BEYOND)
        self._counts[key] = self._counts.get(key, 0) + 1

    def collect(self) -> Iterator[UnknownMetricFamily]:
        """As prometheus_client's Collector."""
        family = self._family()
        for key, value in tuple(self._counts.items()):
            family.add_metric(key, value)
        yield family

    def describe(self) -> Iterator[UnknownMetricFamily]:
        """As prometheus_client's Collector: lets the registry refuse a name twice."""
        yield self._family()

    def _family(self) -> UnknownMetricFamily:
        help_ = "Number of evicted pods, by the result, by the strategy, by the namespace, by node."
        return UnknownMetricFamily("descheduler_pods_evicted", help_, labels=_LABELS)


class FrameworkMetrics(OwnMetrics):
    """Cycles, rounds of plugins, and evictions."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.evicted = PodsEvicted()
        registry.register(self.evicted)
        self.cycles = Histogram(
            "descheduler_cycle_duration_seconds",
            "Time from the start of a descheduling cycle to its end.",
            buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
            registry=registry,
        )
        self.denied = Counter(
            "descheduler_evictions_denied_total",
            "Evictions that a limit did not allow: node, namespace or total; or the ledger.",
            ["limit"],
            registry=registry,
        )
        self.rounds = Counter(
            "descheduler_plugin_rounds_total",
            "Rounds of plugins by profile and outcome: ok, failed, late or blocked.",
            ["profile", "plugin", "extension_point", "outcome"],
            registry=registry,
        )
        self.cpu_seconds = Counter(
            "descheduler_plugin_cpu_seconds_total",
            "CPU time that a plugin's own code took on the event loop.",
            ["profile", "plugin"],
            registry=registry,
        )
