"""What NetworkTraffic says of its figures: how old they are, and of how many nodes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily

STATES = ("known", "unknown", "stale")
RESULTS = ("answered", "failed")


@dataclass(frozen=True, slots=True)
class Figures:
    """What one meter knows at one time."""

    newest: float | None = None  # monotonic seconds of its newest reading; None: there is none
    nodes: Mapping[str, int] = field(default_factory=dict)  # their number by state
    without_capacity: int = 0  # of those that are known


class Metered(Protocol):
    """A meter, as its metrics see it."""

    figures: Figures

    def age(self) -> float | None:
        """Seconds since the newest reading; None: there is none."""


class TrafficMetrics:
    """Of all meters of a process, each by its name: the one that health checks have."""

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
        """As prometheus_client's Collector."""
        age, nodes, capacity = self.describe()
        for name, meter in tuple(self._meters.items()):
            figures, seconds = meter.figures, meter.age()
            if seconds is not None:
                age.add_metric([name], seconds)
            for state in STATES:
                nodes.add_metric([name, state], figures.nodes.get(state, 0))
            capacity.add_metric([name], figures.without_capacity)
        yield from (age, nodes, capacity)

    def describe(self) -> tuple[GaugeMetricFamily, GaugeMetricFamily, GaugeMetricFamily]:
        """As prometheus_client's Collector."""
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
