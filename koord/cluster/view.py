"""A view: the cluster at one moment. It never changes, and any thread may read it."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import cached_property
from itertools import repeat
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from koord.cluster.account import NO_ACCOUNT, FrozenAccount
from koord.cluster.columns import (
    CodedColumn,
    FrozenColumn,
    FrozenImages,
    FrozenShards,
    Mask,
    read_only,
)
from koord.cluster.facts import (
    PREFER_NO_SCHEDULE,
    AffinityTerm,
    ClusterNamespace,
    ClusterNode,
    ClusterPod,
    HostPort,
    LabelSet,
    PodSpec,
    Selector,
    Taint,
)
from koord.cluster.placement import NONZERO, FrozenPlacement, Placed
from koord.cluster.pod_counts import (
    AffinityTermKind,
    Counts,
    PodCounts,
    Weights,
    labels_of,
    term_matches_labels,
)
from koord.cluster.storage import Claim, Volume


class Traits:
    """Node facts that rarely change: names, labels, taints, flags. Each is computed on first use.

    Views between which none of them has changed share one object, which is read-only.
    """

    def __init__(self, nodes: FrozenColumn) -> None:
        self._nodes: list[ClusterNode] = nodes.array.tolist()
        self._labels: dict[str, CodedColumn[str]] = {}

    @cached_property
    def rows(self) -> Mapping[str, int]:
        """Rows by the name of the node."""
        return MappingProxyType({node.name: row for row, node in enumerate(self._nodes)})

    @cached_property
    def label_keys(self) -> frozenset[str]:
        """The keys of all labels that nodes have."""
        return frozenset().union(*(node.labels for node in self._nodes))

    @cached_property
    def _absent(self) -> CodedColumn[str]:
        return CodedColumn(repeat(None, len(self._nodes)))

    @cached_property
    def names(self) -> CodedColumn[str]:
        return CodedColumn(node.name for node in self._nodes)

    @cached_property
    def taints(self) -> CodedColumn[tuple[Taint, ...]]:
        return CodedColumn(node.taints for node in self._nodes)

    @cached_property
    def tainted(self) -> bool:
        """Whether any node has a taint."""
        return any(node.taints for node in self._nodes)

    @cached_property
    def unschedulable(self) -> Mask:
        return read_only(np.fromiter((node.unschedulable for node in self._nodes), np.bool_))

    @cached_property
    def preferences(self) -> tuple[tuple[Taint, ...], ...]:
        """The taints of nodes, equal ones once, among which is one with PreferNoSchedule."""
        return tuple(
            taints
            for taints in self.taints.index
            if any(one.effect == PREFER_NO_SCHEDULE for one in taints)
        )

    @cached_property
    def schedulable(self) -> Mask:
        """Nodes that are not cordoned."""
        return read_only(~self.unschedulable)

    @cached_property
    def ready(self) -> Mask:
        return read_only(np.fromiter((node.ready for node in self._nodes), np.bool_))

    def label(self, key: str) -> CodedColumn[str]:
        """The values of a label; of one that no node has nothing is kept."""
        found = self._labels.get(key)
        if found is None:
            if key not in self.label_keys:
                return self._absent
            found = self._labels[key] = CodedColumn(node.labels.get(key) for node in self._nodes)
        return found


class View:
    """Nodes as rows, in no particular order, and the pods on them.

    A mask has shape (nodes,), a table (nodes, resources).
    """

    def __init__(
        self,
        *,
        traits: Traits,
        nodes: FrozenColumn,
        allocatable: FrozenColumn,
        usage: FrozenColumn,
        generation: FrozenColumn,
        placement: FrozenPlacement | Callable[[], FrozenPlacement],
        claims: FrozenShards[Claim],
        volumes: FrozenShards[Volume],
        namespaces: FrozenShards[ClusterNamespace],
        images: FrozenImages,
        pod_counts: PodCounts,
        altered: frozenset[int] = frozenset(),
        account: FrozenAccount = NO_ACCOUNT,
        actual: "View | None" = None,
        other_terms: bool = False,
    ) -> None:
        """pod_counts: shared by all views of a snapshot.

        placement: a function is called once, when something about the pods is asked. actual: of a
        what-if, the view of the snapshot that it began with. other_terms: pods with affinity terms
        may have come or gone in it.
        """
        self.traits = traits
        self.account = account
        """The account of quotas, devices and the like that pods hold."""
        self._images = images
        self.altered = altered
        """Rows on which a hypothetical cluster has added or removed pods."""
        self._actual = actual
        self._other_terms = other_terms
        self.node_column = nodes
        """The nodes; unlike by generations, rows with other pods alone are the same in it."""
        self._allocatable = allocatable
        self._usage = usage
        self._generation = generation
        self._place = placement
        self._claims = claims
        self._volumes = volumes
        self.namespaces = namespaces
        self._pod_counts = pod_counts

    def __len__(self) -> int:
        return self.node_column.length

    @property
    def resources(self) -> Mapping[str, int]:
        """Columns of allocatable and requested by name of the resource; no other is on a node."""
        return self.placement.resources

    @property
    def allocatable(self) -> NDArray[np.int64]:
        """(nodes, resources): milli-cores, bytes, pods, or units of what it is."""
        return self._allocatable.array

    def floats(self, column: int) -> NDArray[np.float64] | None:
        """Return the allocatable of all nodes for one resource; see FrozenColumn.floats."""
        return self._allocatable.floats(column)

    def lacking(self, column: int) -> Mask | None:
        """Nodes that have nothing of a resource; None: there is none. Costs nothing mostly."""
        return self._allocatable.zeros(column)

    @property
    def requested(self) -> NDArray[np.int64]:
        """(nodes, resources): sums over the pods that are not finished; of "pods", their number."""
        return self.placement.requested

    @property
    def nonzero_requested(self) -> NDArray[np.int64]:
        """(nodes, 2): milli-cores and bytes, as requested; a container that requests none counts
        with a default. Loads are compared by them.
        """
        return self.placement.nonzero_requested

    @property
    def images(self) -> FrozenImages:
        """The images of the nodes."""
        return self._images

    def allocatable_of(self, row: int, column: int) -> int:
        """One amount of the table, at little cost, as in a what-if for a single node."""
        return self._allocatable.number(row, column)

    def requested_of(self, row: int, column: int) -> int:
        """One amount of the table, as allocatable_of."""
        return self.placement.requested_of(row, column)

    def uses_of(self, row: int, columns: Iterable[int]) -> list[tuple[int, int]]:
        """Allocatable and requested amounts of some resources of a node, at the least cost."""
        allocatable, at = self._allocatable.chunk_of(row)
        requested, _ = self.placement.amounts.chunk_of(row)
        return [(allocatable.item(one, at), requested.item(NONZERO + one, at)) for one in columns]

    def nonzero_requested_of(self, row: int) -> tuple[int, int]:
        """One row of the table, as allocatable_of."""
        return self.placement.nonzero_requested_of(row)

    def amounts_of(self, row: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the requested and the free amounts of a node, at little cost.

        Each has nonzero_requested of cpu and memory first, then all resources.
        """
        return self.placement.amounts_of(row, self._allocatable[row])

    def ports_where(self, holds: Callable[[frozenset[HostPort]], bool]) -> Mask:
        """Nodes whose host ports, all that pods have taken, fulfil a condition; shape (nodes,).

        It is asked once for each set of ports.
        """
        sets = self.placement.port_sets.array
        table = np.fromiter((one is not None and holds(one) for one in sets), np.bool_, len(sets))
        found: Mask = table[self.placement.ports.array]
        return found

    @property
    def usage(self) -> NDArray[np.float64]:
        """(nodes, columns) as the snapshot was given them; NaN where none was."""
        return self._usage.array

    @property
    def generation(self) -> NDArray[np.int64]:
        """(nodes,): a number of what the row has; with other pods, too, it has another one."""
        return self._generation.array

    def node(self, row: int) -> ClusterNode:
        found: ClusterNode = self.node_column[row]
        return found

    def row(self, name: str) -> int | None:
        """The row of a node; None: it is not there."""
        return self.traits.rows.get(name)

    def pods(self, row: int) -> tuple[ClusterPod, ...]:
        """The pods of a node, finished ones too."""
        found: tuple[ClusterPod, ...] = self.placement.pods[row]
        return found

    @property
    def volume_pods(self) -> FrozenColumn:
        """The pods of each node that have claims or disks, but finished ones.

        A tuple that is another one after a change.
        """
        return self.placement.volume_pods

    @property
    def claims(self) -> FrozenShards[Claim]:
        """All claims by namespace/name."""
        return self._claims

    @property
    def volumes(self) -> FrozenShards[Volume]:
        """All volumes by name."""
        return self._volumes

    def claim(self, namespace: str, name: str) -> Claim | None:
        return self._claims.get(f"{namespace}/{name}")

    def volume(self, name: str) -> Volume | None:
        return self._volumes.get(name)

    @cached_property
    def placement(self) -> FrozenPlacement:
        """The placement of pods, to build other views from."""
        return self._place() if callable(self._place) else self._place

    @property
    def topology_keys(self) -> frozenset[str]:
        """The keys of all labels that nodes have: a term over another one is about no domain."""
        return self.traits.label_keys

    @property
    def generations(self) -> FrozenColumn:
        """The column of generation: rows that have changed since another view are found by it."""
        return self._generation

    @property
    def actual(self) -> "View":
        """The view of the snapshot that a what-if began with; of any other view itself."""
        return self if self._actual is None else self._actual

    def with_placement(
        self,
        placement: FrozenPlacement | Callable[[], FrozenPlacement],
        generation: FrozenColumn,
        altered: frozenset[int],
        account: FrozenAccount,
        *,
        other_terms: bool,
    ) -> "View":
        """The same nodes with other pods on some of them, which have another generation.

        placement: a function is called once, when something about the pods is asked. other_terms:
        some of the other pods may have affinity terms.
        """
        return View(
            traits=self.traits,
            nodes=self.node_column,
            allocatable=self._allocatable,
            usage=self._usage,
            generation=generation,
            placement=placement,
            claims=self._claims,
            volumes=self._volumes,
            namespaces=self.namespaces,
            pod_counts=self._pod_counts,
            images=self._images,
            altered=altered,
            account=account,
            actual=self.actual,
            other_terms=other_terms or self._other_terms,
        )

    @cached_property
    def placed(self) -> Placed:
        """All pods that are not finished."""
        return Placed(self.placement.entries)

    @cached_property
    def specs(self) -> tuple[PodSpec | None, ...]:
        """The specs, by the numbers in `placed`; None: the number is unused."""
        return tuple(self.placement.specs.array)

    def pods_per_node(self, chosen: Mask) -> NDArray[np.intp]:
        """How many of the chosen pods of placed each node has; shape (nodes,)."""
        return np.bincount(self.placed.row[chosen], minlength=len(self))

    def pods_matching(self, *terms: AffinityTerm) -> Mask:
        """Pods of placed that all of the terms mean; shape (pods,)."""
        chosen = np.zeros(len(self.placement.label_sets), np.bool_)
        for number, label_set in self._candidates(terms[0]):
            chosen[number] = all(self.term_matches(term, label_set) for term in terms)
        return chosen[self.placed.label_set]

    def pods_chosen(self, chosen: Mask) -> list[ClusterPod]:
        """The chosen pods of placed, node by node."""
        at = np.flatnonzero(chosen)
        rows = self.placed.row[at]
        begins = np.searchsorted(self.placed.row, rows)
        found, last, pods = [], -1, []
        for row, number in zip(rows.tolist(), (at - begins).tolist(), strict=True):
            if row != last:
                last, pods = row, [pod for pod in self.pods(row) if not pod.finished]
            found.append(pods[number])
        return found

    def pods_selected(self, namespace: str, selector: Selector) -> Mask:
        """Pods of placed in one namespace that a selector matches; shape (pods,)."""
        return self.pods_matching(AffinityTerm("", selector, (namespace,)))

    def matching_pods(self, *terms: AffinityTerm, deleting: bool = True) -> Counts:
        """How many pods each node has that all of the terms mean; shape (nodes,).

        deleting: those that are being deleted count as well. It costs what has changed since the
        last question to any view of the snapshot, or, the first time, what the terms mean.
        """
        return self._pod_counts.count(self, terms, deleting=deleting)

    def weighted_pods(
        self, namespaces: Iterable[str] | None, weights: Weights
    ) -> Mapping[str, NDArray[np.int64]]:
        """Return the total weight of each node's pods, by the names in weights; shape (nodes,).

        namespaces: only pods in them can have a weight; None: all. The cost grows with the number
        of different label sets, on every call. Use this for many terms, where matching_pods() for
        each term would cost more.
        """
        return self._pod_counts.weigh(self, namespaces, weights)

    def count_pods(self) -> None:
        """Count what has changed already, so that the next matching_pods() costs less."""
        self._pod_counts.follow(self)

    def existing_terms(self, label_set: LabelSet) -> Mapping[tuple[AffinityTermKind, str], Counts]:
        """Count the affinity terms of each node's pods that match these labels.

        The result is by kind of the term and topology key. A preferred term counts with its weight,
        a required term with 1. It costs as much as matching_pods().
        """
        return self._pod_counts.term_counts(self, label_set)

    def existing_terms_key(self) -> Hashable | None:
        """Return a key that is equal in views of a snapshot with equal existing_terms; None: none.

        It costs nothing, as it looks at no pod. A what-if in which pods with affinity terms may
        have come or gone has no key.
        """
        if self._other_terms:
            return None
        return self.actual.placement.term_counts, self.traits, self.namespaces

    def term_matches(self, term: AffinityTerm, label_set: LabelSet) -> bool:
        """Whether an affinity term means pods with this namespace and these labels."""
        return term_matches_labels(term, label_set, self.namespaces)

    @cached_property
    def _by_namespace(self) -> Mapping[str, list[tuple[int, LabelSet]]]:
        found: dict[str, list[tuple[int, LabelSet]]] = {}
        for number, label_set in enumerate(self.placement.label_sets.array.tolist()):
            if label_set is not None:
                found.setdefault(label_set.namespace, []).append((number, label_set))
        return found

    def _candidates(self, term: AffinityTerm) -> list[tuple[int, LabelSet]]:
        namespaces = set(term.namespaces)
        if term.namespace_selector is not None:
            namespaces.update(self._by_namespace)
        return [one for name in namespaces for one in self._by_namespace.get(name, ())]

    def namespace_labels(self, name: str) -> Mapping[str, str]:
        """Return the labels of a namespace; an unknown one has only the label of its name."""
        return labels_of(name, self.namespaces)
