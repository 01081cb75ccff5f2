"""Inter-pod affinity and anti-affinity. Source: Kubernetes, InterPodAffinity."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from koord.cluster.columns import CodedColumn, Mask
from koord.cluster.facts import AffinityTerm, ClusterPod, LabelSet, PodSpec
from koord.cluster.pod_counts import AffinityTermKind
from koord.cluster.selectors import TermIndex
from koord.cluster.view import View
from koord.util.timebudget import in_time

T = TypeVar("T")

_FEW_TERMS = 8  # about which questions are asked one by one, whose answers are kept


def matches_pod_affinity(pod: ClusterPod, view: View) -> Mask:
    """Nodes in whose domains all required affinity terms find a pod; shape (nodes,).

    A pod counts when all terms mean it. Where none does in the whole cluster, the first of a group
    may go anywhere: a pod that its own terms mean, to a node that has all the labels.
    """
    return RequiredAffinity(pod, view).allows(view)


def matches_pod_anti_affinity(pod: ClusterPod, view: View) -> Mask:
    """Nodes in whose domains is no pod that this one, or that has this one, excluded.

    Shape (nodes,). A node without the label is in no domain.
    """
    return RequiredAntiAffinity(pod, view).allows(view) & ExistingAntiAffinity(pod, view).allows(
        view
    )


def is_excluded_by_existing_pods(pod: ClusterPod, view: View) -> bool:
    """Whether another pod's anti-affinity means this one, wherever that pod is."""
    return any(
        kind is AffinityTermKind.ANTI_AFFINITY and counts.any()
        for (kind, _), counts in view.existing_terms(pod.label_set).items()
    )


class TopologyCounts:
    """Numbers by domain of a topology, while pods come and go."""

    __slots__ = ("domains", "totals")

    def __init__(self, domains: CodedColumn[str], totals: NDArray[np.int64]) -> None:
        self.domains = domains
        self.totals = totals  # (values + 1,); the last stays 0

    @classmethod
    def of(
        cls, topology_key: str, per_node: NDArray[np.integer[Any]] | None, view: View
    ) -> "TopologyCounts":
        """Sums of what each node has; None: nothing."""
        domains = view.traits.label(topology_key)
        if per_node is None:
            return cls(domains, np.zeros(len(domains.index) + 1, np.int64))
        return cls(domains, domains.totals(per_node))

    def clone(self) -> "TopologyCounts":
        """The same, to be changed on its own."""
        return TopologyCounts(self.domains, self.totals.copy())

    def change(self, row: int, amount: int) -> None:
        """Add a number at a node; where it is in no domain nothing is."""
        code = self.domains.codes[row]
        if code >= 0:
            self.totals[code] += amount

    def at(self, row: int) -> int:
        """The number of a node's domain; 0 in none."""
        found: int = self.totals.item(self.domains.codes.item(row))
        return found

    def occupied(self) -> Mask:
        """Nodes whose domain has more than 0; shape (nodes,)."""
        return (self.totals > 0).take(self.domains.codes)

    def unoccupied(self) -> Mask:
        """The other nodes."""
        return (self.totals <= 0).take(self.domains.codes)


class WeightedTerms:
    """Sums of term weights for pods, by topology key; terms whose key no node has are skipped."""

    def __init__(
        self, terms: Iterable[tuple[AffinityTerm, int]], view: View, *, once: bool = False
    ) -> None:
        """once: a pod counts once for a key, however many of its terms mean the pod."""
        keys = view.topology_keys
        known = [(term, weight) for term, weight in terms if term.topology_key in keys]
        self._view = view
        self._terms = known
        self._once = once
        self._index: TermIndex[int] | None = None  # None: they are few
        self._known: dict[LabelSet, Mapping[str, int]] = {}
        if len(known) > _FEW_TERMS:
            self._index = TermIndex()
            for number, (term, _) in enumerate(known):
                self._index.put(term, number)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._terms)

    def per_node(self) -> Mapping[str, NDArray[np.integer[Any]]]:
        """The sums of the pods of each node."""
        found: dict[str, NDArray[np.integer[Any]]] = {}
        if self._index is not None:
            return self._view.weighted_pods(self._namespaces(), self.about)
        for term, weight in self._terms:
            counts = self._view.matching_pods(term)
            one = counts if weight == 1 else weight * counts.astype(np.int64)
            key = term.topology_key
            found[key] = found[key] + one if key in found else one
        return found

    def about(self, label_set: LabelSet) -> Mapping[str, int]:
        """Return the weights that one pod with these labels adds, by topology key."""
        found = self._known.get(label_set)
        if found is None:
            found = self._known[label_set] = self._about(label_set)
        return found

    def _about(self, label_set: LabelSet) -> Mapping[str, int]:
        index, found = self._index, dict[str, int]()
        numbers = range(len(self._terms)) if index is None else index.candidates(label_set)
        for number in in_time(numbers):
            term, weight = self._terms[number]
            key = term.topology_key
            if self._once and index is not None and key in found:
                continue
            if self._view.term_matches(term, label_set):
                found[key] = found.get(key, 0) + weight
        return found

    def _namespaces(self) -> set[str] | None:
        """Those in which pods may be meant; None: in any."""
        if any(term.namespace_selector is not None for term, _ in self._terms):
            return None
        return {name for term, _ in self._terms for name in term.namespaces}


class RequiredAffinity:
    """The required affinity of a pod: pods that all of its terms mean, by topology key."""

    def __init__(self, pod: ClusterPod, view: View) -> None:
        self._terms = terms = pod.spec.affinity
        keys = {term.topology_key: None for term in terms}
        self._no_node = not keys.keys() <= view.topology_keys
        if self._no_node:  # no node has the labels of all
            self._matches_itself, per_node = False, None
        else:
            self._matches_itself = all(
                view.term_matches(term, pod.label_set) for term in in_time(terms)
            )
            per_node = view.matching_pods(*terms) if terms else None
        self._counts = [TopologyCounts.of(key, per_node, view) for key in keys if not self._no_node]

    def __bool__(self) -> bool:
        """Whether the pod has any."""
        return self._no_node or bool(self._counts)

    def clone(self) -> "RequiredAffinity":
        """The same, to be changed on its own."""
        other = _shallow_copy(self)
        other._counts = [one.clone() for one in self._counts]
        return other

    def change(self, row: int, pod: ClusterPod, amount: int, view: View) -> None:
        """Count a pod that was added to a node, 1, or removed from it, -1."""
        if self._counts and all(
            view.term_matches(term, pod.label_set) for term in in_time(self._terms)
        ):
            for one in self._counts:
                one.change(row, amount)

    def allows(self, view: View) -> Mask:
        """Nodes that it allows; shape (nodes,)."""
        if self._no_node:
            return np.zeros(len(view), np.bool_)
        first_of_group = self._is_first_of_group()
        return _all_of(
            (one.domains.present if first_of_group else one.occupied() for one in self._counts),
            view,
        )

    def allows_row(self, row: int) -> bool:
        """The same of one node."""
        if self._no_node:
            return False
        if self._is_first_of_group():
            return all(one.domains.codes[row] >= 0 for one in self._counts)
        return all(one.at(row) > 0 for one in self._counts)

    def _is_first_of_group(self) -> bool:
        """Whether it is the first of a group: a node needs nothing but the labels."""
        return self._matches_itself and not any(one.totals.any() for one in self._counts)


class RequiredAntiAffinity:
    """The required anti-affinity of a pod: pods that its terms mean, by topology key."""

    def __init__(self, pod: ClusterPod, view: View) -> None:
        self._terms = WeightedTerms(((one, 1) for one in pod.spec.anti_affinity), view, once=True)
        sums = self._terms.per_node()
        self._counts = {
            key: TopologyCounts.of(key, per_node, view) for key, per_node in sums.items()
        }

    def __bool__(self) -> bool:
        """Whether the pod has any that may forbid it a node."""
        return bool(self._terms)

    def clone(self) -> "RequiredAntiAffinity":
        """The same, to be changed on its own."""
        other = _shallow_copy(self)
        other._counts = {key: one.clone() for key, one in self._counts.items()}
        return other

    def change(self, row: int, pod: ClusterPod, amount: int, view: View) -> None:
        """Count a pod that was added to a node, 1, or removed from it, -1."""
        for key, weight in self._terms.about(pod.label_set).items():
            if key not in self._counts:
                self._counts[key] = TopologyCounts.of(key, None, view)
            self._counts[key].change(row, amount * weight)

    def allows(self, view: View) -> Mask:
        """Nodes that it allows; shape (nodes,)."""
        return _all_of((one.unoccupied() for one in self._counts.values()), view)

    def allows_row(self, row: int) -> bool:
        """The same of one node."""
        return all(one.at(row) <= 0 for one in self._counts.values())


class ExistingAntiAffinity:
    """The required anti-affinity of other pods: their terms that mean a pod, by topology key."""

    def __init__(self, pod: ClusterPod, view: View) -> None:
        self._label_set = pod.label_set
        self._known: dict[PodSpec, Mapping[str, int]] = {}  # what a pod with this spec adds
        self._counts = {
            key: TopologyCounts.of(key, counts, view)
            for (kind, key), counts in view.existing_terms(pod.label_set).items()
            if kind is AffinityTermKind.ANTI_AFFINITY
        }

    def __bool__(self) -> bool:
        """Whether there is any."""
        return any(one.totals.any() for one in self._counts.values())

    def clone(self) -> "ExistingAntiAffinity":
        """The same, to be changed on its own."""
        other = _shallow_copy(self)
        other._counts = {key: one.clone() for key, one in self._counts.items()}
        return other

    def change(self, row: int, pod: ClusterPod, amount: int, view: View) -> None:
        """Count a pod that was added to a node, 1, or removed from it, -1."""
        if not pod.spec.anti_affinity:
            return
        added = self._known.get(pod.spec)
        if added is None:
            terms = WeightedTerms(((one, 1) for one in pod.spec.anti_affinity), view)
            added = self._known[pod.spec] = terms.about(self._label_set)
        for key, weight in added.items():
            if key not in self._counts:
                self._counts[key] = TopologyCounts.of(key, None, view)
            self._counts[key].change(row, amount * weight)

    def allows(self, view: View) -> Mask:
        """Nodes that it allows; shape (nodes,)."""
        return _all_of((one.unoccupied() for one in self._counts.values()), view)

    def allows_row(self, row: int) -> bool:
        """The same of one node."""
        return all(one.at(row) <= 0 for one in self._counts.values())


def _shallow_copy(one: T) -> T:
    """Return a shallow copy; copy.copy takes five times as long, for hundreds of nodes a cycle."""
    other = object.__new__(type(one))
    other.__dict__.update(one.__dict__)
    return other


def _all_of(masks: Iterable[Mask], view: View) -> Mask:
    """Nodes in all of the masks; without any, all nodes."""
    found: Mask | None = None
    for mask in masks:
        found = mask if found is None else found & mask
    return np.ones(len(view), np.bool_) if found is None else found
