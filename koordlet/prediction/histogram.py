"""A histogram whose buckets grow exponentially and whose samples lose weight as they age.

Source: Kubernetes autoscaler, vertical-pod-autoscaler/pkg/recommender/util, as Koordinator uses it.
"""

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass

RATIO = 1.05  # size of a bucket relative to the one before it
EMPTY_BELOW = 0.0001  # weight under which a bucket counts as empty

_GROWTH = RATIO - 1.0
_LOG_RATIO = math.log(RATIO)
_MOST_HALVINGS = 100  # of the first sample's weight relative to a new one; then the reference moves
_GO_ZERO = -62135596800.0  # Go's zero time in Unix seconds: reference times are multiples from here


@dataclass(frozen=True, slots=True)
class Buckets:
    """Buckets for values from 0 on; the last one takes all that is larger."""

    first: float  # where bucket 1 starts, in the unit of the values
    count: int

    def index(self, value: float) -> int:
        """Return the bucket of a value."""
        if value < self.first:
            return 0
        place = math.log(value * _GROWTH / self.first + 1) / _LOG_RATIO
        return int(min(place, self.count - 1))

    def start(self, index: int) -> float:
        """Return the lowest value of a bucket."""
        return 0.0 if index == 0 else self.first * (RATIO**index - 1) / _GROWTH


CPU_BUCKETS = Buckets(first=0.025, count=158)  # cores
MEMORY_BUCKETS = Buckets(first=5242880.0, count=205)  # bytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a histogram holds, apart from its buckets' sizes."""

    reference: float | None  # Unix seconds at which a sample weighs 1; None: it never had one
    weights: Mapping[int, float]  # by bucket, those that are not 0
    total: float


class DecayingHistogram:
    """Weights of samples by bucket; a sample counts half as much as one of a half-life later.

    Times are Unix seconds. Not safe for use by several threads at a time.
    """

    __slots__ = (
        "_buckets",
        "_half_life",
        "_highest",
        "_lowest",
        "_reference",
        "_total",
        "_weights",
    )

    def __init__(self, buckets: Buckets, half_life: float) -> None:
        """half_life: seconds, above 0."""
        self._buckets = buckets
        self._half_life = half_life
        self._reference: float | None = None  # Unix seconds at which a sample weighs 1
        self._weights = array("d", bytes(8 * buckets.count))
        self._total = 0.0
        self._lowest, self._highest = buckets.count, -1  # buckets that are not empty

    def add(self, value: float, at: float) -> None:
        """Add a sample of weight 1. One of long before the others starts the histogram anew."""
        reference = self._reference
        if reference is None or abs(at - reference) > _MOST_HALVINGS * self._half_life:
            reference = self._refer_to(at)
        weight = math.exp2((at - reference) / self._half_life)
        index = self._buckets.index(value)
        self._weights[index] += weight
        self._total += weight
        if self._weights[index] >= EMPTY_BELOW:
            self._lowest = min(self._lowest, index)
            self._highest = max(self._highest, index)

    def percentile(self, share: float) -> float:
        """Return a value that the given share of the weight does not exceed; 0.0 without samples.

        It is where the next bucket starts, so up to one bucket (5 %) too high.
        """
        if self.is_empty():
            return 0.0
        wanted, found = share * self._total, 0.0
        index = self._lowest
        for index in range(self._lowest, self._highest + 1):
            found += self._weights[index]
            if found >= wanted:
                break
        return self._buckets.start(min(index + 1, self._buckets.count - 1))

    def is_empty(self) -> bool:
        """Return whether no bucket has a weight that counts."""
        return self._highest < 0

    def snapshot(self) -> Snapshot:
        """Return the content; buckets that count as empty may be in it."""
        weights = {index: weight for index, weight in enumerate(self._weights) if weight > 0}
        return Snapshot(self._reference, weights, self._total)

    def restore(self, snapshot: Snapshot) -> None:
        """Take over the content of another one with the same buckets."""
        self._reference = snapshot.reference
        self._weights = array("d", bytes(8 * self._buckets.count))
        for index, weight in snapshot.weights.items():
            self._weights[index] = weight
        self._total = snapshot.total
        self._find_bounds()

    def _refer_to(self, at: float) -> float:
        """Move the reference to the multiple of the half-life nearest to the time; return it."""
        steps = math.floor((at - _GO_ZERO) / self._half_life + 0.5)
        reference = _GO_ZERO + steps * self._half_life
        before = self._reference
        if before is None or before > reference:  # no samples, or the clock was far ahead
            factor = 0.0
        else:
            factor = math.ldexp(1.0, round((before - reference) / self._half_life))
        self._weights = array("d", (weight * factor for weight in self._weights))
        self._total *= factor
        self._find_bounds()
        self._reference = reference
        return reference

    def _find_bounds(self) -> None:
        weights = enumerate(self._weights)
        counted = [index for index, weight in weights if weight >= EMPTY_BELOW]
        self._lowest = counted[0] if counted else self._buckets.count
        self._highest = counted[-1] if counted else -1
