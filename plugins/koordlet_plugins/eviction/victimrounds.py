"""Evicts one victim after the other: each is gone before the next eviction is requested.

A tool for plugins that evict. The plugin makes the rounds; nothing here waits.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from koord.api.eviction import EvictionOutcome
from koord.api.pods.pod import Pod
from koordlet.plugin import Eviction, ExtensionPlugin, PodMeta, States, Unavailable
from koordlet_plugins.eviction.awaitedvictim import MARGIN, AwaitedVictim, VictimState
from koordlet_plugins.eviction.plan import EvictionPlan, EvictionTask, amounts_text
from koordlet_plugins.eviction.settings import EvictionBlocked
from koordlet_plugins.eviction.situation import Situation, UsageSource

ATTEMPTS = 10  # evictions that a round requests, when each is refused
LONGEST_ROUND = 10.0  # seconds after which a round requests no other eviction
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
        rest_first: bool = False,
    ) -> None:
        """measured: usage of the resource. cool_down in seconds.

        rest_first: begin as if there had just been an eviction.
        """
        self._plugin = plugin
        self._states = states
        self._resource = resource
        self._measured = measured
        self._clock = plugin.clock
        self._cool_down = cool_down
        self._rests_until = self._clock.monotonic() + cool_down if rest_first else 0.0
        self._plan: EvictionPlan | None = None
        self._awaited: AwaitedVictim | None = None
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
    def resting(self) -> bool:
        """Whether this is the pause after evictions, in which nothing needs to be measured."""
        return self._plan is None and self._clock.monotonic() < self._rests_until

    @property
    def situation(self) -> Situation | None:
        """The inputs of a round; None: the strategy is off, or it or the node is not known."""
        slo, node = self._states.node_slo(), self._states.node()
        if slo is None or node is None or not slo.threshold.enable:
            return None
        under_way = self._plan.features if self._plan else frozenset()
        pods = self._states.pods()
        return Situation(slo.threshold, node, pods, self._measured, under_way, self._since)

    async def step(self, found: Iterable[EvictionTask | EvictionBlocked]) -> None:
        """Go on with the evictions, given the present tasks of the features."""
        tasks = []
        for each in found:
            if isinstance(each, EvictionTask):
                tasks.append(each)
            else:
                self._hold_back(each)
        if self._plan is not None and self._awaited is not None:
            if not await self._is_through(self._plan, self._awaited):
                return
            self._awaited = None
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
            if self._clock.monotonic() - began >= LONGEST_ROUND:
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
            self._rests_until = self._clock.monotonic() + self._cool_down
        if eviction.outcome in (EvictionOutcome.EVICTED, *_LEFT):
            expected = task.gain(pod).get(self._resource, 0)
            awaited = AwaitedVictim(meta, task, expected, before, self._clock.monotonic())
            if eviction.outcome in _LEFT:
                self._mark_gone(awaited)
            self._awaited = awaited
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

    async def _is_through(self, plan: EvictionPlan, awaited: AwaitedVictim) -> bool:
        """Whether the next victim may be evicted."""
        if awaited.gone is None and awaited.has_left(self._states):
            self._mark_gone(awaited)
        usage = self._measured.of_node()
        verdict = awaited.judge(self._clock.monotonic(), usage)
        if verdict is VictimState.IGNORED and await self._is_killed(awaited):
            self._mark_gone(awaited)
            return False
        if verdict is VictimState.OPEN:
            return False
        pod = awaited.pod.pod
        (plan.pass_over if verdict is VictimState.IGNORED else plan.release)(pod)
        self._ends.inc(end=verdict)
        facts = awaited.facts(self._clock.monotonic(), usage, self._resource)
        self._plugin.note_freed(pod, {"end": verdict.value, **facts})
        name = f"{pod.namespace}/{pod.name}"
        self._plugin.log.info("victim.ended", pod=name, end=verdict.value, **facts)
        return True

    async def _is_killed(self, awaited: AwaitedVictim) -> bool:
        """Enforce an eviction that was ignored; return whether that ended the pod."""
        eviction = await self._plugin.insist(
            awaited.pod, feature=awaited.task.feature, reason=awaited.task.trigger
        )
        return eviction.outcome in _LEFT

    def _mark_gone(self, awaited: AwaitedVictim) -> None:
        self._since = self._clock.boottime()
        awaited.leave(self._clock.monotonic(), self._since)

    def _report_rest(self, plan: EvictionPlan) -> None:
        """Report the amounts for which no candidate is left."""
        for task in plan.wanting():
            rest, count = amounts_text(plan.rest(task)), len(task.candidates)
            message = f"{rest} more wanted, but of {count} candidates none is left"
            self._plugin.hold_back(
                EvictionOutcome.NO_VICTIM,
                feature=task.feature,
                reason=task.trigger,
                message=message,
            )

    def _hold_back(self, blocked: EvictionBlocked) -> None:
        is_new = self._clock.monotonic() - self._began < WARM_UP
        if is_new and blocked.outcome is EvictionOutcome.NO_DATA:
            return
        self._plugin.hold_back(
            blocked.outcome,
            feature=blocked.feature,
            reason=blocked.reason,
            message=str(blocked),
        )


def wanted(
    plugin: ExtensionPlugin,
    looks: Mapping[str, Callable[[Situation], EvictionTask | None]],
    situation: Situation | None,
) -> Iterator[EvictionTask | EvictionBlocked]:
    """Yield the tasks of the features whose gates are on, or what blocks them; ordered by name."""
    if situation is None:
        return
    for feature, look in looks.items():
        if plugin.gate(feature):
            try:
                task = look(situation)
            except EvictionBlocked as blocked:
                yield blocked
            else:
                if task is not None:
                    yield task


def _named(task: EvictionTask) -> list[str]:
    """The candidates in order, for people, each with the values that decided its place."""
    named = []
    for pod in task.candidates[:NAMED]:
        gain = amounts_text(task.gain(pod))
        named.append(f"{pod.namespace}/{pod.name} (priority {pod.effective_priority}, {gain})")
    more = len(task.candidates) - len(named)
    return [*named, f"and {more} more"] if more else named
