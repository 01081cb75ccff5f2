"""The plugin CPUEvict and its three features: by requests, by usage, by satisfaction."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from koord.api.eviction import EvictionOutcome
from koord.api.pod import BATCH_CPU, Pod, amount, cpu_resource, pod_request
from koord.api.qosstrategy import CPUEvictPolicy, ResourceThreshold
from koord.plugin import Stop
from koordlet.plugin import (
    WAITS_FOR_EVENTS,
    Client,
    ExtensionPlugin,
    FlagSet,
    MetricCache,
    States,
    kinds,
)
from koordlet_plugins.eviction.plan import (
    OWNERS_ORDER,
    EvictionTask,
    ReleaseTarget,
    TierRequests,
    UsedFeature,
    best_effort,
    by_priority,
    by_share,
    offered,
    used_task,
)
from koordlet_plugins.eviction.rounds import (
    EvictionInputs,
    UsageSource,
    VictimRounds,
    task_by_requests,
    wanted,
)
from koordlet_plugins.eviction.settings import (
    EvictionBlocked,
    Satisfaction,
    allocatable_batch_cpu,
    capacity_of,
    is_covered,
    requested_band,
    requested_cpu_release,
    satisfaction_band,
    satisfaction_release,
    usage_ceiling,
    used_band,
)

NAME = "BECPUEvict"
ORDER = "by priority and usage of the request"

_SERIES = {
    "request": kinds.NODE_BE.key("cpu", "request"),
    "limit": kinds.NODE_BE.key("cpu", "real-limit"),
    "used": kinds.NODE_BE.key("cpu", "usage"),
}


@dataclass(frozen=True, slots=True)
class SatisfactionUsage:
    """CPU of best-effort pods over a window, and now; counts are the samples of the window."""

    mean: Satisfaction
    now: Satisfaction
    counts: Mapping[str, int]


def read_satisfaction_usage(cache: MetricCache, seconds: float) -> SatisfactionUsage | None:
    """Return the figures of the last seconds; None: a series is missing or too old.

    None, too, while best-effort pods have no limit.
    """
    means: dict[str, float] = {}
    latest: dict[str, float] = {}
    counts: dict[str, int] = {}
    for name, key in _SERIES.items():
        found = cache.aggregate(kinds.NODE_BE, key, seconds)
        last = cache.last(kinds.NODE_BE, *key)
        if found is None or last is None:
            return None
        means[name], latest[name], counts[name] = found.avg(), last, found.count
    return SatisfactionUsage(Satisfaction(**means), Satisfaction(**latest), counts)


def build_task(
    slo: ResourceThreshold,
    measured: SatisfactionUsage | None,
    pods: Iterable[Pod],
    usage: Callable[[Pod], float],
    *,
    allocatable: int | None,
    interval: float,
    window: float,
    under_way: bool,
) -> EvictionTask | None:
    """Return the task to release batch CPU requests; None: there is none to release.

    usage returns a pod's usage in cores; allocatable is the node's batch CPU.

    Raises:
        EvictionBlocked: the NodeSLO is not complete, or figures are missing.
    """
    band = satisfaction_band(NAME, slo)
    if measured is None:
        message = "wanted request, limit and usage of best-effort pods, found none of late"
        raise EvictionBlocked(NAME, EvictionOutcome.NO_DATA, message)
    if not is_covered(measured.counts, interval, window):
        return None
    mean, now = measured.mean, measured.now
    if slo.cpu_evict_policy is CPUEvictPolicy.BY_ALLOCATABLE:
        limit = allocatable_batch_cpu(allocatable)
        mean, now = (Satisfaction(each.request, limit, each.used) for each in (mean, now))
    release = satisfaction_release(mean, now, band.while_under_way() if under_way else band)
    if release <= 0:
        return None
    return EvictionTask(
        feature=NAME,
        target=ReleaseTarget.REQUEST,
        amounts={BATCH_CPU: release},
        candidates=tuple(by_share(best_effort(pods, NAME), _share_of(usage))),
        gain=lambda pod: {BATCH_CPU: pod_request(pod, BATCH_CPU)},
        trigger=f"best-effort pods may use {now.limit:.0f} of {now.request:.0f} milli-cores that "
        f"they asked for, lower mark {band.lower} %, up to {band.upper} %",
        inputs={
            "mean_request": mean.request,
            "mean_limit": mean.limit,
            "mean_used": mean.used,
            "request": now.request,
            "limit": now.limit,
            "used": now.used,
            "lower_percent": band.lower,
            "upper_percent": band.upper,
            "usage_percent": band.usage,
            "release": release,
        },
        order=ORDER,
    )


def _share_of(usage: Callable[[Pod], float]) -> Callable[[Pod], float]:
    def share(pod: Pod) -> float:
        """Usage of the request; 0 without a request."""
        request = pod_request(pod, BATCH_CPU)
        return usage(pod) * 1000 / request if request else 0.0

    return share


BY_SATISFACTION = NAME
BY_REQUESTS, BY_USAGE = "CPUAllocatableEvict", "CPUEvict"


class CPUEvict(ExtensionPlugin):
    """Evicts pods while the node has too little CPU for the others."""

    gates = (BY_SATISFACTION, BY_REQUESTS, BY_USAGE)
    limits = WAITS_FOR_EVENTS

    def init_flags(self, flags: FlagSet) -> None:
        self._interval = flags.int(
            "cpu-evict-interval-seconds", 1, "Seconds between two looks of CPU eviction; 0 for off"
        )
        self._cool_down = flags.int(
            "cpu-evict-cool-time-seconds", 20, "Seconds without a look after a CPU eviction"
        )

    def setup(self, client: Client, metric_cache: MetricCache, states_informer: States) -> None:
        self._cache = metric_cache
        self._states = states_informer
        self._requests = TierRequests(cpu_resource)
        self._features: dict[str, Callable[[EvictionInputs], EvictionTask | None]] = {
            BY_SATISFACTION: self._by_satisfaction,
            BY_REQUESTS: self._by_requests,
            BY_USAGE: self._by_usage,
        }

    async def run(self, stop: Stop) -> None:
        if self._interval.value <= 0:
            await stop.wait()
            return
        rounds = VictimRounds(
            self,
            self._states,
            resource="cpu",
            measured=UsageSource(
                self._cache, kinds.NODE_CPU_USAGE, kinds.POD_CPU_USAGE, scale=1000
            ),
            cool_down=self._cool_down.value,
            cool_down_first=True,
        )
        async for _ in stop.every(self._interval.value):
            if not rounds.cooling_down:
                await rounds.step(wanted(self, self._features, rounds.round_inputs))

    def _by_satisfaction(self, now: EvictionInputs) -> EvictionTask | None:
        capacity_of(BY_SATISFACTION, now.node, "cpu")
        window, text = self._window(now.slo), now.node.allocatable.get(BATCH_CPU)
        return build_task(
            now.slo,
            read_satisfaction_usage(self._cache, self._since(window, now)),
            now.pods,
            lambda pod: now.usage.get(pod.uid, 0.0),
            allocatable=amount(BATCH_CPU, text) if text else None,
            interval=self._cache.interval(kinds.NODE_BE),
            window=window,
            under_way=BY_SATISFACTION in now.under_way,
        )

    def _by_requests(self, now: EvictionInputs) -> EvictionTask | None:
        capacity_of(BY_REQUESTS, now.node, "cpu")
        return task_by_requests(
            BY_REQUESTS,
            now,
            self._requests,
            release=requested_cpu_release,
            band=requested_band(
                BY_REQUESTS,
                "cpuAllocatableEvict",
                now.slo.cpu_allocatable_evict_threshold_percent,
                now.slo.cpu_allocatable_evict_lower_percent,
            ),
        )

    def _by_usage(self, now: EvictionInputs) -> EvictionTask | None:
        slo, capacity = now.slo, capacity_of(BY_USAGE, now.node, "cpu")
        feature = UsedFeature(
            name=BY_USAGE,
            resource="cpu",
            band=used_band(
                BY_USAGE, "cpuEvict", slo.cpu_evict_threshold_percent, slo.cpu_evict_lower_percent
            ),
            order=OWNERS_ORDER,
            under_way=BY_USAGE in now.under_way,
        )
        ceiling = usage_ceiling(BY_USAGE, slo)
        window = self._since(self._window(slo), now)
        found = self._cache.aggregate(kinds.NODE_CPU_USAGE, (), window)
        if found is None or self._cache.last(kinds.NODE_CPU_USAGE) is None:
            message = "wanted the node's CPU usage, found none of late"
            raise EvictionBlocked(BY_USAGE, EvictionOutcome.NO_DATA, message)
        used = math.trunc(found.avg() * 1000)
        return used_task(
            feature,
            used,
            capacity,
            lambda: by_priority(offered(now.measured(), BY_USAGE, ceiling), now.amount),
            now.amount,
        )

    def _window(self, slo: ResourceThreshold) -> float:
        """Length of the window in seconds."""
        interval = self._cache.interval(kinds.NODE_CPU_USAGE)
        return max(interval, slo.cpu_evict_time_window_seconds or 0)

    def _since(self, window: float, now: EvictionInputs) -> float:
        """The window without the time of the latest victim; at least one sample."""
        gone = self.clock.boottime() - now.since
        return max(min(window, gone), self._cache.interval(kinds.NODE_CPU_USAGE))
