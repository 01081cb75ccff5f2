"""Scores of nodes by how much of their resources is requested: of one node, and of all at once.

A resource of which a node has nothing does not count there.

Source: Kubernetes, plugins/noderesources least_allocated.go, most_allocated.go,
requested_to_capacity_ratio.go, balanced_allocation.go.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from koord_scheduler.rules.resourceuse import Use, UseColumns

HIGHEST = 100  # score, and percent of use

Column = NDArray[np.int64]


class Scorer(ABC):
    """A formula. What is asked about has a place for each resource; None: it does not count."""

    @abstractmethod
    def of_node(self, uses: Sequence[Use | None]) -> int:
        """The score of one node, 0 to HIGHEST."""

    @abstractmethod
    def of_all(self, uses: Sequence[UseColumns | None], nodes: int) -> Column:
        """The scores of all nodes; shape (nodes,)."""


class WeightedMean(Scorer):
    """The mean of the resources' scores by their weights, cut to a whole number."""

    def __init__(self, weights: Sequence[int]) -> None:
        self.weights = tuple(weights)

    @abstractmethod
    def score(self, use: Use) -> int:
        """Of a resource on a node that has some."""

    @abstractmethod
    def scores(self, use: UseColumns, divisor: Column) -> Column:
        """Of a resource on all nodes; divisor is what they have, 1 for nothing."""

    def of_node(self, uses: Sequence[Use | None]) -> int:
        total = weight = 0
        for use, each in zip(uses, self.weights, strict=True):
            if use is not None and use.allocatable:
                total += each * self.score(use)
                weight += each
        return total // weight if weight else 0

    def of_all(self, uses: Sequence[UseColumns | None], nodes: int) -> Column:
        total, weight = np.zeros(nodes, np.int64), 0
        lacking: list[tuple[NDArray[np.bool_], int]] = []
        for use, each in zip(uses, self.weights, strict=True):
            if use is None:
                continue
            scores, lacks = _of_those_that_have_some(self.scores, use)
            total += scores if each == 1 else scores * each
            weight += each
            if lacks is not None:
                lacking.append((lacks, each))
        if not weight:
            return total
        if not lacking:
            total //= weight
            return total
        weights = np.full(nodes, weight)
        for lacks, each in lacking:
            weights -= lacks * each
        total //= np.maximum(weights, 1)
        return total


class LeastAllocated(WeightedMean):
    """The more is free, the better."""

    def score(self, use: Use) -> int:
        return max(use.allocatable - use.requested, 0) * HIGHEST // use.allocatable

    def scores(self, use: UseColumns, divisor: Column) -> Column:
        free: Column = use.allocatable - use.requested
        np.maximum(free, 0, out=free)
        free *= HIGHEST
        free //= divisor
        return free


class MostAllocated(WeightedMean):
    """The less is free, the better."""

    def score(self, use: Use) -> int:
        return min(use.requested, use.allocatable) * HIGHEST // use.allocatable

    def scores(self, use: UseColumns, divisor: Column) -> Column:
        used = np.minimum(use.requested, use.allocatable)
        used *= HIGHEST
        used //= divisor
        return used


class RequestedToCapacityRatio(Scorer):
    """By a broken line from percent of use to score; resources with score 0 do not count."""

    def __init__(self, shape: Sequence[tuple[int, int]], weights: Sequence[int]) -> None:
        """shape: percent, ascending, and scores, 0 to HIGHEST; it is even beyond its ends."""
        self.shape = tuple(shape)
        self.weights = tuple(weights)

    @cached_property
    def _table(self) -> Column:
        """The score of each percentage."""
        return np.array([self._at(percent) for percent in range(HIGHEST + 1)], np.int64)

    def of_node(self, uses: Sequence[Use | None]) -> int:
        total = weight = 0
        for use, each in zip(uses, self.weights, strict=True):
            if use is None or not use.allocatable:
                continue
            percent = min(use.requested, use.allocatable) * HIGHEST // use.allocatable
            score = self._at(percent)
            if score > 0:
                total += each * score
                weight += each
        return (2 * total + weight) // (2 * weight) if weight else 0

    def of_all(self, uses: Sequence[UseColumns | None], nodes: int) -> Column:
        total, weights = np.zeros(nodes, np.int64), np.zeros(nodes, np.int64)
        for use, each in zip(uses, self.weights, strict=True):
            if use is None:
                continue
            scores, _ = _of_those_that_have_some(self._scores, use)
            total += each * scores
            weights += each * (scores > 0)
        found: Column = (2 * total + weights) // np.maximum(2 * weights, 1)
        return found

    def _scores(self, use: UseColumns, divisor: Column) -> Column:
        return self._table[np.minimum(use.requested, use.allocatable) * HIGHEST // divisor]

    def _at(self, percent: int) -> int:
        """As in Go, what is between two points is cut towards the score of the first one."""
        before: tuple[int, int] | None = None
        for point in self.shape:
            if percent <= point[0]:
                if before is None:
                    return point[1]
                rise = (point[1] - before[1]) * (percent - before[0])
                return before[1] + int(rise / (point[0] - before[0]))
            before = point
        return self.shape[-1][1]


class Balanced(Scorer):
    """The closer the shares in use of the resources are to each other, the better."""

    def of_node(self, uses: Sequence[Use | None]) -> int:
        shares = [
            min(use.requested / use.allocatable, 1.0)
            for use in uses
            if use is not None and use.allocatable
        ]
        return int((1 - _deviation(shares)) * HIGHEST)

    def of_all(self, uses: Sequence[UseColumns | None], nodes: int) -> Column:
        counted = [use for use in uses if use is not None]
        if len(counted) == 2 and all(use.lacking is None for use in counted):
            deviation = _difference(*counted)
        else:
            deviation = _deviations(counted, nodes)
        np.subtract(1, deviation, out=deviation)
        deviation *= HIGHEST
        return deviation.astype(np.int64)


def _deviation(shares: Sequence[float]) -> float:
    """The standard deviation, as Kubernetes computes it."""
    if len(shares) < 2:
        return 0.0
    if len(shares) == 2:
        return abs((shares[0] - shares[1]) / 2)
    mean = _sum(shares) / len(shares)
    return math.sqrt(_sum([(share - mean) * (share - mean) for share in shares]) / len(shares))


def _sum(amounts: Sequence[float]) -> float:
    """One after the other, as over columns; sum() of Python is more exact than that."""
    total = 0.0
    for amount in amounts:
        total += amount
    return total


def _difference(one: UseColumns, other: UseColumns) -> NDArray[np.float64]:
    """Half of it, which is the deviation of two."""
    shares: NDArray[np.float64] = one.requested / one.allocatable
    others: NDArray[np.float64] = other.requested / other.allocatable
    np.minimum(shares, 1.0, out=shares)
    np.minimum(others, 1.0, out=others)
    shares -= others
    np.abs(shares, out=shares)
    shares /= 2
    return shares


def _deviations(uses: Sequence[UseColumns], nodes: int) -> NDArray[np.float64]:
    counts, total = np.zeros(nodes), np.zeros(nodes)
    shares = []
    for use in uses:
        there = use.allocatable > 0
        share = np.minimum(use.requested / np.maximum(use.allocatable, 1), 1.0) * there
        shares.append((share, there))
        counts += there
        total += share
    mean = total / np.maximum(counts, 1)
    squares = np.zeros(nodes)
    for share, there in shares:
        squares += (share - mean) * (share - mean) * there
    deviation = np.sqrt(squares / np.maximum(counts, 1))
    two = counts == 2
    if two.any():
        first, second = _two_of(shares, nodes)
        deviation[two] = np.abs((first - second) / 2)[two]
    deviation[counts < 2] = 0.0
    return deviation


def _two_of(
    shares: Sequence[tuple[NDArray[np.float64], NDArray[np.bool_]]], nodes: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The first two shares of each node that count."""
    first, second = np.zeros(nodes), np.zeros(nodes)
    seen = np.zeros(nodes, np.intp)
    for share, there in shares:
        np.copyto(first, share, where=there & (seen == 0))
        np.copyto(second, share, where=there & (seen == 1))
        seen += there
    return first, second


def _of_those_that_have_some(
    scores: Callable[[UseColumns, Column], Column], use: UseColumns
) -> tuple[Column, NDArray[np.bool_] | None]:
    """Scores of a resource, 0 on nodes that have nothing, and which these are; None: none is."""
    if use.lacking is None:
        return scores(use, use.allocatable), None
    found = scores(use, np.maximum(use.allocatable, 1))
    found[use.lacking] = 0
    return found, use.lacking
