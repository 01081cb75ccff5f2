"""How loaded a node is, and how well a pod covers what a node has too much.

Source: Koordinator, pkg/descheduler/framework/plugins/loadaware (resourceUsageScorer).
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from koord_descheduler_plugins.low_node_load.figures import Amount
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


def cover_score(amount: Amount, excess: Excess, weights: Sequence[int]) -> float:
    """Return how well a pod covers an excess: best, 2, if it just does.

    Below that it grows with the share that the pod covers, beyond it falls towards 1.
    """
    total = sum(weights[column] for column in excess)
    if total == 0:
        return 0.0
    score = 0.0
    for column, used in enumerate(amount):
        over = excess.get(column, 0)
        if over:
            share = used / over
            score += weights[column] * (share if share < 1 else 1 + 1 / share)
    return score / total
