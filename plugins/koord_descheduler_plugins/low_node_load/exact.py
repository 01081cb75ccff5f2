"""The plan that reserves on targets only what really moves, and acts once on the same usage."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from koord_descheduler.plugin import (
    Action,
    ClusterPod,
    DisruptionBudget,
    HypotheticalCluster,
    PodOrder,
    Relief,
)
from koord_descheduler_plugins.low_node_load.args import (
    Amounts,
    Excess,
    ExcessCoverage,
    Flags,
    LowNodeLoadArgs,
    NodePool,
    exact_thresholds,
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
    CPU,
    MEMORY,
    PODS,
    Amount,
    MovingPod,
    RoundInputs,
    count_moved,
    exact_usage,
    moving_pods,
    pod_amounts,
    subtract_moved_usage,
    whole_usage,
)

_MAX_CANDIDATES = 3  # candidates of a pod


class Targets:
    """The targets of both sides. Only pods that really come are counted."""

    def __init__(self, plan: PoolPlan, inputs: RoundInputs, *, node_fit: bool) -> None:
        """node_fit: a target must be able to run the pod; else only the load counts."""
        node_usage, limits = plan.node_usage, plan.limits
        self._at: NDArray[np.intp] = np.unique(
            np.concatenate([side.targets for side in plan.sides])
        )
        self._names = [node_usage.names[at] for at in self._at.tolist()]
        self._places = {name: place for place, name in enumerate(self._names)}
        self._place_of = {at: place for place, at in enumerate(self._at.tolist())}
        self._rows = node_usage.rows[self._at]
        capacity = np.maximum(node_usage.capacity[self._at], 1).T
        expected = (node_usage.usage + node_usage.in_transit)[self._at].T
        prod_expected = (node_usage.prod_usage + node_usage.prod_in_transit)[self._at].T
        self._left = limits.high[self._at].T - expected  # (resources, targets)
        self._prod_left = limits.prod_high[self._at].T - prod_expected
        base = np.isin(np.arange(len(limits.judged)), (CPU, MEMORY))
        self._bounding = np.flatnonzero(limits.judged | base)[1:].tolist()  # but CPU
        self._prod_bounding = np.flatnonzero(limits.prod_judged).tolist()
        weights = weights_of(plan.pool.resource_weights, node_usage.resources) * (
            limits.judged | base
        )
        share = weights / max(int(weights.sum()), 1)
        self._per_unit = share[:, None] / capacity  # load of one unit on each target
        self._weighted = [column for column in (CPU, MEMORY, PODS) if share[column] > 0]
        self._load = (self._per_unit * expected).sum(axis=0)
        self._inputs = inputs
        self._hardware: tuple[ClusterPod | None, Flags | None] = None, None
        """The pod that was asked about last, and the nodes that have its devices and CPUs."""
        self._cluster = HypotheticalCluster(inputs.view) if node_fit else None
        self._chosen: Flags | None = None  # None: all
        self.why_none = ""
        """Why candidates found none the last time, a sentence for people."""

    def choose(self, side: Side) -> None:
        """Take only the targets of one side from now on."""
        chosen = np.isin(self._at, side.targets)
        self._chosen = None if chosen.all() else chosen

    def takes_long(self, pod: ClusterPod) -> bool:
        """Whether candidates would hold up the event loop, on which this is asked before them."""
        if self._cluster is None:
            return False
        self._hardware = pod, self._inputs.hardware(pod, self._inputs.view)
        return self._cluster.depends_on_other_pods(pod)

    def candidates(self, pod: ClusterPod, amount: Amount, *, is_prod: bool) -> tuple[int, ...]:
        """Return the nodes that can take a pod, the one that is least loaded with it first.

        They are indexes into the arrays of NodeUsage; no more than a few.
        """
        taken = (amount.cpu, amount.memory, 1)
        allowed = self._has_left(taken, is_prod=is_prod)
        if self._cluster is not None:
            allowed &= self._cluster.fits(pod)[self._rows]
            of, has = self._hardware
            if has is not None and of is pod:
                allowed &= has[self._rows]
        load = self._load
        for column in self._weighted:
            load = load + self._per_unit[column] * taken[column]
        load = np.where(allowed, load, np.inf)
        best: list[int] = []
        while len(best) < _MAX_CANDIDATES and load[place := int(load.argmin())] < np.inf:
            best.append(int(self._at[place]))
            load[place] = np.inf
        if not best:
            self.why_none = (
                "it fits no low node that would stay below its thresholds with it"
                if self._has_left(taken, is_prod=is_prod).any()
                else "no low node would stay below its thresholds with it"
            )
        return tuple(best)

    def _has_left(self, taken: tuple[int, ...], *, is_prod: bool) -> Flags:
        """Targets that stay below their thresholds with so much more."""
        allowed: Flags = self._left[CPU] >= taken[CPU]
        for left, columns in (
            (self._left, self._bounding),
            (self._prod_left, self._prod_bounding if is_prod else ()),
        ):
            for column in columns:
                allowed &= left[column] >= (taken[column] if column < len(taken) else 0)
        return allowed if self._chosen is None else allowed & self._chosen

    def move(self, pod: ClusterPod, target: int, amount: Amount, *, is_prod: bool) -> None:
        """Count the move of a pod to a target, given by its index into the arrays of NodeUsage."""
        place = self._place_of[target]
        taken = np.array((amount.cpu, amount.memory, 1), np.int64)
        self._left[:3, place] -= taken
        if is_prod:
            self._prod_left[:3, place] -= taken
        self._load[place] += self._per_unit[:3, place] @ taken
        if self._cluster is not None:
            self._cluster.move(pod, int(self._rows[place]))

    def arrive(self, moving: MovingPod) -> None:
        """Count a pod that is on its way: on its target, or where it would go at best.

        On a known target it is in transit already.
        """
        if moving.target:
            place = self._places.get(moving.target)
            if self._cluster is not None:
                row = None if place is None else int(self._rows[place])
                self._cluster.move(moving.pod, row)
            return
        found = self.candidates(moving.pod, moving.amount, is_prod=moving.is_prod)
        if found:
            self.move(moving.pod, found[0], moving.amount, is_prod=moving.is_prod)


_ORDER_AND_NAME = itemgetter(0, 1)
_MIN_SHARE = 0.02  # of an excess; a pod that takes less off it is not worth a restart


class ExactRound(Round):
    """One round over all pools. A node belongs to one pool: the first that names it."""

    def __init__(
        self,
        args: LowNodeLoadArgs,
        inputs: RoundInputs,
        memory: RoundState,
        reject_reason: RejectReason,
        *,
        dry_run: bool,
    ) -> None:
        """dry_run: nothing happens, so the next round may decide the same again."""
        self._args = args
        self._inputs = inputs
        self._reject_reason = reject_reason
        self._dry_run = dry_run
        first, *named = args.pools()
        self._pools = (*named, first)
        self._resources = resources_of(self._pools)
        self._order = PodOrder()
        self._budgets = _Budgets(inputs.budgets)
        self._node_usage, usage_cache = exact_usage(
            inputs, args, self._resources, memory.usage_cache, self._order.is_prod
        )
        present = inputs.reports.keys()
        self.memory = RoundState(
            usage_cache=usage_cache,
            node_detector=memory.node_detector.at(inputs.now),
            prod_detector=memory.prod_detector.at(inputs.now),
            acted={name: at for name, at in memory.acted.items() if name in present},
        )
        self._moving = moving_pods(inputs, self._node_usage, self._order.is_prod)
        self._on_their_way = {one.pod.uid for one in self._moving}
        count_moved(self._node_usage, self._moving)

    @property
    def unusable(self) -> Mapping[str, str]:
        return self._node_usage.unusable

    def plans(self) -> Iterator[PoolPlan]:
        free = np.ones(len(self._node_usage.names), np.bool_)
        nodes = self._node_usage.nodes
        by_name = np.argsort(np.array(self._node_usage.names, np.str_), kind="stable")
        for pool in self._pools:
            selector = pool.node_selector
            of_pool = [
                at
                for at in by_name.tolist()
                if free[at] and (selector is None or selector.matches(nodes[at].labels))
            ]
            free[of_pool] = False
            if of_pool:
                yield self._classify(pool, np.array(of_pool, np.intp))

    def _classify(self, pool: NodePool, at: NDArray[np.intp]) -> PoolPlan:
        node_usage = self._node_usage.taking(at)
        limits = exact_thresholds(
            pool,
            self._resources,
            capacity=node_usage.capacity,
            usage=node_usage.usage,
            prod_usage=node_usage.prod_usage,
        )

        def above(amounts: Amounts, bounds: Amounts, judged: Flags) -> Flags:
            return np.asarray((judged & (amounts > bounds)).any(axis=1))

        every = np.ones_like(limits.judged)
        is_overutilized = above(node_usage.usage, limits.high, limits.judged)
        is_prod_overutilized = ~is_overutilized & above(
            node_usage.prod_usage, limits.prod_high, limits.prod_judged
        )
        fit = node_usage.schedulable & ~is_overutilized & ~is_prod_overutilized
        of_nodes = bool(pool.high_thresholds or pool.low_thresholds)
        of_prod = bool(pool.prod_high_thresholds or pool.prod_low_thresholds)
        is_underutilized = of_nodes & fit & ~above(node_usage.usage, limits.low, every)
        is_prod_underutilized = (
            of_prod & fit & ~above(node_usage.prod_usage, limits.prod_low, every)
        )
        classes = np.full(len(node_usage.names), NODE_CLASSES.index(NodeClass.NORMAL), np.int8)
        for verdict, mask in (
            (NodeClass.PROD_UNDERUTILIZED, is_prod_underutilized),
            (NodeClass.UNDERUTILIZED, is_underutilized),
            (NodeClass.BOTH_UNDERUTILIZED, is_underutilized & is_prod_underutilized),
            (NodeClass.PROD_OVERUTILIZED, is_prod_overutilized),
            (NodeClass.OVERUTILIZED, is_overutilized),
        ):
            classes[mask] = NODE_CLASSES.index(verdict)
        plan = PoolPlan(pool=pool, node_usage=node_usage, limits=limits, classes=classes)
        abnormal = self._abnormal(plan, is_overutilized, is_prod_overutilized)
        plan.outcome = self._outcome(
            plan, abnormal, int((is_underutilized | is_prod_underutilized).sum())
        )
        if not plan.outcome:
            plan.sides = tuple(
                Side(prod, self._sorted(plan, places, prod=prod), np.flatnonzero(targets))
                for prod, places, targets in (
                    (False, abnormal[0], is_underutilized),
                    (True, abnormal[1], is_prod_underutilized),
                )
            )
        return plan

    def _abnormal(
        self, plan: PoolPlan, is_overutilized: Flags, is_prod_overutilized: Flags
    ) -> list[NDArray[np.intp]]:
        """The nodes to act on, of both kinds; on figures from before pods left that is not done."""
        node_usage, memory, now = plan.node_usage, self.memory, self._inputs.now
        condition = plan.pool.anomaly_condition
        found = []
        for detector, mask, well in (
            (memory.node_detector, is_overutilized, ~is_overutilized),
            (memory.prod_detector, is_prod_overutilized, ~is_prod_overutilized & ~is_overutilized),
        ):
            places = []
            for at in np.flatnonzero(mask).tolist():
                name = node_usage.names[at]
                if memory.acted.get(name, -1.0) >= (node_usage.reports[at].update_time or 0.0):
                    plan.node_notes[name] = "its figures still have pods that have left"
                elif detector.mark(name, condition, now):
                    places.append(at)
                else:
                    plan.node_notes[name] = "not for long enough"
            for at in np.flatnonzero(well).tolist() if detector.counts else ():
                detector.mark_normal(node_usage.names[at], now)
            found.append(np.array(places, np.intp))
        return found

    def _outcome(self, plan: PoolPlan, abnormal: Sequence[NDArray[np.intp]], targets: int) -> str:
        if not plan.count(NodeClass.OVERUTILIZED, NodeClass.PROD_OVERUTILIZED):
            return "no node is high"
        if not any(len(places) for places in abnormal):
            return "no node that is high is to be acted on now"
        if not targets:
            return "no node is low"
        if targets <= self._args.number_of_nodes:
            return f"{targets} nodes are low, more than {self._args.number_of_nodes} must be"
        return ""

    def _sorted(self, plan: PoolPlan, places: NDArray[np.intp], *, prod: bool) -> NDArray[np.intp]:
        node_usage, limits = plan.node_usage, plan.limits
        usage = node_usage.prod_usage if prod else node_usage.usage
        scores = node_scores(
            usage[places],
            node_usage.capacity[places],
            weights_of(plan.pool.resource_weights, node_usage.resources),
            limits.prod_judged if prod else limits.judged,
        )
        return places[np.argsort(-scores, kind="stable")]

    def steps(self, plan: PoolPlan) -> Steps:
        if not plan.sides:
            return
        yield YieldTurn.WORK
        targets = Targets(plan, self._inputs, node_fit=self._args.node_fit)
        for one in self._moving_of(plan):
            targets.arrive(one)
        for side in plan.sides:
            targets.choose(side)
            for place in side.sources.tolist():
                yield YieldTurn.TURN
                yield from self._relieve(plan, side, place, targets)

    def _moving_of(self, plan: PoolPlan) -> list[MovingPod]:
        names = set(plan.node_usage.names)
        return [
            one
            for one in self._moving
            if self._node_usage.names[one.source] in names or one.target in names
        ]

    def _relieve(self, plan: PoolPlan, side: Side, place: int, targets: Targets) -> Steps:
        """Let pods leave one node until it is below its thresholds."""
        node_usage, prod = plan.node_usage, side.prod
        name = node_usage.names[place]
        now = overutilization(plan, place, prod=prod)
        excess = now if prod else _curable(plan, place, now)
        if not excess:
            plan.node_notes[name] = "high by what is no pod's; nothing to move"
            return
        ordered = self._ordered(plan, side, place, excess)
        gone: list[tuple[Amount, bool]] = []
        left = excess
        for at, (pod, amount) in enumerate(ordered):
            if at % PODS_PER_TURN == PODS_PER_TURN - 1:
                yield YieldTurn.TURN
            if not left:
                plan.keep([one for one, _ in ordered[at:]], "its node is high no more without it")
                break
            if why := self._objection(pod, amount, left):
                plan.keep([pod], why)
                continue
            is_prod = self._order.is_prod(pod)
            if targets.takes_long(pod):
                yield YieldTurn.WORK
                found = targets.candidates(pod, amount, is_prod=is_prod)
                yield YieldTurn.TURN
            else:
                found = targets.candidates(pod, amount, is_prod=is_prod)
            if not found:
                plan.keep([pod], targets.why_none)
                continue
            shown = tuple(node_usage.names[one] for one in found)
            best = found[0]
            reason = reason_for(plan, place, now, prod=prod)
            relief = Relief(cpu=amount.cpu / 1000, memory=amount.memory)
            result = yield PlannedMove(pod, reason, relief, node_usage.names[best])
            if result is MoveResult.DONE:
                plan.note(pod, Action.EVICT, reason, shown)
                targets.move(pod, best, amount, is_prod=is_prod)
                gone.append((amount, is_prod))
                now, left = _less(now, amount), _less(left, amount)
                self._budgets.spend(pod)
                self._acted(plan, place)
                continue
            plan.note(pod, Action.REFUSED, reason, shown)
            if result is MoveResult.NODE_LIMIT:
                rest = [one for one, _ in ordered[at + 1 :]]
                plan.keep(rest, "no more pods of its node may go in this cycle")
                break
        for is_prod in (False, True):
            pods = [amount for amount, prod_pod in gone if prod_pod is is_prod]
            subtract_moved_usage(node_usage, place, pods, is_prod=is_prod)
        self._settle(plan, side, place)

    def _ordered(
        self, plan: PoolPlan, side: Side, place: int, excess: Excess
    ) -> list[tuple[ClusterPod, Amount]]:
        """The pods that could leave a node, the least important and most useful first."""
        node_usage = plan.node_usage
        amounts = pod_amounts(node_usage.reports[place])
        weights = weights_of(plan.pool.resource_weights, node_usage.resources).tolist()
        cover = ExcessCoverage(excess, weights)
        found = []
        for pod in self._inputs.view.pods(int(node_usage.rows[place])):
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
                if share < _MIN_SHARE:
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
        return self._reject_reason(pod) or self._budgets.reject_reason(pod)

    def _acted(self, plan: PoolPlan, place: int) -> None:
        """Leave a node alone until its usage no longer includes the pods that left."""
        if not self._dry_run:
            report = plan.node_usage.reports[place]
            whole = whole_usage(report, self._args)
            until = report.update_time or 0.0
            if whole is not None:
                until = max(until, self._inputs.now + whole.window)
            self.memory.acted[plan.node_usage.names[place]] = until

    def _settle(self, plan: PoolPlan, side: Side, place: int) -> None:
        """Note whether a node is still overutilized; if not, its count begins anew."""
        name = plan.node_usage.names[place]
        if overutilization(plan, place, prod=side.prod):
            plan.node_notes[name] = "stays high: no other pod can leave"
            return
        plan.node_notes[name] = "high no more without the pods that leave"
        if not self._dry_run:
            detector = self.memory.prod_detector if side.prod else self.memory.node_detector
            detector.reset(name, self._inputs.now)


def move_cost(pod: ClusterPod) -> int:
    """Return what moving a pod costs, in restarts of a pod without data.

    Data on the node is lost and has to be made again; volumes have to be attached elsewhere.
    """
    return 1 + pod.local_storage + bool(pod.claims)


def _curable(plan: PoolPlan, place: int, excess: Excess) -> Excess:
    """Return the excess of a node that would be gone if all its pods were gone."""
    fixed, high = plan.node_usage.fixed[place], plan.limits.high[place]
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

    def reject_reason(self, pod: ClusterPod) -> str:
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
