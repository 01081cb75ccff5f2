"""Further pods on many nodes at once: a what-if that is kept from view to view."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koord.cluster.columns import FrozenColumn
from koord.cluster.facts import ClusterPod
from koord.cluster.placement import FrozenPlacement, Placement, amounts_of
from koord.cluster.view import View, imagined_generation

Rows = NDArray[np.intp]

_NEVER = -(2**63)  # no row has this generation


@dataclass(eq=False, slots=True)
class _Place:
    """A node on which there are further pods."""

    pods: tuple[ClusterPod, ...]
    row: int = -1
    seen: int = _NEVER  # generation of the row when the rest was right
    number: int = 0  # generation of the row with these pods
    missing: tuple[ClusterPod, ...] = ()  # those that are not on the node anyway
    amounts: tuple[int, ...] = ()  # that these take
    together: tuple[ClusterPod, ...] = ()  # all pods of the node, with these


class Crowd:
    """Pods that are imagined on nodes, in one view of a snapshot after the other.

    A view with them costs little where few nodes have changed: which pods they are is made only if
    it is asked for. A row keeps its generation as long as it and its further pods stay the same.
    Belongs to one thread.
    """

    def __init__(self, pods: Mapping[str, Sequence[ClusterPod]]) -> None:
        """pods: by name of the node; of a node that is not there they are nowhere."""
        self._places: dict[str, _Place] = {}
        self._present: list[_Place] = []
        self._by_row: dict[int, _Place] = {}
        self._rows: Rows = np.zeros(0, np.intp)
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
                place = _Place(wanted)
            self._places[name] = place
        self._changed, self._last = True, None

    def rows(self, view: View) -> Rows:
        """The rows of the nodes on which further pods are imagined."""
        self._follow(view)
        return self._rows

    def pods_of(self, row: int) -> Sequence[ClusterPod]:
        """The further pods of one of these rows, in the view that was asked about last."""
        return self._by_row[row].missing

    def on(self, view: View) -> View:
        """The view with these pods on their nodes; those that are there anyway are there once."""
        if self._last is None or self._last[0] is not view:
            self._follow(view)
            self._last = view, self._made(view)
        return self._last[1]

    def _follow(self, view: View) -> None:
        if self._changed or self._layout != (view.traits, view.resources):
            self._place_all(view)
        stale = np.flatnonzero(view.generation[self._rows] != self._seen)
        for at in stale.tolist():
            self._renew(at, view)

    def _place_all(self, view: View) -> None:
        """Have the columns be those of a view with other nodes, or for other pods."""
        layout = view.traits, view.resources
        anew = self._layout != layout
        self._layout, self._changed, self._present = layout, False, []
        for name, place in self._places.items():
            row = view.row(name)
            if anew or row != place.row:
                place.seen = _NEVER
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
        place.missing = tuple(one for one in place.pods if one.key not in there)
        place.together = (*view.pods(place.row), *place.missing)
        place.amounts = amounts_of(place.missing, view.resources)
        place.number, place.seen = imagined_generation(), int(view.generation[place.row])
        self._amounts[:, at] = place.amounts
        self._numbers[at], self._seen[at] = place.number, place.seen

    def _made(self, view: View) -> View:
        placement, generation = view.placement, view.generations
        amounts = placement.amounts.added(self._rows, self._amounts)
        places = [(one.row, one.missing, one.together) for one in self._present]
        crowded = _Crowded(placement, amounts, places)
        numbers = generation.replaced(self._rows, self._numbers)
        return view.with_placement(crowded, numbers, view.altered | self._altered)


class _Crowded(FrozenPlacement):
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
        """What is not computed at once: from the placement with all pods, one by one."""
        if name.startswith("_"):
            raise AttributeError(name)
        if name == "pods":
            self.pods = self._base.pods.replaced(*self._lists())
            return self.pods
        whole = _with_pods(self._base, [(row, pods) for row, pods, _ in self._places])
        for each, value in vars(whole).items():
            self.__dict__.setdefault(each, value)
        return self.__dict__[name]

    def _lists(self) -> tuple[Rows, NDArray[Any]]:
        """The rows with further pods, and all pods of each."""
        lists = np.empty(len(self._places), object)
        for at, (*_, together) in enumerate(self._places):
            lists[at] = together
        return np.array([row for row, *_ in self._places], np.intp), lists


def _with_pods(
    base: FrozenPlacement, added: Sequence[tuple[int, Sequence[ClusterPod]]]
) -> FrozenPlacement:
    placement = Placement(base)
    for row, pods in added:
        for pod in pods:
            placement.add(row, pod)
    return placement.freeze()
