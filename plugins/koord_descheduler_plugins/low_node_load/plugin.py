"""LowNodeLoad: moves pods from nodes that use much to nodes that use little."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence

from koord_descheduler.plugin import (
    BalancePlugin,
    ClusterNode,
    Decision,
    EvictOptions,
    EvictorProxy,
    Handle,
    LowNodeLoadArgs,
    Planner,
    Status,
    get_logger,
    left_out,
)
from koord_descheduler_plugins.low_node_load.anomaly import (
    Detector,
    ExactDetector,
    KoordinatorDetector,
)
from koord_descheduler_plugins.low_node_load.census import Situation
from koord_descheduler_plugins.low_node_load.decisions import Report, unusable_of
from koord_descheduler_plugins.low_node_load.exact import ExactRound
from koord_descheduler_plugins.low_node_load.koordinator import KoordinatorRound
from koord_descheduler_plugins.low_node_load.plan import (
    Answer,
    Memory,
    Move,
    Pause,
    PoolPlan,
    Refusal,
    Round,
    Verdict,
    resume,
)

LOGGER = "koord_descheduler.low_node_load"


class LowNodeLoad(BalancePlugin):
    """Plans from the figures of NodeMetrics and carries the plan out."""

    def __init__(self, args: LowNodeLoadArgs, handle: Handle) -> None:
        self._args = args
        self._handle = handle
        self._log = get_logger(LOGGER).bind(profile=handle.profile)
        self._exact = args.planner is Planner.EXACT
        detector: type[Detector] = ExactDetector if self._exact else KoordinatorDetector
        self._memory = Memory(
            node_detector=detector(args.detector_cache_timeout),
            prod_detector=detector(args.detector_cache_timeout),
        )

    async def balance(self, nodes: Sequence[ClusterNode]) -> Status | None:
        """Judge the nodes, one pool after the other, and let pods leave."""
        if self._args.paused:
            return None
        evictor = self._handle.evictor()
        situation = self._situation(nodes)
        work = await asyncio.to_thread(self._round, situation, self._refusal(evictor))
        plans: list[PoolPlan] = []
        pools = work.plans()
        try:
            while (plan := await asyncio.to_thread(next, pools, None)) is not None:
                plans.append(plan)
                self._log_judged(plan)
                await self._carry_out(work, plan, evictor)
        finally:
            self._memory = work.memory
            self._publish(work.unusable, plans)
        return None

    def _situation(self, nodes: Sequence[ClusterNode]) -> Situation:
        services = self._handle.services
        cluster = services.cluster
        return Situation(
            view=cluster.view(),
            nodes=nodes,
            reports=dict(cluster.reports),
            budgets=tuple(cluster.budgets.values()),
            migrations=tuple(services.migrations.by_uid.values()),
            now=services.clock.wall(),
        )

    def _round(self, situation: Situation, refusal: Refusal) -> Round:
        if not self._exact:
            return KoordinatorRound(self._args, situation, self._memory, refusal)
        dry_run = self._args.dry_run or self._handle.dry_run
        return ExactRound(self._args, situation, self._memory, refusal, dry_run=dry_run)

    def _refusal(self, evictor: EvictorProxy) -> Refusal:
        """Why a pod may not leave: namespaces, labels, then the filters of the profile."""
        constraint = left_out(self._args.evictable_namespaces, self._args.pod_selectors)
        return lambda pod: constraint(pod) or evictor.refusal(pod)

    async def _carry_out(self, work: Round, plan: PoolPlan, evictor: EvictorProxy) -> None:
        steps = work.steps(plan)
        step = resume(steps, None)
        while step is not None:
            if isinstance(step, Move):
                step = resume(steps, await self._evict(step, evictor))
            elif step is Pause.WORK:
                step = await asyncio.to_thread(resume, steps, None)
            else:
                await asyncio.sleep(0)
                step = resume(steps, None)

    async def _evict(self, move: Move, evictor: EvictorProxy) -> Answer:
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
            return Answer.DONE
        options = EvictOptions(reason=move.reason, relief=move.relief)
        if await evictor.evict(pod, options):
            return Answer.DONE
        return Answer.NODE_LIMIT if evictor.node_limit_exceeded(pod.node) else Answer.REFUSED

    def _log_judged(self, plan: PoolPlan) -> None:
        counts = {verdict.name.lower(): plan.count(verdict) for verdict in Verdict}
        self._log.info("nodes.judged", pool=plan.pool.name, outcome=plan.outcome, **counts)

    def _publish(self, unusable: Mapping[str, str], plans: Sequence[PoolPlan]) -> None:
        profile, plugin = self._handle.profile, self.name
        reports = [Report(plan, profile=profile, plugin=plugin) for plan in plans]

        def decisions() -> Iterator[Decision]:
            yield from unusable_of(unusable, profile=profile, plugin=plugin)
            for report in reports:
                yield from report.decisions()

        self._handle.services.decisions.publish(decisions)
