"""Gives throttled latency-sensitive containers more CPU for a while, in two ways.

A burst budget lets a container save up the unused part of its limit. Beyond that, the CPU quota of
a throttled container grows while the CPUs that such pods share are idle, and goes back to the limit
when they are not.
"""

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from koord.api.node import Node
from koord.api.pod import pod_request
from koord.api.qosstrategy import CPUBurst as Settings
from koord.api.quantity import Quantity
from koord.plugin import Stop
from koordlet.plugin import (
    Claim,
    ClaimScope,
    Client,
    ExtensionPlugin,
    FlagSet,
    Level,
    MetricCache,
    PluginRegistry,
    PodMeta,
    States,
    keys,
    kinds,
    resources,
)
from koordlet.plugin.kernel import AuditText, Part
from koordlet.plugin.pods import NodeRatio, PerPod, PodSettings, Rejections, strategy_interval
from koordlet_plugins.cpu_burst.rules import (
    BurstBudgets,
    BurstLimits,
    ContainerPlan,
    ExtraQuotas,
    NodeSettings,
    Operation,
    PodPlan,
    PoolState,
    SharePool,
    has_own_cpus,
    may_burst,
    operation,
    outside_share_pool,
    own_settings,
    permitted,
    plan_for,
    share_pool,
    uses_quota,
)

CLAIM_AGAIN = 10.0  # seconds after which unchanged claims are made again, to learn their outcomes
WINDOW_ROUNDS, WINDOW_MAX = 5, 10.0  # rounds, and seconds, over which the pool's load is averaged
SLICE = 100  # containers that are looked at without a pause
LABELS = ("node", "pod_namespace", "pod_name", "container_id", "container_name")


@dataclass(frozen=True, slots=True)
class RoundMeasurements:
    """The measurements of one round; by container id."""

    pool: SharePool | None  # None: unknown
    state: PoolState
    throttled: Mapping[keys.ContainerKey, float]  # share of the latest periods
    used: Mapping[keys.ContainerKey, float]  # cores

    def inputs(self, container: ContainerPlan) -> dict[str, float | str]:
        """The numbers behind a decision on a container, for people."""
        ratios = {
            "share_pool_used_ratio": self.pool.ratio if self.pool else None,
            "throttled_ratio": self.throttled.get(_key(container)),
        }
        return {name: ratio for name, ratio in ratios.items() if ratio is not None}


def _key(container: ContainerPlan) -> keys.ContainerKey:
    return keys.ContainerKey(container.meta.container_id)


class CPUBurst(ExtensionPlugin):
    """Gives throttled latency-sensitive containers more CPU for a while."""

    gates = ("CPUBurst",)
    may_claim: ClassVar[tuple[ClaimScope, ...]] = tuple(
        ClaimScope(
            resource,
            level,
            part=part,
            audit_text=AuditText(reason, f"update {level.value} {what}: {{value}}"),
        )
        for resource, part, reason, what in (
            (resources.CPU_BURST, Part.VALUE, "CPUBurst", "CPUBurst"),
            (resources.CPU_QUOTA, Part.EXTRA, "CFSQuotaBurst", "CFSQuota"),
        )
        for level in (Level.POD, Level.CONTAINER)
    )

    def init_flags(self, flags: FlagSet) -> None:
        self._interval = strategy_interval(flags)

    def setup(self, client: Client, metric_cache: MetricCache, states_informer: States) -> None:
        self._cache, self._states = metric_cache, states_informer
        rejections = Rejections(self)
        self._own: PodSettings[Mapping[str, object]] = PodSettings(own_settings, rejections, {})
        self._ratio = NodeRatio(states_informer, rejections)
        self._plans = PerPod(self._plan, self._own.forget)
        self._budget_gauge = self.metrics.upstream_gauge(
            "koordlet_container_scaled_cfs_burst_us", "Burst budget of a container.", LABELS
        )
        self._quota_gauge = self.metrics.upstream_gauge(
            "koordlet_container_scaled_cfs_quota_us",
            "CPU quota per 100 ms of a container that has more than its limit.",
            LABELS,
        )

    async def run(self, stop: Stop) -> None:
        self._budgets, self._extra_quotas, self._limits = (
            BurstBudgets(),
            ExtraQuotas(),
            BurstLimits(),
        )
        self._claimed: list[Claim] = []
        self._claim_by = -math.inf
        anolis = await self.kernel.supports(resources.CPU_BVT)
        try:
            async for _ in stop.every(self._interval.value):
                await self._round(budget_within_quota=not anolis)
        finally:
            self._budget_gauge.clear()
            self._quota_gauge.clear()

    async def _round(self, *, budget_within_quota: bool) -> None:
        slo, node, pods = self._states.node_slo(), self._states.node(), self._states.pods()
        if slo is None or node is None or not pods:
            return
        settings = NodeSettings(slo.cpu_burst, budget_within_quota, self._ratio.now() or 1.0)
        plans = await self._plans.of((pod for pod in pods if may_burst(pod.pod)), settings)
        bursting = [plan for plan in plans if uses_quota(plan.settings)]
        self._extra_quotas.keep(c.target.place for _, c in _containers(bursting) if c.running)
        if bursting:
            measured = self._measure(node, pods, slo.cpu_burst)
            await self._move_quotas(bursting, measured)
        await self._claim(plans, node.name)

    def _plan(self, pod: PodMeta, node: NodeSettings) -> PodPlan:
        return plan_for(pod, self._own.of(pod.pod) or {}, node)

    def _measure(
        self, node: Node, pods: Sequence[PodMeta], settings: Settings
    ) -> RoundMeasurements:
        pool = self._share_pool(node, pods)
        return RoundMeasurements(
            pool,
            pool.state(settings.share_pool_threshold_percent) if pool else PoolState.UNKNOWN,
            self._cache.last_values(kinds.CONTAINER_CPU_THROTTLED),
            self._cache.last_values(kinds.CONTAINER_CPU_USAGE),
        )

    def _share_pool(self, node: Node, pods: Sequence[PodMeta]) -> SharePool | None:
        """The pool over the latest rounds; None: capacity or recent samples are missing."""
        window = min(WINDOW_ROUNDS * self._interval.value, WINDOW_MAX)
        used = self._cache.aggregate(kinds.NODE_CPU_USAGE, (), window)
        if used is None or self._cache.last(kinds.NODE_CPU_USAGE) is None:
            return None
        if "cpu" not in node.capacity:
            return None
        others = [pod for pod in pods if outside_share_pool(pod.pod)]
        by_pod = self._cache.aggregate_all(kinds.POD_CPU_USAGE, window) if others else {}
        uids = [keys.PodKey(pod.uid) for pod in others]
        return share_pool(
            Quantity.parse(node.capacity["cpu"]).milli / 1000,
            used.avg(),
            reserved=(
                pod_request(pod.pod, "cpu") / 1000 for pod in others if has_own_cpus(pod.pod)
            ),
            elsewhere=(by_pod[uid].avg() for uid in uids if uid in by_pod),
        )

    async def _move_quotas(self, plans: Sequence[PodPlan], measured: RoundMeasurements) -> None:
        """Decide on all containers; the kernel is read for those whose quota is to change."""
        changes = []
        for plan, container in _containers(plans):
            change = self._operation(plan, container, measured)
            if change is Operation.UP or (
                change is Operation.DOWN and self._extra_quotas.holds(container)
            ):
                changes.append((plan, container, change))
            elif change is Operation.REMAIN and self._extra_quotas.holds(container):
                self._extra_quotas.remain(container, plan.settings.cfs_quota_burst_percent)
        self._limits.recycle(self.clock.monotonic())
        if not changes:
            return
        readings = await self.kernel.read_many(
            [(resources.CPU_QUOTA, container.target.place) for _, container, _ in changes]
        )
        pairs = zip(changes, readings, strict=True)
        for number, ((plan, container, change), reading) in enumerate(pairs, start=1):
            if number % SLICE == 0:
                await asyncio.sleep(0)
            if reading is not None:
                self._extra_quotas.move(
                    container,
                    change,
                    reading.value,
                    plan.settings.cfs_quota_burst_percent,
                    measured.inputs(container),
                )

    def _operation(
        self, plan: PodPlan, container: ContainerPlan, measured: RoundMeasurements
    ) -> Operation:
        if not container.running:
            return Operation.RESET
        key = _key(container)
        allowed = self._limits.allow(
            container.meta.container_id,
            plan.settings,
            self.clock.monotonic(),
            container.usage_percent(measured.used.get(key)),
        )
        throttled = measured.throttled.get(key)
        return permitted(
            operation(plan.settings, allowed=allowed, throttled=throttled), measured.state
        )

    async def _claim(self, plans: Sequence[PodPlan], node: str) -> None:
        await asyncio.sleep(0)
        claims = [*self._extra_quotas.claims(plans), *self._budgets.claims(plans)]
        now = self.clock.monotonic()
        if claims == self._claimed and now < self._claim_by:
            return
        outcomes = list(zip(claims, await self.claim_all(claims), strict=True))
        for claim, outcome in outcomes:
            self._extra_quotas.learn(claim, outcome)
        self._budgets.learn(pair for pair in outcomes if pair[0].part is Part.VALUE)
        self._claimed, self._claim_by = claims, now + CLAIM_AGAIN
        await asyncio.sleep(0)
        self._show(plans, node)

    def _show(self, plans: Sequence[PodPlan], node: str) -> None:
        labels = {
            container.target.place: (
                node,
                plan.pod.pod.namespace,
                plan.pod.pod.name,
                container.meta.container_id,
                container.meta.name,
            )
            for plan, container in _containers(plans)
        }
        for gauge, values in (
            (self._budget_gauge, self._budgets.in_force),
            (self._quota_gauge, self._extra_quotas.quotas()),
        ):
            gauge.replace({labels[p]: float(us) for p, us in values.items() if p in labels})


def _containers(plans: Sequence[PodPlan]) -> Iterator[tuple[PodPlan, ContainerPlan]]:
    for plan in plans:
        for container in plan.containers:
            yield plan, container


def register(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register_qos_ext_plugin("CPUBurst", None, CPUBurst())
