"""How loaded a node is, and how well a pod covers what a node has too much.

Source: Koordinator, pkg/descheduler/framework/plugins/loadaware (resourceUsageScorer).
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from koord_descheduler_plugins.low_node_load.limits import Amounts, Flags

_LARGEST_WEIGHT = 2**20  # so that sums stay below 64 bits


def weights_of(named: Mapping[str, int], resources: Sequence[str]) -> NDArray[np.int64]:
    """The weights as a column, shape (resources,)."""
    return np.array([min(named.get(name, 0), _LARGEST_WEIGHT) for name in resources], np.int64)


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


class Cover:
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
