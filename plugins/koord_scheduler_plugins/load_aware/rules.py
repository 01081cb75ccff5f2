"""What a node's load means for a pod: how much it may still add, and how good the node is."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from math import floor
from typing import NamedTuple

from koord.api.loadaware import (
    USAGE_THRESHOLDS,
    AggregationType,
    UsageThresholds,
    usage_thresholds,
)
from koord_scheduler.plugin import ClusterNode, KoordError, Status
from koord_scheduler_plugins.load_aware.args import LoadAwareSchedulingArgs
from koord_scheduler_plugins.load_aware.estimates import Vector
from koord_scheduler_plugins.load_aware.loads import NodeLoad

UNBOUNDED = 2**61  # more than any pod adds
_MOST_PERCENT = 10_000  # of a node; a threshold above it bounds nothing


class Reason(IntEnum):
    """Why a node is rejected."""

    USAGE = 0
    AGGREGATED = 1
    EXPIRED = 2


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The lowest loads that are too high for a node, and of which load that is."""

    loads: Vector
    aggregation: AggregationType = AggregationType.NONE
    duration: float = 0.0  # seconds

    @property
    def reason(self) -> Reason:
        return Reason.AGGREGATED if self.aggregation else Reason.USAGE


@dataclass(frozen=True, slots=True)
class NodeRules:
    """What the node itself says."""

    capacity: Vector
    ceilings: tuple[Ceiling, Ceiling]  # for other pods, and for prod pods


class Judgement(NamedTuple):
    """What Filter and Score need of a node; pairs are for other pods, and for prod pods."""

    room: tuple[Vector, Vector]  # the least estimates that are too much
    reasons: tuple[Reason, Reason]  # why they are
    spare: tuple[Vector, Vector] | None  # hundred times what is not loaded; None: not scored


class Rules:
    """The arguments of the plugin as rules."""

    def __init__(self, args: LoadAwareSchedulingArgs) -> None:
        self.args = args
        self.resources = args.resources
        self.weights = tuple(args.resource_weights.get(name, 0) for name in self.resources)
        self.dominant = args.dominant_resource_weight
        self.scores = bool(sum(self.weights) + self.dominant)
        aggregated = args.aggregated
        self._own = UsageThresholds(usage=args.usage_thresholds, prod=args.prod_usage_thresholds)
        self._score_by = AggregationType.NONE, 0.0
        if aggregated is not None:
            self._own = UsageThresholds(
                args.usage_thresholds,
                args.prod_usage_thresholds,
                aggregated.usage_thresholds,
                aggregated.usage_aggregation_type,
                aggregated.usage_aggregated_duration,
            )
            self._score_by = (
                aggregated.score_aggregation_type,
                aggregated.score_aggregated_duration,
            )
        unbounded = (UNBOUNDED,) * len(self.resources)
        self._unbounded = unbounded, unbounded
        never = (-UNBOUNDED,) * len(self.resources)
        self._expired = self._unbounded
        if args.filter_expired_node_metrics and not args.enable_schedule_when_node_metrics_expired:
            self._expired = never, never
        self.rejections = _rejections(self.resources)

    def of_node(self, node: ClusterNode) -> NodeRules:
        """Return the capacity and the thresholds of a node."""
        amounts = dict(node.allocatable)
        amounts.update(node.raw_allocatable or ())
        capacity = tuple([amounts.get(name, 0) for name in self.resources])
        thresholds = self._own
        for key, text in node.annotations:
            if key == USAGE_THRESHOLDS:
                thresholds = _merged(thresholds, _parsed(text))
        common = self._common_ceiling(thresholds, capacity)
        prod = common
        if any(thresholds.prod.get(name) for name in self.resources):
            prod = Ceiling(self._ceiling(thresholds.prod, capacity))
        return NodeRules(capacity, (common, prod))

    def judge(self, rules: NodeRules, load: NodeLoad, *, expired: bool) -> Judgement:
        """Return what Filter and Score need of a node.

        expired: the report is too old, or does not say how old it is.
        """
        if load.reported is None:
            return Judgement(self._unbounded, (Reason.USAGE, Reason.USAGE), None)
        if expired:
            return Judgement(self._expired, (Reason.EXPIRED, Reason.EXPIRED), None)
        if load.reported.usage is None:
            return Judgement(self._unbounded, (Reason.USAGE, Reason.USAGE), None)
        common, prod = rules.ceilings
        scored = load.of_node(*self._score_by)
        is_same = (common.aggregation, common.duration) == self._score_by
        of_node = scored if is_same else load.of_node(common.aggregation, common.duration)
        room = _room(common.loads, of_node)
        of_prod = spare = self._spare(rules.capacity, scored)
        if self.args.score_according_prod_usage:
            of_prod = self._spare(rules.capacity, load.of_prod())
        return Judgement(
            (room, room if prod is common else _room(prod.loads, load.of_prod())),
            (common.reason, prod.reason),
            (spare, of_prod),
        )

    def rejection(self, judgement: Judgement, estimate: Vector, *, is_prod: bool) -> int:
        """Return the number of the rejection of a pod, as in rejections; 0: there is none."""
        for at, (adds, room) in enumerate(zip(estimate, judgement.room[is_prod], strict=True)):
            if adds >= room:
                return self.number(judgement.reasons[is_prod], at)
        return 0

    def number(self, reason: Reason, resource: int) -> int:
        """The number of a rejection because of the resource of this index."""
        if reason is Reason.EXPIRED:
            return len(self.rejections)
        return 1 + reason * len(self.resources) + resource

    def score(
        self, rules: NodeRules, judgement: Judgement, estimate: Vector, *, is_prod: bool
    ) -> int:
        """Return the score of a node."""
        if judgement.spare is None or not self.scores:
            return 0
        shares: list[float] = []
        total = 0.0
        for adds, spare, capacity, weight in zip(
            estimate, judgement.spare[is_prod], rules.capacity, self.weights, strict=True
        ):
            if capacity:
                shares.append(max(floor((spare - 100.0 * adds) / capacity), 0))
                total += shares[-1] * weight
        total += self.dominant * min(shares, default=0)
        return int(total / (sum(self.weights) + self.dominant))

    def _common_ceiling(self, thresholds: UsageThresholds, capacity: Vector) -> Ceiling:
        if thresholds.aggregated and thresholds.aggregation:
            loads = self._ceiling(thresholds.aggregated, capacity)
            return Ceiling(loads, aggregation=thresholds.aggregation, duration=thresholds.duration)
        return Ceiling(self._ceiling(thresholds.usage, capacity))

    def _ceiling(self, thresholds: Mapping[str, int], capacity: Vector) -> Vector:
        return tuple(
            [
                _lowest_above(thresholds.get(name, 0), all_)
                for name, all_ in zip(self.resources, capacity, strict=True)
            ]
        )

    def _spare(self, capacity: Vector, load: Vector) -> Vector:
        return tuple([100 * (all_ - used) for all_, used in zip(capacity, load, strict=True)])


def _lowest_above(threshold: int, capacity: int) -> int:
    """The lowest load whose rounded percentage of the capacity is above the threshold."""
    if not 0 < threshold <= _MOST_PERCENT or not capacity:
        return UNBOUNDED
    return -(-(2 * threshold + 1) * capacity // 200)


def _room(ceilings: Vector, loads: Vector) -> Vector:
    """What is left below the ceilings; where there is none, it does not depend on the load."""
    return tuple(
        [
            high if high == UNBOUNDED else high - used
            for high, used in zip(ceilings, loads, strict=True)
        ]
    )


def _merged(own: UsageThresholds, given: UsageThresholds) -> UsageThresholds:
    """Each part that a node gives replaces that of the arguments."""
    part = given if given.aggregated and given.aggregation else own
    return UsageThresholds(
        given.usage or own.usage,
        given.prod or own.prod,
        part.aggregated,
        part.aggregation,
        part.duration,
    )


@lru_cache(maxsize=256)  # nodes of one pool have the same
def _parsed(text: str) -> UsageThresholds:
    try:
        return usage_thresholds(text)
    except KoordError:  # as in Koordinator, a malformed one counts as absent
        return UsageThresholds()


def _rejections(resources: tuple[str, ...]) -> tuple[Status, ...]:
    texts = [
        *(f"node(s) {name} usage exceed threshold" for name in resources),
        *(f"node(s) {name} aggregated usage exceed threshold" for name in resources),
        "node(s) nodeMetric expired",
    ]
    return tuple(Status.unschedulable(text) for text in texts)
