"""Nodes by what their pods request, and moves of pods between them: pure, over columns."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from koord.cluster.columns import Mask
from koord.cluster.facts import PODS, ClusterPod
from koord.cluster.hypothetical import HypotheticalCluster
from koord.cluster.view import View


class Utilization:
    """The requests of each node's pods, for some resources."""

    def __init__(self, view: View, names: Sequence[str]) -> None:
        """names: the resources; one that no node has counts as 0 everywhere."""
        self.names = tuple(names)
        columns = [view.resources.get(name) for name in names]
        shape = len(view), len(columns)
        self.requested = np.zeros(shape, np.int64)  # (nodes, names)
        self.capacity = np.zeros(shape, np.int64)  # (nodes, names), allocatable
        for at, column in enumerate(columns):
            if column is not None:
                self.requested[:, at] = view.requested[:, column]
                self.capacity[:, at] = view.allocatable[:, column]

    @cached_property
    def percent(self) -> NDArray[np.float64]:
        """Requested of capacity; 0 where there is no capacity; shape (nodes, names)."""
        return 100 * np.divide(
            self.requested,
            self.capacity,
            out=np.zeros(self.requested.shape),
            where=self.capacity > 0,
        )

    def amounts(self, percent: NDArray[np.float64]) -> NDArray[np.int64]:
        """Whole units of a percentage of the capacity, rounded down; shape (nodes, names).

        percent has shape (names,).
        """
        return np.floor(percent * self.capacity / 100).astype(np.int64)

    def row_of(self, values: Mapping[str, float], default: float) -> NDArray[np.float64]:
        """Values by resource as an array; shape (names,)."""
        return np.array([values.get(name, default) for name in self.names], np.float64)

    def of(self, pod: ClusterPod) -> NDArray[np.int64]:
        """Return the requests of one pod; shape (names,)."""
        requests = {**dict(pod.spec.requests), PODS: 1}
        return np.array([requests.get(name, 0) for name in self.names], np.int64)

    def facts(self, row: int) -> dict[str, float]:
        """Percent by resource of a node, for people."""
        shares = self.percent[row].tolist()
        return {
            f"{name}_percent": round(share, 1)
            for name, share in zip(self.names, shares, strict=True)
        }


@dataclass(frozen=True, slots=True)
class MoveSource:
    """A node that pods should leave, and those that may, in their order."""

    row: int
    pods: Sequence[ClusterPod]


@dataclass(frozen=True, slots=True)
class Move:
    """A pod of a source, and where it should go."""

    pod: ClusterPod
    target: int | None = None  # row; None: it stays
    stays: str = ""  # why: the end of a sentence about the pod


def plan_moves(
    view: View,
    use: Utilization,
    sources: Sequence[MoveSource],
    destinations: Mask,
    ceilings: NDArray[np.int64],
    *,
    wants_more: Callable[[int, NDArray[np.int64], int], bool],
    fullest_first: bool,
) -> Iterator[Move]:
    """Yield a move for each pod, to a destination that fits it with all that moved before.

    ceilings: what may be requested of a destination at most; shape (nodes, names). wants_more:
    whether a source should lose another pod, given its row, what is requested of it by now, and how
    many pods have left it.
    """
    rows = np.flatnonzero(destinations)
    order = sorted(rows.tolist(), key=lambda row: view.node(row).name)
    rows = np.array(order, np.intp)
    moves = HypotheticalCluster(view)
    used, most, capacity = use.requested[rows].copy(), ceilings[rows], use.capacity[rows]
    for source in sources:
        here, moved = use.requested[source.row].copy(), 0
        for pod in source.pods:
            if not wants_more(source.row, here, moved):
                yield Move(pod, stays="enough others leave")
                continue
            amounts = use.of(pod)
            fits = moves.fits(pod)[rows] & (used + amounts <= most).all(axis=1)
            if not fits.any():
                yield Move(pod, stays="it fits no node that could take it")
                continue
            share = np.max(used / np.maximum(capacity, 1), axis=1)
            best = np.where(fits, share if fullest_first else -share, -np.inf)
            place = int(np.argmax(best))  # the first by name of those that are equal
            moves.move(pod, int(rows[place]))
            used[place] += amounts
            here -= amounts
            moved += 1
            yield Move(pod, int(rows[place]))
