"""Pods spread evenly over domains. Source: Kubernetes, PodTopologySpread (Filter)."""

from collections.abc import Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from koord.api.labelselector import Requirement
from koord.cluster.columns import CodedColumn, Mask
from koord.cluster.facts import (
    AffinityTerm,
    ClusterPod,
    Selector,
    SpreadConstraint,
    selects,
)
from koord.cluster.predicates.nodes import matches_node_affinity, tolerates_taints
from koord.cluster.view import View
from koord.util.timebudget import in_time


def keeps_spread(pod: ClusterPod, view: View) -> Mask:
    """Nodes where the pod exceeds no maximal skew of its constraints; shape (nodes,).

    Only constraints with DoNotSchedule count. A node that lacks a label of one is no choice.
    """
    allowed = np.ones(len(view), np.bool_)
    for spread in spreads(pod, pod.spec.spread, view):
        allowed &= spread.allows()
    return allowed


class TopologySpread:
    """The pods that a constraint of a pod counts, by domain, while pods come and go."""

    def __init__(
        self, pod: ClusterPod, constraint: SpreadConstraint, view: View, counted: Mask | None
    ) -> None:
        """counted: nodes that count, all of which have the label; None: all nodes."""
        self.constraint = constraint
        self.domains: CodedColumn[str] = view.traits.label(constraint.topology_key)
        self._counted = counted
        self._namespace = pod.namespace
        self._selector = selector_of(pod, constraint)
        self._one = int(selects(self._selector, pod.labels))  # the pod's own share
        per_node = pods_counted(self._namespace, self._selector, view)
        self._totals = self.domains.totals(per_node, counted)
        codes = self.domains.codes if counted is None else self.domains.codes[counted]
        self._there = np.bincount(codes, minlength=len(self.domains.index) + 1) > 0
        self._domains = int(np.count_nonzero(self._there))
        self._least: int | None = None

    def clone(self) -> "TopologySpread":
        """The same, to be changed on its own."""
        other = copy(self)
        other._totals = self._totals.copy()
        return other

    def change(self, row: int, pod: ClusterPod, amount: int) -> None:
        """Count a pod that was added to a node, 1, or removed from it, -1."""
        counts = self._counted is None or self._counted[row]
        if not self._selector or not counts or pod.deleting or pod.namespace != self._namespace:
            return
        if selects(self._selector, pod.labels):
            self._totals[self.domains.codes[row]] += amount
            self._least = None

    def allows(self) -> Mask:
        """Nodes in whose domain one more pod is at most max_skew above the emptiest domain.

        Shape (nodes,); a node without the label is none of them.
        """
        fine = self._totals <= self._most()
        fine[-1] = False
        return fine.take(self.domains.codes)

    def allows_row(self, row: int) -> bool:
        """The same of one node, which has the label."""
        found: int = self._totals.item(self.domains.codes.item(row))
        return found <= self._most()

    def _most(self) -> int:
        """The pods that a domain may have before this one comes."""
        if self._least is None:
            self._least = 0
            if self._domains >= max(self.constraint.min_domains, 1):
                self._least = int(np.min(self._totals, where=self._there, initial=_MANY))
        return self.constraint.max_skew - self._one + self._least


def spreads(
    pod: ClusterPod, constraints: Sequence[SpreadConstraint], view: View
) -> list[TopologySpread]:
    """Return what constraints of a pod count; a node that lacks a label of one counts for none."""
    labelled = labelled_by(constraints, view)
    return [
        TopologySpread(pod, one, view, counted_nodes(pod, one, view, labelled))
        for one in in_time(constraints)
    ]


def labelled_by(constraints: Sequence[SpreadConstraint], view: View) -> Mask | None:
    """Nodes that have the labels of all constraints; None: all nodes."""
    labelled: Mask | None = None
    for one in in_time(constraints):
        domains = view.traits.label(one.topology_key)
        if not domains.complete:
            labelled = domains.present if labelled is None else labelled & domains.present
    return labelled


def counted_nodes(
    pod: ClusterPod, constraint: SpreadConstraint, view: View, among: Mask | None
) -> Mask | None:
    """Nodes that a constraint counts, of some or (None) of all; None: all nodes."""
    spec, counted = pod.spec, among
    if constraint.honor_affinity and (spec.node_selector or spec.node_terms is not None):
        allowed = matches_node_affinity(pod, view)
        counted = allowed if counted is None else counted & allowed
    if constraint.honor_taints and view.traits.tainted:
        tolerated = tolerates_taints(pod, view)
        counted = tolerated if counted is None else counted & tolerated
    return counted


def pods_counted(namespace: str, selector: Selector | None, view: View) -> NDArray[np.int32]:
    """How many pods that a constraint's selector matches each node has; shape (nodes,).

    Those that are being deleted do not count; as in Kubernetes, a selector that matches everything
    counts nothing.
    """
    if not selector:
        return np.zeros(len(view), np.int32)
    return view.matching_pods(AffinityTerm("", selector, (namespace,)), deleting=False)


def selector_of(pod: ClusterPod, constraint: SpreadConstraint) -> Selector | None:
    """The constraint's selector, and the pod's values of its matchLabelKeys."""
    if constraint.selector is None:
        return None
    return constraint.selector + tuple(
        Requirement(key, "In", (pod.labels[key],))
        for key in constraint.match_label_keys
        if key in pod.labels
    )


_MANY = 2**62  # more pods than there are
