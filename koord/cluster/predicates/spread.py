"""Pods spread evenly over domains. Source: Kubernetes, PodTopologySpread (Filter)."""

import numpy as np

from koord.api.labelselector import Requirement
from koord.cluster.columns import Mask
from koord.cluster.facts import ClusterPod, Selector, SpreadConstraint, selects
from koord.cluster.predicates.nodes import matches_node_affinity, tolerates_taints
from koord.cluster.view import View


def keeps_spread(pod: ClusterPod, view: View) -> Mask:
    """Nodes where the pod exceeds no maximal skew of its constraints; shape (nodes,).

    Only constraints with DoNotSchedule count. A node that lacks a label of one is no choice.
    """
    allowed = np.ones(len(view), np.bool_)
    for constraint in pod.spec.spread:
        allowed &= view.traits.label(constraint.topology_key).present
    labelled = allowed.copy()
    for constraint in pod.spec.spread:
        counted = labelled.copy()
        if constraint.honor_affinity:
            counted &= matches_node_affinity(pod, view)
        if constraint.honor_taints:
            counted &= tolerates_taints(pod, view)
        allowed &= _within_skew(pod, constraint, counted, view)
    return allowed


def _within_skew(pod: ClusterPod, constraint: SpreadConstraint, counted: Mask, view: View) -> Mask:
    """Nodes in whose domain one more pod is at most max_skew above the emptiest domain.

    Domains are those of the counted nodes; with fewer than min_domains the emptiest has 0.
    """
    domains = view.traits.label(constraint.topology_key)
    selector = selector_of(pod, constraint)
    per_node = np.zeros(len(view), np.intp)
    if selector:  # as in Kubernetes, a selector that matches everything counts nothing
        chosen = view.pods_selected(pod.namespace, selector) & ~view.placed.deleting
        per_node = view.pods_per_node(chosen)
    totals = domains.totals(per_node, counted)
    there = np.unique(domains.codes[counted])
    least = totals[there].min() if len(there) >= max(constraint.min_domains, 1) else 0
    skew = np.append(totals, 0)[domains.codes] + selects(selector, pod.labels) - least
    within: Mask = skew <= constraint.max_skew
    return within


def selector_of(pod: ClusterPod, constraint: SpreadConstraint) -> Selector | None:
    """The constraint's selector, and the pod's values of its matchLabelKeys."""
    if constraint.selector is None:
        return None
    return constraint.selector + tuple(
        Requirement(key, "In", (pod.labels[key],))
        for key in constraint.match_label_keys
        if key in pod.labels
    )
