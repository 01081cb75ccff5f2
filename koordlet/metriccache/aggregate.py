"""Aggregates of one series over a window: mean, percentiles, last, count, span."""

from array import array
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from operator import mul

PERCENTILES = (50, 90, 95, 99)


def percentile_index(count: int, percent: int) -> int:
    """Rank, from 0, of a percentile among count sorted values; no interpolation.

    One lower than nearest-rank unless count * percent / 100 is whole: Koordinator's rule.
    """
    return max(count * percent // 100 - 1, 0)


@dataclass(frozen=True)
class Window:
    """Columns of a table in time order, copied, so that no writer waits while they are aggregated.

    The first `context` columns lie before the window; they show when a series was last seen.
    """

    boots: "array[float]"  # seconds since boot, per column
    context: int
    cells: "array[float]"  # NaN: no sample; column c, row r at c * stride + r
    stride: int
    interval: float  # seconds between samples as configured

    @cached_property
    def dense_from(self) -> int:
        """First column that the mean of a series without gaps needs."""
        return max(self.context - 1, 0)

    @cached_property
    def dense_weights(self) -> list[float]:
        """Weights, from dense_from on, of a series that has a sample in every column."""
        first = 0.0 if self.context else self.interval
        boots = self.boots[self.dense_from :]
        return [first, *(min(b - a, 2 * self.interval) for a, b in pairwise(boots))]

    @cached_property
    def dense_total(self) -> float:
        return sum(self.dense_weights)


class Aggregate:
    """One series within a window; each figure is computed when it is asked for.

    It has at least one sample. Values are in the unit of the kind, times in seconds since boot.
    """

    __slots__ = ("_begin", "_created", "_row", "_sorted", "_window")

    def __init__(self, window: Window, row: int, created: float) -> None:
        self._window = window
        self._row = row
        self._created = created  # boot time of the series' first sample ever
        self._begin = bisect_left(window.boots, created)  # cells before belong to no series
        self._sorted: list[float] | None = None

    def avg(self) -> float:
        """Mean, each value weighted with the time since the sample before it.

        A weight is at most two intervals, so that a gap does not make one sample speak for it;
        the first sample of a series counts for one.
        """
        window = self._window
        if self._begin <= window.dense_from:
            values = self._cells(window.dense_from)
            mean = sum(map(mul, values, window.dense_weights)) / window.dense_total
            if mean == mean:  # NaN: a gap; the weights are the series' own then
                return _snap(mean, values[-1])
        return self._avg_with_gaps()

    def percentile(self, percent: int) -> float:
        """The value at percentile_index among the sorted samples."""
        if self._sorted is None:
            self._sorted = sorted(self._values())
        return self._sorted[percentile_index(len(self._sorted), percent)]

    def points(self) -> list[tuple[float, float]]:
        """(seconds since boot, value) of each sample, oldest first."""
        return self._known(max(self._window.context, self._begin))

    @property
    def count(self) -> int:
        return len(self._values())

    @property
    def last(self) -> float:
        """Value of the newest sample."""
        return self.points()[-1][1]

    @property
    def first_boot(self) -> float:
        return self.points()[0][0]

    @property
    def last_boot(self) -> float:
        return self.points()[-1][0]

    @property
    def span(self) -> float:
        """Seconds between the oldest and the newest sample of this series."""
        points = self.points()
        return points[-1][0] - points[0][0]

    def _avg_with_gaps(self) -> float:
        window = self._window
        interval, limit = window.interval, 2 * window.interval
        opens = window.boots[window.context]
        total = weights = value = 0.0
        before: float | None = None
        for boot, value in self._known(self._begin):
            if boot >= opens:
                if before is not None:
                    weight = min(boot - before, limit)
                elif boot <= self._created or boot == window.boots[0]:
                    weight = interval
                else:
                    weight = limit  # seen before, but longer ago than counts
                total += value * weight
                weights += weight
            before = boot
        return _snap(total / weights, value)

    def _cells(self, first: int) -> "array[float]":
        return self._window.cells[first * self._window.stride + self._row :: self._window.stride]

    def _values(self) -> list[float]:
        first = max(self._window.context, self._begin)
        return [value for value in self._cells(first) if value == value]

    def _known(self, first: int) -> list[tuple[float, float]]:
        cells = self._cells(first)
        boots = self._window.boots[first:]
        return [(boot, value) for boot, value in zip(boots, cells, strict=True) if value == value]


def _snap(mean: float, value: float) -> float:
    """Undo rounding in the mean of a constant, because reports truncate: 3 Gi must stay 3 Gi."""
    return value if abs(mean - value) <= 1e-12 * abs(value) else mean
