"""Metrics of the loop, with kube-scheduler's names and buckets.

Source: Kubernetes, pkg/scheduler/metrics/metrics.go.
"""

from collections import Counter as Counts
from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.metrics_core import GaugeMetricFamily, UnknownMetricFamily

from koord.component.metrics import PlainHistogram
from koord_scheduler.cache import SchedulerCache
from koord_scheduler.framework.calls import exponential
from koord_scheduler.queue import SchedulingQueue

SCHEDULED, REJECTED, FAILED = "scheduled", "unschedulable", "error"
_MANY = 15  # attempts from which on they have one label


class SchedulingMetrics:
    """Attempts of the loop, their results, and the pods in the queue."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._attempts = Counter(
            "scheduler_schedule_attempts_total",
            "Number of attempts to schedule pods, by the result. 'unschedulable' means a pod could "
            "not be scheduled, while 'error' means an internal scheduler problem.",
            ["result", "profile"],
            registry=registry,
        )
        self._attempt_duration = PlainHistogram(
            "scheduler_scheduling_attempt_duration_seconds",
            "Scheduling attempt latency in seconds (scheduling algorithm + binding).",
            ["result", "profile"],
            buckets=exponential(0.001, 2, 15),
            registry=registry,
        )
        self._algorithm = PlainHistogram(
            "scheduler_scheduling_algorithm_duration_seconds",
            "Scheduling algorithm latency in seconds.",
            buckets=exponential(0.001, 2, 15),
            registry=registry,
        ).labels()
        self._sli = PlainHistogram(
            "scheduler_pod_scheduling_sli_duration_seconds",
            "E2e latency for a pod being scheduled, from the time the pod enters the scheduling "
            "queue and might involve multiple scheduling attempts.",
            ["attempts"],
            buckets=exponential(0.01, 2, 20),
            registry=registry,
        )
        self._pod_attempts = PlainHistogram(
            "scheduler_pod_scheduling_attempts",
            "Number of attempts to successfully schedule a pod.",
            buckets=exponential(1, 2, 5),
            registry=registry,
        ).labels()
        self._incoming = Counter(
            "scheduler_queue_incoming_pods_total",
            "Number of pods added to scheduling queues by event and queue type.",
            ["queue", "event"],
            registry=registry,
        )
        self._cut = Counter(
            "scheduler_attempts_cut_total",
            "Number of attempts to schedule pods that were ended because they took too much "
            "computing; the pod waits 5 seconds to 5 minutes.",
            ["profile"],
            registry=registry,
        )
        self._timeouts = _Timeouts()
        registry.register(self._timeouts)
        self._comings: dict[tuple[str, str], Callable[[], None]] = {}
        self._results: dict[tuple[str, str], tuple[Callable[..., None], Callable[..., None]]] = {}

    def observe(self, queue: SchedulingQueue, state: SchedulerCache) -> None:
        """Export what is in the queue and in the cache from now on."""
        self._registry.register(_Contents(queue, state))

    def incoming_pod(self, queue: str, event: str) -> None:
        """A pod has come into a queue."""
        count = self._comings.get((queue, event))
        if count is None:
            count = self._comings[queue, event] = self._incoming.labels(queue, event).inc
        count()

    def attempted(self, result: str, profile: str, seconds: float) -> None:
        """An attempt has ended: SCHEDULED, REJECTED or FAILED."""
        known = self._results.get((result, profile))
        if known is None:
            labels = result, profile
            count = self._attempts.labels(*labels).inc
            known = count, self._attempt_duration.labels(*labels)
            self._results[result, profile] = known
        count, record = known
        count()
        record(seconds)

    def cut(self, profile: str) -> None:
        """An attempt was ended for time."""
        self._cut.labels(profile).inc()

    def timed_out(self, profile: str) -> None:
        """An attempt takes longer than --scheduling-timeout."""
        self._timeouts.counts[profile] += 1

    def algorithm(self, seconds: float) -> None:
        """A node was found in so many seconds."""
        self._algorithm(seconds)

    def bound(self, attempts: int, seconds: float) -> None:
        """A pod was bound, so many seconds after its first attempt began."""
        self._pod_attempts(attempts)
        label = str(attempts) if attempts < _MANY else f"{_MANY}+"
        self._sli.labels(label)(seconds)


class _Timeouts:
    """Koordinator's counter without _total at the end; a prometheus_client Collector."""

    def __init__(self) -> None:
        self.counts: Counts[str] = Counts()  # by profile

    def collect(self) -> Iterator[UnknownMetricFamily]:
        for family in self.describe():
            for profile, count in self.counts.items():
                family.add_metric((profile,), count)
            yield family

    def describe(self) -> Iterator[UnknownMetricFamily]:
        yield UnknownMetricFamily(
            "scheduler_scheduling_timeout",
            "Number of attempts to schedule pods that took longer than --scheduling-timeout.",
            labels=("profile",),
        )


class _Contents:
    """Current queue and cache contents, read at each scrape; a prometheus_client Collector."""

    def __init__(self, queue: SchedulingQueue, state: SchedulerCache) -> None:
        self._queue = queue
        self._state = state

    def collect(self) -> Iterator[GaugeMetricFamily]:
        pending, rejected, cache = content_families()
        for name, pods in self._queue.pending.items():
            pending.add_metric((name,), pods)
        for (profile, plugin), pods in self._queue.rejected_by_plugin.items():
            rejected.add_metric((plugin, profile), pods)
        sizes = {
            "assumed_pods": self._state.assumed_count,
            "nodes": len(self._state.snapshot),
            "pods": self._state.snapshot.pod_count,
        }
        for name, size in sizes.items():
            cache.add_metric((name,), size)
        yield from (pending, rejected, cache)

    def describe(self) -> Sequence[GaugeMetricFamily]:
        return content_families()


def content_families() -> tuple[GaugeMetricFamily, GaugeMetricFamily, GaugeMetricFamily]:
    """The families of what there is now, without samples: pending, rejected, cache."""
    return (
        GaugeMetricFamily(
            "scheduler_pending_pods",
            "Number of pending pods, by the queue: active, backoff, unschedulable or gated.",
            labels=("queue",),
        ),
        GaugeMetricFamily(
            "scheduler_unschedulable_pods",
            "Number of unschedulable pods by plugin; a pod counts for each plugin that caused it.",
            labels=("plugin", "profile"),
        ),
        GaugeMetricFamily(
            "scheduler_cache_size",
            "Number of nodes, pods, and assumed pods in the scheduler cache.",
            labels=("type",),
        ),
    )
