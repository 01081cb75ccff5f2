"""Metrics of requests to the kubelet."""

from prometheus_client import CollectorRegistry, Histogram

from koord.kube.transport import Traffic

_AS_KOORDINATOR_ASKS = {"/pods": "/pods/"}


class KubeletMetrics:
    """Duration of requests to the kubelet; name, labels and buckets are Koordinator's."""

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
