"""The load of one node: measured usage, estimates of what it missed, and thresholds."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from math import floor, inf
from typing import NamedTuple

from koord.api.annotations import (
    USAGE_THRESHOLDS,
    AggregationType,
    UsageThresholds,
    usage_thresholds,
)
from koord.api.qos import KoordPriorityClass
from koord.api.reservation import RESERVE_POD
from koord.plugin import KoordError
from koord_scheduler.plugin import ClusterNode, ClusterPod, ReportedUsage, Status, UsageReport
from koord_scheduler.plugin.vector import differing_pods
from koord_scheduler_plugins.load_aware.estimates import (
    Assigned,
    Estimator,
    LoadAwareSchedulingArgs,
    Vector,
)

_UNKNOWN: tuple[Vector | None, bool] = None, False
_INTERVAL = 60.0  # seconds from one report to the next, where the NodeMetric does not say


class Reported:
    """A NodeMetric as vectors."""

    def __init__(self, report: UsageReport, resources: Sequence[str]) -> None:
        self._resources = resources
        at = report.update_time
        interval = _INTERVAL if report.interval is None else report.interval
        self.at = -inf if at is None else at
        self.begin = self.at - interval  # pods that started later are not fully in it
        self.usage = None if report.usage is None else self._vector(report.usage)
        self.system = self._vector(report.system_usage)
        self.pods = {key: at for at, key in enumerate(report.pod_keys())}
        """The place in the report of each pod, by namespace/name."""
        self._report = report

    def usage_of(self, key: str) -> tuple[Vector, bool]:
        """Usage of a pod that is in the report, and whether as a prod pod's."""
        found = self._report.pods[self.pods[key]]
        return self._vector(found.usage), found.priority == KoordPriorityClass.PROD

    def aggregated(self, aggregation: AggregationType, duration: float) -> Vector | None:
        """Usage by its type over a window, 0: the longest; None: it is not reported."""
        found: ReportedUsage | None = None
        longest = 0.0
        for window in self._report.aggregated:
            usage: ReportedUsage | None = getattr(window, aggregation.value)
            if usage is None or (duration and window.duration != duration):
                continue
            if window.duration >= longest:  # of equal ones the last, as in Koordinator
                longest, found = window.duration, usage
        return None if found is None else self._vector(found)

    def _vector(self, usage: ReportedUsage | None) -> Vector:
        if usage is None:
            return (0,) * len(self._resources)
        cpu, memory = round(usage.cores * 1000), round(usage.memory_bytes)
        if self._resources == ("cpu", "memory"):
            return cpu, memory
        amounts = {**dict(usage.others), "cpu": cpu, "memory": memory}
        return tuple([amounts.get(name, 0) for name in self._resources])


class _Bounds(NamedTuple):
    """Time bounds of a report that hold for all pods of a node."""

    since: float  # Unix seconds; the latest of them
    at_latest: float  # Unix seconds; the latest of what a report must not be older than
    keys: tuple[str, ...]


class NodeLoad:
    """Reported usage of a node, and what is estimated beside it, pod by pod."""

    def __init__(self, estimator: Estimator, *, prod_includes_system: bool) -> None:
        self._estimator = estimator
        self._prod_includes_system = prod_includes_system
        self.pods: tuple[ClusterPod, ...] = ()  # finished ones too
        self.report: UsageReport | None = None
        self.reported: Reported | None = None
        self.assigned: dict[str, Assigned] = {}  # by uid; of pods that are estimated
        self.node_delta = [0] * len(
            estimator.resources
        )  # what estimates add to the usage of the node
        self._bounds: _Bounds | None = None  # of assigned; None: it has changed
        self._lacks: dict[str, Vector] = {}  # what node_delta is made of, by uid
        self._gone: dict[str, Vector] = {}  # reported usage of pods that have left, by key

    def take_report(self, report: UsageReport | None) -> None:
        """Count by another report; None: there is none."""
        self.report = report
        self.reported = None if report is None else Reported(report, self._estimator.resources)
        self._gone.clear()
        self._recount()

    def take_pods(self, pods: tuple[ClusterPod, ...]) -> None:
        """Count these pods, and no others."""
        begin, old_end, new_end = differing_pods(self.pods, pods)
        gone, arrived = self.pods[begin:old_end], pods[begin:new_end]
        if gone and arrived:  # one that has changed keeps its place: what is behind it stays
            pairs = [both for both in zip(gone, arrived, strict=False) if both[0] is not both[1]]
            gone, arrived = (
                (*[one for one, _ in pairs], *gone[len(arrived) :]),
                (*[one for _, one in pairs], *arrived[len(gone) :]),
            )
        stay = {*map(id, gone)}.intersection(map(id, arrived)) if gone and arrived else ()
        for pod in gone:
            if id(pod) not in stay:
                self._drop(pod)
        for pod in arrived:
            if id(pod) not in stay:
                self._add(pod)
        self.pods = pods

    def leave(self, pod: ClusterPod) -> None:
        """Take what the report says of a pod that has left off the node's usage.

        It counts from the next take_pods on, of which the pod is not one.
        """
        if self.reported is None:
            return
        key = pod.key
        if self._is_about(key, -inf if pod.created is None else pod.created):
            self._gone[key] = self.reported.usage_of(key)[0]

    def with_pods(self, more: Iterable[ClusterPod]) -> "NodeLoad":
        """The load with further pods."""
        other = NodeLoad(self._estimator, prod_includes_system=self._prod_includes_system)
        other.report, other.reported, other._gone = self.report, self.reported, self._gone
        other.assigned = dict(self.assigned)
        other.assigned.update({pod.uid: self._estimator.assigned(pod) for pod in more})
        other._recount()
        return other

    def of_node(self, aggregation: AggregationType, duration: float) -> Vector:
        """The load of the node: usage, and what it lacks of the estimates of its pods.

        A window that is not reported is not guessed: then it is usage, or the estimates of all
        pods where those are more.
        """
        reported = self._reported
        assert reported.usage is not None  # noqa: S101 - asked before
        usage = reported.aggregated(aggregation, duration) if aggregation else None
        base = reported.usage if usage is None else usage
        if self._gone:
            base = self._without_gone(base)
        load = [one + more for one, more in zip(base, self.node_delta, strict=True)]
        if aggregation and duration and usage is None:
            load = [max(one, other) for one, other in zip(load, self.estimated(), strict=True)]
        return tuple(load)

    def of_prod(self) -> Vector:
        """The load by prod pods, and by the system if that counts as theirs."""
        return tuple(
            [one + more for one, more in zip(self.prod_usage(), self.prod_delta(), strict=True)]
        )

    def estimated(self) -> list[int]:
        """The estimates of all pods, whatever they use."""
        return self._sum(one.estimate for one in self.assigned.values())

    def prod_usage(self) -> list[int]:
        """Usage of prod pods, as far as it was reported as theirs."""
        system = self._reported.system if self._prod_includes_system else None
        usages = (self.usage_of(one) for one in self.assigned.values() if one.is_prod)
        return self._sum((system, *(usage for usage, as_prod in usages if as_prod)))

    def prod_delta(self) -> list[int]:
        """Return the amounts that estimates add to the usage of prod pods.

        Usage that was reported as that of another class is not trusted as theirs.
        """
        lacks: list[Vector | None] = []
        for one in self.assigned.values():
            if one.is_prod:
                usage, as_prod = self.usage_of(one)
                trusted = usage is None or as_prod
                lacks.append(self.lack(one, usage) if trusted else one.estimate)
        return self._sum(lacks)

    def usage_of(self, one: Assigned) -> tuple[Vector | None, bool]:
        """Reported usage of a pod and whether as a prod pod's; None: not, or of an earlier one."""
        known = self._is_about(one.key, one.created)
        return self._reported.usage_of(one.key) if known else _UNKNOWN

    def lack(self, one: Assigned, usage: Vector | None) -> Vector | None:
        """Return how far a pod's usage is below its estimate, if that counts; None: nothing."""
        estimate = one.estimate
        if estimate is None or usage is None:
            return estimate
        reported = self._reported
        if one.since <= reported.begin and one.deadline <= reported.at:
            return None
        return tuple([max(whole - used, 0) for whole, used in zip(estimate, usage, strict=True)])

    @property
    def _reported(self) -> Reported:
        assert self.reported is not None  # noqa: S101 - asked before
        return self.reported

    def _add(self, pod: ClusterPod) -> None:
        self._bounds = None
        if is_estimated(pod):
            one = self.assigned[pod.uid] = self._estimator.assigned(pod)
            if self.reported is not None:
                self._count((one,))

    def _drop(self, pod: ClusterPod) -> None:
        self._bounds = None
        self.assigned.pop(pod.uid, None)
        lack = self._lacks.pop(pod.uid, None)
        if lack is not None:
            self.node_delta = [one - less for one, less in zip(self.node_delta, lack, strict=True)]

    def _recount(self) -> None:
        self.node_delta = [0] * len(self._estimator.resources)
        self._lacks = {}
        if self.reported is not None and not self._is_covered():
            self._count(self.assigned.values())

    def _is_covered(self) -> bool:
        """Whether the report measures all pods in full, as most do: then nothing is lacking."""
        if self._bounds is None:
            ones = self.assigned.values()
            self._bounds = _Bounds(
                max((one.since for one in ones), default=-inf),
                max((max(one.deadline, one.created) for one in ones), default=-inf),
                tuple([one.key for one in ones]),
            )
        since, at_latest, keys = self._bounds
        reported = self._reported
        is_old = since <= reported.begin and at_latest <= reported.at and not self._gone
        return is_old and all(map(reported.pods.__contains__, keys))

    def _count(self, ones: Iterable[Assigned]) -> None:
        """Add what the usage of pods lacks of their estimates; most are old, and lack nothing."""
        reported, gone = self._reported, self._gone
        begin, at, known = reported.begin, reported.at, reported.pods
        for one in ones:
            pod, key, _, _, created, since, deadline = one
            is_old = since <= begin and deadline <= at and created <= at
            if is_old and key in known and key not in gone:
                continue
            lack = self.lack(one, self.usage_of(one)[0])
            if lack is not None:
                self._lacks[pod.uid] = lack
                _add(self.node_delta, lack)

    def _is_about(self, key: str, created: float) -> bool:
        """Whether the report has usage of a pod: of this one, which is still there."""
        reported = self._reported
        return key in reported.pods and created <= reported.at and key not in self._gone

    def _sum(self, vectors: Iterable[Vector | None]) -> list[int]:
        total = [0] * len(self._estimator.resources)
        for vector in vectors:
            if vector is not None:
                _add(total, vector)
        return total

    def _without_gone(self, usage: Vector) -> Vector:
        left = list(usage)
        for gone in self._gone.values():
            left = [max(one - less, 0) for one, less in zip(left, gone, strict=True)]
        return tuple(left)


def is_estimated(pod: ClusterPod) -> bool:
    """Whether a pod on a node counts: it has not ended, and does not stand for a Reservation."""
    return not pod.finished and (RESERVE_POD, "true") not in pod.annotations


def _add(total: list[int], more: Vector) -> None:
    for at, amount in enumerate(more):
        total[at] += amount


UNBOUNDED = 2**61  # more than any pod adds
_MAX_PERCENT = 10_000  # of a node; a threshold above it bounds nothing


class Reason(IntEnum):
    """Why a node is rejected."""

    USAGE = 0
    AGGREGATED = 1
    EXPIRED = 2


@dataclass(frozen=True, slots=True)
class LoadThreshold:
    """The lowest loads that are too high for a node, and of which load that is."""

    loads: Vector
    aggregation: AggregationType = AggregationType.NONE
    duration: float = 0.0  # seconds

    @property
    def reason(self) -> Reason:
        return Reason.AGGREGATED if self.aggregation else Reason.USAGE


@dataclass(frozen=True, slots=True)
class NodeRules:
    """Capacity and thresholds of one node."""

    capacity: Vector
    ceilings: tuple[LoadThreshold, LoadThreshold]  # for other pods, and for prod pods


class NodeAssessment(NamedTuple):
    """The inputs of Filter and Score for a node; pairs are for other pods, and for prod pods."""

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
            prod = LoadThreshold(self._ceiling(thresholds.prod, capacity))
        return NodeRules(capacity, (common, prod))

    def judge(self, rules: NodeRules, load: NodeLoad, *, expired: bool) -> NodeAssessment:
        """Return what Filter and Score need of a node.

        expired: the report is too old, or does not say how old it is.
        """
        if load.reported is None:
            return NodeAssessment(self._unbounded, (Reason.USAGE, Reason.USAGE), None)
        if expired:
            return NodeAssessment(self._expired, (Reason.EXPIRED, Reason.EXPIRED), None)
        if load.reported.usage is None:
            return NodeAssessment(self._unbounded, (Reason.USAGE, Reason.USAGE), None)
        common, prod = rules.ceilings
        scored = load.of_node(*self._score_by)
        is_same = (common.aggregation, common.duration) == self._score_by
        of_node = scored if is_same else load.of_node(common.aggregation, common.duration)
        room = _room(common.loads, of_node)
        of_prod = spare = self._spare(rules.capacity, scored)
        if self.args.score_according_prod_usage:
            of_prod = self._spare(rules.capacity, load.of_prod())
        return NodeAssessment(
            (room, room if prod is common else _room(prod.loads, load.of_prod())),
            (common.reason, prod.reason),
            (spare, of_prod),
        )

    def rejection(self, judgement: NodeAssessment, estimate: Vector, *, is_prod: bool) -> int:
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
        self, rules: NodeRules, judgement: NodeAssessment, estimate: Vector, *, is_prod: bool
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

    def _common_ceiling(self, thresholds: UsageThresholds, capacity: Vector) -> LoadThreshold:
        if thresholds.aggregated and thresholds.aggregation:
            loads = self._ceiling(thresholds.aggregated, capacity)
            return LoadThreshold(
                loads, aggregation=thresholds.aggregation, duration=thresholds.duration
            )
        return LoadThreshold(self._ceiling(thresholds.usage, capacity))

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
    if not 0 < threshold <= _MAX_PERCENT or not capacity:
        return UNBOUNDED
    return -(-(2 * threshold + 1) * capacity // 200)


def _room(ceilings: Vector, loads: Vector) -> Vector:
    """Return what is left below the ceilings; without a ceiling, the load does not matter."""
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
