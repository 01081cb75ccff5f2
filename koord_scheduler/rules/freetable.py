"""What all nodes have free, kept from one view to the next."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from koord.cluster.columns import FrozenColumn
from koord.cluster.view import View

_FEW_ROWS = 16  # that are written one by one sooner than the whole table
_NONZERO = ("cpu", "memory")  # columns before those of the resources: see View.nonzero_requested

Floats = NDArray[np.float64]


class Known(NamedTuple):
    """A resource on all nodes, without the pod; each column is (nodes,). To be read at once."""

    allocatable: Floats
    taken: Floats
    free: Floats  # below zero where nodes are overcommitted


class FreeTable:
    """Amounts of all nodes as floats, one contiguous column for each resource.

    Follows views, of what-ifs too, each at the cost of its differences to the one before: a pod
    more on a node is one row, while the table of a view is joined anew. Belongs to one thread.
    """

    def __init__(self) -> None:
        self._seen: FrozenColumn | None = None  # generations of the rows that are in the tables
        self._resources: object = None
        self._taken = np.zeros((0, 0))
        self._free = np.zeros((0, 0))

    def of(self, nodes: View, column: int, nonzero: int | None = None) -> Known | None:
        """What is known of a resource; None: amounts of it are too large to be exact.

        nonzero: 0 of cpu, 1 of memory, requested as in View.nonzero_requested.
        """
        whole = nodes.floats(column)
        if whole is None:
            return None
        self._follow(nodes)
        at = len(_NONZERO) + column if nonzero is None else nonzero
        return Known(whole, self._taken[at], self._free[at])

    def _follow(self, nodes: View) -> None:
        generations = nodes.generations
        if generations is self._seen:
            return
        rows = generations.other_rows(self._seen)
        shape = len(_NONZERO) + len(nodes.resources), len(nodes)
        if (
            self._resources is not nodes.resources
            or self._free.shape != shape
            or len(rows) > _FEW_ROWS
        ):
            self._fill(nodes, shape)
        else:
            for row in rows:
                taken, free = nodes.amounts_of(row)
                self._taken[:, row] = taken
                self._free[:, row] = free
        self._seen, self._resources = generations, nodes.resources

    def _fill(self, nodes: View, shape: tuple[int, int]) -> None:
        self._taken, self._free = np.empty(shape), np.empty(shape)
        first = len(_NONZERO)
        self._taken[first:] = nodes.requested.T
        self._taken[:first] = nodes.nonzero_requested.T
        self._free[first:] = nodes.allocatable.T
        for which, name in enumerate(_NONZERO):
            self._free[which] = nodes.allocatable[:, nodes.resources[name]]
        self._free -= self._taken
