"""Arguments of LowNodeLoad, and its thresholds as amounts of nodes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from koord.api.labelselector import LabelSelector
from koord.plugin.args import (
    FieldError,
    FieldPath,
    Int32,
    Key,
    Seconds,
    UInt32,
    invalid,
    invalid_duration,
    required,
    warning,
)
from koord_descheduler.plugin import (
    Namespaces,
    Percents,
    PodSelector,
    check_label_selector,
    check_namespaces,
    check_pod_selectors,
)

_M = TypeVar("_M", Percents, Mapping[str, int])

DEFAULT_POOL = "__default_node_pool__"

_ABNORMALITIES, _NORMALITIES, _TIMEOUT = 5, 3, 60.0
_BASE_RESOURCES = ("cpu", "memory")


class Planner(StrEnum):
    """The rules by which pods are chosen."""

    EXACT = "exact"  # reserves on targets what is really moved; see docs/differences.md
    KOORDINATOR = "koordinator"  # as Koordinator does it


class AggregationType(StrEnum):
    """The figure of a NodeMetric's window that counts as usage."""

    AVG = "avg"
    P50 = "p50"
    P90 = "p90"
    P95 = "p95"
    P99 = "p99"


@dataclass(frozen=True, kw_only=True, slots=True)
class AnomalyCondition:
    """The rules by which a node counts as abnormal, and as normal again."""

    timeout: Seconds = 0.0  # seconds for which an abnormal node stays so; 0: 60
    consecutive_abnormalities: UInt32 = 0  # rounds above a high threshold; 0: 5, or the top level's
    consecutive_normalities: UInt32 = 0  # rounds without; 0: 3, or the top level's

    @property
    def effective_timeout(self) -> float:
        """Seconds for which an abnormal node stays so."""
        return self.timeout or _TIMEOUT

    def with_counters(self, abnormalities: int, normalities: int) -> Self:
        """The same with counters that are not set from elsewhere."""
        return replace(
            self,
            consecutive_abnormalities=self.consecutive_abnormalities or abnormalities,
            consecutive_normalities=self.consecutive_normalities or normalities,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class NodePoolArgs:
    """A node pool with its own thresholds; each unset field is the top level's, as a whole.

    An empty map counts as set.
    """

    name: str = ""  # for people
    node_selector: LabelSelector | None = None  # nodes of the pool; not set: all
    use_deviation_thresholds: bool = False  # as at the top level, but not inherited
    high_thresholds: Percents | None = None  # as at the top level
    low_thresholds: Percents | None = None  # as at the top level
    prod_high_thresholds: Percents | None = None  # as at the top level
    prod_low_thresholds: Percents | None = None  # as at the top level
    resource_weights: Mapping[str, int] | None = None  # as at the top level
    anomaly_condition: AnomalyCondition | None = None  # as at the top level


@dataclass(frozen=True, kw_only=True, slots=True)
class NodePool:
    """A pool with all its settings. Thresholds are in percent, weights by name of resource."""

    name: str
    node_selector: LabelSelector | None  # None: all nodes
    use_deviation_thresholds: bool
    high_thresholds: Percents
    low_thresholds: Percents
    prod_high_thresholds: Percents
    prod_low_thresholds: Percents
    resource_weights: Mapping[str, int]
    anomaly_condition: AnomalyCondition


@dataclass(frozen=True, kw_only=True, slots=True)
class LowNodeLoadArgs:
    """Thresholds are in percent of a node's allocatable, by name of resource."""

    paused: bool = False  # do nothing
    dry_run: bool = False  # decide, but evict nothing
    number_of_nodes: Int32 = 0  # act only while more nodes than this are low
    node_metric_expiration_seconds: int = 180  # a node with an older NodeMetric is left alone
    evictable_namespaces: Namespaces | None = None  # pods that may go; not set: all
    node_selector: LabelSelector | None = None  # nodes of the first pool; not set: all
    pod_selectors: tuple[PodSelector, ...] = ()  # pods that may go match one of them; none: all
    node_fit: bool = True  # a pod goes only if another node can take it
    use_deviation_thresholds: bool = False  # thresholds are distances from the mean of the nodes
    high_thresholds: Percents | None = None  # above one of these a node is hot
    low_thresholds: Percents | None = None  # below all of these it takes pods
    prod_high_thresholds: Percents | None = None  # the same, of the usage of prod pods
    prod_low_thresholds: Percents | None = None  # the same, of the usage of prod pods
    resource_weights: Mapping[str, int] | None = None  # for the order of nodes and pods; not set: 1
    anomaly_condition: AnomalyCondition | None = None  # not set: 1m, 5 and 3
    detector_cache_timeout: Seconds = 300.0  # seconds that a node's counters are kept
    node_pools: tuple[NodePoolArgs, ...] = ()  # more pools, after the one of the top level
    planner: Planner = Planner.EXACT  # the rules by which pods are chosen
    usage_aggregation_type: AggregationType | None = None  # not set: the mean of the last report
    usage_aggregation_duration: Seconds | None = None  # the window; not set: the shortest there is

    def complete(self) -> Self:
        """Fill in what depends on other fields."""
        anomaly = self.anomaly_condition or AnomalyCondition(timeout=_TIMEOUT)
        completed = replace(
            self,
            anomaly_condition=anomaly.with_counters(_ABNORMALITIES, _NORMALITIES),
            resource_weights=self._weights(),
        )
        pools = tuple(completed.inherited_by(pool) for pool in self.node_pools)
        return replace(completed, node_pools=pools)

    def for_interval(self, interval: float) -> Self:
        """Keep counters for at least two cycles."""
        return replace(self, detector_cache_timeout=max(self.detector_cache_timeout, 2 * interval))

    def as_if_lasting(self) -> Self:
        """A node is abnormal when it is seen so once."""
        pools = [replace(pool, anomaly_condition=_once(pool)) for pool in self.node_pools]
        return replace(self, anomaly_condition=_once(self), node_pools=tuple(pools))

    def pools(self) -> tuple[NodePool, ...]:
        """The pools in the order in which they are processed: the top level's first."""
        first = NodePoolArgs(
            name=DEFAULT_POOL,
            node_selector=self.node_selector,
            use_deviation_thresholds=self.use_deviation_thresholds,
        )
        return tuple(map(_pool, map(self.inherited_by, (first, *self.node_pools))))

    def hot_thresholds(self) -> Iterator[tuple[Percents, LabelSelector | None]]:
        """Yield the high thresholds of all pools; distances from a mean are left out."""
        for pool in self.pools():
            if pool.high_thresholds and not pool.use_deviation_thresholds:
                yield pool.high_thresholds, pool.node_selector

    def validate(self) -> Iterator[FieldError]:
        """Return the faults, and warnings."""
        if self.number_of_nodes < 0:
            wanted = "must be greater than or equal to 0"
            yield invalid(("numberOfNodes",), self.number_of_nodes, wanted)
        if self.node_metric_expiration_seconds <= 0:
            found = self.node_metric_expiration_seconds
            wanted = "nodeMetricExpiredSeconds should be a positive value"
            yield invalid(("nodeMetricExpirationSeconds",), found, wanted)
        if self.detector_cache_timeout < 0:
            timeout = self.detector_cache_timeout
            yield invalid_duration(("detectorCacheTimeout",), timeout, "wanted 0s or more")
        yield from self._check_aggregation()
        yield from check_namespaces(("evictableNamespaces",), self.evictable_namespaces)
        yield from check_label_selector(("nodeSelector",), self.node_selector)
        yield from check_pod_selectors(self.pod_selectors)
        yield from _check_thresholds(self)
        for index, pool in enumerate(self.node_pools):
            path: FieldPath = ("nodePools", index)
            yield from check_label_selector((*path, "nodeSelector"), pool.node_selector)
            for fault in _check_thresholds(pool, self):
                yield fault.below(path)

    def inherited_by(self, pool: NodePoolArgs) -> NodePoolArgs:
        """Return a pool with what it has not set."""
        own = self.anomaly_condition or AnomalyCondition()
        counters = own.consecutive_abnormalities, own.consecutive_normalities
        condition = pool.anomaly_condition
        return replace(
            pool,
            high_thresholds=_first(pool.high_thresholds, self.high_thresholds),
            low_thresholds=_first(pool.low_thresholds, self.low_thresholds),
            prod_high_thresholds=_first(pool.prod_high_thresholds, self.prod_high_thresholds),
            prod_low_thresholds=_first(pool.prod_low_thresholds, self.prod_low_thresholds),
            resource_weights=_first(pool.resource_weights, self.resource_weights),
            anomaly_condition=condition.with_counters(*counters) if condition else own,
        )

    def _weights(self) -> Mapping[str, int]:
        """The weights that are set, and 1 for each resource of the nodes' thresholds."""
        given = self.resource_weights or {}
        names = (*_BASE_RESOURCES, *(self.low_thresholds or ()), *(self.high_thresholds or ()))
        return {**given, **{name: 1 for name in names if given.get(name, 0) <= 0}}

    def _check_aggregation(self) -> Iterator[FieldError]:
        duration = self.usage_aggregation_duration
        if duration is None:
            return
        if duration <= 0:
            yield invalid_duration(("usageAggregationDuration",), duration, "wanted more than 0s")
        if self.usage_aggregation_type is None:
            hint = "usageAggregationDuration has no meaning without it"
            yield required(("usageAggregationType",), hint)


def _pool(pool: NodePoolArgs) -> NodePool:
    return NodePool(
        name=pool.name,
        node_selector=pool.node_selector,
        use_deviation_thresholds=pool.use_deviation_thresholds,
        high_thresholds=pool.high_thresholds or {},
        low_thresholds=pool.low_thresholds or {},
        prod_high_thresholds=pool.prod_high_thresholds or {},
        prod_low_thresholds=pool.prod_low_thresholds or {},
        resource_weights=pool.resource_weights or {},
        anomaly_condition=pool.anomaly_condition or AnomalyCondition(),
    )


def _once(args: "LowNodeLoadArgs | NodePoolArgs") -> AnomalyCondition:
    return replace(args.anomaly_condition or AnomalyCondition(), consecutive_abnormalities=1)


def _first(own: _M | None, inherited: _M | None) -> _M | None:
    return inherited if own is None else own


_MAPS = {
    "highThresholds": "high_thresholds",
    "lowThresholds": "low_thresholds",
    "prodHighThresholds": "prod_high_thresholds",
    "prodLowThresholds": "prod_low_thresholds",
}
# map, the map that bounds it from above, message
_ORDER = (
    (
        "lowThresholds",
        "highThresholds",
        "low percentage must be less than or equal to highThresholds",
    ),
    (
        "prodHighThresholds",
        "highThresholds",
        "node percentage must be greater than or equal to prodHighThresholds",
    ),
    (
        "prodLowThresholds",
        "prodHighThresholds",
        "low percentage must be less than or equal to prodHighThresholds",
    ),
)


def _check_thresholds(
    args: LowNodeLoadArgs | NodePoolArgs, inherited: LowNodeLoadArgs | None = None
) -> Iterator[FieldError]:
    """The rules of the four maps and of the counters; not again those of what is inherited."""
    maps: dict[str, Percents] = {key: getattr(args, name) or {} for key, name in _MAPS.items()}
    own = {
        key
        for key, name in _MAPS.items()
        if getattr(args, name) is not getattr(inherited, name, ())
    }
    for key in sorted(own):
        yield from _check_percents(key, maps[key])
    for low, high, message in _ORDER:
        for name in maps[low] if own & {low, high} else ():
            if maps[low][name] > maps[high].get(name, maps[low][name]):
                yield invalid((low, Key(name)), maps[low][name], message)
    if inherited is None or args.resource_weights is not inherited.resource_weights:
        for name, weight in (args.resource_weights or {}).items():
            if weight < 0:
                yield invalid(("resourceWeights", Key(name)), weight, "wanted 0 or more")
    condition = args.anomaly_condition
    if condition is not None and (
        inherited is None or condition is not inherited.anomaly_condition
    ):
        yield from _check_condition(("anomalyCondition",), condition)


def _check_percents(key: str, percents: Percents) -> Iterator[FieldError]:
    for name, percent in percents.items():
        path: FieldPath = (key, Key(name))
        if percent < 0:
            yield invalid(path, percent, "percentage must be greater than or equal to 0")
        elif percent > 100:
            yield warning(path, f"{percent:g} percent; more than 100 is hardly ever reached")


def _check_condition(path: FieldPath, condition: AnomalyCondition) -> Iterator[FieldError]:
    if condition.timeout < 0:
        yield invalid_duration((*path, "timeout"), condition.timeout, "wanted 0s or more")
    for key, count in (
        ("consecutiveAbnormalities", condition.consecutive_abnormalities),
        ("consecutiveNormalities", condition.consecutive_normalities),
    ):
        if count <= 0:
            yield invalid((*path, key), count, f"{key} must be greater than 0")


Amounts = NDArray[np.int64]
"""(nodes, resources): milli-cores, bytes, pods or units."""
Flags = NDArray[np.bool_]

BASE = ("cpu", "memory", "pods")
_UNBOUNDED = 2**60


def resources_of(pools: Iterable[NodePool]) -> tuple[str, ...]:
    """The columns of a round: the base ones, and whatever else has a threshold."""
    named = {name for pool in pools for percents in _maps(pool) for name in percents}
    return (*BASE, *sorted(named - set(BASE)))


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeThresholds:
    """Thresholds of nodes: (nodes, resources); of a kind that is not judged they bound nothing."""

    low: Amounts
    high: Amounts
    prod_low: Amounts
    prod_high: Amounts
    judged: Flags  # (resources,): those whose usage decides what a node is
    prod_judged: Flags  # (resources,): the same, of usage by prod pods
    printed: Percents  # high thresholds as they are written in reasons; {}: as they are in effect
    prod_printed: Percents


def koordinator_thresholds(
    pool: NodePool,
    resources: Sequence[str],
    *,
    capacity: Amounts,
    usage: Amounts,
    prod_usage: Amounts,
) -> NodeThresholds:
    """Return the thresholds as Koordinator has them, filled in first."""
    low, high, prod_low, prod_high = filled = filled_in(pool)
    if pool.use_deviation_thresholds:
        means = _mean_percents(usage, capacity, np.ones_like(capacity, np.bool_))
        prod_means = _mean_percents(prod_usage, capacity, np.ones_like(capacity, np.bool_))
        lows, highs = _around(means, low, high, resources)
        prod_lows, prod_highs = _around(prod_means, prod_low, prod_high, resources)
        percents = [lows, highs, prod_lows, prod_highs]
    else:
        percents = [_column(one, resources, 100.0) for one in filled]
    judged = np.array([name in low for name in resources])
    low_at, high_at, prod_low_at, prod_high_at = (absolute(one, capacity) for one in percents)
    return NodeThresholds(
        low=low_at,
        high=high_at,
        prod_low=prod_low_at,
        prod_high=prod_high_at,
        judged=judged,
        prod_judged=judged,
        printed=high,
        prod_printed=prod_high,
    )


def exact_thresholds(
    pool: NodePool,
    resources: Sequence[str],
    *,
    capacity: Amounts,
    usage: Amounts,
    prod_usage: Amounts,
) -> NodeThresholds:
    """Return the thresholds that are set: each by itself, none stands for another.

    A resource without a high threshold makes no node high; capacity bounds it on targets. One
    without a low threshold keeps no node from being low. Where there is no capacity nothing is
    judged.
    """
    sides = (
        (usage, pool.low_thresholds, pool.high_thresholds),
        (prod_usage, pool.prod_low_thresholds, pool.prod_high_thresholds),
    )
    bounds = []
    for used, low, high in sides:
        low_percents, high_percents = _column(low, resources), _column(high, resources)
        if pool.use_deviation_thresholds:
            mean = _mean_percents(used, capacity, capacity > 0)
            low_percents = np.clip(mean - low_percents, 0, 100)
            high_percents = np.clip(mean + high_percents, 0, 100)
        high_percents = np.where(np.isnan(high_percents), 100.0, high_percents)
        low_percents = np.where(np.isnan(low_percents), high_percents, low_percents)
        bounds += [
            np.where(capacity > 0, absolute(percents, capacity), _UNBOUNDED)
            for percents in (low_percents, high_percents)
        ]
    low_at, high_at, prod_low_at, prod_high_at = bounds
    return NodeThresholds(
        low=low_at,
        high=high_at,
        prod_low=prod_low_at,
        prod_high=prod_high_at,
        judged=np.array([name in pool.high_thresholds for name in resources]),
        prod_judged=np.array([name in pool.prod_high_thresholds for name in resources]),
        printed={},
        prod_printed={},
    )


def filled_in(pool: NodePool) -> tuple[Percents, Percents, Percents, Percents]:
    """Return low, high, prod low and prod high thresholds as Koordinator fills them in.

    A resource that lacks its low threshold has both at the most: 100 percent, or a deviation of 0,
    which stands for the same. memory is always there.
    """
    low, high, prod_low, prod_high = (dict(percents) for percents in _maps(pool))
    most = 0.0 if pool.use_deviation_thresholds else 100.0
    for name in {"memory", *low, *high, *prod_low, *prod_high}:
        for lower, upper in ((low, high), (prod_low, prod_high)):
            if name not in lower:
                lower[name] = upper[name] = most
            upper.setdefault(name, 0.0)
    return low, high, prod_low, prod_high


def absolute(percents: NDArray[np.float64], capacity: Amounts) -> Amounts:
    """Return amounts for percentages of capacities, cut to whole units."""
    return np.trunc(percents * 0.01 * capacity).astype(np.int64)


def percent_of(amounts: Amounts, capacity: Amounts) -> NDArray[np.float64]:
    """Return percentages of capacities; 0 where there is no capacity."""
    some = np.maximum(capacity, 1)
    found: NDArray[np.float64] = np.where(capacity > 0, amounts / some * 100, 0.0)
    return found


def _maps(pool: NodePool) -> tuple[Percents, Percents, Percents, Percents]:
    return (
        pool.low_thresholds,
        pool.high_thresholds,
        pool.prod_low_thresholds,
        pool.prod_high_thresholds,
    )


def _column(
    percents: Mapping[str, float], resources: Sequence[str], absent: float = np.nan
) -> NDArray[np.float64]:
    return np.array([percents.get(name, absent) for name in resources], np.float64)


def _mean_percents(usage: Amounts, capacity: Amounts, counted: Flags) -> NDArray[np.float64]:
    """Means over the counted nodes, in percent of each node's capacity; shape (resources,)."""
    counts = np.maximum(counted.sum(axis=0), 1)
    found: NDArray[np.float64] = percent_of(usage, capacity).sum(axis=0, where=counted) / counts
    return found


def _around(
    means: NDArray[np.float64], low: Percents, high: Percents, resources: Sequence[str]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Koordinator's thresholds around the mean; a low deviation of 0 switches a resource off."""
    lows, highs = _column(low, resources, 0.0), _column(high, resources, 0.0)
    off = lows == 0
    below = np.where(off, 100.0, np.clip(means - lows, 0, 100))
    above = np.where(off, 100.0, np.clip(means + highs, 0, 100))
    return below, above


_MAX_WEIGHT = 2**20  # so that sums stay below 64 bits


def weights_of(named: Mapping[str, int], resources: Sequence[str]) -> NDArray[np.int64]:
    """The weights as a column, shape (resources,)."""
    return np.array([min(named.get(name, 0), _MAX_WEIGHT) for name in resources], np.int64)


def node_scores(
    usage: Amounts, capacity: Amounts, weights: NDArray[np.int64], scored: Flags
) -> NDArray[np.int64]:
    """Return how loaded nodes are, 0 to 1000, shape (nodes,); what is not scored does not count."""
    total = int(weights[scored].sum())
    if total == 0:
        return np.zeros(len(usage), np.int64)
    some = np.maximum(capacity, 1)
    shares = np.where(capacity > 0, np.minimum(usage, capacity) * 1000 // some, 0)
    found: NDArray[np.int64] = (shares * weights)[:, scored].sum(axis=1) // total
    return found


Excess = Mapping[int, int]
"""By how much a node is above its threshold, by column; only where it is."""


class ExcessCoverage:
    """How well pods cover an excess of a node."""

    def __init__(self, excess: Excess, weights: Sequence[int]) -> None:
        """weights: by column."""
        self._terms = [(column, over, weights[column]) for column, over in excess.items()]
        self._total = sum(weight for _, _, weight in self._terms)

    def __call__(self, taken: Sequence[int]) -> tuple[float, float]:
        """Return the score of a pod that takes so much, by column, and the largest share it covers.

        The score is best, 2, if a pod just covers the excess. Below that it grows with the share
        that the pod covers, beyond it falls towards 1.
        """
        score = largest = 0.0
        for column, over, weight in self._terms:
            if column < len(taken):
                share = taken[column] / over
                score += weight * (share if share < 1 else 1 + 1 / share)
                if share > largest:
                    largest = share
        return (score / self._total if self._total else 0.0), largest
