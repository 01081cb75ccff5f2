"""Metrics of requests; those of plugins are the framework's."""

from prometheus_client import CollectorRegistry, Histogram

from koord_scheduler import PREFIX


class ExtenderMetrics:
    """Requests by verb and HTTP status; outcome late: answered without asking the plugins."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Histogram(
            f"{PREFIX}_extender_request_duration_seconds",
            "Time from a whole request of kube-scheduler to the answer, by verb and HTTP status.",
            ["verb", "code", "outcome"],
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
            registry=registry,
        )
