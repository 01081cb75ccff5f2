"""Nodes that take pods: what each can still take, and which of them is best for a pod."""

import numpy as np
from numpy.typing import NDArray

from koord_descheduler.plugin import ClusterPod, Moves, View
from koord_descheduler_plugins.low_node_load.census import CPU, MEMORY, PODS, MovingPod
from koord_descheduler_plugins.low_node_load.figures import Amount
from koord_descheduler_plugins.low_node_load.limits import Flags
from koord_descheduler_plugins.low_node_load.plan import PoolPlan, Side
from koord_descheduler_plugins.low_node_load.scores import weights_of

_MOST = 3  # candidates of a pod


class Targets:
    """The targets of both sides. Only pods that really come are counted."""

    def __init__(self, plan: PoolPlan, view: View, *, node_fit: bool) -> None:
        """node_fit: a target must be able to run the pod; else only the load counts."""
        census, limits = plan.census, plan.limits
        self._at: NDArray[np.intp] = np.unique(
            np.concatenate([side.targets for side in plan.sides])
        )
        self._names = [census.names[at] for at in self._at.tolist()]
        self._places = {name: place for place, name in enumerate(self._names)}
        self._place_of = {at: place for place, at in enumerate(self._at.tolist())}
        self._rows = census.rows[self._at].tolist()
        capacity = np.maximum(census.capacity[self._at], 1).T
        expected = (census.usage + census.in_transit)[self._at].T
        prod_expected = (census.prod_usage + census.prod_in_transit)[self._at].T
        self._left = limits.high[self._at].T - expected  # (resources, targets)
        self._prod_left = limits.prod_high[self._at].T - prod_expected
        base = np.isin(np.arange(len(limits.judged)), (CPU, MEMORY))
        self._bounding = np.flatnonzero(limits.judged | base)[1:].tolist()  # but CPU
        self._prod_bounding = np.flatnonzero(limits.prod_judged).tolist()
        weights = weights_of(plan.pool.resource_weights, census.resources) * (limits.judged | base)
        share = weights / max(int(weights.sum()), 1)
        self._per_unit = share[:, None] / capacity  # load of one unit on each target
        self._weighted = [column for column in (CPU, MEMORY, PODS) if share[column] > 0]
        self._load = (self._per_unit * expected).sum(axis=0)
        self._moves = Moves(view, census.rows[self._at]) if node_fit else None
        self._chosen: Flags | None = None  # None: all
        self.why_none = ""
        """Why candidates found none the last time, a sentence for people."""

    def choose(self, side: Side) -> None:
        """Take only the targets of one side from now on."""
        chosen = np.isin(self._at, side.targets)
        self._chosen = None if chosen.all() else chosen

    def takes_long(self, pod: ClusterPod) -> bool:
        """Whether candidates would hold up the event loop."""
        return self._moves is not None and self._moves.minds_others(pod)

    def candidates(self, pod: ClusterPod, amount: Amount, *, is_prod: bool) -> tuple[int, ...]:
        """Return the nodes that can take a pod, the one that is least loaded with it first.

        They are places in the census; no more than a few.
        """
        taken = (amount.cpu, amount.memory, 1)
        allowed = self._has_left(taken, is_prod=is_prod)
        if self._moves is not None:
            allowed &= self._moves.fits(pod)
        load = self._load
        for column in self._weighted:
            load = load + self._per_unit[column] * taken[column]
        load = np.where(allowed, load, np.inf)
        best: list[int] = []
        while len(best) < _MOST and load[place := int(load.argmin())] < np.inf:
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
        """A pod leaves its node for a target, given by its place in the census."""
        place = self._place_of[target]
        taken = np.array((amount.cpu, amount.memory, 1), np.int64)
        self._left[:3, place] -= taken
        if is_prod:
            self._prod_left[:3, place] -= taken
        self._load[place] += self._per_unit[:3, place] @ taken
        if self._moves is not None:
            self._moves.move(pod, self._rows[place])

    def arrive(self, moving: MovingPod) -> None:
        """Count a pod that is on its way: on its target, or where it would go at best.

        On a known target it is in transit already.
        """
        if moving.target:
            place = self._places.get(moving.target)
            if self._moves is not None:
                self._moves.move(moving.pod, None if place is None else self._rows[place])
            return
        found = self.candidates(moving.pod, moving.amount, is_prod=moving.is_prod)
        if found:
            self.move(moving.pod, found[0], moving.amount, is_prod=moving.is_prod)
