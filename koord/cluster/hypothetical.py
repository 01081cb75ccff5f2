"""Hypothetical clusters: views with added pods, and views in which pods move.

Equal pods share what depends on nodes only, so a query costs a few columns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koord.cluster.columns import FrozenColumn, Mask
from koord.cluster.facts import PODS, ClusterPod, LabelSet, PodSpec
from koord.cluster.placement import FrozenPlacement, Placement, amounts_of
from koord.cluster.predicates.fits import RULES, NodeRejectReason, fits
from koord.cluster.predicates.pod_affinity import is_excluded_by_existing_pods
from koord.cluster.view import View, WhatIf, hypothetical_generation

RowNumbers = NDArray[np.intp]

_NO_GENERATION = -(2**63)  # no row has this generation


@dataclass(eq=False, slots=True)
class _OverlaidNode:
    """A node on which there are further pods."""

    pods: tuple[ClusterPod, ...]
    row: int = -1
    seen: int = _NO_GENERATION  # generation of the row when the rest was right
    number: int = 0  # generation of the row with these pods
    added: tuple[ClusterPod, ...] = ()  # those that are not on the node anyway
    amounts: tuple[int, ...] = ()  # that these take
    all_pods: tuple[ClusterPod, ...] = ()  # all pods of the node, with these


class PodOverlay:
    """Pods that are imagined on nodes, in one view of a snapshot after the other.

    A view with them costs little where few nodes have changed: which pods they are is made only if
    it is asked for. A row keeps its generation as long as it and its further pods stay the same.
    Belongs to one thread.
    """

    def __init__(self, pods: Mapping[str, Sequence[ClusterPod]]) -> None:
        """pods: by name of the node; of a node that is not there they are nowhere."""
        self._places: dict[str, _OverlaidNode] = {}
        self._present: list[_OverlaidNode] = []
        self._by_row: dict[int, _OverlaidNode] = {}
        self._rows: RowNumbers = np.zeros(0, np.intp)
        self._altered: frozenset[int] = frozenset()
        self._seen: NDArray[np.int64] = np.zeros(0, np.int64)
        self._numbers: NDArray[np.int64] = np.zeros(0, np.int64)
        self._amounts: NDArray[np.int64] = np.zeros((0, 0), np.int64)
        self._layout: tuple[object, object] | None = None
        self._changed = True
        self._last: tuple[View, View] | None = None
        self.put(pods)

    def put(self, pods: Mapping[str, Sequence[ClusterPod]]) -> None:
        """Imagine these pods from now on, in the place of those before."""
        old = self._places
        self._places = {}
        for name, each in pods.items():
            place, wanted = old.get(name), tuple(each)
            if place is None or place.pods != wanted:
                place = _OverlaidNode(wanted)
            self._places[name] = place
        self._changed, self._last = True, None

    def rows(self, view: View) -> RowNumbers:
        """The rows of the nodes on which further pods are imagined."""
        self._follow(view)
        return self._rows

    def pods_of(self, row: int) -> Sequence[ClusterPod]:
        """The further pods of one of these rows, in the view that was asked about last."""
        return self._by_row[row].added

    def on(self, view: View) -> View:
        """The view with these pods on their nodes; those that are there anyway are there once."""
        if self._last is None or self._last[0] is not view:
            self._follow(view)
            self._last = view, self._overlay(view)
        return self._last[1]

    def _follow(self, view: View) -> None:
        if self._changed or self._layout != (view.traits, view.resources):
            self._place_all(view)
        stale = np.flatnonzero(view.generation[self._rows] != self._seen)
        for at in stale.tolist():
            self._renew(at, view)

    def _place_all(self, view: View) -> None:
        """Rebuild the columns after nodes of the view or pods of the overlay have changed."""
        layout = view.traits, view.resources
        anew = self._layout != layout
        self._layout, self._changed, self._present = layout, False, []
        for name, place in self._places.items():
            row = view.row(name)
            if anew or row != place.row:
                place.seen = _NO_GENERATION
            if row is not None:
                place.row = row
                self._present.append(place)
        width = view.placement.amounts.width
        self._rows = np.array([one.row for one in self._present], np.intp)
        self._by_row = {one.row: one for one in self._present}
        self._altered = frozenset(self._by_row)
        self._seen = np.array([one.seen for one in self._present], np.int64)
        self._numbers = np.array([one.number for one in self._present], np.int64)
        nothing = (0,) * width
        rows = [one.amounts if len(one.amounts) == width else nothing for one in self._present]
        self._amounts = np.array(rows, np.int64).reshape(-1, width).T.copy()

    def _renew(self, at: int, view: View) -> None:
        place = self._present[at]
        there = {one.key for one in view.pods(place.row)}
        place.added = tuple(one for one in place.pods if one.key not in there)
        place.all_pods = (*view.pods(place.row), *place.added)
        place.amounts = amounts_of(place.added, view.resources)
        place.number, place.seen = hypothetical_generation(), int(view.generation[place.row])
        self._amounts[:, at] = place.amounts
        self._numbers[at], self._seen[at] = place.number, place.seen

    def _overlay(self, view: View) -> View:
        placement, generation = view.placement, view.generations
        amounts = placement.amounts.added(self._rows, self._amounts)
        places = [(one.row, one.added, one.all_pods) for one in self._present]
        overlaid = _OverlaidPlacement(placement, amounts, places)
        numbers = generation.replaced(self._rows, self._numbers)
        added = [(pod, view.node(one.row).name) for one in self._present for pod in one.added]
        account = view.account.with_pods((), added)
        return view.with_placement(overlaid, numbers, view.altered | self._altered, account)


class _OverlaidPlacement(FrozenPlacement):
    """A placement with further pods. Only what they take is computed at once."""

    def __init__(
        self,
        base: FrozenPlacement,
        amounts: FrozenColumn,
        places: Sequence[tuple[int, Sequence[ClusterPod], tuple[ClusterPod, ...]]],
    ) -> None:
        """places: rows, their further pods, and all their pods."""
        self.resources = base.resources
        self.amounts = amounts
        self._base = base
        self._places = places

    def __getattr__(self, name: str) -> Any:
        """Compute an attribute on its first use, from the placement with all pods."""
        if name.startswith("_"):
            raise AttributeError(name)
        if name == "pods":
            self.pods = self._base.pods.replaced(*self._lists())
            return self.pods
        whole = _with_pods(self._base, [(row, pods) for row, pods, _ in self._places])
        for each, value in vars(whole).items():
            self.__dict__.setdefault(each, value)
        return self.__dict__[name]

    def _lists(self) -> tuple[RowNumbers, NDArray[Any]]:
        """The rows with further pods, and all pods of each."""
        lists = np.empty(len(self._places), object)
        for at, (*_, all_pods) in enumerate(self._places):
            lists[at] = all_pods
        return np.array([row for row, *_ in self._places], np.intp), lists


def _with_pods(
    base: FrozenPlacement, added: Sequence[tuple[int, Sequence[ClusterPod]]]
) -> FrozenPlacement:
    placement = Placement(base)
    for row, pods in added:
        for pod in pods:
            placement.add(row, pod)
    return placement.freeze()


class HypotheticalMoves:
    """A cluster in which pods leave their nodes and go to others. Belongs to one thread.

    Only nodes on certain rows are asked about; a mask here has shape (rows,).
    """

    def __init__(self, view: View, rows: NDArray[np.intp]) -> None:
        self._view = view
        self._rows = rows
        self._places = {int(row): place for place, row in enumerate(rows)}
        self._free = (view.allocatable - view.requested).T[:, rows].copy()  # (resources, rows)
        self._node_masks: dict[tuple[PodSpec, str, tuple[str, ...]], Mask] = {}
        self._excluded: dict[LabelSet, bool] = {}  # whether some pod's anti-affinity means these
        self._what_if: WhatIf = view.what_if()
        self._pending: list[tuple[ClusterPod, int | None]] = []  # moves that what_if lacks

    def fits(self, pod: ClusterPod) -> Mask:
        """Nodes on which the pod could run if it left its node; see predicates.fits.

        A pod that has moved is not asked about again.
        """
        if self.depends_on_other_pods(pod):
            return self._fits_with_other_pods(pod)
        return self._nodes_allow(pod) & self.has_room(pod)

    def has_room(self, pod: ClusterPod) -> Mask:
        """Nodes with free resources for the pod if it left its node; other rules are ignored."""
        self._leave(pod)
        room: Mask = self._column(PODS) >= 1
        for name, amount in pod.spec.requests:
            room &= self._column(name) >= amount
        self._leave(pod, times=-1)
        return room

    def move(self, pod: ClusterPod, target: int | None) -> None:
        """Let a pod leave its node for one of the rows, or for a node that is none of them."""
        self._leave(pod)
        if target is not None and not pod.finished:
            self._take(pod, self._places[target], 1)
        self._pending.append((pod, target))

    def _leave(self, pod: ClusterPod, times: int = 1) -> None:
        place = self._places.get(self._view.traits.rows.get(pod.node, -1))
        if place is not None and not pod.finished:
            self._take(pod, place, -times)

    def _take(self, pod: ClusterPod, place: int, times: int) -> None:
        resources = self._view.resources
        self._free[resources[PODS], place] -= times
        for name, amount in pod.spec.requests:
            if name in resources:
                self._free[resources[name], place] -= times * amount

    def _column(self, name: str) -> NDArray[np.int64]:
        column = self._view.resources.get(name)
        return np.zeros(len(self._rows), np.int64) if column is None else self._free[column]

    def depends_on_other_pods(self, pod: ClusterPod) -> bool:
        """Whether where other pods are matters, and not only what they take.

        With many pods in the cluster, fits takes long then.
        """
        spec = pod.spec
        if spec.host_ports or spec.affinity or spec.anti_affinity or spec.spread:
            return True
        excluded = self._excluded.get(pod.label_set)
        if excluded is None:
            excluded = self._excluded[pod.label_set] = is_excluded_by_existing_pods(pod, self._view)
        return excluded

    def _nodes_allow(self, pod: ClusterPod) -> Mask:
        """Nodes that the rules about nodes allow."""
        key = pod.spec, pod.namespace, pod.claims
        found = self._node_masks.get(key)
        if found is None:
            found = np.ones(len(self._view), np.bool_)
            for misfit in _NODE_RULES:
                found &= RULES[misfit](pod, self._view)
            found = self._node_masks[key] = found[self._rows]
        return found

    def _fits_with_other_pods(self, pod: ClusterPod) -> Mask:
        what_if = self._what_if
        for moved, target in self._pending:
            what_if.remove(moved.key, moved.node)
            if target is not None:
                what_if.add(moved, self._view.node(target).name)
        self._pending.clear()
        what_if.remove(pod.key, pod.node)
        allowed: Mask = fits(pod, what_if.view()).mask[self._rows]
        what_if.add(pod, pod.node)
        return allowed


_NODE_RULES = (
    NodeRejectReason.UNREAD,
    NodeRejectReason.UNSCHEDULABLE,
    NodeRejectReason.TAINTS,
    NodeRejectReason.NODE_AFFINITY,
    NodeRejectReason.VOLUMES,
)
