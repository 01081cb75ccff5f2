"""The plugin MemoryEvict and its three features; memory pressure may be required as well."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from koord.api.eviction import EvictionOutcome
from koord.api.pod import Pod, memory_resource
from koord.plugin import OptionError, Stop
from koordlet.plugin import (
    WAITS_FOR_EVENTS,
    Client,
    ExtensionPlugin,
    FlagSet,
    MetricCache,
    States,
    kinds,
    resources,
)
from koordlet_plugins.eviction.plan import (
    OWNERS_ORDER,
    EvictionTask,
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
    capacity_of,
    requested_band,
    requested_memory_release,
    usage_ceiling,
    used_band,
)


class Signals(StrEnum):
    """The signals that must be high."""

    BOTH = "usage,pressure"
    USAGE = "usage"


@dataclass(frozen=True, slots=True)
class PressureRule:
    """The pressure that is enough, in percent of the time; signals: whether it is needed."""

    signals: Signals
    percent: float

    def __post_init__(self) -> None:
        if not 0 < self.percent <= 100:
            raise OptionError("--memory-evict-pressure", self.percent, "use up to 100 percent")


@dataclass(frozen=True, slots=True)
class MemoryPressure:
    """Share of the last ten seconds in which tasks of the node waited for memory, in percent.

    percent None: not known. supported False: this kernel does not measure it.
    """

    percent: float | None
    supported: bool = True


def parse_signals(text: str) -> Signals:
    """Return the signals that a flag names, in either order.

    Raises:
        OptionError: it names others.
    """
    named = {piece.strip() for piece in text.split(",")}
    for signals in Signals:
        if named == set(signals.split(",")):
            return signals
    raise OptionError("--memory-evict-signals", text, f"use {' or '.join(Signals)}")


def check_pressure(task: EvictionTask, pressure: MemoryPressure, rule: PressureRule) -> None:
    """Let a task pass when there is enough pressure as well.

    Raises:
        EvictionBlocked: the pressure is too low, or not known.
    """
    if rule.signals is Signals.USAGE or not pressure.supported:
        return
    if pressure.percent is None:
        message = "wanted the node's memory pressure, found none of late"
        raise EvictionBlocked(task.feature, EvictionOutcome.NO_DATA, message, reason=task.trigger)
    if pressure.percent < rule.percent:
        message = (
            f"tasks waited for memory {pressure.percent:.1f} % of the last 10 s, wanted "
            f"{rule.percent:g} % (--memory-evict-pressure)"
        )
        raise EvictionBlocked(
            task.feature, EvictionOutcome.NO_PRESSURE, message, reason=task.trigger
        )


OF_BEST_EFFORT, BY_REQUESTS, BY_USAGE = "BEMemoryEvict", "MemoryAllocatableEvict", "MemoryEvict"
BEST_EFFORT_ORDER = "by priority and usage"

_NODE_PRESSURE = kinds.NODE_PSI.key("mem", "10", "some")


class MemoryEvict(ExtensionPlugin):
    """Evicts pods while the node has too little memory for the others."""

    gates = (OF_BEST_EFFORT, BY_REQUESTS, BY_USAGE)
    limits = WAITS_FOR_EVENTS

    def init_flags(self, flags: FlagSet) -> None:
        self._interval = flags.int(
            "memory-evict-interval-seconds",
            1,
            "Seconds between two looks of memory eviction; 0 for off",
        )
        self._cool_down = flags.int(
            "memory-evict-cool-time-seconds", 4, "Seconds without a look after a memory eviction"
        )
        self._signals = flags.string(
            "memory-evict-signals",
            Signals.BOTH,
            "Signals that must be high before the first victim of memory eviction; Koordinator "
            "looks at usage alone",
        )
        self._pressure = flags.float(
            "memory-evict-pressure",
            5.0,
            "Memory pressure of the node that counts as high for it, in percent of the last 10 s",
        )

    def setup(self, client: Client, metric_cache: MetricCache, states_informer: States) -> None:
        self._cache = metric_cache
        self._states = states_informer
        self._requests = TierRequests(memory_resource)
        self._rule = PressureRule(parse_signals(self._signals.value), self._pressure.value)
        self._features: dict[str, Callable[[EvictionInputs], EvictionTask | None]] = {
            OF_BEST_EFFORT: self._of_best_effort,
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
            resource="memory",
            measured=UsageSource(self._cache, kinds.NODE_MEMORY_USAGE, kinds.POD_MEMORY_USAGE),
            cool_down=self._cool_down.value,
        )
        async for _ in stop.every(self._interval.value):
            if not rounds.cooling_down:
                round_inputs = rounds.round_inputs
                found = list(wanted(self, self._features, round_inputs))
                under_way = round_inputs.under_way if round_inputs else frozenset()
                await rounds.step(await self._pressed(found, under_way))

    def _of_best_effort(self, now: EvictionInputs) -> EvictionTask | None:
        def victims() -> list[Pod]:
            return by_share(best_effort(now.pods, OF_BEST_EFFORT), now.amount)

        return self._used_task(OF_BEST_EFFORT, now, victims, BEST_EFFORT_ORDER)

    def _by_usage(self, now: EvictionInputs) -> EvictionTask | None:
        ceiling = usage_ceiling(BY_USAGE, now.slo)

        def victims() -> list[Pod]:
            return by_priority(offered(now.measured(), BY_USAGE, ceiling), now.amount)

        return self._used_task(BY_USAGE, now, victims, OWNERS_ORDER)

    def _used_task(
        self, name: str, now: EvictionInputs, victims: Callable[[], list[Pod]], order: str
    ) -> EvictionTask | None:
        slo, capacity = now.slo, capacity_of(name, now.node, "memory")
        band = used_band(
            name, "memoryEvict", slo.memory_evict_threshold_percent, slo.memory_evict_lower_percent
        )
        used = self._cache.last(kinds.NODE_MEMORY_USAGE)
        if used is None:
            message = "wanted the node's memory usage, found none of late"
            raise EvictionBlocked(name, EvictionOutcome.NO_DATA, message)
        feature = UsedFeature(
            name=name, resource="memory", band=band, order=order, under_way=name in now.under_way
        )
        return used_task(feature, math.trunc(used), capacity, victims, now.amount)

    def _by_requests(self, now: EvictionInputs) -> EvictionTask | None:
        capacity_of(BY_REQUESTS, now.node, "memory")
        return task_by_requests(
            BY_REQUESTS,
            now,
            self._requests,
            release=requested_memory_release,
            band=requested_band(
                BY_REQUESTS,
                "memoryAllocatableEvict",
                now.slo.memory_allocatable_evict_threshold_percent,
                now.slo.memory_allocatable_evict_lower_percent,
            ),
        )

    async def _pressed(
        self, found: list[EvictionTask | EvictionBlocked], under_way: frozenset[str]
    ) -> list[EvictionTask | EvictionBlocked]:
        """The tasks without those for which pressure is too low."""
        passed: list[EvictionTask | EvictionBlocked] = []
        for each in found:
            needs = isinstance(each, EvictionTask) and each.feature not in (BY_REQUESTS, *under_way)
            try:
                if isinstance(each, EvictionTask) and needs:
                    check_pressure(each, await self._node_pressure(), self._rule)
                passed.append(each)
            except EvictionBlocked as blocked:
                passed.append(blocked)
        return passed

    async def _node_pressure(self) -> MemoryPressure:
        """The kernel's present pressure; where that cannot be read, the latest sample."""
        resource = resources.NODE_MEMORY_PRESSURE
        now = await self.kernel.read(resource)
        percent = now.some.avg10 if now else self._cache.last(kinds.NODE_PSI, *_NODE_PRESSURE)
        known = percent is not None or await self.kernel.supports(resource)
        return MemoryPressure(percent, supported=known)
