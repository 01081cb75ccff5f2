"""The plugin CPUEvict and its three features."""

import math
from collections.abc import Callable

from koord.api.eviction import EvictionOutcome
from koord.api.pods.requests import BATCH_CPU, amount, cpu_resource
from koord.api.slo.strategies import ResourceThreshold
from koordlet.plugin import (
    WAITS_FOR_EVENTS,
    Client,
    ExtensionPlugin,
    FlagSet,
    MetricCache,
    States,
    Stop,
    kinds,
)
from koordlet_plugins.eviction import satisfaction
from koordlet_plugins.eviction.plan import EvictionTask
from koordlet_plugins.eviction.releases import requested_cpu_release
from koordlet_plugins.eviction.settings import (
    EvictionBlocked,
    capacity_of,
    request_ceiling,
    requested_band,
    usage_ceiling,
    used_band,
)
from koordlet_plugins.eviction.situation import Situation, UsageSource
from koordlet_plugins.eviction.tasks import (
    OWNERS_ORDER,
    RequestFeature,
    UsedFeature,
    requested_task,
    used_task,
)
from koordlet_plugins.eviction.tierrequests import TierRequests
from koordlet_plugins.eviction.victimrounds import VictimRounds, wanted
from koordlet_plugins.eviction.victims import by_priority, offered

BY_SATISFACTION = satisfaction.NAME
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
        self._features: dict[str, Callable[[Situation], EvictionTask | None]] = {
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
            rest_first=True,
        )
        async for _ in stop.every(self._interval.value):
            if not rounds.resting:
                await rounds.step(wanted(self, self._features, rounds.situation))

    def _by_satisfaction(self, now: Situation) -> EvictionTask | None:
        capacity_of(BY_SATISFACTION, now.node, "cpu")
        window, text = self._window(now.slo), now.node.allocatable.get(BATCH_CPU)
        return satisfaction.build_task(
            now.slo,
            satisfaction.read_figures(self._cache, self._since(window, now)),
            now.pods,
            lambda pod: now.usage.get(pod.uid, 0.0),
            allocatable=amount(BATCH_CPU, text) if text else None,
            interval=self._cache.interval(kinds.NODE_BE),
            window=window,
            under_way=BY_SATISFACTION in now.under_way,
        )

    def _by_requests(self, now: Situation) -> EvictionTask | None:
        slo = now.slo
        capacity_of(BY_REQUESTS, now.node, "cpu")
        feature = RequestFeature(
            name=BY_REQUESTS,
            resource=cpu_resource,
            release=requested_cpu_release,
            band=requested_band(
                BY_REQUESTS,
                "cpuAllocatableEvict",
                slo.cpu_allocatable_evict_threshold_percent,
                slo.cpu_allocatable_evict_lower_percent,
            ),
            ceiling=request_ceiling(BY_REQUESTS, slo),
            under_way=BY_REQUESTS in now.under_way,
        )
        asked = self._requests.sums(now.metas, feature.ceiling)
        return requested_task(feature, asked, now.node.allocatable, now.measured)

    def _by_usage(self, now: Situation) -> EvictionTask | None:
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

    def _since(self, window: float, now: Situation) -> float:
        """The window without the time of the latest victim; at least one sample."""
        gone = self.clock.boottime() - now.since
        return max(min(window, gone), self._cache.interval(kinds.NODE_CPU_USAGE))
