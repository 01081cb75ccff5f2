"""Scores of nodes by how full the volumes would be that are there for a pod's claims.

Source: Kubernetes, plugins/volumebinding/scorer.go, plugins/helper/shape_score.go.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from koord_scheduler.plugin import MAX_NODE_SCORE
from koord_scheduler_plugins.volume_binding.args import (
    HIGHEST_SCORE,
    HIGHEST_UTILIZATION,
    ShapePoint,
)

Sizes = NDArray[np.int64]
"""Bytes; shape (nodes,)."""

LARGEST = 2**50  # bytes; a larger size counts as this, and sums times 100 stay below 64 bits


class ShapeScorer:
    """Scores by a broken line over the utilization, the mean of all classes."""

    def __init__(self, shape: Sequence[ShapePoint]) -> None:
        """shape: by rising utilization, at least one point."""
        self._at = [point.utilization for point in shape]
        self._scores = [point.score * (MAX_NODE_SCORE // HIGHEST_SCORE) for point in shape]

    def line(self, utilization: int) -> int:
        """The score of a utilization; fractions are cut off as Go does it."""
        for at, above in enumerate(self._at):
            if utilization <= above:
                if at == 0:
                    return self._scores[0]
                rise = (self._scores[at] - self._scores[at - 1]) * (utilization - self._at[at - 1])
                run = above - self._at[at - 1]
                return self._scores[at - 1] + (rise // run if rise >= 0 else -(-rise // run))
        return self._scores[-1]

    def score(self, classes: Mapping[str, tuple[int, int]]) -> int:
        """The score of what is requested, and what it is of, in bytes, by class; of none, 0."""
        if not classes:
            return 0
        total = sum(self.line(_utilization(*sizes)) for sizes in classes.values())
        return (2 * total + len(classes)) // (2 * len(classes))  # rounded half up

    def score_all(self, classes: Mapping[str, tuple[Sizes, Sizes]], nodes: int) -> Sizes:
        """The same for all nodes; a class of which a node has no volume does not count there."""
        table = np.array([self.line(at) for at in range(HIGHEST_UTILIZATION + 1)], np.int64)
        total, count = np.zeros(nodes, np.int64), np.zeros(nodes, np.int64)
        for requested, capacity in classes.values():
            there = capacity >= 0
            full = (capacity <= 0) | (requested > capacity)
            share = requested * HIGHEST_UTILIZATION // np.maximum(capacity, 1)
            total += np.where(there, table[np.where(full, HIGHEST_UTILIZATION, share)], 0)
            count += there
        return np.where(count == 0, 0, (2 * total + count) // np.maximum(2 * count, 1))


def _utilization(requested: int, capacity: int) -> int:
    if capacity == 0 or requested > capacity:
        return HIGHEST_UTILIZATION
    return requested * HIGHEST_UTILIZATION // capacity
