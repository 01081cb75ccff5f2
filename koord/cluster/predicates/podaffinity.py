"""Pods that want, or do not want, to be near others. Source: Kubernetes, InterPodAffinity."""

from collections.abc import Iterable
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koord.cluster.census import Wish
from koord.cluster.columns import CodedColumn, Mask
from koord.cluster.facts import ClusterPod
from koord.cluster.view import View


def matches_pod_affinity(pod: ClusterPod, view: View) -> Mask:
    """Nodes in whose domains all required affinity terms find a pod; shape (nodes,).

    A pod counts when all terms mean it. Where none does in the whole cluster, the first of a group
    may go anywhere: a pod that its own terms mean, to a node that has all the labels.
    """
    return Affinity(pod, view).allows(view)


def matches_pod_anti_affinity(pod: ClusterPod, view: View) -> Mask:
    """Nodes in whose domains is no pod that this one, or that has this one, excluded.

    Shape (nodes,). A node without the label is in no domain.
    """
    return AntiAffinity(pod, view).allows(view) & Opposition(pod, view).allows(view)


def is_excluded(pod: ClusterPod, view: View) -> bool:
    """Whether another pod's anti-affinity means this one, wherever that pod is."""
    return any(
        wish is Wish.ANTI_AFFINITY and counts.any()
        for (wish, _), counts in view.wishes_about(pod.label_set).items()
    )


class Domains:
    """Numbers by domain of a topology, while pods come and go."""

    __slots__ = ("domains", "totals")

    def __init__(self, domains: CodedColumn[str], totals: NDArray[np.int64]) -> None:
        self.domains = domains
        self.totals = totals  # (values + 1,); the last stays 0

    @classmethod
    def of(
        cls, topology_key: str, per_node: NDArray[np.integer[Any]] | None, view: View
    ) -> "Domains":
        """Sums of what each node has; None: nothing."""
        domains = view.traits.label(topology_key)
        if per_node is None:
            return cls(domains, np.zeros(len(domains.index) + 1, np.int64))
        return cls(domains, domains.totals(per_node))

    def clone(self) -> "Domains":
        """The same, to be changed on its own."""
        return Domains(self.domains, self.totals.copy())

    def change(self, row: int, amount: int) -> None:
        """Add a number at a node; where it is in no domain nothing is."""
        code = self.domains.codes[row]
        if code >= 0:
            self.totals[code] += amount

    def at(self, row: int) -> int:
        """The number of a node's domain; 0 in none."""
        found: int = self.totals.item(self.domains.codes.item(row))
        return found

    def taken(self) -> Mask:
        """Nodes whose domain has more than 0; shape (nodes,)."""
        return (self.totals > 0).take(self.domains.codes)

    def untaken(self) -> Mask:
        """The other nodes."""
        return (self.totals <= 0).take(self.domains.codes)


class Affinity:
    """The required affinity of a pod: pods that all of its terms mean, by topology key."""

    def __init__(self, pod: ClusterPod, view: View) -> None:
        self._terms = terms = pod.spec.affinity
        self._itself = all(view.means(term, pod.label_set) for term in terms)
        per_node = view.pods_meant(*terms) if terms else None
        keys = {term.topology_key: None for term in terms}
        self._near = [Domains.of(key, per_node, view) for key in keys]

    def __bool__(self) -> bool:
        """Whether the pod has any."""
        return bool(self._near)

    def clone(self) -> "Affinity":
        """The same, to be changed on its own."""
        other = copy(self)
        other._near = [one.clone() for one in self._near]
        return other

    def change(self, row: int, pod: ClusterPod, amount: int, view: View) -> None:
        """Count a pod that came to a node, 1, or left it, -1."""
        if self._near and all(view.means(term, pod.label_set) for term in self._terms):
            for one in self._near:
                one.change(row, amount)

    def allows(self, view: View) -> Mask:
        """Nodes that it allows; shape (nodes,)."""
        anywhere = self._anywhere()
        return _all_of(
            (one.domains.present if anywhere else one.taken() for one in self._near), view
        )

    def allows_row(self, row: int) -> bool:
        """The same of one node."""
        if self._anywhere():
            return all(one.domains.codes[row] >= 0 for one in self._near)
        return all(one.at(row) > 0 for one in self._near)

    def _anywhere(self) -> bool:
        """Whether it is the first of a group: a node needs nothing but the labels."""
        return self._itself and not any(one.totals.any() for one in self._near)


class AntiAffinity:
    """The required anti-affinity of a pod: for each term, pods that it means."""

    def __init__(self, pod: ClusterPod, view: View) -> None:
        self._terms = pod.spec.anti_affinity
        self._apart = [
            Domains.of(term.topology_key, view.pods_meant(term), view) for term in self._terms
        ]

    def __bool__(self) -> bool:
        """Whether the pod has any."""
        return bool(self._apart)

    def clone(self) -> "AntiAffinity":
        """The same, to be changed on its own."""
        other = copy(self)
        other._apart = [one.clone() for one in self._apart]
        return other

    def change(self, row: int, pod: ClusterPod, amount: int, view: View) -> None:
        """Count a pod that came to a node, 1, or left it, -1."""
        for term, one in zip(self._terms, self._apart, strict=True):
            if view.means(term, pod.label_set):
                one.change(row, amount)

    def allows(self, view: View) -> Mask:
        """Nodes that it allows; shape (nodes,)."""
        return _all_of((one.untaken() for one in self._apart), view)

    def allows_row(self, row: int) -> bool:
        """The same of one node."""
        return all(one.at(row) <= 0 for one in self._apart)


class Opposition:
    """The required anti-affinity of other pods: their terms that mean a pod, by topology key."""

    def __init__(self, pod: ClusterPod, view: View) -> None:
        self._label_set = pod.label_set
        self._opposed = {
            key: Domains.of(key, counts, view)
            for (wish, key), counts in view.wishes_about(pod.label_set).items()
            if wish is Wish.ANTI_AFFINITY
        }

    def __bool__(self) -> bool:
        """Whether there is any."""
        return any(one.totals.any() for one in self._opposed.values())

    def clone(self) -> "Opposition":
        """The same, to be changed on its own."""
        other = copy(self)
        other._opposed = {key: one.clone() for key, one in self._opposed.items()}
        return other

    def change(self, row: int, pod: ClusterPod, amount: int, view: View) -> None:
        """Count a pod that came to a node, 1, or left it, -1."""
        for term in pod.spec.anti_affinity:
            if view.means(term, self._label_set):
                key = term.topology_key
                if key not in self._opposed:
                    self._opposed[key] = Domains.of(key, None, view)
                self._opposed[key].change(row, amount)

    def allows(self, view: View) -> Mask:
        """Nodes that it allows; shape (nodes,)."""
        return _all_of((one.untaken() for one in self._opposed.values()), view)

    def allows_row(self, row: int) -> bool:
        """The same of one node."""
        return all(one.at(row) <= 0 for one in self._opposed.values())


def _all_of(masks: Iterable[Mask], view: View) -> Mask:
    """Nodes in all of the masks; without any, all nodes."""
    found: Mask | None = None
    for mask in masks:
        found = mask if found is None else found & mask
    return np.ones(len(view), np.bool_) if found is None else found
