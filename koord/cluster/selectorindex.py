"""Selectors and pods that may belong together, found by the labels they have in common."""

from collections.abc import Hashable, Iterable, Iterator
from itertools import product
from typing import Generic, TypeVar

from koord.api.labelselector import Requirement
from koord.cluster.facts import AffinityTerm, LabelSet

T = TypeVar("T", bound=Hashable)

_MOST_PLACES = 64  # of one term; one with more is found by every pod
_MOST_LABELS = 32  # label keys of which an index is kept
_Place = tuple[str, str, str]  # namespace, label key and value; "", "": any labels; "": anywhere
_ANYWHERE: _Place = ("", "", "")


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
        found, namespace = list(self._items.get(_ANYWHERE, ())), label_set.namespace
        found += self._items.get((namespace, "", ""), ())
        for key, value in label_set.labels.items():
            found += self._items.get((namespace, key, value), ())
        return found


class LabelSetIndex:
    """Label sets by namespace, and by the values of the labels that terms have asked for."""

    def __init__(self) -> None:
        self._namespaces: dict[str, dict[LabelSet, None]] = {}
        self._values: dict[str, dict[tuple[str, str], dict[LabelSet, None]]] = {}  # by label key

    def add(self, label_set: LabelSet) -> None:
        """Add one; twice is once."""
        namespace, labels = label_set.namespace, label_set.labels
        self._namespaces.setdefault(namespace, {})[label_set] = None
        for key, values in self._values.items():
            if key in labels:
                values.setdefault((namespace, labels[key]), {})[label_set] = None

    def discard(self, label_set: LabelSet) -> None:
        """Remove one; one that is not there is none the less gone."""
        namespace, labels = label_set.namespace, label_set.labels
        _discard(self._namespaces, namespace, label_set)
        for key, values in self._values.items():
            if key in labels:
                _discard(values, (namespace, labels[key]), label_set)

    def candidates(self, term: AffinityTerm) -> Iterator[LabelSet]:
        """Label sets that a term may mean, each once; it means no others."""
        if term.selector is None:
            return iter(())
        selective = term.namespace_selector is not None
        namespaces = set(self._namespaces if selective else term.namespaces)
        groups = [[self._namespaces.get(name, {}) for name in namespaces]]
        for one in term.selector:
            if one.operator == "In":
                values = self._of_label(one.key)
                pairs = product(namespaces, set(one.values))
                groups.append([values[pair] for pair in pairs if pair in values])
        fewest = min(groups, key=lambda group: sum(map(len, group)))
        return (label_set for each in fewest for label_set in tuple(each))

    def _of_label(self, key: str) -> dict[tuple[str, str], dict[LabelSet, None]]:
        found = self._values.get(key)
        if found is None:
            if len(self._values) >= _MOST_LABELS:
                self._values.clear()
            found = self._values[key] = {}
            for label_sets in self._namespaces.values():
                for one in label_sets:
                    if key in one.labels:
                        found.setdefault((one.namespace, one.labels[key]), {})[one] = None
        return found


def _discard(table: dict[T, dict[LabelSet, None]], place: T, label_set: LabelSet) -> None:
    label_sets = table.get(place, {})
    label_sets.pop(label_set, None)
    if not label_sets:
        table.pop(place, None)


def _places(term: AffinityTerm) -> Iterable[_Place]:
    if term.selector is None:
        return ()
    if term.namespace_selector is not None or len(term.namespaces) > _MOST_PLACES:
        return (_ANYWHERE,)
    namespaces = sorted(set(term.namespaces))
    label = _fewest_values(term.selector)
    if label is None or len(namespaces) * len(label.values) > _MOST_PLACES:
        return [(name, "", "") for name in namespaces]
    return [(name, label.key, value) for name, value in product(namespaces, set(label.values))]


def _fewest_values(selector: Iterable[Requirement]) -> Requirement | None:
    wanted = [one for one in selector if one.operator == "In"]
    return min(wanted, key=lambda one: len(one.values), default=None)
