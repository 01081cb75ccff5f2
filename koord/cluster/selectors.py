"""Label selectors and affinity terms: decoded from the wire, and indexed by labels."""

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable, Mapping
from itertools import product
from typing import Generic, TypeVar

from koord.api.labelselector import Requirement
from koord.cluster import wire
from koord.cluster.facts import (
    AffinityTerm,
    LabelSet,
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
        InvalidObject: Kubernetes would reject it.
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


def read_preferred_nodes(
    found: Iterable[wire.PreferredSchedulingTerm],
) -> tuple[PreferredTerm, ...]:
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
        InvalidObject: Kubernetes would reject it.
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


def read_spread(found: wire.TopologySpreadConstraint) -> SpreadConstraint:
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


def _check(found: wire.SelectorExpression, where: str) -> None:
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


def is_label_requirement(found: wire.SelectorExpression | Requirement) -> bool:
    """Whether a term of a node selector may require this of labels."""
    values = found.values or []
    if found.operator in ("Gt", "Lt"):
        return len(values) == 1 and whole_number(values[0]) is not None
    if found.operator in ("In", "NotIn"):
        return bool(values)
    return found.operator in ("Exists", "DoesNotExist") and not values


def is_name_requirement(found: wire.SelectorExpression | Requirement) -> bool:
    """Whether a term of a node selector may require this of fields."""
    return (
        found.key == NODE_NAME
        and found.operator in ("In", "NotIn")
        and len(found.values or []) == 1
    )


def _requirement(found: wire.SelectorExpression) -> Requirement:
    return Requirement(found.key, found.operator, tuple(found.values or ()))


T = TypeVar("T", bound=Hashable)

_MAX_PLACES = 4  # of one term: what an index takes is bounded by the bytes of the terms
_MAX_LABELS = 32  # label keys of which an index is kept
_FEW_LABEL_SETS = 64  # that are tried one by one sooner than an index of a label is made
_Place = tuple[str | None, str | None, str | None]
"""Namespace, label key and value of pods; None: whichever."""


class TermIndex(Generic[T]):
    """Terms, each for an item, by a label that pods must have for the term to mean them."""

    def __init__(self) -> None:
        self._items: dict[_Place, dict[T, None]] = {}

    def put(self, term: AffinityTerm, item: T) -> None:
        """Add an item with its one term."""
        for place in _places(term):
            self._items.setdefault(place, {})[item] = None

    def drop(self, term: AffinityTerm, item: T) -> None:
        """Remove an item; term as it was put."""
        for place in _places(term):
            items = self._items[place]
            del items[item]
            if not items:
                del self._items[place]

    def candidates(self, label_set: LabelSet) -> list[T]:
        """Items whose terms may mean these pods, each once; those of no other term do."""
        found: list[T] = []
        if not self._items:
            return found
        get = self._items.get
        for namespace in (label_set.namespace, None):
            found += get((namespace, None, None), ())
            for key, value in label_set.labels.items():
                found += get((namespace, key, value), ())
                found += get((namespace, key, None), ())
        return found


class LabelSetIndex:
    """Label sets by namespace, and by the values of the labels that terms have asked for."""

    def __init__(self) -> None:
        self._namespaces: dict[str, dict[LabelSet, None]] = {}
        self._keys: Counter[str] = Counter()  # how many have each label key
        self._values: OrderedDict[str, dict[tuple[str, str], dict[LabelSet, None]]] = OrderedDict()
        """By label key, the one that was asked for last at the end."""

    def add(self, label_set: LabelSet) -> None:
        """Add one; twice is once."""
        namespace, labels = label_set.namespace, label_set.labels
        known = self._namespaces.setdefault(namespace, {})
        if label_set in known:
            return
        known[label_set] = None
        self._keys.update(labels.keys())
        for key, values in self._values.items():
            if key in labels:
                values.setdefault((namespace, labels[key]), {})[label_set] = None

    def discard(self, label_set: LabelSet) -> None:
        """Remove one; one that is not there is none the less gone."""
        namespace, labels = label_set.namespace, label_set.labels
        if label_set not in self._namespaces.get(namespace, ()):
            return
        _discard(self._namespaces, namespace, label_set)
        for key in labels:
            self._keys[key] -= 1
            if not self._keys[key]:
                del self._keys[key]
        for key, values in self._values.items():
            if key in labels:
                _discard(values, (namespace, labels[key]), label_set)

    def candidates(self, term: AffinityTerm) -> list[LabelSet]:
        """Label sets that a term may mean, each once; it means no others."""
        if term.selector is None:
            return []
        for one in term.selector:
            if one.operator in ("In", "Exists") and one.key not in self._keys:
                return []
        selective = term.namespace_selector is not None
        namespaces = set(self._namespaces if selective else term.namespaces)
        groups = [[self._namespaces.get(name, {}) for name in namespaces]]
        wanted = [one for one in term.selector if one.operator == "In"]
        count = sum(map(len, groups[0]))
        if wanted and count > _FEW_LABEL_SETS:
            label = _fewest(wanted)
            if len(namespaces) * len(label.values) <= count:
                values = self._of_label(label.key)
                pairs = product(namespaces, set(label.values))
                groups.append([values[pair] for pair in pairs if pair in values])
        fewest = min(groups, key=lambda group: sum(map(len, group)))
        return [label_set for each in fewest for label_set in each]

    def of_namespaces(self, names: Iterable[str] | None) -> list[LabelSet]:
        """All label sets in some namespaces; None: in all."""
        found = self._namespaces if names is None else names
        return [one for name in found for one in self._namespaces.get(name, ())]

    def _of_label(self, key: str) -> dict[tuple[str, str], dict[LabelSet, None]]:
        found = self._values.get(key)
        if found is None:
            if len(self._values) >= _MAX_LABELS:
                self._values.popitem(last=False)
            found = self._values[key] = {}
            for label_sets in self._namespaces.values():
                for one in label_sets:
                    if key in one.labels:
                        found.setdefault((one.namespace, one.labels[key]), {})[one] = None
        self._values.move_to_end(key)
        return found


def _discard(table: dict[T, dict[LabelSet, None]], place: T, label_set: LabelSet) -> None:
    label_sets = table.get(place, {})
    label_sets.pop(label_set, None)
    if not label_sets:
        table.pop(place, None)


def _places(term: AffinityTerm) -> list[_Place]:
    """Return the index keys of the pods that a term may match: at most _MAX_PLACES."""
    if term.selector is None:
        return []
    namespaces: list[str | None] = [None]
    if term.namespace_selector is None and len(term.namespaces) <= _MAX_PLACES:
        namespaces = list(dict.fromkeys(term.namespaces))
    wanted = [one for one in term.selector if one.operator == "In"]
    if wanted:
        label = _fewest(wanted)
        values = dict.fromkeys(label.values)
        if len(namespaces) * len(values) <= _MAX_PLACES:
            return [(name, label.key, value) for name, value in product(namespaces, values)]
        return [(name, label.key, None) for name in namespaces]
    present = next((one.key for one in term.selector if one.operator == "Exists"), None)
    return [(name, present, None) for name in namespaces]


def _fewest(wanted: Iterable[Requirement]) -> Requirement:
    return min(wanted, key=lambda one: len(one.values))
