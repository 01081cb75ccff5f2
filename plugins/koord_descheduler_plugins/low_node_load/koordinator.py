"""The plan as Koordinator makes it, accidents included."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from koord_descheduler.plugin import (
    Action,
    ClusterPod,
    HypotheticalCluster,
    OrderKey,
    PodOrder,
    Relief,
)
from koord_descheduler_plugins.low_node_load.args import (
    Amounts,
    ExcessCoverage,
    Flags,
    LowNodeLoadArgs,
    NodePool,
    koordinator_thresholds,
    node_scores,
    resources_of,
    weights_of,
)
from koord_descheduler_plugins.low_node_load.plan import (
    NODE_CLASSES,
    PODS_PER_TURN,
    MoveResult,
    NodeClass,
    PlannedMove,
    PoolPlan,
    RejectReason,
    Round,
    RoundState,
    Side,
    Steps,
    YieldTurn,
    overutilization,
    reason_for,
)
from koord_descheduler_plugins.low_node_load.usage import (
    Amount,
    PodAmounts,
    RoundInputs,
    koordinator_usage,
    pod_amounts,
)

_UNDERUTILIZED = (
    NodeClass.UNDERUTILIZED,
    NodeClass.PROD_UNDERUTILIZED,
    NodeClass.BOTH_UNDERUTILIZED,
)


class KoordinatorRound(Round):
    """One round over all pools."""

    def __init__(
        self,
        args: LowNodeLoadArgs,
        inputs: RoundInputs,
        memory: RoundState,
        reject_reason: RejectReason,
    ) -> None:
        self._args = args
        self._inputs = inputs
        self._reject_reason = reject_reason
        self._pools = args.pools()
        self._resources = resources_of(self._pools)
        self._order = PodOrder()
        self._processed: set[str] = set()
        now = inputs.now
        self._node_usage, usage_cache = koordinator_usage(
            inputs, args, self._resources, memory.usage_cache, self._order.is_prod
        )
        self.memory = RoundState(
            usage_cache=usage_cache,
            node_detector=memory.node_detector.at(now),
            prod_detector=memory.prod_detector.at(now),
        )

    @property
    def unusable(self) -> Mapping[str, str]:
        return self._node_usage.unusable

    def plans(self) -> Iterator[PoolPlan]:
        for pool in self._pools:
            plan = self._classify(pool)
            if plan is not None:
                yield plan
                if plan.sides:
                    high = np.flatnonzero(
                        plan.classes == NODE_CLASSES.index(NodeClass.OVERUTILIZED)
                    )
                    self._processed.update(plan.node_usage.names[at] for at in high)

    def _classify(self, pool: NodePool) -> PoolPlan | None:
        whole, selector = self._node_usage, pool.node_selector
        node_usage = whole.taking(
            np.array(
                [
                    at
                    for at, node in enumerate(whole.nodes)
                    if selector is None
                    or (node.name not in self._processed and selector.matches(node.labels))
                ],
                np.intp,
            )
        )
        if not node_usage.names:
            return None
        limits = koordinator_thresholds(
            pool,
            self._resources,
            capacity=node_usage.capacity,
            usage=node_usage.usage,
            prod_usage=node_usage.prod_usage,
        )
        judged = limits.judged

        def above(amounts: Amounts, bounds: Amounts) -> Flags:
            return np.asarray((judged & (amounts > bounds)).any(axis=1))

        is_underutilized = node_usage.schedulable & ~above(node_usage.usage, limits.low)
        is_prod_underutilized = node_usage.schedulable & ~above(
            node_usage.prod_usage, limits.prod_low
        )
        is_overutilized = ~is_underutilized & above(node_usage.usage, limits.high)
        is_prod_overutilized = ~is_overutilized & above(node_usage.prod_usage, limits.prod_high)
        plan = PoolPlan(
            pool=pool,
            node_usage=node_usage,
            limits=limits,
            classes=_classes(
                {
                    NodeClass.OVERUTILIZED: is_overutilized,
                    NodeClass.PROD_OVERUTILIZED: is_prod_overutilized,
                    NodeClass.BOTH_UNDERUTILIZED: is_underutilized & is_prod_underutilized,
                    NodeClass.UNDERUTILIZED: is_underutilized,
                    NodeClass.PROD_UNDERUTILIZED: is_prod_underutilized,
                },
                len(node_usage.names),
            ),
        )
        self._choose(plan)
        return plan

    def _choose(self, plan: PoolPlan) -> None:
        """Decide whether anything is done, and with which nodes."""
        node_usage, pool, now = plan.node_usage, plan.pool, self._inputs.now
        detectors = self.memory.node_detector, self.memory.prod_detector

        def among(*verdicts: NodeClass) -> NDArray[np.intp]:
            codes = [NODE_CLASSES.index(one) for one in verdicts]
            return np.flatnonzero(np.isin(plan.classes, codes))

        if not plan.count(NodeClass.OVERUTILIZED, NodeClass.PROD_OVERUTILIZED):
            plan.outcome = "no node is high"
            return
        abnormal = []
        for detector, verdict in zip(
            detectors, (NodeClass.OVERUTILIZED, NodeClass.PROD_OVERUTILIZED), strict=True
        ):
            marked = [
                at
                for at in among(verdict).tolist()
                if detector.mark(node_usage.names[at], pool.anomaly_condition, now)
            ]
            abnormal.append(np.array(marked, np.intp))
        count = plan.count(*_UNDERUTILIZED)
        if not any(len(places) for places in abnormal):
            plan.outcome = "no node has been high for long enough"
            return
        if not count:
            plan.outcome = "no node is low"
            return
        for at in among(NodeClass.UNDERUTILIZED, NodeClass.BOTH_UNDERUTILIZED):
            detectors[0].reset(node_usage.names[at], now)
        for at in among(NodeClass.PROD_UNDERUTILIZED):
            detectors[1].reset(node_usage.names[at], now)
        if count <= self._args.number_of_nodes:
            plan.outcome = f"{count} nodes are low, more than {self._args.number_of_nodes} must be"
            return
        both = among(NodeClass.BOTH_UNDERUTILIZED)
        plan.sides = tuple(
            Side(prod, self._sorted(plan, places, prod=prod), np.concatenate((among(low), both)))
            for prod, places, low in (
                (False, abnormal[0], NodeClass.UNDERUTILIZED),
                (True, abnormal[1], NodeClass.PROD_UNDERUTILIZED),
            )
        )

    def _sorted(self, plan: PoolPlan, places: NDArray[np.intp], *, prod: bool) -> NDArray[np.intp]:
        node_usage = plan.node_usage
        weights = weights_of(plan.pool.resource_weights, node_usage.resources)
        scored = plan.limits.judged | (np.array(node_usage.resources) == "pods")
        usage = node_usage.prod_usage if prod else node_usage.usage
        scores = node_scores(usage[places], node_usage.capacity[places], weights, scored)
        return places[np.argsort(-scores, kind="stable")]

    def steps(self, plan: PoolPlan) -> Steps:
        if not plan.sides:
            return
        yield YieldTurn.WORK
        room = _TargetCapacity(plan, self._inputs, node_fit=self._args.node_fit)
        for side in plan.sides:
            total = room.total(plan, side)
            if len(side.targets):
                for place in side.sources.tolist():
                    yield YieldTurn.TURN
                    yield from self._leave(plan, side, place, room, total)
            room.spend(total, prod=side.prod)
        for side, detector in zip(
            plan.sides, (self.memory.node_detector, self.memory.prod_detector), strict=True
        ):
            for place in side.sources.tolist():
                detector.mark_normal(plan.node_usage.names[place], self._inputs.now)

    def _leave(
        self,
        plan: PoolPlan,
        side: Side,
        place: int,
        room: "_TargetCapacity",
        total: NDArray[np.int64],
    ) -> Steps:
        """Let pods leave one node."""
        node_usage, prod = plan.node_usage, side.prod
        amounts = pod_amounts(node_usage.reports[place])
        leaving = _SourceNode(plan, side, place, total)
        removable = []
        for at, pod in enumerate(self._inputs.view.pods(int(node_usage.rows[place]))):
            if at % PODS_PER_TURN == PODS_PER_TURN - 1:
                yield YieldTurn.TURN
            if pod.finished:
                continue
            why = "it is no prod pod" if prod and not self._order.is_prod(pod) else ""
            why = why or self._reject_reason(pod)
            if not why and room.takes_long(pod):
                yield YieldTurn.WORK
                why = room.reserve(pod, amounts, side)
                yield YieldTurn.TURN
            elif not why:
                why = room.reserve(pod, amounts, side)
            if why:
                plan.keep([pod], why)
            else:
                removable.append(pod)
        excess = overutilization(plan, place, prod=prod)
        weights = weights_of(plan.pool.resource_weights, node_usage.resources).tolist()
        cover = ExcessCoverage(excess, weights)

        def order(pod: ClusterPod) -> OrderKey:
            amount = _amount(amounts, pod)
            score = 0.0 if amount is None else cover(amount)[0]
            *importance, score, age = self._order(pod, score)
            return (*importance, amount is None, score, age)

        removable.sort(key=order)
        detector = self.memory.prod_detector if prod else self.memory.node_detector
        for at, pod in enumerate(removable):
            excess = overutilization(plan, place, prod=prod)
            if not excess:
                detector.reset(node_usage.names[place], self._inputs.now)
                plan.keep(removable[at:], "its node is below its thresholds without it")
                return
            if leaving.spent:
                plan.keep(removable[at:], "the low nodes are full")
                return
            if why := self._reject_reason(pod):
                plan.keep([pod], why)
                continue
            amount = _amount(amounts, pod)
            relief = None if amount is None else Relief(cpu=amount.cpu / 1000, memory=amount.memory)
            reason = reason_for(plan, place, excess, prod=prod)
            result = yield PlannedMove(pod, reason, relief, room.target.get(pod.key, ""))
            if result is not MoveResult.DONE:
                plan.note(pod, Action.REFUSED, reason)
                continue
            plan.note(pod, Action.EVICT, reason, tuple(room.targets_of(pod)))
            if amount is not None:
                leaving.account(amount)


@dataclass(slots=True)
class _SourceNode:
    """The usage of a source node and the free capacity of targets while pods leave."""

    plan: PoolPlan
    side: Side
    place: int
    total: NDArray[np.int64]  # what all targets together can take

    @property
    def spent(self) -> bool:
        return bool((self.plan.limits.judged & (self.total <= 0)).any())

    def account(self, amount: Amount) -> None:
        taken = np.array((*amount, 1), np.int64)
        self.total[:3] -= taken
        self.plan.node_usage.usage[self.place, :3] -= taken
        if self.side.prod:
            self.plan.node_usage.prod_usage[self.place, :3] -= taken


class _TargetCapacity:
    """Free resources of targets: a reserved amount stays so, even if the pod does not come."""

    def __init__(self, plan: PoolPlan, inputs: RoundInputs, *, node_fit: bool) -> None:
        node_usage, limits = plan.node_usage, plan.limits
        self._plan = plan
        self._reserved = {False: node_usage.usage.copy(), True: node_usage.prod_usage.copy()}
        self._high = {False: limits.high, True: limits.prod_high}
        self._used = np.flatnonzero(limits.judged).tolist()
        self._inputs = inputs
        self._hardware: tuple[ClusterPod | None, Flags | None] = None, None
        """The pod that was asked about last, and the nodes that have its devices and CPUs."""
        self._cluster = HypotheticalCluster(inputs.view) if node_fit else None
        self.target: dict[str, str] = {}  # by key of the pod
        # Before anything leaves or comes:
        both = np.flatnonzero(plan.classes == NODE_CLASSES.index(NodeClass.BOTH_UNDERUTILIZED))
        self._both = {prod: self._free(both, prod=prod) for prod in (False, True)}
        self._alone = {
            prod: self._free(np.flatnonzero(plan.classes == NODE_CLASSES.index(verdict)), prod=prod)
            for prod, verdict in (
                (False, NodeClass.UNDERUTILIZED),
                (True, NodeClass.PROD_UNDERUTILIZED),
            )
        }
        self._left = self._both[False]  # of BOTH_UNDERUTILIZED, after the first pass

    def total(self, plan: PoolPlan, side: Side) -> NDArray[np.int64]:
        """Return the amount that all targets of a pass can take together."""
        if not side.prod:
            return self._alone[False] + self._both[False]
        return self._alone[True] + np.minimum(self._both[True], self._left)

    def spend(self, total: NDArray[np.int64], *, prod: bool) -> None:
        """A pass is over, and this is what its targets can still take."""
        if not prod:
            self._left = np.minimum(self._both[False], total)

    def takes_long(self, pod: ClusterPod) -> bool:
        """Whether reserve would hold up the event loop, on which this is asked before it."""
        if self._cluster is None:
            return False
        self._hardware = pod, self._inputs.hardware(pod, self._inputs.view)
        return self._cluster.depends_on_other_pods(pod)

    def reserve(self, pod: ClusterPod, amounts: PodAmounts, side: Side) -> str:
        """Reserve resources for a pod on the first target that takes it; return why none does."""
        if self._cluster is None:
            return ""
        amount = _amount(amounts, pod)
        if amount is None:
            return "its node's NodeMetric has no figures of it"
        usage, high = self._reserved[side.prod], self._high[side.prod]
        at = side.targets
        allowed = self._cluster.fits(pod)[self._plan.node_usage.rows[at]]
        of, has = self._hardware
        if has is not None and of is pod:
            allowed &= has[self._plan.node_usage.rows[at]]
        if not allowed.any():
            return "it fits no low node"
        for column in self._used:
            more = amount[column] if column < len(amount) else 0
            allowed &= usage[at, column] + more <= high[at, column]
        first = int(np.argmax(allowed))
        if not allowed[first]:
            return "no low node that it fits would stay below its thresholds"
        usage[at[first], : len(amount)] += amount
        self.target[pod.key] = self._plan.node_usage.names[at[first]]
        return ""

    def targets_of(self, pod: ClusterPod) -> Iterator[str]:
        if pod.key in self.target:
            yield self.target[pod.key]

    def _free(self, places: NDArray[np.intp], *, prod: bool) -> NDArray[np.int64]:
        found: NDArray[np.int64] = (self._high[prod] - self._reserved[prod])[places].sum(axis=0)
        return found


def _classes(masks: dict[NodeClass, Flags], length: int) -> NDArray[np.int8]:
    """The first class of each node whose mask has it."""
    classes = np.full(length, NODE_CLASSES.index(NodeClass.NORMAL), np.int8)
    for verdict, mask in reversed(masks.items()):
        classes[mask] = NODE_CLASSES.index(verdict)
    return classes


def _amount(amounts: PodAmounts, pod: ClusterPod) -> Amount | None:
    return amounts.get((pod.namespace, pod.name))
