"""LowNodeLoad: moves pods from overutilized nodes to underutilized ones, by their NodeMetrics.

A round is a pure computation that yields one move after the other and is given what became of it:
usage of nodes -> thresholds -> plan of a pool -> moves -> decisions. The planner `exact` reserves
what really moves, `koordinator` does it as Koordinator. Only this module acts.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from koord.plugin import get_logger
from koord.plugin.args import takes_args
from koord_descheduler.plugin import (
    GROUP_VERSION,
    POD_ORDER_FIELDS,
    BalancePlugin,
    ClusterNode,
    Decision,
    EvictOptions,
    EvictorProxy,
    Handle,
    NodeDecision,
    PluginRegistry,
    PodDecision,
    Status,
    not_selected,
    reads,
)
from koord_descheduler_plugins.low_node_load.args import (
    Amounts,
    LowNodeLoadArgs,
    Planner,
    percent_of,
)
from koord_descheduler_plugins.low_node_load.exact import ExactRound
from koord_descheduler_plugins.low_node_load.koordinator import KoordinatorRound
from koord_descheduler_plugins.low_node_load.plan import (
    NODE_CLASSES,
    Detector,
    ExactDetector,
    KoordinatorDetector,
    MoveResult,
    NodeClass,
    PlannedMove,
    PoolPlan,
    RejectReason,
    Round,
    RoundState,
    YieldTurn,
    resume,
)
from koord_descheduler_plugins.low_node_load.usage import RoundInputs

Percentages = NDArray[np.float64]

_OVERUTILIZED = (NodeClass.OVERUTILIZED, NodeClass.PROD_OVERUTILIZED)


def unusable_of(
    unusable: Mapping[str, str], *, profile: str, plugin: str
) -> Iterator[NodeDecision]:
    """The nodes about which nothing is known."""
    for name, reason in unusable.items():
        yield NodeDecision(
            profile=profile, plugin=plugin, node=name, verdict="left alone", reason=reason
        )


class Report:
    """A plan and the figures on which it was made; keeps nothing else of the round.

    It costs little to make: words are found when they are asked for.
    """

    def __init__(self, plan: PoolPlan, *, profile: str, plugin: str) -> None:
        self.profile, self.plugin = profile, plugin
        self.names = plan.node_usage.names
        self.resources = plan.node_usage.resources
        self.capacity = plan.node_usage.capacity
        self.usage, self.prod_usage = plan.usage, plan.prod_usage
        self.limits = plan.limits
        self.classes = plan.classes
        self.outcome = plan.outcome
        self.node_notes = plan.node_notes
        self.pod_notes = plan.pod_notes
        self.hints = not plan.pool.use_deviation_thresholds

    def decisions(self) -> Iterator[Decision]:
        """Yield the decisions about each node of the pool and the pods of overutilized nodes."""
        words = _Words(self)
        for place, name in enumerate(self.names):
            yield NodeDecision(
                profile=self.profile,
                plugin=self.plugin,
                node=name,
                verdict=words.verdict(place).value,
                reason=words.reason(place),
                facts=words.facts(place),
                hint=words.hint(place) if self.hints else "",
            )
        for note in self.pod_notes:
            for pod in note.pods:
                yield PodDecision(
                    profile=self.profile,
                    plugin=self.plugin,
                    pod=pod.key,
                    node=pod.node,
                    action=note.action,
                    reason=note.reason,
                    candidates=note.candidates,
                )


class _Side(NamedTuple):
    """Thresholds of one kind, in percent of what nodes have: (nodes, resources)."""

    prefix: str
    key: str  # of the high thresholds, in args
    judged: list[int]  # columns
    usage: Percentages
    high: Percentages
    low: Percentages


class _Words:
    """Sentences and figures about the nodes of a report."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._resources = report.resources
        limits = report.limits

        def percents(amounts: Amounts) -> Percentages:
            return np.round(percent_of(amounts, report.capacity), 2)

        self._sides = (
            _Side(
                "",
                "highThresholds",
                np.flatnonzero(limits.judged).tolist(),
                percents(report.usage),
                percents(limits.high),
                percents(limits.low),
            ),
            _Side(
                "prod_",
                "prodHighThresholds",
                np.flatnonzero(limits.prod_judged).tolist(),
                percents(report.prod_usage),
                percents(limits.prod_high),
                percents(limits.prod_low),
            ),
        )

    def verdict(self, place: int) -> NodeClass:
        return NODE_CLASSES[int(self._report.classes[place])]

    def reason(self, place: int) -> str:
        figures = ", ".join(
            f"{side.prefix}{self._resources[at]} {side.usage[place, at]:g}% "
            f"(low {side.low[place, at]:g}%, high {side.high[place, at]:g}%)".replace("_", " ")
            for side in self._sides
            for at in side.judged
        )
        note = self._report.node_notes.get(self._report.names[place], "")
        if self.verdict(place) in _OVERUTILIZED and not note:
            note = self._report.outcome
        return "; ".join(filter(None, (figures, note)))

    def facts(self, place: int) -> dict[str, float]:
        return {
            f"{side.prefix}{self._resources[at]}_{what}_percent": float(table[place, at])
            for side in self._sides
            for at in side.judged
            for what, table in (("usage", side.usage), ("low", side.low), ("high", side.high))
        }

    def hint(self, place: int) -> str:
        """The thresholds by which the node would be something else."""
        verdict = self.verdict(place)
        side = self._sides[verdict is NodeClass.PROD_OVERUTILIZED]
        usage, high, low = side.usage[place], side.high[place], side.low[place]

        def listed(columns: Iterable[int]) -> str:
            return ", ".join(f"{self._resources[at]} {usage[at]:g}" for at in columns)

        if verdict in _OVERUTILIZED:
            over = [at for at in side.judged if usage[at] > high[at]]
            return f"would not be high with {side.key}: {listed(over)}" if over else ""
        if not side.judged:
            return ""
        nearest = max(side.judged, key=lambda at: usage[at] - high[at])
        hints = [f"would be high with {side.key} below {listed([nearest])}"]
        above = [at for at in side.judged if usage[at] > low[at]]
        if above and verdict in (NodeClass.NORMAL, NodeClass.PROD_UNDERUTILIZED):
            hints.append(f"would be low with lowThresholds: {listed(above)}")
        return "; ".join(hints)


LOGGER = "koord_descheduler.low_node_load"


@takes_args(LowNodeLoadArgs, group_version=GROUP_VERSION)
@reads(POD_ORDER_FIELDS)
class LowNodeLoad(BalancePlugin):
    """Plans from the figures of NodeMetrics and carries the plan out."""

    def __init__(self, args: LowNodeLoadArgs, handle: Handle) -> None:
        self._args = args
        self._handle = handle
        self._log = get_logger(LOGGER).bind(profile=handle.profile)
        self._exact = args.planner is Planner.EXACT
        detector: type[Detector] = ExactDetector if self._exact else KoordinatorDetector
        self._state = RoundState(
            node_detector=detector(args.detector_cache_timeout),
            prod_detector=detector(args.detector_cache_timeout),
        )

    async def balance(self, nodes: Sequence[ClusterNode]) -> Status | None:
        """Judge the nodes, one pool after the other, and let pods leave."""
        if self._args.paused:
            return None
        evictor = self._handle.evictor()
        inputs = self._inputs(nodes)
        work = await asyncio.to_thread(self._round, inputs, self._reject_reason(evictor))
        plans: list[PoolPlan] = []
        pools = work.plans()
        try:
            while (plan := await asyncio.to_thread(next, pools, None)) is not None:
                plans.append(plan)
                self._log_classified(plan)
                await self._carry_out(work, plan, evictor)
        finally:
            self._state = work.memory
            self._publish(work.unusable, plans)
        return None

    def _inputs(self, nodes: Sequence[ClusterNode]) -> RoundInputs:
        services = self._handle.services
        cluster = services.cluster
        return RoundInputs(
            view=cluster.view(),
            nodes=nodes,
            reports=dict(cluster.reports),
            budgets=tuple(cluster.budgets.values()),
            migrations=tuple(services.migrations.by_uid.values()),
            now=services.clock.wall(),
            hardware=services.hardware.fits,
        )

    def _round(self, inputs: RoundInputs, reject_reason: RejectReason) -> Round:
        if not self._exact:
            return KoordinatorRound(self._args, inputs, self._state, reject_reason)
        dry_run = self._args.dry_run or self._handle.dry_run
        return ExactRound(self._args, inputs, self._state, reject_reason, dry_run=dry_run)

    def _reject_reason(self, evictor: EvictorProxy) -> RejectReason:
        """Why a pod may not leave: namespaces, labels, then the filters of the profile."""
        constraint = not_selected(self._args.evictable_namespaces, self._args.pod_selectors)
        return lambda pod: constraint(pod) or evictor.reject_reason(pod)

    async def _carry_out(self, work: Round, plan: PoolPlan, evictor: EvictorProxy) -> None:
        steps = work.steps(plan)
        step = resume(steps, None)
        while step is not None:
            if isinstance(step, PlannedMove):
                step = resume(steps, await self._evict(step, evictor))
            elif step is YieldTurn.WORK:
                step = await asyncio.to_thread(resume, steps, None)
            else:
                await asyncio.sleep(0)
                step = resume(steps, None)

    async def _evict(self, move: PlannedMove, evictor: EvictorProxy) -> MoveResult:
        pod = move.pod
        if self._args.dry_run:
            self._log.info(
                "eviction.planned",
                pod=pod.key,
                node=pod.node,
                target=move.target,
                reason=move.reason,
                dry_run=True,
            )
            return MoveResult.DONE
        options = EvictOptions(reason=move.reason, relief=move.relief)
        if await evictor.evict(pod, options):
            return MoveResult.DONE
        return (
            MoveResult.NODE_LIMIT if evictor.node_limit_exceeded(pod.node) else MoveResult.REFUSED
        )

    def _log_classified(self, plan: PoolPlan) -> None:
        counts = {verdict.name.lower(): plan.count(verdict) for verdict in NodeClass}
        self._log.info("nodes.classified", pool=plan.pool.name, outcome=plan.outcome, **counts)

    def _publish(self, unusable: Mapping[str, str], plans: Sequence[PoolPlan]) -> None:
        profile, plugin = self._handle.profile, self.name
        reports = [Report(plan, profile=profile, plugin=plugin) for plan in plans]

        def decisions() -> Iterator[Decision]:
            yield from unusable_of(unusable, profile=profile, plugin=plugin)
            for report in reports:
                yield from report.decisions()

        self._handle.services.decisions.publish(decisions)


def register(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register("LowNodeLoad", LowNodeLoad)
