"""Evictions, counted: Koordinator's families and our own."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Metric
from prometheus_client.core import UnknownMetricFamily
from prometheus_client.registry import Collector

from koord.api.eviction import EvictionOutcome
from koord.api.pods.pod import Pod
from koord.util.clock import Clock

EXPIRY = 300.0  # seconds after its last increase that a pod's series is shown, as in Koordinator
MOST_PODS = 100  # shown at a time
_REASON = "evicted"  # Koordinator knows no other; the feature is a label of our own family

_Pod = tuple[str, str]  # namespace, name


class EvictionMetrics(Collector):
    """Register it with the daemon's registry; rendered on any thread.

    Koordinator's counters have no _total, so they are made at scrape time.
    """

    def __init__(self, node: str, clock: Clock, registry: CollectorRegistry) -> None:
        self._node = node
        self._clock = clock
        self._evicted = 0
        self._by_pod: dict[_Pod, tuple[int, float]] = {}  # count, monotonic time of the last one
        self._outcomes = Counter(
            "koordlet_evictions_total",
            "Evictions that plugins asked for, by feature (reason) and outcome; a request that is "
            "repeated while the answer still holds is not counted.",
            ["plugin", "reason", "outcome"],
            registry=registry,
        )
        registry.register(self)

    def count(self, plugin: str, feature: str, outcome: EvictionOutcome) -> None:
        """Count one decision."""
        self._outcomes.labels(plugin, feature, outcome.value).inc()

    def count_pod(self, pod: Pod) -> None:
        """Count a pod that ends by a decision; once, however many decisions it took."""
        self._evicted += 1
        key = (pod.namespace, pod.name)
        count, at = self._by_pod.pop(key, (0, 0.0))
        now = self._clock.monotonic()
        self._by_pod[key] = (count + 1 if now - at <= EXPIRY else 1, now)
        if len(self._by_pod) > MOST_PODS:
            del self._by_pod[next(iter(self._by_pod))]

    def describe(self) -> list[Metric]:
        return []  # otherwise registering would collect

    def collect(self) -> Iterator[Metric]:
        total = UnknownMetricFamily(
            "koordlet_pod_eviction", "Pods evicted.", labels=["node", "reason"]
        )
        detail = UnknownMetricFamily(
            "koordlet_pod_eviction_detail",
            "Pods evicted, by pod; shown for five minutes after the last time.",
            labels=["node", "pod_namespace", "pod_name", "reason"],
        )
        if self._evicted:
            total.add_metric([self._node, _REASON], self._evicted)
        since = self._clock.monotonic() - EXPIRY
        for (namespace, name), (count, at) in list(self._by_pod.items()):
            if at > since:
                detail.add_metric([self._node, namespace, name, _REASON], count)
        yield from (total, detail)
