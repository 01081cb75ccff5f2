"""Thresholds of nodes as amounts, and how far nodes exceed them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from koord_descheduler.plugin import Percents
from koord_descheduler_plugins.low_node_load.args import NodePool

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
