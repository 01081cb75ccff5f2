"""Metrics of requests to the API server and of Kubernetes events."""

from prometheus_client import CollectorRegistry, Counter, Summary

from koord.kube.transport import Traffic


class KubeMetrics:
    """Number, duration and size of requests to the API server. Give observe to Transport."""

    def __init__(self, registry: CollectorRegistry, prefix: str) -> None:
        self.requests = Counter(
            f"{prefix}_kube_requests_total",
            "Requests to the API server by verb and status code; code 0 means no answer.",
            ["verb", "code"],
            registry=registry,
        )
        self.seconds = Summary(
            f"{prefix}_kube_request_seconds",
            "Time from a request until its answer began.",
            ["verb"],
            registry=registry,
        )
        self.sent = Counter(
            f"{prefix}_kube_sent_bytes_total",
            "Bytes of request bodies sent to the API server.",
            registry=registry,
        )
        self.received = Counter(
            f"{prefix}_kube_received_bytes_total",
            "Bytes of answers received from the API server. Those of a watch count when it ends.",
            registry=registry,
        )

        self._series: dict[tuple[str, int], tuple[Counter, Summary | None]] = {}

    def observe(self, traffic: Traffic) -> None:
        """Count one attempt that is over."""
        call = traffic.call
        verb = "WATCH" if call.query.get("watch") == "true" else call.method
        count, seconds = self._of(verb, traffic.status)
        count.inc()
        if seconds is not None:
            seconds.observe(traffic.seconds)
        self.sent.inc(len(call.body or b""))
        self.received.inc(traffic.received)

    def _of(self, verb: str, status: int) -> tuple[Counter, Summary | None]:
        """The series of a verb and code; no duration where no response arrived.

        To look them up by their labels would cost more than to count.
        """
        found = self._series.get((verb, status))
        if found is None:
            seconds = self.seconds.labels(verb) if status else None
            found = self.requests.labels(verb, str(status)), seconds
            self._series[verb, status] = found
        return found


class EventMetrics:
    """Outcomes of Kubernetes events. Give count to EventRecorder."""

    def __init__(self, registry: CollectorRegistry, prefix: str) -> None:
        self.events = Counter(
            f"{prefix}_kube_events_total",
            "Kubernetes events by outcome: created, updated, refused, overflow, expired or "
            "withheld (beside another agent).",
            ["outcome"],
            registry=registry,
        )
        for outcome in ("created", "updated", "refused", "overflow", "expired", "withheld"):
            self.events.labels(outcome)

    def count(self, outcome: str) -> None:
        """Count one write, or one event that was given up."""
        self.events.labels(outcome).inc()
