"""Scores of nodes by how much of their resources is requested: of one node, and of all at once."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from koord.cluster.columns import Mask
from koord.cluster.facts import ClusterPod
from koord.cluster.predicates.nodes import Amounts, FreeResources
from koord.cluster.view import View

_NATIVE = ("cpu", "memory", "ephemeral-storage")
_UNCOUNTED = ("pods", "storage")
_NONZERO_DEFAULTS = {"cpu": 0, "memory": 1}  # columns of nonzero_requested


class ResourceUse(NamedTuple):
    """Use of a resource on one node."""

    allocatable: int
    requested: int  # with the pod


@dataclass(frozen=True, slots=True)
class UseColumns:
    """Use of a resource on all nodes; each column has shape (nodes,).

    The numbers are whole, also in float columns.
    """

    allocatable: Amounts
    taken: Amounts  # what is requested without the pod
    amount: int  # what the pod requests
    lacking: Mask | None = None  # nodes that have nothing of it; None: there is none
    spare: Amounts | None = None  # what is free without the pod; None: not computed yet

    @property
    def requested(self) -> Amounts:
        """With the pod; another column each time."""
        return self.taken + self.amount

    @property
    def free(self) -> Amounts:
        """With the pod, below zero where it does not fit; another column each time."""
        spare = self.allocatable - self.taken if self.spare is None else self.spare
        return spare - self.amount


def is_extended(name: str) -> bool:
    """Whether a resource is not one of Kubernetes' own, such as example.com/gpu."""
    return "/" in name and "kubernetes.io/" not in name and not name.startswith("requests.")


def pod_amount(pod: ClusterPod, name: str, *, nonzero: bool) -> int:
    """Return the request of a pod for a resource.

    nonzero: cpu and memory as loads are compared, with a default for containers without a request.
    """
    if nonzero and name in _NONZERO_DEFAULTS:
        return pod.spec.nonzero_cpu if name == "cpu" else pod.spec.nonzero_memory
    for each, amount in pod.spec.requests:
        if each == name:
            return amount
    return 0


def use_of_all(
    pod: ClusterPod, nodes: View, name: str, *, nonzero: bool, table: FreeResources | None = None
) -> UseColumns | None:
    """The use of a resource on all nodes.

    None: it does not count; no node has it, or it is not native and the pod does not request it.
    nonzero as for pod_amount. table: what is known of it; without one it is looked up in the view.
    """
    amount, column = pod_amount(pod, name, nonzero=nonzero), nodes.resources.get(name)
    if column is None or not _counts(name, amount):
        return None
    which = _NONZERO_DEFAULTS.get(name) if nonzero else None
    lacking = nodes.lacking(column)
    if table is not None and lacking is None:
        known = table.of(nodes, column, which)
        if known is not None:
            return UseColumns(known.allocatable, known.taken, amount, None, known.free)
    taken = nodes.requested[:, column] if which is None else nodes.nonzero_requested[:, which]
    return UseColumns(nodes.allocatable[:, column], taken, amount, lacking)


def use_of_node(
    pod: ClusterPod, nodes: View, row: int, name: str, *, nonzero: bool
) -> ResourceUse | None:
    """Return the use of one node, as use_of_all does of all."""
    return uses_of_node(pod, nodes, row, (name,), nonzero=nonzero)[0]


def uses_of_node(
    pod: ClusterPod, nodes: View, row: int, names: Iterable[str], *, nonzero: bool
) -> list[ResourceUse | None]:
    """Return the uses of several resources on one node, each as use_of_node."""
    resources = nodes.resources
    found: list[ResourceUse | None] = []
    for name in names:
        amount, column = pod_amount(pod, name, nonzero=nonzero), resources.get(name)
        if column is None or not (name in _NATIVE or _counts(name, amount)):
            found.append(None)
            continue
        if nonzero and name in _NONZERO_DEFAULTS:
            requested = nodes.nonzero_requested_of(row)[_NONZERO_DEFAULTS[name]]
        else:
            requested = nodes.requested_of(row, column)
        found.append(ResourceUse(nodes.allocatable_of(row, column), requested + amount))
    return found


def _counts(name: str, amount: int) -> bool:
    return name in _NATIVE or (amount > 0 and name not in _UNCOUNTED)


def resource_counts(pod: ClusterPod, name: str, *, nonzero: bool) -> bool:
    """Whether a resource counts for a pod on nodes that have some; arguments as for use_of_all."""
    return name in _NATIVE or _counts(name, pod_amount(pod, name, nonzero=nonzero))


@dataclass(frozen=True, kw_only=True, slots=True)
class ResourceSpec:
    """A resource that counts, and how much."""

    name: str
    weight: int = 0  # 0 is 1


CPU_AND_MEMORY = (ResourceSpec(name="cpu", weight=1), ResourceSpec(name="memory", weight=1))


def weighted(resources: Iterable[ResourceSpec]) -> tuple[ResourceSpec, ...]:
    """The resources with their defaults: of none at all cpu and memory, of a weight 1."""
    found = tuple(replace(one, weight=one.weight or 1) for one in resources)
    return found or CPU_AND_MEMORY


HIGHEST = 100  # score, and percent of use

Column = NDArray[np.int64]


class Scorer(ABC):
    """A formula. What is asked about has a place for each resource; None: it does not count."""

    @abstractmethod
    def of_node(self, uses: Sequence[ResourceUse | None]) -> int:
        """The score of one node, 0 to HIGHEST."""

    @abstractmethod
    def of_all(self, uses: Sequence[UseColumns | None], nodes: int) -> Column:
        """The scores of all nodes; shape (nodes,)."""


class WeightedMean(Scorer):
    """The mean of the resources' scores by their weights, cut to a whole number."""

    def __init__(self, weights: Sequence[int]) -> None:
        self.weights = tuple(weights)

    @abstractmethod
    def score(self, use: ResourceUse) -> int:
        """Return the score of a resource on a node that has some."""

    @abstractmethod
    def scores(self, use: UseColumns) -> Amounts:
        """Return the scores of a resource on all nodes; 0 where there is none."""

    def of_node(self, uses: Sequence[ResourceUse | None]) -> int:
        total = weight = 0
        for use, each in zip(uses, self.weights, strict=True):
            if use is not None and use.allocatable:
                total += each * self.score(use)
                weight += each
        return total // weight if weight else 0

    def of_all(self, uses: Sequence[UseColumns | None], nodes: int) -> Column:
        total: Amounts | None = None
        weight = 0
        lacking: list[tuple[NDArray[np.bool_], int]] = []
        for use, each in zip(uses, self.weights, strict=True):
            if use is None:
                continue
            scores = self.scores(use)
            if each != 1:
                scores *= each
            total = scores if total is None else total + scores
            weight += each
            if use.lacking is not None:
                lacking.append((use.lacking, each))
        if total is None:
            return np.zeros(nodes, np.int64)
        weights: Column | int = weight
        if lacking:
            weights = np.full(nodes, weight)
            for lacks, each in lacking:
                weights -= lacks * each
            np.maximum(weights, 1, out=weights)
        return (total / weights).astype(np.int64)  # of small numbers: exact when it is cut


class LeastAllocated(WeightedMean):
    """The more is free, the better."""

    def score(self, use: ResourceUse) -> int:
        return max(use.allocatable - use.requested, 0) * HIGHEST // use.allocatable

    def scores(self, use: UseColumns) -> Amounts:
        free = use.free
        np.maximum(free, 0, out=free)
        return _percent(free, use)


class MostAllocated(WeightedMean):
    """The less is free, the better."""

    def score(self, use: ResourceUse) -> int:
        return min(use.requested, use.allocatable) * HIGHEST // use.allocatable

    def scores(self, use: UseColumns) -> Amounts:
        return _percent(np.minimum(use.requested, use.allocatable), use)


class RequestedToCapacityRatio(Scorer):
    """Scores on a line of segments from percent of use; resources with score 0 do not count."""

    def __init__(self, shape: Sequence[tuple[int, int]], weights: Sequence[int]) -> None:
        """shape: percent, ascending, and scores, 0 to HIGHEST; it is even beyond its ends."""
        self.shape = tuple(shape)
        self.weights = tuple(weights)

    @cached_property
    def _table(self) -> Column:
        """The score of each percentage."""
        return np.array([self._at(percent) for percent in range(HIGHEST + 1)], np.int64)

    def of_node(self, uses: Sequence[ResourceUse | None]) -> int:
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
            scores = self._scores(use)
            total += each * scores
            weights += each * (scores > 0)
        found: Column = (2 * total + weights) // np.maximum(2 * weights, 1)
        return found

    def _scores(self, use: UseColumns) -> Column:
        used = np.minimum(use.requested, use.allocatable)
        scores = self._table[_percent(used, use).astype(np.intp)]
        if use.lacking is not None:
            scores[use.lacking] = 0
        return scores

    def _at(self, percent: int) -> int:
        """Return the score; between two points it is cut towards that of the first, as in Go."""
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

    def of_node(self, uses: Sequence[ResourceUse | None]) -> int:
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
    shares = _shares(one)
    shares -= _shares(other)
    np.abs(shares, out=shares)
    shares /= 2
    return shares


def _shares(use: UseColumns) -> NDArray[np.float64]:
    """Return the requested share of a resource, at most 1, for nodes that all have some of it."""
    requested = use.requested
    out = requested if requested.dtype.kind == "f" else None
    shares: NDArray[np.float64] = np.divide(requested, use.allocatable, out=out)
    return np.minimum(shares, 1.0, out=shares)


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


def _percent(part: Amounts, use: UseColumns) -> Amounts:
    """Whole percents of what nodes have, of which part is some; 0 where they have nothing.

    part is changed.
    """
    part *= HIGHEST
    if part.dtype.kind == "i":
        part //= np.maximum(use.allocatable, 1)
    else:
        part /= use.allocatable
        np.floor(part, out=part)
    return part
