"""Evict one victim after the other: each is gone before the next eviction is requested."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from koord.api.eviction import EvictionOutcome
from koord.api.node import Node
from koord.api.pod import Pod
from koord.api.qosstrategy import ResourceThreshold
from koord.plugin import Unavailable
from koordlet.plugin import Eviction, ExtensionPlugin, MetricCache, PodMeta, States, keys, kinds
from koordlet_plugins.eviction.plan import (
    EvictionPlan,
    EvictionTask,
    ReleaseTarget,
    RequestFeature,
    TierRequests,
    amounts_text,
    requested_task,
)
from koordlet_plugins.eviction.settings import Band, EvictionBlocked, request_ceiling

MARGIN = 15.0  # seconds beyond its grace period that a victim gets to be gone
MAX_WAIT = 75.0  # seconds for a victim, whatever its grace period
SETTLING = 10.0  # seconds after a victim is gone in which its share must have come back
SHARE = 0.5  # of the expected release, from which on the eviction had an effect


class UsageSample(NamedTuple):
    """The node's usage of the resource that pods are evicted for, and the time of its sample."""

    value: float  # in the unit of the amounts
    at: float  # seconds since boot


class VictimState(StrEnum):
    """The outcome of an accepted eviction."""

    OPEN = "open"  # not known yet
    GONE = "gone"
    WITHOUT_EFFECT = "without_effect"  # gone, but usage did not fall
    SLOW = "slow"  # still in its grace period when the next eviction is due
    IGNORED = "ignored"  # still there after it


@dataclass(slots=True)
class PendingVictim:
    """The victim. asked and gone are monotonic seconds, gone_boot is since boot; None: not yet."""

    pod: PodMeta
    task: EvictionTask
    expected: int  # amount of the resource that it is to release
    before: UsageSample | None  # None: not measured at the time of the eviction
    asked: float
    gone: float | None = None
    gone_boot: float = 0.0

    def has_left(self, states: States) -> bool:
        """Whether none of its containers runs any more; the object may still be there."""
        now = states.pod(self.pod.uid)
        return now is None or now.pod.finished or (bool(self.pod.containers) and not now.containers)

    def leave(self, monotonic: float, boottime: float) -> None:
        """Record that none of its containers runs any more."""
        self.gone, self.gone_boot = monotonic, boottime

    def judge(self, monotonic: float, usage: UsageSample | None) -> VictimState:
        """Return the present outcome, given the node's usage."""
        if self.gone is None:
            return self._judge_wait(monotonic - self.asked)
        if self.task.target is not ReleaseTarget.USED:
            return VictimState.GONE
        freed = self.freed(usage)
        if freed is not None and freed >= SHARE * self.expected:
            return VictimState.GONE
        is_late = monotonic - self.gone >= SETTLING
        return VictimState.WITHOUT_EFFECT if is_late else VictimState.OPEN

    def freed(self, usage: UsageSample | None) -> float | None:
        """Return the decrease of the node's usage; None: not measured since the victim is gone."""
        if self.before is None or usage is None or usage.at <= self.gone_boot:
            return None
        return self.before.value - usage.value

    def facts(
        self, monotonic: float, usage: UsageSample | None, resource: str
    ) -> dict[str, float | str]:
        """Return the time that it took and the released amount, for the record."""
        after = (monotonic if self.gone is None else self.gone) - self.asked
        found: dict[str, float | str] = {"after_s": round(after, 1)}
        if self.task.target is ReleaseTarget.USED:
            found[f"expected_{resource}"] = self.expected
            freed = self.freed(usage) if self.gone is not None else None
            if freed is not None:
                found[f"freed_{resource}"] = round(freed)
        return found

    def _judge_wait(self, waited: float) -> VictimState:
        limit = self.pod.pod.grace_seconds + MARGIN
        if waited < min(limit, MAX_WAIT):
            return VictimState.OPEN
        return VictimState.SLOW if limit > MAX_WAIT else VictimState.IGNORED


class UsageSource(NamedTuple):
    """The series of a resource's usage in the metric cache; scale: amounts per unit of them."""

    cache: MetricCache
    node: kinds.Kind[[], tuple[()]]
    pods: kinds.Kind[[str], keys.PodKey]
    scale: int = 1

    def of_node(self) -> UsageSample | None:
        """The node's usage; None: no recent sample."""
        used, newest = self.cache.last(self.node), self.cache.newest(self.node)
        return UsageSample(used * self.scale, newest.boot) if used is not None and newest else None


@dataclass(frozen=True)
class EvictionInputs:
    """The strategy, the node and its pods as they are now."""

    slo: ResourceThreshold
    node: Node
    metas: tuple[PodMeta, ...]
    source: UsageSource
    under_way: frozenset[str]  # features that have begun to evict and have not finished
    since: float  # seconds since boot, at which the latest victim was gone

    @property
    def pods(self) -> Iterator[Pod]:
        """The pods' API objects."""
        return (meta.pod for meta in self.metas)

    @cached_property
    def usage(self) -> dict[str, float]:
        """Usage by pod UID, in the unit of the metric; only pods with a recent sample."""
        return {
            uid: used for (uid,), used in self.source.cache.last_values(self.source.pods).items()
        }

    def measured(self) -> list[Pod]:
        """The pods whose usage is known."""
        return [pod for pod in self.pods if pod.uid in self.usage]

    def amount(self, pod: Pod) -> int:
        """A pod's usage as an amount; 0 when it is not known."""
        return math.trunc(self.usage.get(pod.uid, 0.0) * self.source.scale)


ATTEMPTS = 10  # evictions that a round requests, when each is refused
MAX_ROUND = 10.0  # seconds after which a round requests no other eviction
WARM_UP = 5.0  # seconds of a run in which missing figures are not reported
NAMED = 10  # candidates that a record names

_LEFT = (EvictionOutcome.KILLED, EvictionOutcome.GONE)
_OVER_FOR_ALL = (EvictionOutcome.RATE_LIMITED, EvictionOutcome.OVER_BUDGET)


class VictimRounds:
    """The evictions of one run of a plugin, and the pause after them."""

    def __init__(
        self,
        plugin: ExtensionPlugin,
        states: States,
        *,
        resource: str,
        measured: UsageSource,
        cool_down: float,
        cool_down_first: bool = False,
    ) -> None:
        """measured: usage of the resource. cool_down in seconds.

        cool_down_first: begin as if there had just been an eviction.
        """
        self._plugin = plugin
        self._states = states
        self._resource = resource
        self._measured = measured
        self._clock = plugin.clock
        self._cool_down = cool_down
        self._cools_until = self._clock.monotonic() + cool_down if cool_down_first else 0.0
        self._plan: EvictionPlan | None = None
        self._pending: PendingVictim | None = None
        self._reported_unavailable = False
        self._began = self._clock.monotonic()
        self._since = 0.0  # seconds since boot, at which the latest victim was gone
        self._ends = plugin.metrics.counter(
            "victims_total",
            "Victims by what became of them: gone; without_effect: gone, but usage did not fall; "
            "slow: still in their grace period when the next one was due; ignored: still there "
            "after it.",
            {"end": [verdict for verdict in VictimState if verdict is not VictimState.OPEN]},
        )

    @property
    def cooling_down(self) -> bool:
        """Whether this is the pause after evictions, in which nothing needs to be measured."""
        return self._plan is None and self._clock.monotonic() < self._cools_until

    @property
    def round_inputs(self) -> EvictionInputs | None:
        """The inputs of a round; None: the strategy is off, or it or the node is not known."""
        slo, node = self._states.node_slo(), self._states.node()
        if slo is None or node is None or not slo.threshold.enable:
            return None
        under_way = self._plan.features if self._plan else frozenset()
        pods = self._states.pods()
        return EvictionInputs(slo.threshold, node, pods, self._measured, under_way, self._since)

    async def step(self, found: Iterable[EvictionTask | EvictionBlocked]) -> None:
        """Go on with the evictions, given the present tasks of the features."""
        tasks = []
        for each in found:
            if isinstance(each, EvictionTask):
                tasks.append(each)
            else:
                self._hold_back(each)
        if self._plan is not None and self._pending is not None:
            if not await self._is_through(self._plan, self._pending):
                return
            self._pending = None
        if self._plan is None and tasks:
            self._plan = EvictionPlan(tasks)
        elif self._plan is not None:
            self._plan.see(tasks)
        if self._plan is not None:
            await self._proceed(self._plan)

    async def _proceed(self, plan: EvictionPlan) -> None:
        """Evict candidates in order until one eviction is accepted."""
        began = self._clock.monotonic()
        for _ in range(ATTEMPTS):
            victim = plan.next()
            if victim is None:
                self._report_rest(plan)
                self._plan = None
                return
            if not await self._take(plan, *victim):
                return
            if self._clock.monotonic() - began >= MAX_ROUND:
                return

    async def _take(self, plan: EvictionPlan, task: EvictionTask, pod: Pod) -> bool:
        """Evict a victim; return whether to go on with the next one at once."""
        meta = self._states.pod(pod.uid)
        if meta is None or self._is_ending(meta.pod):
            plan.release(pod)
            return True
        before = self._measured.of_node()
        eviction = await self._evict(task, meta)
        if eviction is None or eviction.outcome in _OVER_FOR_ALL:
            self._plan = None
            return False
        if eviction.accepted:
            self._cools_until = self._clock.monotonic() + self._cool_down
        if eviction.outcome in (EvictionOutcome.EVICTED, *_LEFT):
            expected = task.gain(pod).get(self._resource, 0)
            pending = PendingVictim(meta, task, expected, before, self._clock.monotonic())
            if eviction.outcome in _LEFT:
                self._mark_gone(pending)
            self._pending = pending
            return False
        (plan.release if eviction.ending else plan.pass_over)(pod)
        return True

    async def _evict(self, task: EvictionTask, meta: PodMeta) -> Eviction | None:
        """Request the eviction; None: there is no API server."""
        candidates = task.candidates
        place = candidates.index(meta.pod) + 1 if meta.pod in candidates else 1
        try:
            return await self._plugin.evict(
                meta,
                feature=task.feature,
                reason=f"{task.trigger}; number {place} of {len(candidates)} {task.order}",
                inputs=task.inputs,
                candidates=_named(task),
            )
        except Unavailable as err:
            if not self._reported_unavailable:
                self._plugin.log.warning("eviction.unavailable", error=str(err))
            self._reported_unavailable = True
            return None

    def _is_ending(self, pod: Pod) -> bool:
        """Whether another client has deleted it, and its grace period has not long been over."""
        return pod.gone_by is not None and self._clock.wall() < pod.gone_by + MARGIN

    async def _is_through(self, plan: EvictionPlan, pending: PendingVictim) -> bool:
        """Whether the next victim may be evicted."""
        if pending.gone is None and pending.has_left(self._states):
            self._mark_gone(pending)
        usage = self._measured.of_node()
        verdict = pending.judge(self._clock.monotonic(), usage)
        if verdict is VictimState.IGNORED and await self._is_killed(pending):
            self._mark_gone(pending)
            return False
        if verdict is VictimState.OPEN:
            return False
        pod = pending.pod.pod
        (plan.pass_over if verdict is VictimState.IGNORED else plan.release)(pod)
        self._ends.inc(end=verdict)
        facts = pending.facts(self._clock.monotonic(), usage, self._resource)
        self._plugin.record_freed(pod, {"end": verdict.value, **facts})
        name = f"{pod.namespace}/{pod.name}"
        self._plugin.log.info("victim.ended", pod=name, end=verdict.value, **facts)
        return True

    async def _is_killed(self, pending: PendingVictim) -> bool:
        """Enforce an eviction that was ignored; return whether that ended the pod."""
        eviction = await self._plugin.kill_overdue(
            pending.pod, feature=pending.task.feature, reason=pending.task.trigger
        )
        return eviction.outcome in _LEFT

    def _mark_gone(self, pending: PendingVictim) -> None:
        self._since = self._clock.boottime()
        pending.leave(self._clock.monotonic(), self._since)

    def _report_rest(self, plan: EvictionPlan) -> None:
        """Report the amounts for which no candidate is left."""
        for task in plan.wanting():
            rest, count = amounts_text(plan.rest(task)), len(task.candidates)
            message = f"{rest} more wanted, but of {count} candidates none is left"
            self._plugin.record_suppressed(
                EvictionOutcome.NO_VICTIM,
                feature=task.feature,
                reason=task.trigger,
                message=message,
            )

    def _hold_back(self, blocked: EvictionBlocked) -> None:
        is_new = self._clock.monotonic() - self._began < WARM_UP
        if is_new and blocked.outcome is EvictionOutcome.NO_DATA:
            return
        self._plugin.record_suppressed(
            blocked.outcome,
            feature=blocked.feature,
            reason=blocked.reason,
            message=str(blocked),
        )


def wanted(
    plugin: ExtensionPlugin,
    looks: Mapping[str, Callable[[EvictionInputs], EvictionTask | None]],
    round_inputs: EvictionInputs | None,
) -> Iterator[EvictionTask | EvictionBlocked]:
    """Yield the tasks of the features whose gates are on, or what blocks them; ordered by name."""
    if round_inputs is None:
        return
    for feature, look in looks.items():
        if plugin.gate(feature):
            try:
                task = look(round_inputs)
            except EvictionBlocked as blocked:
                yield blocked
            else:
                if task is not None:
                    yield task


def task_by_requests(
    feature: str,
    now: EvictionInputs,
    requests: TierRequests,
    *,
    release: Callable[[int, int, Band], int],
    band: Band,
) -> EvictionTask | None:
    """Return the task of a feature that compares requests with allocatable; None: there is none.

    release returns the amount from the sum of requests, the allocatable and the band.

    Raises:
        EvictionBlocked: the NodeSLO does not say up to which priority requests count.
    """
    known = RequestFeature(
        name=feature,
        resource=requests.resource,
        release=release,
        band=band,
        ceiling=request_ceiling(feature, now.slo),
        under_way=feature in now.under_way,
    )
    sums = requests.sums(now.metas, known.ceiling)
    return requested_task(known, sums, now.node.allocatable, now.measured)


def _named(task: EvictionTask) -> list[str]:
    """The candidates in order, for people, each with the values that decided its place."""
    named = []
    for pod in task.candidates[:NAMED]:
        gain = amounts_text(task.gain(pod))
        named.append(f"{pod.namespace}/{pod.name} (priority {pod.effective_priority}, {gain})")
    more = len(task.candidates) - len(named)
    return [*named, f"and {more} more"] if more else named
