"""Scores by preferred terms of a pod, and by terms of the pods that are on nodes.

Source: Kubernetes, plugins/interpodaffinity/scoring.go.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koord_scheduler.plugin import (
    MAX_NODE_SCORE,
    ClusterPod,
    Domains,
    NodeScore,
    Scores,
    View,
    WeighedTerms,
    Wish,
)


class Preferences:
    """What domains are worth to one pod. Never changes."""

    def __init__(self, pod: ClusterPod, nodes: View, hard_weight: int) -> None:
        """hard_weight: of a required affinity term of another pod that means this one."""
        sums: dict[str, NDArray[np.integer[Any]]] = {}
        for key, per_node, weight in _worths(pod, nodes, hard_weight):
            one = per_node if weight == 1 else weight * per_node.astype(np.int64)
            sums[key] = sums[key] + one if key in sums else one
        found = (Domains.of(key, per_node, nodes) for key, per_node in sums.items())
        self._domains = [one for one in found if one.totals.any()]

    def __bool__(self) -> bool:
        """Whether any domain is worth something."""
        return bool(self._domains)

    def clone(self) -> "Preferences":
        """As it never changes, the same."""
        return self

    def score(self, row: int) -> int:
        """The score of one node, before it is normalized."""
        return sum(one.at(row) for one in self._domains)

    def scores(self, nodes: View) -> Scores:
        """The same of all nodes."""
        total: Scores | None = None
        for one in self._domains:
            found = one.totals.take(one.domains.codes)
            total = found if total is None else np.add(total, found, out=total)
        return np.zeros(len(nodes), np.int64) if total is None else total


def normalize(scores: list[NodeScore]) -> None:
    """Bring scores into the range from 0, the lowest, to 100; all equal ones to 0."""
    least = min((one.score for one in scores), default=0)
    spread = max((one.score for one in scores), default=0) - least
    for one in scores:
        one.score = int(MAX_NODE_SCORE * ((one.score - least) / spread)) if spread else 0


def normalized(scores: Scores) -> Scores:
    """The same of all feasible nodes at once."""
    least = int(scores.min(initial=_HIGHEST))
    spread = int(scores.max(initial=-_HIGHEST)) - least
    if spread <= 0:
        return np.zeros_like(scores)
    shares = (scores - least) / spread
    shares *= MAX_NODE_SCORE
    return shares.astype(np.int64)


def _worths(
    pod: ClusterPod, nodes: View, hard_weight: int
) -> Iterator[tuple[str, NDArray[np.integer[Any]], int]]:
    """Topology key, numbers by node, and the weight of each."""
    spec = pod.spec
    wanted = ((one.term, one.weight) for one in spec.preferred_affinity)
    unwanted = ((one.term, -one.weight) for one in spec.preferred_anti_affinity)
    for key, sums in WeighedTerms(chain(wanted, unwanted), nodes).per_node().items():
        yield key, sums, 1
    weights = {
        Wish.AFFINITY: hard_weight,
        Wish.PREFERRED_AFFINITY: 1,  # counts have the terms' own weights
        Wish.PREFERRED_ANTI_AFFINITY: -1,
    }
    for (wish, key), counts in nodes.wishes_about(pod.label_set).items():
        if weights.get(wish):
            yield key, counts, weights[wish]


_HIGHEST = 2**62
