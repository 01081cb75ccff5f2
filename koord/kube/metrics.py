"""Requests to the API server and to the kubelet, counted."""

from prometheus_client import CollectorRegistry, Counter, Histogram, Summary

from koord.kube.transport import Traffic

_AS_KOORDINATOR_ASKS = {"/pods": "/pods/"}


class KubeMetrics:
    """What the API server is asked, and what it costs. Give observe to Transport."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "koordlet_kube_requests_total",
            "Requests to the API server by verb and status code; code 0 means no answer.",
            ["verb", "code"],
            registry=registry,
        )
        self.seconds = Summary(
            "koordlet_kube_request_seconds",
            "Time from a request until its answer began.",
            ["verb"],
            registry=registry,
        )
        self.sent = Counter(
            "koordlet_kube_sent_bytes_total",
            "Bytes of request bodies sent to the API server.",
            registry=registry,
        )
        self.received = Counter(
            "koordlet_kube_received_bytes_total",
            "Bytes of answers received from the API server. Those of a watch count when it ends.",
            registry=registry,
        )

    def observe(self, traffic: Traffic) -> None:
        """Count one attempt that is over."""
        call = traffic.call
        verb = "WATCH" if call.query.get("watch") == "true" else call.method
        self.requests.labels(verb, str(traffic.status)).inc()
        if traffic.status:
            self.seconds.labels(verb).observe(traffic.seconds)
        self.sent.inc(len(call.body or b""))
        self.received.inc(traffic.received)


class KubeletMetrics:
    """How long the kubelet takes; name, labels and buckets are Koordinator's."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.seconds = Histogram(
            "koordlet_kubelet_request_duration_seconds",
            "Time from a request to the kubelet until its answer began.",
            ["verb", "path", "code"],
            buckets=(0.001, 0.004, 0.016, 0.064, 0.256, 1.024, 4.096),
            registry=registry,
        )

    def observe(self, traffic: Traffic) -> None:
        """Count one attempt that is over, if there was an answer."""
        if traffic.status:
            path = _AS_KOORDINATOR_ASKS.get(traffic.call.path, traffic.call.path)
            self.seconds.labels("get", path, str(traffic.status)).observe(traffic.seconds)


class EventMetrics:
    """What becomes of Kubernetes events. Give count to EventRecorder."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.events = Counter(
            "koordlet_kube_events_total",
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
