"""A hypothetical cluster: a view in which pods are added, removed and moved.

Nothing real changes, and all that a removed pod takes is free. Preemption, plans, nominated pods
and the fit rules of the descheduler use it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count

import numpy as np
from numpy.typing import NDArray

from koord.cluster.account import FrozenAccount
from koord.cluster.columns import Column, Mask
from koord.cluster.facts import PODS, ClusterPod, LabelSet, PodSpec
from koord.cluster.placement import NONZERO, FrozenPlacement, Placement, amounts_of
from koord.cluster.predicates import RULES, NodeRejectReason, fits
from koord.cluster.predicates.nodes import enough_free
from koord.cluster.predicates.pod_affinity import is_excluded_by_existing_pods
from koord.cluster.view import View
from koord.util.errors import KoordError

RowNumbers = NDArray[np.intp]
_OnNode = tuple[ClusterPod, str]
_Change = tuple[int, ClusterPod, bool]  # the row of a pod; whether it was added, or removed

_MANY_ROWS = 256  # that have changed; then it costs less to begin with the new view
_NODE_RULES = (
    NodeRejectReason.UNREAD,
    NodeRejectReason.UNSCHEDULABLE,
    NodeRejectReason.TAINTS,
    NodeRejectReason.NODE_AFFINITY,
    NodeRejectReason.VOLUMES,
)

_generations = count(-1, -1)  # of rows with other pods: no snapshot has such a generation


class NotInView(KoordError, KeyError):
    """A pod or node that a hypothetical change is about is not in the view."""

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError's would be in quotes


@dataclass(eq=False, slots=True)
class _NodeChanges:
    """The difference between the pods of a node and those that it has in the base, by key."""

    added: dict[str, ClusterPod] = field(default_factory=dict)
    removed: dict[str, ClusterPod] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)

    def missing(self, pods: Sequence[ClusterPod]) -> list[ClusterPod]:
        """Return the added pods that are not among the pods of the base."""
        if not self.added:
            return []
        there = {pod.key for pod in pods} - self.removed.keys()
        return [pod for key, pod in self.added.items() if key not in there]

    def applied(self, pods: tuple[ClusterPod, ...]) -> tuple[ClusterPod, ...]:
        """Return the pods of the base with these changes; the same tuple if they change nothing."""
        missing, left = self.missing(pods), pods
        for at in reversed(self._places_of_gone(pods)):
            left = left[:at] + left[at + 1 :]
        return (*left, *missing) if missing else left

    def gone(self, pods: Sequence[ClusterPod]) -> list[ClusterPod]:
        """Return the pods of the base that were removed."""
        return [pods[at] for at in self._places_of_gone(pods)]

    def _places_of_gone(self, pods: Sequence[ClusterPod]) -> list[int]:
        """Where those pods are; ascending."""
        removed = self.removed
        if not removed:
            return []
        names = {pod.name for pod in removed.values()}  # a key is a text that is made when asked
        return [at for at, pod in enumerate(pods) if pod.name in names and pod.key in removed]


class HypotheticalCluster:
    """A view in which pods come to nodes and leave them. Belongs to one thread.

    view() and the questions about it cost what has changed since the last one. The changes can
    follow the cluster to later views: see rebase(). A mask has shape (nodes,).
    """

    def __init__(self, base: View) -> None:
        self._changes: dict[int, _NodeChanges] = {}  # by row
        self._absent: dict[str, _NodeChanges] = {}  # by name, of nodes that are not in the base
        self._expected: Mapping[str, tuple[ClusterPod, ...]] = {}
        self._excluding: set[PodSpec] = set()  # of pods from outside that have anti-affinity
        self._other_terms = False  # whether a pod with affinity terms has ever come or gone
        self._begin(base)

    def _begin(self, base: View) -> None:
        """Take over a view, without any changes."""
        self._base = base
        self._placement: Placement | None = None  # None: only the first changes were made
        self._first: list[_Change] = []  # which a view places when something about pods is asked
        self._generation = Column(np.int64, base=base.generations)
        self._pending: list[_Change] = []  # not placed yet
        self._account: FrozenAccount | None = base.account  # None: to be computed
        self._changed: set[int] = set()  # rows that have a generation of their own
        self._holding: set[int] = set()  # rows of which a change may concern the account
        self._view: View | None = base
        self._rows: RowNumbers | None = None
        self._altered: frozenset[int] | None = base.altered
        self._forget()

    def _forget(self) -> None:
        """Forget what was computed of the base."""
        self._free: NDArray[np.int64] | None = None  # (resources, nodes)
        self._node_masks: dict[tuple[PodSpec, str, tuple[str, ...]], Mask] = {}
        self._excluded: dict[LabelSet, bool] = {}  # whether some pod's anti-affinity means these

    def view(self) -> View:
        """The cluster as it would be. Further changes do not change this view.

        A row on which pods have come or gone has a generation of its own.
        """
        self._place_pending()
        if self._view is None:
            if self._altered is None:
                self._altered = self._base.altered.union(self._changed)
            if self._account is None:
                self._account = self._compute_account()
            placement: FrozenPlacement | Callable[[], FrozenPlacement]
            if self._placement is not None:
                placement = self._placement.freeze()
            else:
                # Filter looks at hundreds of nodes with nominated pods, mostly by counts alone.
                placement = partial(_frozen_with, self._base, tuple(self._first))
            self._view = self._base.with_placement(
                placement,
                self._generation.freeze(),
                self._altered,
                self._account,
                other_terms=self._other_terms,
            )
        return self._view

    @property
    def rows(self) -> RowNumbers:
        """The rows on which pods have come or gone."""
        self._place_pending()
        if self._rows is None:
            self._rows = np.fromiter(self._changed, np.intp, len(self._changed))
        return self._rows

    def added(self, row: int) -> Sequence[ClusterPod]:
        """Return the pods of a row that the base does not have there."""
        changes = self._changes.get(row)
        return () if changes is None else changes.missing(self._base.pods(row))

    def add(self, pod: ClusterPod, node: str) -> None:
        """Put a pod on a node, whatever node it says itself.

        Raises:
            NotInView: there is no such node.
            ValueError: a pod of this name is on that node already.
        """
        self._put(pod, self._row(node))
        self._note_excluding((pod,))

    def remove(self, key: str, node: str) -> ClusterPod:
        """Take a pod, namespace/name, off a node, and return it.

        Raises:
            NotInView: there is no such node, or it is not there.
        """
        row = self._row(node)
        pod = self._find(row, key)
        if pod is None:
            raise NotInView(f"pod {key}: wanted one on node {node}, found none of that name there")
        self._take(pod, row)
        return pod

    def restore(self, key: str, node: str) -> None:
        """Let a pod of the base that was removed from a node be there again.

        One that was not removed is left alone; the node need not be there any more.
        """
        self._place_pending()
        row = self._base.row(node)
        changes = self._absent.get(node) if row is None else self._changes.get(row)
        if changes is not None and changes.removed.pop(key, None) is not None and row is not None:
            self._renew(row)

    def move(self, pod: ClusterPod, row: int | None) -> None:
        """Let a pod leave its own node for another; None: for a node that is not in the view.

        A pod that is not on its node comes from outside.

        Raises:
            ValueError: a pod of this name is on that node already.
        """
        left = self._leave(pod)
        if row is None:
            return
        if left is None:
            self._put(pod, row)
            self._note_excluding((pod,))
        else:
            self._put(pod, row, unique=True)

    def expect(self, pods: Mapping[str, Iterable[ClusterPod]]) -> None:
        """Let these pods, by name of the node, be there as well, in the place of the last ones.

        A pod that is on its node anyway is there once; on a node that is not in the view it is
        nowhere. Both may change with rebase().
        """
        self._place_pending()
        before, self._expected = self._expected, {name: tuple(some) for name, some in pods.items()}
        for name in before.keys() | self._expected.keys():
            old, new = before.get(name, ()), self._expected.get(name, ())
            if old == new:
                continue
            row = self._base.row(name)
            if row is None:
                changes = self._absent.setdefault(name, _NodeChanges())
            else:
                changes = self._changes.setdefault(row, _NodeChanges())
            for pod in old:
                changes.added.pop(pod.key, None)
            changes.added.update((pod.key, pod) for pod in new)
            self._other_terms |= any(one.spec.has_affinity_terms for one in (*old, *new))
            self._note_excluding(new)
            if row is not None:
                self._renew(row)

    def rebase(self, base: View) -> None:
        """Make the same changes to another view of the snapshot; costs what has changed in it.

        A row whose pods stay the same keeps its generation.
        """
        before = self._base
        if base is before:
            return
        self._place_pending()
        rows = None
        if base.traits is before.traits and base.resources is before.resources:
            rows = base.generations.other_rows(before.generations)
        if rows is None or len(rows) > _MANY_ROWS:
            self._begin_again(base)
            return
        self._placed()  # as it is in the view before
        self._base, self._view, self._account = base, None, None
        if base.altered != before.altered:
            self._altered = None
        self._forget()
        for row in rows:
            self._renew(row)

    def _begin_again(self, base: View) -> None:
        """Make the changes to a view in which nodes may be on other rows."""
        by_name = {self._base.node(row).name: changes for row, changes in self._changes.items()}
        by_name |= self._absent
        self._changes, self._absent = {}, {}
        self._begin(base)
        for name, changes in by_name.items():
            row = base.row(name)
            if row is None:
                self._absent[name] = changes
            else:
                self._changes[row] = changes
                self._renew(row)

    def fits(self, pod: ClusterPod) -> Mask:
        """Nodes on which a pod could run if it left its own node; see predicates.fits."""
        if self.depends_on_other_pods(pod):
            return self._fits_with_other_pods(pod)
        return self._nodes_allow(pod) & self.has_room(pod)

    def has_room(self, pod: ClusterPod) -> Mask:
        """Nodes with free resources for a pod if it left its own node; no other rule counts."""
        resources = self._base.resources
        if self._free is None:
            self._free = (self._base.allocatable - self.view().requested).T.copy()
        room = enough_free(pod.spec, resources, self._free.__getitem__)
        own = self._base.row(pod.node)
        if own is not None and not room[own] and self._find(own, pod.key) is not None:
            left = [one for one in self.view().pods(own) if one.key != pod.key]
            taken = np.array(amounts_of(left, resources)[NONZERO:], np.int64)
            free = (self._base.allocatable[own] - taken)[:, np.newaxis]
            room[own] = enough_free(pod.spec, resources, free.__getitem__)[0]
        return room

    def depends_on_other_pods(self, pod: ClusterPod) -> bool:
        """Whether where other pods are matters, and not only what they take.

        With many pods in the cluster, fits takes long then.
        """
        spec = pod.spec
        if spec.host_ports or spec.affinity or spec.anti_affinity or spec.spread:
            return True
        excluded = self._excluded.get(pod.label_set)
        if excluded is None:
            # Of the base, as moves change nothing about it: counting their rows costs more.
            excluded = is_excluded_by_existing_pods(pod, self._base) or any(
                self._base.term_matches(term, pod.label_set)
                for other in self._excluding
                for term in other.anti_affinity
            )
            self._excluded[pod.label_set] = excluded
        return excluded

    def _note_excluding(self, pods: Iterable[ClusterPod]) -> None:
        """Note pods from outside, by whose anti-affinity others may be excluded."""
        for pod in pods:
            if pod.spec.anti_affinity and pod.spec not in self._excluding:
                self._excluding.add(pod.spec)
                self._excluded.clear()

    def _nodes_allow(self, pod: ClusterPod) -> Mask:
        """Nodes that the rules about nodes allow."""
        key = pod.spec, pod.namespace, pod.claims
        found = self._node_masks.get(key)
        if found is None:
            found = np.ones(len(self._base), np.bool_)
            for misfit in _NODE_RULES:
                found &= RULES[misfit](pod, self._base)
            self._node_masks[key] = found
        return found

    def _fits_with_other_pods(self, pod: ClusterPod) -> Mask:
        left = self._leave(pod)
        mask = fits(pod, self.view()).mask
        if left is not None:
            self._put(*left)
        return mask

    def _leave(self, pod: ClusterPod) -> tuple[ClusterPod, int] | None:
        """Take a pod off its own node; return it and its row; None: it is not there."""
        row = self._base.row(pod.node)
        there = None if row is None else self._find(row, pod.key)
        if row is None or there is None:
            return None
        self._take(there, row)
        return there, row

    def _put(self, pod: ClusterPod, row: int, *, unique: bool = False) -> None:
        """Put a pod on a row. unique: the base has it on another one, and so not on this one.

        To look for its name among the pods of a row takes half of a move's time: each is
        somewhere else in memory.
        """
        key = pod.key
        changes = self._changes.get(row)
        if changes is None:
            changes = self._changes[row] = _NodeChanges()
        if key in changes.added or (not unique and self._find(row, key) is not None):
            raise ValueError(f"{key} is on node {self._base.node(row).name} already")
        if changes.removed.get(key) is pod:
            del changes.removed[key]
        else:
            changes.added[key] = pod
        self._count(pod, row, added=True)

    def _take(self, pod: ClusterPod, row: int) -> None:
        key, changes = pod.key, self._changes.setdefault(row, _NodeChanges())
        if changes.added.pop(key, None) is not pod:
            changes.removed[key] = pod
        self._count(pod, row, added=False)

    def _count(self, pod: ClusterPod, row: int, *, added: bool) -> None:
        """Count what a pod takes at once, and let the next view place it."""
        self._pending.append((row, pod, added))
        self._other_terms |= pod.spec.has_affinity_terms
        free, resources = self._free, self._base.resources
        if free is None or pod.finished:
            return
        if pod.spec.has_huge:
            self._free = None
            return
        times = -1 if added else 1
        free[resources[PODS], row] += times
        for name, amount in pod.spec.requests:
            column = resources.get(name)
            if column is not None:
                free[column, row] += times * amount

    def _place_pending(self) -> None:
        """Place the pods that were added and removed since the last view."""
        if not self._pending:
            return
        if self._placement is None and not self._first:
            self._first = self._pending.copy()
        else:
            _change(self._placed(), self._pending)
        for row, pod, added in self._pending:
            there = ((pod, self._base.node(row).name),)
            if self._account is not None:
                removed, arrived = ((), there) if added else (there, ())
                self._account = self._account.with_pods(removed, arrived)
        rows = {row for row, *_ in self._pending}
        self._holding |= rows
        for row in rows:
            self._generation[row] = next(_generations)
        if not rows <= self._changed:
            self._changed |= rows
            self._rows = self._altered = None
        self._pending.clear()
        self._view = None

    def _placed(self) -> Placement:
        """The placement with the changes so far, to be changed further."""
        if self._placement is None:
            self._placement = Placement(self._base.placement)
            _change(self._placement, self._first)
        return self._placement

    def _renew(self, row: int) -> None:
        """Compute the pods of a row anew, of which the base or the changes are others."""
        pods, changes = self._base.pods(row), self._changes.get(row)
        was_changed = row in self._changed
        wanted = pods if changes is None else changes.applied(pods)
        self._placed().set_pods(row, wanted)
        if wanted is pods:
            self._generation[row] = self._base.generations[row]
            self._changed.discard(row)
        else:
            self._generation[row] = next(_generations)
            self._changed.add(row)
        self._holding.add(row)
        if changes is not None and not changes:
            del self._changes[row]
        if (row in self._changed) != was_changed:
            self._rows = self._altered = None  # of a thousand rows they cost more than all else
        self._view = self._free = self._account = None

    def _compute_account(self) -> FrozenAccount:
        """The account of the base with the changes of all rows.

        A row whose pods hold nothing is not looked at again while nothing of it changes.
        """
        account, removed, added = self._base.account, list[_OnNode](), list[_OnNode]()
        for row in tuple(self._holding):
            changes = self._changes.get(row) or _NodeChanges()
            pods, name = self._base.pods(row), self._base.node(row).name
            gone = [(one, name) for one in changes.gone(pods)]
            arrived = [(one, name) for one in changes.missing(pods)]
            if account.with_pods(gone, arrived) is account:
                self._holding.discard(row)
            else:
                removed += gone
                added += arrived
        return account.with_pods(removed, added) if removed or added else account

    def _find(self, row: int, key: str) -> ClusterPod | None:
        changes = self._changes.get(row)
        if changes is not None and key in changes.removed:
            return changes.added.get(key)
        namespace, _, name = key.partition("/")
        for one in self._base.pods(row):
            if one.name == name and one.label_set.namespace == namespace:
                return one
        return None if changes is None else changes.added.get(key)

    def _row(self, node: str) -> int:
        row = self._base.row(node)
        if row is None:
            raise NotInView(f"node {node}: wanted one of the view, found none of that name")
        return row


def _change(placement: Placement, changes: Iterable[_Change]) -> None:
    """Add and remove pods."""
    for row, pod, added in changes:
        if added:
            placement.add(row, pod)
        else:
            placement.remove(row, pod)


def _frozen_with(base: View, changes: Iterable[_Change]) -> FrozenPlacement:
    """Return the placement of a view with some changes."""
    placement = Placement(base.placement)
    _change(placement, changes)
    return placement.freeze()


def without_pod(pod: ClusterPod, view: View) -> View:
    """The cluster without a pod; the same view if the pod is not on its node there."""
    row = view.row(pod.node)
    if row is None or all(one.key != pod.key for one in view.pods(row)):
        return view
    hypothetical = HypotheticalCluster(view)
    hypothetical.remove(pod.key, pod.node)
    return hypothetical.view()
