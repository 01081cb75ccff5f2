"""Predicates about single nodes: flags, taints, labels, ports and volumes."""

from collections.abc import Collection, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from koord.api.labelselector import Requirement
from koord.cluster.columns import CodedColumn, Mask
from koord.cluster.facts import (
    PREFER_NO_SCHEDULE,
    ClusterNode,
    ClusterPod,
    HostPort,
    NodeTerm,
    PodSpec,
    PreferredTerm,
    Taint,
)
from koord.cluster.selectors import NODE_NAME, whole_number
from koord.cluster.view import View
from koord.util.timebudget import in_time

UNSCHEDULABLE = Taint("node.kubernetes.io/unschedulable", "NoSchedule")
_REPELLING = ("NoSchedule", "NoExecute")


def is_schedulable(pod: ClusterPod, view: View) -> Mask:
    """Nodes that are not cordoned; all of them for a pod that tolerates that; shape (nodes,).

    It may not be written.
    """
    if any(one.tolerates(UNSCHEDULABLE) for one in pod.spec.tolerations):
        return np.ones(len(view), np.bool_)
    return view.traits.schedulable


def tolerates_taints(pod: ClusterPod, view: View) -> Mask:
    """Nodes all of whose taints NoSchedule and NoExecute the pod tolerates; shape (nodes,)."""
    return view.traits.taints.where(lambda taints: tolerates(pod.spec, taints))


def untolerated_preferences(pod: ClusterPod, view: View) -> NDArray[np.int64]:
    """How many taints PreferNoSchedule of each node the pod does not tolerate; shape (nodes,)."""
    return view.traits.taints.numbers(lambda taints: intolerable_preferences(pod.spec, taints))


def has_name(pod: ClusterPod, view: View) -> Mask:
    """The node that the pod's spec names; all nodes, if it names none; shape (nodes,)."""
    if not pod.node:
        return np.ones(len(view), np.bool_)
    named = np.zeros(len(view), np.bool_)
    row = view.row(pod.node)
    if row is not None:
        named[row] = True
    return named


def matches_node_affinity(pod: ClusterPod, view: View) -> Mask:
    """Nodes that the node selector and the required node affinity allow; shape (nodes,)."""
    allowed = np.ones(len(view), np.bool_)
    for requirement in in_time(pod.spec.node_selector):
        allowed &= _matches(requirement, view.traits.label(requirement.key))
    if pod.spec.node_terms is not None:
        allowed &= matches_terms(pod.spec.node_terms, view)
    return allowed


def matches_terms(terms: Collection[NodeTerm], view: View) -> Mask:
    """Nodes that at least one of the terms matches; without any, none; shape (nodes,)."""
    matched = np.zeros(len(view), np.bool_)
    for term in in_time(terms):
        every = np.ones(len(view), np.bool_)
        for requirement in in_time(term.labels):
            every &= _matches(requirement, view.traits.label(requirement.key))
        for requirement in in_time(term.names):
            every &= _matches(requirement, view.traits.names)
        matched |= every
    return matched


def preferences_met(terms: Collection[PreferredTerm], view: View) -> NDArray[np.int64]:
    """The sum of the weights of the terms that match each node; shape (nodes,)."""
    found = np.zeros(len(view), np.int64)
    for one in in_time(terms):
        found += one.weight * matches_terms((one.term,), view)
    return found


def affinity_allows(spec: PodSpec, node: ClusterNode) -> bool:
    """Whether the node selector and the required node affinity of a spec allow one node."""
    return all(one.matches(node.labels) for one in spec.node_selector) and (
        spec.node_terms is None or node_matches_terms(spec.node_terms, node)
    )


def term_matches(term: NodeTerm, node: ClusterNode) -> bool:
    """Whether a term matches a node."""
    name = {NODE_NAME: node.name}
    return all(_holds(one, node.labels) for one in term.labels) and all(
        one.matches(name) for one in term.names
    )


def tolerates(spec: PodSpec, taints: Iterable[Taint]) -> bool:
    """Whether a pod tolerates all NoSchedule and NoExecute taints of a node."""
    return all(
        taint.effect not in _REPELLING
        or any(one.tolerates(taint) for one in in_time(spec.tolerations))
        for taint in taints
    )


def intolerable_preferences(spec: PodSpec, taints: Iterable[Taint]) -> int:
    """How many taints PreferNoSchedule of a node a pod does not tolerate."""
    return sum(
        taint.effect == PREFER_NO_SCHEDULE
        and not any(one.tolerates(taint) for one in in_time(spec.tolerations))
        for taint in taints
    )


def node_matches_terms(terms: Iterable[NodeTerm], node: ClusterNode) -> bool:
    """Whether at least one of the terms matches a node: the plain form of matches_terms."""
    return any(term_matches(term, node) for term in terms)


def _matches(requirement: Requirement, column: CodedColumn[str]) -> Mask:
    """Return the nodes that match a requirement.

    NotIn and DoesNotExist match an absent label, Gt and Lt do not, as in Kubernetes.
    """
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


def _holds(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    operator = requirement.operator
    if operator not in ("Gt", "Lt"):
        return requirement.matches(labels)
    number = whole_number(labels.get(requirement.key, ""))
    bound = whole_number(requirement.values[0])
    assert bound is not None  # noqa: S101 - terms with another are left out
    return _beyond(number, bound, above=operator == "Gt")


def _beyond(number: int | None, bound: int, *, above: bool) -> bool:
    if number is None:
        return False
    return number > bound if above else number < bound


def has_free_ports(pod: ClusterPod, view: View) -> Mask:
    """Nodes on which no pod has a host port that this one needs; shape (nodes,)."""
    wanted = pod.spec.host_ports
    if not wanted:
        return np.ones(len(view), np.bool_)
    return view.ports_where(lambda taken: not ports_conflict(wanted, taken))


def ports_conflict(some: Collection[HostPort], others: Iterable[HostPort]) -> bool:
    """Whether one of the ports conflicts with one of the others."""
    taken: dict[tuple[int, str], list[HostPort]] = {}
    for one in others:
        taken.setdefault((one.port, one.protocol), []).append(one)
    return any(
        one.conflicts(other)
        for one in in_time(some)
        for other in taken.get((one.port, one.protocol), ())
    )


def reaches_volumes(pod: ClusterPod, view: View) -> Mask:
    """Nodes that can reach all volumes to which the pod's claims are bound; shape (nodes,).

    A claim, or a volume of one, that is not known is out of reach of all nodes. A claim that is
    not bound yet allows all of them.
    """
    allowed = np.ones(len(view), np.bool_)
    for name in in_time(pod.claims):
        claim = view.claim(pod.namespace, name)
        if claim is None:
            return np.zeros(len(view), np.bool_)
        if not claim.volume:
            continue
        volume = view.volume(claim.volume)
        if volume is None:
            return np.zeros(len(view), np.bool_)
        if volume.node_terms is not None:
            allowed &= matches_terms(volume.node_terms, view)
    return allowed
