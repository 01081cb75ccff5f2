"""What a pod says about nodes themselves: flags, taints, labels.

Source: Kubernetes, NodeUnschedulable, TaintToleration, NodeAffinity; component-helpers
nodeaffinity.
"""

from collections.abc import Iterable

import numpy as np

from koord.api.labelselector import Requirement
from koord.cluster.columns import CodedColumn, Mask
from koord.cluster.facts import ClusterPod, NodeTerm, PodSpec, Taint
from koord.cluster.selectors import whole_number
from koord.cluster.view import View

UNSCHEDULABLE = Taint("node.kubernetes.io/unschedulable", "NoSchedule")
_REPELLING = ("NoSchedule", "NoExecute")  # PreferNoSchedule forbids nothing


def is_schedulable(pod: ClusterPod, view: View) -> Mask:
    """Nodes that are not cordoned; all of them for a pod that tolerates that; shape (nodes,)."""
    if any(one.tolerates(UNSCHEDULABLE) for one in pod.spec.tolerations):
        return np.ones(len(view), np.bool_)
    return ~view.traits.unschedulable


def tolerates_taints(pod: ClusterPod, view: View) -> Mask:
    """Nodes all of whose taints NoSchedule and NoExecute the pod tolerates; shape (nodes,)."""
    return view.traits.taints.where(lambda taints: _tolerates_all(pod.spec, taints))


def matches_node_affinity(pod: ClusterPod, view: View) -> Mask:
    """Nodes that the node selector and the required node affinity allow; shape (nodes,)."""
    allowed = np.ones(len(view), np.bool_)
    for requirement in pod.spec.node_selector:
        allowed &= _matches(requirement, view.traits.label(requirement.key))
    if pod.spec.node_terms is not None:
        allowed &= matches_terms(pod.spec.node_terms, view)
    return allowed


def matches_terms(terms: Iterable[NodeTerm], view: View) -> Mask:
    """Nodes that at least one of the terms matches; without any, none; shape (nodes,)."""
    matched = np.zeros(len(view), np.bool_)
    for term in terms:
        every = np.ones(len(view), np.bool_)
        for requirement in term.labels:
            every &= _matches(requirement, view.traits.label(requirement.key))
        for requirement in term.names:
            every &= _matches(requirement, view.traits.names)
        matched |= every
    return matched


def _tolerates_all(spec: PodSpec, taints: tuple[Taint, ...]) -> bool:
    return all(
        taint.effect not in _REPELLING or any(one.tolerates(taint) for one in spec.tolerations)
        for taint in taints
    )


def _matches(requirement: Requirement, column: CodedColumn[str]) -> Mask:
    """As in Kubernetes, NotIn and DoesNotExist match an absent label, Gt and Lt none."""
    operator = requirement.operator
    if operator == "In":
        return column.among(requirement.values)
    if operator == "NotIn":
        return ~column.among(requirement.values)
    if operator == "Exists":
        return column.present
    if operator == "DoesNotExist":
        return ~column.present
    bound = whole_number(requirement.values[0])
    assert bound is not None  # noqa: S101 - terms with another are left out
    above = operator == "Gt"
    return column.where(lambda text: _beyond(whole_number(text), bound, above=above))


def _beyond(number: int | None, bound: int, *, above: bool) -> bool:
    if number is None:
        return False
    return number > bound if above else number < bound
