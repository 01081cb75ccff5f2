"""Selectors and affinity terms, from the wire to what is evaluated."""

from collections.abc import Iterable, Mapping

from koord.api.labelselector import Requirement
from koord.cluster import wire
from koord.cluster.facts import (
    AffinityTerm,
    NodeTerm,
    PreferredAffinityTerm,
    PreferredTerm,
    Selector,
    SpreadConstraint,
)
from koord.util.errors import InvalidObject

NODE_NAME = "metadata.name"  # the only field of a node that can be selected
_HEAVIEST = 100  # weight of a preferred term
_LONGEST_NUMBER = 20  # characters of a whole number of 64 bits


def equalities(labels: Mapping[str, str]) -> Selector:
    """Return the selector that wants each of these labels with its value."""
    return tuple(Requirement(key, "In", (text,)) for key, text in labels.items())


def read_selector(found: wire.LabelSelector | None, where: str) -> Selector | None:
    """Return a label selector; None where there is none, which matches nothing.

    Raises:
        InvalidObject: Kubernetes would refuse it.
    """
    if found is None:
        return None
    labels = list(equalities(found.match_labels or {}))
    for one in found.match_expressions or ():
        _check(one, where)
        labels.append(_requirement(one))
    return tuple(labels)


def read_node_terms(found: wire.NodeSelector) -> tuple[NodeTerm, ...]:
    """Return the terms that some node can match; of none at all, none can.

    A term that is empty or malformed matches no node, whatever the others do.

    Source: Kubernetes, component-helpers nodeaffinity.NodeSelector.Match.
    """
    return tuple(filter(None, map(_node_term, found.node_selector_terms or ())))


def read_preferred_nodes(found: Iterable[wire.PreferredTerm]) -> tuple[PreferredTerm, ...]:
    """Return the preferred terms that some node can match.

    Source: Kubernetes, component-helpers nodeaffinity.PreferredSchedulingTerms.
    """
    return tuple(
        PreferredTerm(one.weight, term)
        for one in found
        if one.weight and (term := _node_term(one.preference)) is not None
    )


def read_affinity_term(found: wire.PodAffinityTerm, namespace: str) -> AffinityTerm:
    """Return a required term of a pod (anti-)affinity; namespace is the pod's own.

    matchLabelKeys and mismatchLabelKeys are in the selectors already: the API server merges them.

    Raises:
        InvalidObject: Kubernetes would refuse it.
    """
    namespaces = tuple(found.namespaces or ())
    if not namespaces and found.namespace_selector is None:
        namespaces = (namespace,)
    return AffinityTerm(
        topology_key=found.topology_key,
        selector=read_selector(found.label_selector, "labelSelector"),
        namespaces=namespaces,
        namespace_selector=read_selector(found.namespace_selector, "namespaceSelector"),
    )


def read_preferred_term(found: wire.WeightedAffinityTerm, namespace: str) -> PreferredAffinityTerm:
    """Return a preferred term, as read_affinity_term does."""
    if not 1 <= found.weight <= _HEAVIEST:
        raise InvalidObject("weight", wanted=f"1 to {_HEAVIEST}", found=found.weight)
    return PreferredAffinityTerm(
        found.weight, read_affinity_term(found.pod_affinity_term, namespace)
    )


def read_spread(found: wire.Spread) -> SpreadConstraint:
    """Return a topology spread constraint. Raises as read_affinity_term."""
    return SpreadConstraint(
        topology_key=found.topology_key,
        max_skew=found.max_skew,
        selector=read_selector(found.label_selector, "labelSelector"),
        min_domains=1 if found.min_domains is None else found.min_domains,
        honor_affinity=found.node_affinity_policy in (None, "", "Honor"),
        honor_taints=found.node_taints_policy == "Honor",
        match_label_keys=tuple(found.match_label_keys or ()),
    )


def whole_number(text: str) -> int | None:
    """Return a whole number of 64 bits as Go reads it; None: the text is none."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if len(text) > _LONGEST_NUMBER or not (digits.isascii() and digits.isdigit()):
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None


def _check(found: wire.Expression, where: str) -> None:
    if found.operator not in ("In", "NotIn", "Exists", "DoesNotExist"):
        wanted = "In, NotIn, Exists or DoesNotExist"
        raise InvalidObject(f"{where}: operator", wanted=wanted, found=found.operator)
    if bool(found.values) != (found.operator in ("In", "NotIn")):
        wanted = "values only with In and NotIn, and there always"
        raise InvalidObject(f"{where}: values", wanted=wanted, found=found.values or [])


def _node_term(found: wire.NodeSelectorTerm) -> NodeTerm | None:
    labels, names = found.match_expressions or [], found.match_fields or []
    good = all(map(is_label_requirement, labels)) and all(map(is_name_requirement, names))
    if not good or not (labels or names):
        return None
    return NodeTerm(tuple(map(_requirement, labels)), tuple(map(_requirement, names)))


def is_label_requirement(found: wire.Expression | Requirement) -> bool:
    """Whether a term of a node selector may require this of labels."""
    values = found.values or []
    if found.operator in ("Gt", "Lt"):
        return len(values) == 1 and whole_number(values[0]) is not None
    if found.operator in ("In", "NotIn"):
        return bool(values)
    return found.operator in ("Exists", "DoesNotExist") and not values


def is_name_requirement(found: wire.Expression | Requirement) -> bool:
    """Whether a term of a node selector may require this of fields."""
    return (
        found.key == NODE_NAME
        and found.operator in ("In", "NotIn")
        and len(found.values or []) == 1
    )


def _requirement(found: wire.Expression) -> Requirement:
    return Requirement(found.key, found.operator, tuple(found.values or ()))
