"""The plan as Koordinator makes it, accidents included.

Source: Koordinator, pkg/descheduler/framework/plugins/loadaware.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from koord_descheduler.plugin import (
    Action,
    ClusterPod,
    LowNodeLoadArgs,
    Moves,
    NodePool,
    OrderKey,
    PodOrder,
    Relief,
)
from koord_descheduler_plugins.low_node_load.census import Situation, koordinator_census
from koord_descheduler_plugins.low_node_load.figures import (
    Amount,
    PodAmounts,
    pod_amounts,
)
from koord_descheduler_plugins.low_node_load.limits import (
    Amounts,
    Flags,
    koordinator_limits,
    resources_of,
)
from koord_descheduler_plugins.low_node_load.plan import (
    PODS_A_TURN,
    VERDICTS,
    Answer,
    Memory,
    Move,
    Pause,
    PoolPlan,
    Refusal,
    Round,
    Side,
    Steps,
    Verdict,
    overload,
    reason_for,
)
from koord_descheduler_plugins.low_node_load.scores import Cover, node_scores, weights_of

_LOWS = (Verdict.LOW, Verdict.PROD_LOW, Verdict.BOTH_LOW)


class KoordinatorRound(Round):
    """One round over all pools."""

    def __init__(
        self, args: LowNodeLoadArgs, situation: Situation, memory: Memory, refusal: Refusal
    ) -> None:
        self._args = args
        self._situation = situation
        self._refusal = refusal
        self._pools = args.pools()
        self._resources = resources_of(self._pools)
        self._order = PodOrder()
        self._processed: set[str] = set()
        now = situation.now
        self._census, book = koordinator_census(
            situation, args, self._resources, memory.book, self._order.is_prod
        )
        self.memory = Memory(
            book=book,
            node_detector=memory.node_detector.at(now),
            prod_detector=memory.prod_detector.at(now),
        )

    @property
    def unusable(self) -> Mapping[str, str]:
        return self._census.unusable

    def plans(self) -> Iterator[PoolPlan]:
        for pool in self._pools:
            plan = self._judge(pool)
            if plan is not None:
                yield plan
                if plan.sides:
                    high = np.flatnonzero(plan.classes == VERDICTS.index(Verdict.HIGH))
                    self._processed.update(plan.census.names[at] for at in high)

    def _judge(self, pool: NodePool) -> PoolPlan | None:
        whole, selector = self._census, pool.node_selector
        census = whole.taking(
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
        if not census.names:
            return None
        limits = koordinator_limits(
            pool,
            self._resources,
            capacity=census.capacity,
            usage=census.usage,
            prod_usage=census.prod_usage,
        )
        judged = limits.judged

        def above(amounts: Amounts, bounds: Amounts) -> Flags:
            return np.asarray((judged & (amounts > bounds)).any(axis=1))

        is_low = census.schedulable & ~above(census.usage, limits.low)
        is_prod_low = census.schedulable & ~above(census.prod_usage, limits.prod_low)
        is_high = ~is_low & above(census.usage, limits.high)
        is_prod_high = ~is_high & above(census.prod_usage, limits.prod_high)
        plan = PoolPlan(
            pool=pool,
            census=census,
            limits=limits,
            classes=_classes(
                {
                    Verdict.HIGH: is_high,
                    Verdict.PROD_HIGH: is_prod_high,
                    Verdict.BOTH_LOW: is_low & is_prod_low,
                    Verdict.LOW: is_low,
                    Verdict.PROD_LOW: is_prod_low,
                },
                len(census.names),
            ),
        )
        self._choose(plan)
        return plan

    def _choose(self, plan: PoolPlan) -> None:
        """Decide whether anything is done, and with which nodes."""
        census, pool, now = plan.census, plan.pool, self._situation.now
        detectors = self.memory.node_detector, self.memory.prod_detector

        def among(*verdicts: Verdict) -> NDArray[np.intp]:
            codes = [VERDICTS.index(one) for one in verdicts]
            return np.flatnonzero(np.isin(plan.classes, codes))

        if not plan.count(Verdict.HIGH, Verdict.PROD_HIGH):
            plan.outcome = "no node is high"
            return
        abnormal = []
        for detector, verdict in zip(detectors, (Verdict.HIGH, Verdict.PROD_HIGH), strict=True):
            marked = [
                at
                for at in among(verdict).tolist()
                if detector.mark(census.names[at], pool.anomaly_condition, now)
            ]
            abnormal.append(np.array(marked, np.intp))
        count = plan.count(*_LOWS)
        if not any(len(places) for places in abnormal):
            plan.outcome = "no node has been high for long enough"
            return
        if not count:
            plan.outcome = "no node is low"
            return
        for at in among(Verdict.LOW, Verdict.BOTH_LOW):
            detectors[0].reset(census.names[at], now)
        for at in among(Verdict.PROD_LOW):
            detectors[1].reset(census.names[at], now)
        if count <= self._args.number_of_nodes:
            plan.outcome = f"{count} nodes are low, more than {self._args.number_of_nodes} must be"
            return
        both = among(Verdict.BOTH_LOW)
        plan.sides = tuple(
            Side(prod, self._sorted(plan, places, prod=prod), np.concatenate((among(low), both)))
            for prod, places, low in (
                (False, abnormal[0], Verdict.LOW),
                (True, abnormal[1], Verdict.PROD_LOW),
            )
        )

    def _sorted(self, plan: PoolPlan, places: NDArray[np.intp], *, prod: bool) -> NDArray[np.intp]:
        census = plan.census
        weights = weights_of(plan.pool.resource_weights, census.resources)
        scored = plan.limits.judged | (np.array(census.resources) == "pods")
        usage = census.prod_usage if prod else census.usage
        scores = node_scores(usage[places], census.capacity[places], weights, scored)
        return places[np.argsort(-scores, kind="stable")]

    def steps(self, plan: PoolPlan) -> Steps:
        if not plan.sides:
            return
        yield Pause.WORK
        room = _Room(plan, self._situation, node_fit=self._args.node_fit)
        for side in plan.sides:
            total = room.total(plan, side)
            if len(side.targets):
                for place in side.sources.tolist():
                    yield Pause.TURN
                    yield from self._leave(plan, side, place, room, total)
            room.spend(total, prod=side.prod)
        for side, detector in zip(
            plan.sides, (self.memory.node_detector, self.memory.prod_detector), strict=True
        ):
            for place in side.sources.tolist():
                detector.mark_normal(plan.census.names[place], self._situation.now)

    def _leave(
        self, plan: PoolPlan, side: Side, place: int, room: "_Room", total: NDArray[np.int64]
    ) -> Steps:
        """Let pods leave one node."""
        census, prod = plan.census, side.prod
        amounts = pod_amounts(census.reports[place])
        leaving = _Leaving(plan, side, place, total)
        removable = []
        for at, pod in enumerate(self._situation.view.pods(int(census.rows[place]))):
            if at % PODS_A_TURN == PODS_A_TURN - 1:
                yield Pause.TURN
            if pod.finished:
                continue
            why = "it is no prod pod" if prod and not self._order.is_prod(pod) else ""
            why = why or self._refusal(pod)
            if not why and room.takes_long(pod):
                yield Pause.WORK
                why = room.book(pod, amounts, side)
                yield Pause.TURN
            elif not why:
                why = room.book(pod, amounts, side)
            if why:
                plan.keep([pod], why)
            else:
                removable.append(pod)
        excess = overload(plan, place, prod=prod)
        weights = weights_of(plan.pool.resource_weights, census.resources).tolist()
        cover = Cover(excess, weights)

        def order(pod: ClusterPod) -> OrderKey:
            amount = _amount(amounts, pod)
            score = 0.0 if amount is None else cover(amount)[0]
            *importance, score, age = self._order(pod, score)
            return (*importance, amount is None, score, age)

        removable.sort(key=order)
        detector = self.memory.prod_detector if prod else self.memory.node_detector
        for at, pod in enumerate(removable):
            excess = overload(plan, place, prod=prod)
            if not excess:
                detector.reset(census.names[place], self._situation.now)
                plan.keep(removable[at:], "its node is below its thresholds without it")
                return
            if leaving.spent:
                plan.keep(removable[at:], "the low nodes are full")
                return
            if why := self._refusal(pod):
                plan.keep([pod], why)
                continue
            amount = _amount(amounts, pod)
            relief = None if amount is None else Relief(cpu=amount.cpu / 1000, memory=amount.memory)
            reason = reason_for(plan, place, excess, prod=prod)
            answer = yield Move(pod, reason, relief, room.target.get(pod.key, ""))
            if answer is not Answer.DONE:
                plan.note(pod, Action.REFUSED, reason)
                continue
            plan.note(pod, Action.EVICT, reason, tuple(room.targets_of(pod)))
            if amount is not None:
                leaving.account(amount)


@dataclass(slots=True)
class _Leaving:
    """What a node and the low nodes come to while pods leave."""

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
        self.plan.census.usage[self.place, :3] -= taken
        if self.side.prod:
            self.plan.census.prod_usage[self.place, :3] -= taken


class _Room:
    """Room on targets: what is reserved there stays so, even if the pod does not come."""

    def __init__(self, plan: PoolPlan, situation: Situation, *, node_fit: bool) -> None:
        census, limits = plan.census, plan.limits
        self._plan = plan
        self._reserved = {False: census.usage.copy(), True: census.prod_usage.copy()}
        self._high = {False: limits.high, True: limits.prod_high}
        self._used = np.flatnonzero(limits.judged).tolist()
        self._fits = Moves(situation.view, census.rows) if node_fit else None
        self.target: dict[str, str] = {}  # by key of the pod
        # Before anything leaves or comes:
        both = np.flatnonzero(plan.classes == VERDICTS.index(Verdict.BOTH_LOW))
        self._both = {prod: self._free(both, prod=prod) for prod in (False, True)}
        self._alone = {
            prod: self._free(np.flatnonzero(plan.classes == VERDICTS.index(verdict)), prod=prod)
            for prod, verdict in ((False, Verdict.LOW), (True, Verdict.PROD_LOW))
        }
        self._left = self._both[False]  # of nodes that are low in both ways, after the first pass

    def total(self, plan: PoolPlan, side: Side) -> NDArray[np.int64]:
        """What all targets of a pass can take together."""
        if not side.prod:
            return self._alone[False] + self._both[False]
        return self._alone[True] + np.minimum(self._both[True], self._left)

    def spend(self, total: NDArray[np.int64], *, prod: bool) -> None:
        """A pass is over, and this is what its targets can still take."""
        if not prod:
            self._left = np.minimum(self._both[False], total)

    def takes_long(self, pod: ClusterPod) -> bool:
        """Whether book would hold up the event loop."""
        return self._fits is not None and self._fits.minds_others(pod)

    def book(self, pod: ClusterPod, amounts: PodAmounts, side: Side) -> str:
        """Reserve room for a pod on the first target that takes it; return why none does."""
        if self._fits is None:
            return ""
        amount = _amount(amounts, pod)
        if amount is None:
            return "its node's NodeMetric has no figures of it"
        usage, high = self._reserved[side.prod], self._high[side.prod]
        at = side.targets
        allowed = self._fits.fits(pod)[at]
        if not allowed.any():
            return "it fits no low node"
        for column in self._used:
            more = amount[column] if column < len(amount) else 0
            allowed &= usage[at, column] + more <= high[at, column]
        first = int(np.argmax(allowed))
        if not allowed[first]:
            return "no low node that it fits would stay below its thresholds"
        usage[at[first], : len(amount)] += amount
        self.target[pod.key] = self._plan.census.names[at[first]]
        return ""

    def targets_of(self, pod: ClusterPod) -> Iterator[str]:
        if pod.key in self.target:
            yield self.target[pod.key]

    def _free(self, places: NDArray[np.intp], *, prod: bool) -> NDArray[np.int64]:
        found: NDArray[np.int64] = (self._high[prod] - self._reserved[prod])[places].sum(axis=0)
        return found


def _classes(masks: dict[Verdict, Flags], length: int) -> NDArray[np.int8]:
    """The first class of each node whose mask has it."""
    classes = np.full(length, VERDICTS.index(Verdict.NORMAL), np.int8)
    for verdict, mask in reversed(masks.items()):
        classes[mask] = VERDICTS.index(verdict)
    return classes


def _amount(amounts: PodAmounts, pod: ClusterPod) -> Amount | None:
    return amounts.get((pod.namespace, pod.name))
