"""Scores by constraints with ScheduleAnyway: the fewer pods a domain has, the better.

Source: Kubernetes, plugins/podtopologyspread/scoring.go.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koord_scheduler.plugin import (
    MAX_NODE_SCORE,
    ClusterPod,
    CodedColumn,
    Mask,
    NodeScore,
    Scores,
    SpreadConstraint,
    View,
    counted_nodes,
    in_time,
    labelled_by,
    pods_counted,
    selector_of,
)
from koord_scheduler_plugins.pod_topology_spread.defaults import HOSTNAME


class SoftSpread:
    """The scores of one pod's constraints. Never changes."""

    def __init__(
        self,
        pod: ClusterPod,
        constraints: Sequence[SpreadConstraint],
        nodes: View,
        feasible: Mask,
        *,
        require_all: bool,
    ) -> None:
        """require_all: nodes that lack a label of a constraint have no score, and no pods."""
        labelled = labelled_by(constraints, nodes) if require_all else None
        self._nodes = nodes
        self._labelled = labelled
        self._scored = None if labelled is None else labelled[feasible]
        candidates = feasible if labelled is None else feasible & labelled
        self._parts = [_Part(pod, one, nodes, candidates, labelled) for one in in_time(constraints)]

    def clone(self) -> "SoftSpread":
        """As it never changes, the same."""
        return self

    def score(self, row: int) -> int:
        """The score of one node, before it is normalized."""
        if self._labelled is not None and not self._labelled[row]:
            return 0
        return math.floor(sum(part.score(row) for part in self._parts) + 0.5)

    def scores(self) -> Scores:
        """The same of all nodes."""
        total = self._parts[0].scores()
        for part in self._parts[1:]:
            total += part.scores()
        total += 0.5
        np.floor(total, out=total)
        rounded: Scores = total.astype(np.int64)
        if self._labelled is not None:
            rounded[~self._labelled] = 0
        return rounded

    def normalize(self, scores: list[NodeScore]) -> None:
        """Turn the scores of feasible nodes round; one that lacks a label has 0."""
        scored = [one for one in scores if self._has_score(one.name)]
        least = min((one.score for one in scored), default=0)
        most = max((one.score for one in scored), default=0)
        for one in scores:
            one.score = _turned(one.score, least, most) if self._has_score(one.name) else 0

    def _has_score(self, name: str) -> bool:
        row = self._nodes.row(name)
        return self._labelled is None or (row is not None and bool(self._labelled[row]))

    def normalized(self, scores: Scores) -> Scores:
        """The same of all feasible nodes at once."""
        scored = scores if self._scored is None else scores[self._scored]
        least, most = int(scored.min(initial=_HIGHEST)), int(scored.max(initial=0))
        if most:
            turned: Scores = most + least - scores
            turned *= MAX_NODE_SCORE
            turned //= most
        else:
            turned = np.full_like(scores, MAX_NODE_SCORE)
        if self._scored is not None:
            turned[~self._scored] = 0
        return turned


class _Part:
    """One constraint: pods by domain, and what each of them weighs."""

    def __init__(
        self,
        pod: ClusterPod,
        constraint: SpreadConstraint,
        nodes: View,
        candidates: Mask,
        labelled: Mask | None,
    ) -> None:
        self._domains = domains = nodes.traits.label(constraint.topology_key)
        per_node = pods_counted(pod.namespace, selector_of(pod, constraint), nodes)
        self._per_node: NDArray[np.int32] | None = None
        if constraint.topology_key == HOSTNAME:  # each node is a domain, whatever else it is
            size = int(np.count_nonzero(candidates))
            self._per_node = per_node
        else:
            size = _distinct(domains, candidates)
            self._totals = domains.totals(per_node, counted_nodes(pod, constraint, nodes, labelled))
        self._weight = math.log(size + 2)
        self._surplus = float(constraint.max_skew - 1)

    def score(self, row: int) -> float:
        code = self._domains.codes.item(row)
        if code < 0:
            return 0.0
        pods = self._totals.item(code) if self._per_node is None else self._per_node.item(row)
        return float(pods * self._weight + self._surplus)

    def scores(self) -> NDArray[np.floating[Any]]:
        """Of all nodes, in a column of its own."""
        if self._per_node is None:
            by_domain = self._totals * self._weight + self._surplus
            by_domain[-1] = 0.0
            return by_domain.take(self._domains.codes)
        found = self._per_node * self._weight
        found += self._surplus
        if not self._domains.complete:
            found[~self._domains.present] = 0.0
        return found


def _distinct(domains: CodedColumn[str], rows: Mask) -> int:
    """How many values the rows have; as in Kubernetes, to have none is one, too."""
    if rows.all():
        return len(domains.index) + (not domains.complete)
    there = np.zeros(len(domains.index) + 1, np.bool_)
    there[domains.codes[rows]] = True  # -1 is the last
    return int(np.count_nonzero(there))


def _turned(score: int, least: int, most: int) -> int:
    return MAX_NODE_SCORE * (most + least - score) // most if most else MAX_NODE_SCORE


_HIGHEST = 2**62
