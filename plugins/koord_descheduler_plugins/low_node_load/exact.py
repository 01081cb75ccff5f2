"""The plan that reserves on targets only what really moves, and acts once on the same figures."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from koord_descheduler.plugin import (
    Action,
    ClusterPod,
    DisruptionBudget,
    LowNodeLoadArgs,
    NodePool,
    PodOrder,
    Relief,
)
from koord_descheduler_plugins.low_node_load.census import (
    MovingPod,
    Situation,
    count_moved,
    exact_census,
    moving_pods,
    take_away,
    whole_usage,
)
from koord_descheduler_plugins.low_node_load.figures import (
    Amount,
    pod_amounts,
)
from koord_descheduler_plugins.low_node_load.limits import (
    Amounts,
    Flags,
    exact_limits,
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
from koord_descheduler_plugins.low_node_load.scores import (
    Cover,
    Excess,
    node_scores,
    weights_of,
)
from koord_descheduler_plugins.low_node_load.targets import Targets

_ORDER_AND_NAME = itemgetter(0, 1)
_LEAST_SHARE = 0.02  # of an excess; a pod that takes less off it is not worth a restart


class ExactRound(Round):
    """One round over all pools. A node belongs to one pool: the first that names it."""

    def __init__(
        self,
        args: LowNodeLoadArgs,
        situation: Situation,
        memory: Memory,
        refusal: Refusal,
        *,
        dry_run: bool,
    ) -> None:
        """dry_run: nothing happens, so the next round may decide the same again."""
        self._args = args
        self._situation = situation
        self._refusal = refusal
        self._dry_run = dry_run
        first, *named = args.pools()
        self._pools = (*named, first)
        self._resources = resources_of(self._pools)
        self._order = PodOrder()
        self._budgets = _Budgets(situation.budgets)
        self._census, book = exact_census(
            situation, args, self._resources, memory.book, self._order.is_prod
        )
        present = situation.reports.keys()
        self.memory = Memory(
            book=book,
            node_detector=memory.node_detector.at(situation.now),
            prod_detector=memory.prod_detector.at(situation.now),
            acted={name: at for name, at in memory.acted.items() if name in present},
        )
        self._moving = moving_pods(situation, self._census, self._order.is_prod)
        self._on_their_way = {one.pod.uid for one in self._moving}
        count_moved(self._census, self._moving)

    @property
    def unusable(self) -> Mapping[str, str]:
        return self._census.unusable

    def plans(self) -> Iterator[PoolPlan]:
        free = np.ones(len(self._census.names), np.bool_)
        nodes = self._census.nodes
        by_name = np.argsort(np.array(self._census.names, np.str_), kind="stable")
        for pool in self._pools:
            selector = pool.node_selector
            of_pool = [
                at
                for at in by_name.tolist()
                if free[at] and (selector is None or selector.matches(nodes[at].labels))
            ]
            free[of_pool] = False
            if of_pool:
                yield self._judge(pool, np.array(of_pool, np.intp))

    def _judge(self, pool: NodePool, at: NDArray[np.intp]) -> PoolPlan:
        census = self._census.taking(at)
        limits = exact_limits(
            pool,
            self._resources,
            capacity=census.capacity,
            usage=census.usage,
            prod_usage=census.prod_usage,
        )

        def above(amounts: Amounts, bounds: Amounts, judged: Flags) -> Flags:
            return np.asarray((judged & (amounts > bounds)).any(axis=1))

        every = np.ones_like(limits.judged)
        is_high = above(census.usage, limits.high, limits.judged)
        is_prod_high = ~is_high & above(census.prod_usage, limits.prod_high, limits.prod_judged)
        fit = census.schedulable & ~is_high & ~is_prod_high
        of_nodes = bool(pool.high_thresholds or pool.low_thresholds)
        of_prod = bool(pool.prod_high_thresholds or pool.prod_low_thresholds)
        is_low = of_nodes & fit & ~above(census.usage, limits.low, every)
        is_prod_low = of_prod & fit & ~above(census.prod_usage, limits.prod_low, every)
        classes = np.full(len(census.names), VERDICTS.index(Verdict.NORMAL), np.int8)
        for verdict, mask in (
            (Verdict.PROD_LOW, is_prod_low),
            (Verdict.LOW, is_low),
            (Verdict.BOTH_LOW, is_low & is_prod_low),
            (Verdict.PROD_HIGH, is_prod_high),
            (Verdict.HIGH, is_high),
        ):
            classes[mask] = VERDICTS.index(verdict)
        plan = PoolPlan(pool=pool, census=census, limits=limits, classes=classes)
        abnormal = self._abnormal(plan, is_high, is_prod_high)
        plan.outcome = self._outcome(plan, abnormal, int((is_low | is_prod_low).sum()))
        if not plan.outcome:
            plan.sides = tuple(
                Side(prod, self._sorted(plan, places, prod=prod), np.flatnonzero(targets))
                for prod, places, targets in (
                    (False, abnormal[0], is_low),
                    (True, abnormal[1], is_prod_low),
                )
            )
        return plan

    def _abnormal(
        self, plan: PoolPlan, is_high: Flags, is_prod_high: Flags
    ) -> list[NDArray[np.intp]]:
        """The nodes to act on, of both kinds; on figures from before pods left that is not done."""
        census, memory, now = plan.census, self.memory, self._situation.now
        condition = plan.pool.anomaly_condition
        found = []
        for detector, mask, well in (
            (memory.node_detector, is_high, ~is_high),
            (memory.prod_detector, is_prod_high, ~is_prod_high & ~is_high),
        ):
            places = []
            for at in np.flatnonzero(mask).tolist():
                name = census.names[at]
                if memory.acted.get(name, -1.0) >= (census.reports[at].update_time or 0.0):
                    plan.node_notes[name] = "its figures still have pods that have left"
                elif detector.mark(name, condition, now):
                    places.append(at)
                else:
                    plan.node_notes[name] = "not for long enough"
            for at in np.flatnonzero(well).tolist() if detector.counts else ():
                detector.mark_normal(census.names[at], now)
            found.append(np.array(places, np.intp))
        return found

    def _outcome(self, plan: PoolPlan, abnormal: Sequence[NDArray[np.intp]], targets: int) -> str:
        if not plan.count(Verdict.HIGH, Verdict.PROD_HIGH):
            return "no node is high"
        if not any(len(places) for places in abnormal):
            return "no node that is high is to be acted on now"
        if not targets:
            return "no node is low"
        if targets <= self._args.number_of_nodes:
            return f"{targets} nodes are low, more than {self._args.number_of_nodes} must be"
        return ""

    def _sorted(self, plan: PoolPlan, places: NDArray[np.intp], *, prod: bool) -> NDArray[np.intp]:
        census, limits = plan.census, plan.limits
        usage = census.prod_usage if prod else census.usage
        scores = node_scores(
            usage[places],
            census.capacity[places],
            weights_of(plan.pool.resource_weights, census.resources),
            limits.prod_judged if prod else limits.judged,
        )
        return places[np.argsort(-scores, kind="stable")]

    def steps(self, plan: PoolPlan) -> Steps:
        if not plan.sides:
            return
        yield Pause.WORK
        targets = Targets(plan, self._situation.view, node_fit=self._args.node_fit)
        for one in self._moving_of(plan):
            targets.arrive(one)
        for side in plan.sides:
            targets.choose(side)
            for place in side.sources.tolist():
                yield Pause.TURN
                yield from self._relieve(plan, side, place, targets)

    def _moving_of(self, plan: PoolPlan) -> list[MovingPod]:
        names = set(plan.census.names)
        return [
            one
            for one in self._moving
            if self._census.names[one.source] in names or one.target in names
        ]

    def _relieve(self, plan: PoolPlan, side: Side, place: int, targets: Targets) -> Steps:
        """Let pods leave one node until it is below its thresholds."""
        census, prod = plan.census, side.prod
        name = census.names[place]
        now = overload(plan, place, prod=prod)
        excess = now if prod else _curable(plan, place, now)
        if not excess:
            plan.node_notes[name] = "high by what is no pod's; nothing to move"
            return
        ordered = self._ordered(plan, side, place, excess)
        gone: list[tuple[Amount, bool]] = []
        left = excess
        for at, (pod, amount) in enumerate(ordered):
            if at % PODS_A_TURN == PODS_A_TURN - 1:
                yield Pause.TURN
            if not left:
                plan.keep([one for one, _ in ordered[at:]], "its node is high no more without it")
                break
            if why := self._objection(pod, amount, left):
                plan.keep([pod], why)
                continue
            is_prod = self._order.is_prod(pod)
            if targets.takes_long(pod):
                yield Pause.WORK
                found = targets.candidates(pod, amount, is_prod=is_prod)
                yield Pause.TURN
            else:
                found = targets.candidates(pod, amount, is_prod=is_prod)
            if not found:
                plan.keep([pod], targets.why_none)
                continue
            shown = tuple(census.names[one] for one in found)
            best = found[0]
            reason = reason_for(plan, place, now, prod=prod)
            relief = Relief(cpu=amount.cpu / 1000, memory=amount.memory)
            answer = yield Move(pod, reason, relief, census.names[best])
            if answer is Answer.DONE:
                plan.note(pod, Action.EVICT, reason, shown)
                targets.move(pod, best, amount, is_prod=is_prod)
                gone.append((amount, is_prod))
                now, left = _less(now, amount), _less(left, amount)
                self._budgets.spend(pod)
                self._acted(plan, place)
                continue
            plan.note(pod, Action.REFUSED, reason, shown)
            if answer is Answer.NODE_LIMIT:
                rest = [one for one, _ in ordered[at + 1 :]]
                plan.keep(rest, "no more pods of its node may go in this cycle")
                break
        for is_prod in (False, True):
            pods = [amount for amount, prod_pod in gone if prod_pod is is_prod]
            take_away(census, place, pods, is_prod=is_prod)
        self._settle(plan, side, place)

    def _ordered(
        self, plan: PoolPlan, side: Side, place: int, excess: Excess
    ) -> list[tuple[ClusterPod, Amount]]:
        """The pods that could leave a node, the least important and most useful first."""
        census = plan.census
        amounts = pod_amounts(census.reports[place])
        weights = weights_of(plan.pool.resource_weights, census.resources).tolist()
        cover = Cover(excess, weights)
        found = []
        for pod in self._situation.view.pods(int(census.rows[place])):
            if pod.finished:
                continue
            amount = amounts.get((pod.namespace, pod.name))
            if pod.deleting or pod.uid in self._on_their_way:
                plan.keep([pod], "it is on its way already")
            elif side.prod and not self._order.is_prod(pod):
                plan.keep([pod], "it is no prod pod")
            elif amount is None:
                plan.keep([pod], "its node's NodeMetric has no figures of it yet")
            else:
                score, share = cover((amount.cpu, amount.memory, 1))
                if share < _LEAST_SHARE:
                    plan.keep([pod], "it takes too little of what its node has too much of")
                    continue
                order = self._order(pod, score / move_cost(pod))
                found.append((order, pod.key, pod, amount))
        found.sort(key=_ORDER_AND_NAME)
        return [(pod, amount) for _, _, pod, amount in found]

    def _objection(self, pod: ClusterPod, amount: Amount, left: Excess) -> str:
        """Why a pod does not leave, wherever it could go; "": nothing objects."""
        if not any((amount.cpu, amount.memory, 1)[at] for at in left):
            return "what it takes, its node has not too much of any more"
        return self._refusal(pod) or self._budgets.refusal(pod)

    def _acted(self, plan: PoolPlan, place: int) -> None:
        """Have a node wait until its figures have nothing of what has left."""
        if not self._dry_run:
            report = plan.census.reports[place]
            whole = whole_usage(report, self._args)
            until = report.update_time or 0.0
            if whole is not None:
                until = max(until, self._situation.now + whole.window)
            self.memory.acted[plan.census.names[place]] = until

    def _settle(self, plan: PoolPlan, side: Side, place: int) -> None:
        """Say whether a node is high still; if it is not, its count begins anew."""
        name = plan.census.names[place]
        if overload(plan, place, prod=side.prod):
            plan.node_notes[name] = "stays high: no other pod can leave"
            return
        plan.node_notes[name] = "high no more without the pods that leave"
        if not self._dry_run:
            detector = self.memory.prod_detector if side.prod else self.memory.node_detector
            detector.reset(name, self._situation.now)


def move_cost(pod: ClusterPod) -> int:
    """Return what moving a pod costs, in restarts of a pod without data.

    Data on the node is lost and has to be made again; volumes have to be attached elsewhere.
    """
    return 1 + pod.local_storage + bool(pod.claims)


def _curable(plan: PoolPlan, place: int, excess: Excess) -> Excess:
    """What is too much on a node and would not be, if all its pods were gone."""
    fixed, high = plan.census.fixed[place], plan.limits.high[place]
    return {at: over for at, over in excess.items() if fixed[at] <= high[at]}


def _less(excess: Excess, amount: Amount) -> Excess:
    """An excess without what a pod has taken; where nothing is left of it, it is none."""
    taken = (*amount, 1)
    rest = {at: over - (taken[at] if at < len(taken) else 0) for at, over in excess.items()}
    return {at: over for at, over in rest.items() if over > 0}


class _Budgets:
    """PodDisruptionBudgets, and what a round has taken of them."""

    def __init__(self, budgets: Sequence[DisruptionBudget]) -> None:
        self._by_namespace: defaultdict[str, list[DisruptionBudget]] = defaultdict(list)
        self._left: dict[str, int] = {}
        for one in budgets:
            self._by_namespace[one.namespace].append(one)
            self._left[one.key] = one.allowed

    def refusal(self, pod: ClusterPod) -> str:
        """The budget that does not allow it now, as a sentence; "": all do."""
        for one in self._of(pod):
            if self._left[one.key] <= 0:
                return f"the PodDisruptionBudget {one.name} allows no eviction now"
        return ""

    def spend(self, pod: ClusterPod) -> None:
        for one in self._of(pod):
            self._left[one.key] -= 1

    def _of(self, pod: ClusterPod) -> list[DisruptionBudget]:
        return [one for one in self._by_namespace.get(pod.namespace, ()) if one.covers(pod)]
